#include "train/search.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* What stands for "impossible": far below any sum of log-probabilities, yet such sums still order.
 */
static const float IMPOSSIBLE = -1e9f;

struct hypothesis {
    float score; /* running: sum of log-probabilities; finished: that over the length */
    int64_t length;
    int32_t *ids; /* [max_tokens] */
};

struct candidate {
    float score;
    int32_t beam, token;
};

struct sw_search {
    int64_t beams, max_tokens, vocabulary;
    int32_t eos;
    int64_t length; /* tokens of every running hypothesis */
    bool done;
    int64_t finished_count;
    struct hypothesis *running, *next, *finished; /* [beams] each; finished best first */
    struct candidate *candidates;                 /* [2 * beams], best first */
    int32_t *ids;                                 /* storage of all hypotheses */
};

sw_code sw_search_open(struct sw_search **out, int64_t beams, int64_t max_tokens,
                       int64_t vocabulary, int32_t eos, struct sw_err *err)
{
    sw_assert(beams >= 1 && beams <= SW_SEARCH_BEAMS_MAX && max_tokens >= 1);
    if (vocabulary < 2 * beams)
        return SW_FAIL(err, SW_E_USAGE, "%lld beams are too many for a vocabulary of %lld",
                       (long long)beams, (long long)vocabulary);
    struct sw_search *search = sw_calloc(1, sizeof *search);
    if (search == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a search over %lld beams",
                       (long long)beams);
    search->beams = beams;
    search->max_tokens = max_tokens;
    search->vocabulary = vocabulary;
    search->eos = eos;
    search->running = sw_calloc(3 * beams, sizeof *search->running);
    search->candidates = sw_calloc(2 * beams, sizeof *search->candidates);
    search->ids = sw_calloc(3 * beams * max_tokens, sizeof *search->ids);
    if (search->running == NULL || search->candidates == NULL || search->ids == NULL) {
        sw_search_close(search);
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a search over %lld beams of %lld tokens",
                       (long long)beams, (long long)max_tokens);
    }
    for (int64_t i = 0; i < 3 * beams; i++)
        search->running[i].ids = search->ids + i * max_tokens;
    search->next = search->running + beams;
    search->finished = search->next + beams;
    sw_search_reset(search);
    *out = search;
    return SW_OK;
}

void sw_search_close(struct sw_search *search)
{
    if (search == NULL)
        return;
    /* running and next change places; the block begins at the lower one */
    free(search->next != NULL && search->next < search->running ? search->next : search->running);
    free(search->candidates);
    free(search->ids);
    free(search);
}

void sw_search_reset(struct sw_search *search)
{
    search->length = 0;
    search->done = false;
    search->finished_count = 0;
    /* All hypotheses begin equal: only the first counts, or every beam would be the same. */
    for (int64_t i = 0; i < search->beams; i++)
        search->running[i].score = i == 0 ? 0.0f : IMPOSSIBLE;
}

bool sw_search_done(const struct sw_search *search)
{
    return search->done;
}

const int32_t *sw_search_best(const struct sw_search *search, int64_t *count)
{
    const struct hypothesis *best =
        search->finished_count > 0 ? &search->finished[0] : &search->running[0];
    *count = search->finished_count > 0 ? best->length : search->length;
    return best->ids;
}

static void advance_greedy(struct sw_search *search, const float *log_probabilities,
                           int32_t *tokens, int32_t *parents)
{
    int64_t best = 0;
    for (int64_t i = 1; i < search->vocabulary; i++)
        if (log_probabilities[i] > log_probabilities[best])
            best = i;
    tokens[0] = (int32_t)best;
    parents[0] = 0;
    search->running[0].ids[search->length++] = (int32_t)best;
    search->done = tokens[0] == search->eos || search->length == search->max_tokens;
}

/* The 2 * beams best continuations, best first; equal scores in order of beam and token. Twice as
 * many as beams, because those that end leave, and the search has to go on with `beams`. */
static void find_candidates(struct sw_search *search, const float *log_probabilities)
{
    int64_t wanted = 2 * search->beams, have = 0;
    struct candidate *list = search->candidates;
    for (int64_t beam = 0; beam < search->beams; beam++) {
        const float *row = log_probabilities + beam * search->vocabulary;
        float base = search->running[beam].score;
        for (int64_t token = 0; token < search->vocabulary; token++) {
            float score = row[token] + base;
            if (have == wanted && !(score > list[have - 1].score))
                continue;
            int64_t at = have < wanted ? have++ : have - 1;
            for (; at > 0 && score > list[at - 1].score; at--)
                list[at] = list[at - 1];
            list[at] = (struct candidate){score, (int32_t)beam, (int32_t)token};
        }
    }
}

static void write_hypothesis(const struct sw_search *search, struct hypothesis *to,
                             const struct candidate *candidate, float score)
{
    const struct hypothesis *from = &search->running[candidate->beam];
    memcpy(to->ids, from->ids, (size_t)search->length * sizeof *to->ids);
    to->ids[search->length] = candidate->token;
    to->length = search->length + 1;
    to->score = score;
}

/* Enter a finished hypothesis in its place, dropping the worst when there are `beams` already. */
static void finish(struct sw_search *search, const struct candidate *candidate)
{
    float score = candidate->score / (float)(search->length + 1);
    struct hypothesis *list = search->finished;
    bool full = search->finished_count == search->beams;
    if (full && !(score > list[search->beams - 1].score))
        return;
    int64_t at = full ? search->beams - 1 : search->finished_count++;
    write_hypothesis(search, &list[at], candidate, score);
    for (; at > 0 && list[at].score > list[at - 1].score; at--) {
        struct hypothesis swap = list[at];
        list[at] = list[at - 1];
        list[at - 1] = swap;
    }
}

/* Could the best running hypothesis, at its present length, still beat the worst finished one? */
static bool improvable(const struct sw_search *search)
{
    float best = search->running[0].score / (float)search->length;
    float worst = search->finished_count == search->beams
                      ? search->finished[search->beams - 1].score
                      : IMPOSSIBLE;
    return best > worst;
}

static void advance_beams(struct sw_search *search, const float *log_probabilities, int32_t *tokens,
                          int32_t *parents)
{
    find_candidates(search, log_probabilities);
    bool last = search->length + 1 == search->max_tokens;
    int64_t going_on = 0;
    for (int64_t i = 0; i < 2 * search->beams; i++) {
        const struct candidate *candidate = &search->candidates[i];
        bool ends = last || candidate->token == search->eos;
        if (ends && i < search->beams)
            finish(search, candidate);
        if (ends || going_on == search->beams)
            continue;
        write_hypothesis(search, &search->next[going_on], candidate, candidate->score);
        tokens[going_on] = candidate->token;
        parents[going_on] = candidate->beam;
        going_on++;
    }
    struct hypothesis *swap = search->running;
    search->running = search->next;
    search->next = swap;
    search->length++;
    search->done = last || !improvable(search);
}

void sw_search_advance(struct sw_search *search, const float *log_probabilities, int32_t *tokens,
                       int32_t *parents)
{
    if (search->done) {
        for (int64_t i = 0; i < search->beams; i++) {
            tokens[i] = search->eos;
            parents[i] = (int32_t)i;
        }
        return;
    }
    if (search->beams == 1)
        advance_greedy(search, log_probabilities, tokens, parents);
    else
        advance_beams(search, log_probabilities, tokens, parents);
}

/* Greedy and beam search over toy distributions. */
#include "tests/support.h"

#include "train/search.h"

#include <math.h>

enum { VOCABULARY = 8, EOS = 1, START = 0 };

/* log P(next token | last token): the toy model. Row sums are 1. */
static float toy(int last, int token)
{
    /* From START: 2 looks best (0.5) but leads to a flat choice; 3 (0.4) leads to a sure end. */
    static const float table[VOCABULARY][VOCABULARY] = {
        [START] = {0.02f, 0.02f, 0.5f, 0.4f, 0.02f, 0.02f, 0.01f, 0.01f},
        [2] = {0.02f, 0.2f, 0.02f, 0.02f, 0.28f, 0.26f, 0.1f, 0.1f},
        [3] = {0.01f, 0.93f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f},
        [4] = {0.01f, 0.93f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f},
        [5] = {0.01f, 0.93f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f},
        [6] = {0.01f, 0.93f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f},
        [7] = {0.3f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f},
        [EOS] = {0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f, 0.125f},
    };
    return logf(table[last][token]);
}

/* Run a search over the toy model to its end; the hypotheses are followed by parents alone. */
static void run(struct sw_search *search, int64_t beams)
{
    int32_t tokens[SW_SEARCH_BEAMS_MAX] = {START}, parents[SW_SEARCH_BEAMS_MAX];
    float log_probabilities[SW_SEARCH_BEAMS_MAX * VOCABULARY];
    for (int64_t i = 0; i < beams; i++)
        tokens[i] = START;
    for (int guard = 0; !sw_search_done(search); guard++) {
        assert_true(guard < 100);
        for (int64_t beam = 0; beam < beams; beam++)
            for (int token = 0; token < VOCABULARY; token++)
                log_probabilities[beam * VOCABULARY + token] = toy(tokens[beam], token);
        sw_search_advance(search, log_probabilities, tokens, parents);
    }
}

static void expect(int64_t beams, int64_t max_tokens, const int32_t *ids, int64_t count)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_search *search;
    assert_ok(sw_search_open(&search, beams, max_tokens, VOCABULARY, EOS, &err), &err);
    for (int repeat = 0; repeat < 2; repeat++) {
        int64_t have;
        run(search, beams);
        const int32_t *best = sw_search_best(search, &have);
        assert_int_equal(have, count);
        assert_memory_equal(best, ids, (size_t)count * sizeof *ids);
        sw_search_reset(search);
    }
    sw_search_close(search);
}

static void greedy_takes_the_likeliest_token(void **state)
{
    (void)state;
    expect(1, 8, (const int32_t[]){2, 4, EOS}, 3);
}

static void greedy_stops_at_the_limit(void **state)
{
    (void)state;
    expect(1, 2, (const int32_t[]){2, 4}, 2);
}

/* log(0.4) + log(0.93) over 2 tokens is -0.494; log(0.5 * 0.28 * 0.93) over 3 is -0.680. */
static void beams_find_the_better_sequence(void **state)
{
    (void)state;
    expect(2, 8, (const int32_t[]){3, EOS}, 2);
    expect(4, 8, (const int32_t[]){3, EOS}, 2);
}

/* With a single token allowed, the best first token is the answer, finished by the limit. */
static void beams_stop_at_the_limit(void **state)
{
    (void)state;
    expect(3, 1, (const int32_t[]){2}, 1);
}

/* Exhaustively: with as many beams as half the vocabulary, short sequences are searched fully, so
 * the answer has the highest mean log-probability among those that end within two tokens. */
static void beams_agree_with_exhaustion(void **state)
{
    (void)state;
    float best = -INFINITY;
    int32_t ids[2] = {0};
    int64_t count = 0;
    for (int32_t a = 0; a < VOCABULARY; a++) {
        if (a == EOS && toy(START, a) > best) {
            best = toy(START, a);
            ids[0] = a;
            count = 1;
        }
        for (int32_t b = 0; a != EOS && b < VOCABULARY; b++)
            if ((toy(START, a) + toy(a, b)) / 2 > best) {
                best = (toy(START, a) + toy(a, b)) / 2;
                ids[0] = a;
                ids[1] = b;
                count = 2;
            }
    }
    expect(4, 2, ids, count);
}

static void too_many_beams_are_refused(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_search *search;
    assert_refused(sw_search_open(&search, 5, 4, VOCABULARY, EOS, &err), SW_E_USAGE, "5 beams",
                   &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_likeliest_token),
        cmocka_unit_test(greedy_stops_at_the_limit),
        cmocka_unit_test(beams_find_the_better_sequence),
        cmocka_unit_test(beams_stop_at_the_limit),
        cmocka_unit_test(beams_agree_with_exhaustion),
        cmocka_unit_test(too_many_beams_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "train/generate.h"

#include "base/mem.h"
#include "train/search.h"

#include <stdlib.h>

struct sw_generator {
    struct sw_generator_config config;
    struct sw_search **searches; /* [rows] */
    int32_t *tokens, *parents;   /* [rows * beams], of the hypotheses to go on with */
    float *log_probabilities;    /* [rows * beams][vocabulary] */
};

sw_code sw_generator_open(struct sw_generator **out, const struct sw_generator_config *config,
                          struct sw_err *err)
{
    struct sw_generator *generator = sw_calloc(1, sizeof *generator);
    sw_code code = SW_OK;
    int64_t hypotheses = config->rows * config->beams, logits;
    if (generator == NULL || !sw_size_mul(hypotheses, config->vocabulary, &logits)) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to generate");
        goto out;
    }
    generator->config = *config;
    generator->searches = sw_calloc(config->rows, sizeof(struct sw_search *));
    generator->tokens = sw_calloc(hypotheses, sizeof *generator->tokens);
    generator->parents = sw_calloc(hypotheses, sizeof *generator->parents);
    generator->log_probabilities = sw_calloc(logits, sizeof *generator->log_probabilities);
    if (generator->searches == NULL || generator->tokens == NULL || generator->parents == NULL ||
        generator->log_probabilities == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for the logits of %lld hypotheses",
                       (long long)hypotheses);
        goto out;
    }
    for (int64_t row = 0; row < config->rows && code == SW_OK; row++)
        code = sw_search_open(&generator->searches[row], config->beams, config->max_tokens,
                              config->vocabulary, config->eos, err);
out:
    if (code != SW_OK) {
        sw_generator_close(generator);
        return code;
    }
    *out = generator;
    return SW_OK;
}

void sw_generator_close(struct sw_generator *generator)
{
    if (generator == NULL)
        return;
    for (int64_t row = 0; generator->searches != NULL && row < generator->config.rows; row++)
        sw_search_close(generator->searches[row]);
    free(generator->searches);
    free(generator->tokens);
    free(generator->parents);
    free(generator->log_probabilities);
    free(generator);
}

/* Give every search its log-probabilities; the hypotheses to go on with come back. True when all
 * rows are done. */
static bool advance(struct sw_generator *generator, int64_t count)
{
    int64_t beams = generator->config.beams;
    bool all_done = true;
    for (int64_t row = 0; row < count; row++) {
        int32_t *parents = generator->parents + row * beams;
        sw_search_advance(generator->searches[row],
                          generator->log_probabilities + row * beams * generator->config.vocabulary,
                          generator->tokens + row * beams, parents);
        for (int64_t beam = 0; beam < beams; beam++)
            parents[beam] += (int32_t)(row * beams);
        all_done = all_done && sw_search_done(generator->searches[row]);
    }
    return all_done;
}

sw_code sw_generator_run(struct sw_generator *generator, const struct sw_row *rows, int64_t count,
                         struct sw_err *err)
{
    const struct sw_generator_config *config = &generator->config;
    sw_assert(count >= 1 && count <= config->rows);
    for (int64_t row = 0; row < count; row++)
        sw_search_reset(generator->searches[row]);
    for (int64_t i = 0; i < count * config->beams; i++) {
        generator->tokens[i] = config->start;
        generator->parents[i] = (int32_t)i;
    }
    sw_code code = sw_engine_generate_begin(config->engine, rows, count, config->beams, err);
    for (int64_t step = 0; code == SW_OK && step < config->max_tokens; step++) {
        code = sw_engine_generate_step(config->engine, generator->tokens, generator->parents,
                                       generator->log_probabilities, err);
        if (code == SW_OK && advance(generator, count))
            break;
    }
    return code;
}

const int32_t *sw_generator_ids(const struct sw_generator *generator, int64_t row, int64_t *count)
{
    return sw_search_best(generator->searches[row], count);
}

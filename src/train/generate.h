/* Generating target tokens for source rows: the engine's encoder and decode steps, driven by a
 * search per row. */
#ifndef SPILLWAY_TRAIN_GENERATE_H
#define SPILLWAY_TRAIN_GENERATE_H

#include "exec/engine.h"

struct sw_generator;

struct sw_generator_config {
    struct sw_engine *engine; /* borrowed; planned for these rows, beams and lengths */
    int64_t rows;             /* at most this many at a time */
    int64_t beams, max_tokens, vocabulary;
    int32_t start, eos;
};

sw_code sw_generator_open(struct sw_generator **out, const struct sw_generator_config *config,
                          struct sw_err *err) SW_WARN_UNUSED;
void sw_generator_close(struct sw_generator *generator);

/* Generate for `count` rows (only their sources matter). */
sw_code sw_generator_run(struct sw_generator *generator, const struct sw_row *rows, int64_t count,
                         struct sw_err *err) SW_WARN_UNUSED;
/* Ids of row `row` of the last run, without the start token, with EOS where it was reached;
 * borrowed until the next run. */
const int32_t *sw_generator_ids(const struct sw_generator *generator, int64_t row, int64_t *count);

#endif

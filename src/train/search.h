/* Choosing the next tokens of one source row: greedy, or beam search as HuggingFace transformers
 * does it (length penalty 1, early stopping by its heuristic). Pure: log-probabilities in, tokens
 * and parents out. */
#ifndef SPILLWAY_TRAIN_SEARCH_H
#define SPILLWAY_TRAIN_SEARCH_H

#include "base/err.h"

#include <stdint.h>

enum { SW_SEARCH_BEAMS_MAX = 64 };

struct sw_search;

/* beams 1: greedy. At most `max_tokens` tokens, `eos` included when it is reached. */
sw_code sw_search_open(struct sw_search **out, int64_t beams, int64_t max_tokens,
                       int64_t vocabulary, int32_t eos, struct sw_err *err) SW_WARN_UNUSED;
void sw_search_close(struct sw_search *search);
/* Begin with another row. */
void sw_search_reset(struct sw_search *search);

/* log_probabilities [beams][vocabulary] of the token after each hypothesis. Writes the token and
 * the parent (0 .. beams-1) of the hypotheses to go on with. Does nothing once done. */
void sw_search_advance(struct sw_search *search, const float *log_probabilities, int32_t *tokens,
                       int32_t *parents);
bool sw_search_done(const struct sw_search *search);

/* The best hypothesis so far: ids without the start token; borrowed until the next call. */
const int32_t *sw_search_best(const struct sw_search *search, int64_t *count);

#endif

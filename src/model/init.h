/* Random initialisation, as transformers does T5's: normal numbers with each parameter's own mean
 * and deviation. A number is a function of (seed, parameter index, element) alone: the layout, the
 * order and the pieces in which parameters are filled do not matter. */
#ifndef SPILLWAY_MODEL_INIT_H
#define SPILLWAY_MODEL_INIT_H

#include "model/spec.h"

/* Elements [first, first + count) of parameter `param` to `out` [count]. Thread-safe. */
void sw_init_fill(const struct sw_model *model, uint64_t seed, int64_t param, int64_t first,
                  int64_t count, float *out);

#endif

/* Tokenized rows and the global batch of one step, in host memory. */
#ifndef SPILLWAY_DATA_ROW_H
#define SPILLWAY_DATA_ROW_H

#include <stdint.h>

struct sw_row {
    const int32_t *source; /* ids, EOS included; borrowed from the data set */
    const int32_t *target; /* labels, EOS included */
    int32_t source_length, target_length;
};

struct sw_batch {
    const struct sw_row *rows; /* in the order in which micro-batches take them */
    /* Number of each row within the step's global batch, what dropout is keyed by: it stays with a
     * row when rows are grouped by length. [count] */
    const int32_t *global_rows;
    int64_t count;
    int64_t target_tokens; /* sum of target_length: the loss's denominator */
};

#endif

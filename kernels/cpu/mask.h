/* From struct sw_dropout to the numbers of one row of elements (kernels/kernels.h). */
#ifndef SPILLWAY_KERNELS_CPU_MASK_H
#define SPILLWAY_KERNELS_CPU_MASK_H

#include "kernels/cpu/lanes.h"

#include <math.h>

/* u < p with u = (word >> 8) / 2^24, as a comparison of whole numbers: exact, for p 2^24 is. */
static inline struct sw_cpu_mask sw_cpu_mask(const struct sw_dropout *dropout, uint32_t position,
                                             int64_t row, uint32_t c3)
{
    struct sw_cpu_mask mask = {.on = dropout->p > 0.0f};
    if (!mask.on)
        return mask;
    mask.threshold = (uint32_t)ceilf(dropout->p * 0x1p24f);
    mask.scale = 1.0f / (1.0f - dropout->p);
    mask.key[0] = dropout->key[0];
    mask.key[1] = dropout->key[1];
    mask.c1 = position;
    mask.c2 = (uint32_t)dropout->global_rows[row];
    mask.c3 = c3;
    return mask;
}

static inline struct sw_cpu_mask sw_cpu_mask_of_token(const struct sw_dropout *dropout,
                                                      const struct sw_rows *layout, int64_t token)
{
    struct sw_cpu_mask off = {.on = false};
    if (!(dropout->p > 0.0f))
        return off;
    int32_t row = layout->row_of_token[token];
    return sw_cpu_mask(dropout, (uint32_t)(token - layout->starts[row]), row, dropout->site);
}

#endif

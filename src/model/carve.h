/* Cutting a buffer into aligned pieces. A measuring carve cuts nothing: the same code that lays out
 * a buffer then says how big it must be. */
#ifndef SPILLWAY_MODEL_CARVE_H
#define SPILLWAY_MODEL_CARVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SW_CARVE_ALIGNMENT_BYTES = 256 };

struct sw_carve {
    char *base;
    int64_t used_bytes; /* set back to what it was to give pieces back */
    int64_t high_bytes; /* the most that was ever used */
    bool measuring;     /* base is NULL, and so is every piece: run nothing */
};

static inline void *sw_carve(struct sw_carve *carve, int64_t bytes)
{
    char *piece = carve->base == NULL ? NULL : carve->base + carve->used_bytes;
    carve->used_bytes +=
        (bytes + SW_CARVE_ALIGNMENT_BYTES - 1) & ~(int64_t)(SW_CARVE_ALIGNMENT_BYTES - 1);
    if (carve->used_bytes > carve->high_bytes)
        carve->high_bytes = carve->used_bytes;
    return piece;
}

#endif

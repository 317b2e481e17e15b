/* Walking over a range of a unit, and cutting a range into tasks. Not part of the interface. */
#ifndef SPILLWAY_OPTIM_WALK_H
#define SPILLWAY_OPTIM_WALK_H

#include "optim/lanes.h"

/* Elements that one parameter, or the padding before one, has in the range. */
struct sw_run {
    const struct sw_optim_param *param; /* NULL: padding */
    int64_t first, count;               /* within the unit */
};

struct sw_walk {
    const struct sw_optim_unit *unit;
    int64_t param, at, end;
};

static inline int64_t sw_param_elements(const struct sw_optim_param *param)
{
    return param->rows * param->columns;
}

static inline int64_t sw_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t sw_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Runs of [first, first + count) in order. */
struct sw_walk sw_walk_start(const struct sw_optim_unit *unit, int64_t first, int64_t count);
bool sw_walk_next(struct sw_walk *walk, struct sw_run *run);

/* Elements a task takes of `count`, a multiple of 64: enough tasks to share out, none too short. */
int64_t sw_task_elements(const struct sw_pool *pool, int64_t count);

/* A chunk's gradient and weights, as the lanes take them, from the chunk's first element. */
struct sw_lanes_in sw_gradient_in(const void *gradient, enum sw_dtype dtype);
struct sw_lanes_weights sw_chunk_weights(const struct sw_optim_settings *settings,
                                         const struct sw_optim_chunk *chunk);

/* Steps a run of AdamW from element `first` of unit `unit` on; draws its own random words. */
void sw_adamw_lanes(const struct sw_lanes_adamw *run, uint32_t unit, int64_t first, int64_t count);

/* Aborts unless the chunk lies in the unit on multiples of `grain`. */
void sw_chunk_check(const struct sw_optim_unit *unit, int64_t first, int64_t count, int64_t grain);

#endif

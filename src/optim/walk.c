#include "optim/walk.h"

struct sw_walk sw_walk_start(const struct sw_optim_unit *unit, int64_t first, int64_t count)
{
    /* The first parameter that ends behind `first`. */
    int64_t low = 0, high = unit->param_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct sw_optim_param *param = &unit->params[middle];
        if (param->offset + sw_param_elements(param) > first)
            high = middle;
        else
            low = middle + 1;
    }
    return (struct sw_walk){.unit = unit, .param = low, .at = first, .end = first + count};
}

bool sw_walk_next(struct sw_walk *walk, struct sw_run *run)
{
    if (walk->at >= walk->end)
        return false;
    int64_t end = walk->end;
    run->param = NULL;
    run->first = walk->at;
    if (walk->param < walk->unit->param_count) {
        const struct sw_optim_param *param = &walk->unit->params[walk->param];
        if (param->offset > walk->at) {
            end = sw_min(end, param->offset);
        } else {
            run->param = param;
            end = sw_min(end, param->offset + sw_param_elements(param));
            walk->param++;
        }
    }
    run->count = end - walk->at;
    walk->at = end;
    return true;
}

int64_t sw_task_elements(const struct sw_pool *pool, int64_t count)
{
    enum { LEAST = 8192, MOST = 131072, GROUP = 64 };
    int64_t share = count / (sw_pool_workers(pool) * 4);
    share = (share + GROUP - 1) / GROUP * GROUP;
    return sw_min(sw_max(share, LEAST), MOST);
}

struct sw_lanes_in sw_gradient_in(const void *gradient, enum sw_dtype dtype)
{
    sw_assert(dtype == SW_F32 || dtype == SW_BF16);
    if (dtype == SW_F32)
        return (struct sw_lanes_in){.f32 = gradient};
    return (struct sw_lanes_in){.high = gradient};
}

struct sw_lanes_weights sw_chunk_weights(const struct sw_optim_settings *settings,
                                         const struct sw_optim_chunk *chunk)
{
    struct sw_lanes_weights weights = {0};
    if (settings->master == SW_MASTER_FP32) {
        weights.f32 = chunk->master;
    } else {
        weights.high = chunk->high;
        weights.low = chunk->low;
    }
    if (chunk->weights != NULL && chunk->weights_dtype == SW_F32)
        weights.out_f32 = chunk->weights;
    else if (chunk->weights != NULL)
        weights.out_bf16 = chunk->weights;
    return weights;
}

void sw_chunk_check(const struct sw_optim_unit *unit, int64_t first, int64_t count, int64_t grain)
{
    sw_assert(first >= 0 && count >= 0 && first % grain == 0);
    sw_assert(count <= unit->elements - first);
    sw_assert(count % grain == 0 || first + count == unit->elements);
}

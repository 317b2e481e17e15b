/* Steps and norms of what lies on a device: a unit's chunk cut into runs, a kernel each. */
#include "optim/walk.h"

static void *at(void *base, int64_t elements, enum sw_dtype dtype)
{
    return base == NULL ? NULL : (char *)base + elements * sw_dtype_bytes(dtype);
}

/* The chunk's weights from its element `offset` on. */
static struct sw_run_weights weights_at(const struct sw_optim_settings *settings,
                                        const struct sw_optim_chunk *chunk, int64_t offset)
{
    struct sw_run_weights weights = {
        .copy = at(chunk->weights, offset, chunk->weights_dtype),
        .copy_dtype = chunk->weights_dtype,
    };
    if (settings->master == SW_MASTER_FP32) {
        weights.master = chunk->master + offset;
    } else {
        weights.high = chunk->high + offset;
        weights.low = chunk->low + offset;
    }
    return weights;
}

void sw_adamw_step_on(struct sw_stream *stream, const struct sw_device_ops *ops,
                      const struct sw_optim_settings *settings,
                      const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                      const struct sw_optim_chunk *chunk)
{
    struct sw_walk walk = sw_walk_start(unit, chunk->first, chunk->count);
    struct sw_run part;
    struct sw_adamw_run run = {
        .unit = (uint32_t)unit->index,
        .gradient_dtype = chunk->gradient_dtype,
        .moments_dtype = settings->moments,
    };
    sw_assert(settings->name == SW_OPTIM_ADAMW);
    sw_chunk_check(unit, chunk->first, chunk->count, 64);
    sw_adamw_scalars(settings, update, &run.scalars);
    while (sw_walk_next(&walk, &part)) {
        int64_t offset = part.first - chunk->first;
        run.weights = weights_at(settings, chunk, offset);
        if (part.param == NULL || !part.param->trainable) {
            if (run.weights.copy != NULL)
                ops->kernels->weights_copy(stream, &run.weights, part.count);
            continue;
        }
        run.keep = part.param->decays ? run.scalars.keep : 1.0F;
        run.first = part.first;
        run.count = part.count;
        run.gradient =
            (const char *)chunk->gradient + offset * sw_dtype_bytes(chunk->gradient_dtype);
        run.exp_avg = at(chunk->exp_avg, offset, settings->moments);
        run.exp_avg_sq = at(chunk->exp_avg_sq, offset, settings->moments);
        ops->kernels->adamw(stream, &run);
    }
}

void sw_norm_partials_on(struct sw_stream *stream, const struct sw_device_ops *ops,
                         const struct sw_optim_unit *unit, const void *gradient,
                         enum sw_dtype dtype, int64_t first, int64_t count, double *partials)
{
    struct sw_walk walk = sw_walk_start(unit, first, count);
    struct sw_run part;
    sw_chunk_check(unit, first, count, SW_OPTIM_BLOCK);
    ops->zero(stream, partials, sw_norm_partial_count(count) * (int64_t)sizeof *partials);
    while (sw_walk_next(&walk, &part))
        if (part.param != NULL && part.param->trainable)
            ops->kernels->square_sums(
                stream, partials + (part.first / SW_OPTIM_BLOCK - first / SW_OPTIM_BLOCK),
                (const char *)gradient + (part.first - first) * sw_dtype_bytes(dtype), dtype,
                part.first, part.count);
}

/* Ops of the optimizer: norm partials, the norm, steps. */
#include "exec/internal.h"

#include "base/mem.h"

#include <math.h>

char *sw_engine_part_outside(const struct sw_engine *engine, const struct sw_op *op,
                             enum sw_part part)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    const struct sw_place *place = &unit->parts[part];
    uint32_t moving = unit->flow.read_parts | unit->flow.write_parts;
    bool buffered = op->buffer >= 0 && (moving >> part & 1) != 0;
    if (place->tier == SW_TIER_AUTO)
        return NULL;
    if (buffered)
        return sw_store_state_buffer(&engine->store, op->buffer, part);
    return sw_store_part(&engine->store, op->rank, op->unit, part, op->first);
}

/* Where elements [op->first, …) of a part are for the optimizer. */
static char *part_at(const struct sw_engine *engine, const struct sw_op *op, enum sw_part part)
{
    const struct sw_unit_flow *flow = &engine->store.units[op->unit].flow;
    if (op->stepping >= 0 && ((flow->up_parts | flow->down_parts) >> part & 1) != 0)
        return sw_store_stepping_buffer(&engine->store, op->rank, op->stepping, part);
    return sw_engine_part_outside(engine, op, part);
}

static const void *gradient_at(const struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    if (op->buffer >= 0 && unit->flow.gradient_down)
        return sw_store_state_buffer(&engine->store, op->buffer, SW_PART_GRADIENT);
    if (sw_engine_early(engine))
        return sw_store_complete_gradient(&engine->store, op->rank, op->unit, op->gradient,
                                          op->first);
    return part_at(engine, op, SW_PART_GRADIENT);
}

/* The weights that blocks read, when the step makes them apart from the master. */
static void *weights_at(const struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    if (unit->weights_part != SW_PART_WEIGHTS || unit->flow.weights_whole)
        return NULL;
    if (unit->flow.weights_up)
        return sw_store_state_buffer(&engine->store, op->buffer, SW_PART_WEIGHTS);
    return part_at(engine, op, SW_PART_WEIGHTS);
}

static double *partials_of(const struct sw_engine *engine, const struct sw_op *op)
{
    return engine->partials + engine->partial_start[op->unit] + op->first / SW_OPTIM_BLOCK;
}

/* Is what the op works on in the memory of a device that the host does not reach? */
static bool is_remote(const struct sw_engine *engine, const struct sw_op *op, bool in_host)
{
    return engine->plan->request.device_is_remote && op->buffer < 0 && !in_host;
}

static sw_code partials_on_device(struct sw_engine *engine, const struct sw_op *op,
                                  const void *gradient, enum sw_dtype dtype, struct sw_err *err)
{
    struct sw_stream *stream = sw_engine_stream(engine, op);
    double *partials = sw_engine_rank_of(engine, op)->partials;
    sw_norm_partials_on(stream, engine->device_ops, &engine->plan->optim_units[op->unit], gradient,
                        dtype, op->first, op->count, partials);
    engine->device_ops->copy(stream, partials_of(engine, op), partials,
                             sw_norm_partial_count(op->count) * (int64_t)sizeof(double));
    return engine->device_ops->stream_sync(stream, err);
}

sw_code sw_engine_partials(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    const struct sw_place *held = &unit->parts[SW_PART_GRADIENT];
    enum sw_dtype dtype = sw_plan_part_dtype(engine->plan, SW_PART_GRADIENT);
    const void *gradient;
    if (op->to_window)
        gradient = sw_store_state_buffer(&engine->store, op->buffer, SW_PART_GRADIENT);
    else if (op->buffer >= 0)
        gradient =
            engine->store.spill_buffers +
            op->buffer * sw_align_up(engine->plan->spill_buffer_bytes, SW_AIO_ALIGNMENT_BYTES);
    else if (held->tier == SW_TIER_AUTO)
        gradient =
            sw_store_complete_gradient(&engine->store, op->rank, op->unit, op->gradient, op->first);
    else
        gradient = sw_store_part(&engine->store, op->rank, op->unit, SW_PART_GRADIENT, op->first);
    if (is_remote(engine, op, held->tier == SW_TIER_HOST)) {
        sw_code code = partials_on_device(engine, op, gradient, dtype, err);
        if (code != SW_OK)
            return code;
    } else {
        sw_norm_partials(engine->config.pool, &engine->plan->optim_units[op->unit], gradient, dtype,
                         op->first, op->count, partials_of(engine, op));
    }
    if (!sw_engine_early(engine) ||
        isfinite(sw_norm_sum(partials_of(engine, op), sw_norm_partial_count(op->count))))
        return SW_OK;
    return SW_FAIL(
        err, SW_E_NONFINITE,
        "the gradient of %s is not finite, and with optimizer.early_step units behind it "
        "have been stepped already: the run cannot go on",
        engine->model->units[op->unit].name);
}

void sw_engine_norm(struct sw_engine *engine)
{
    double sum = 0.0;
    for (int64_t i = 0; i < engine->model->unit_count; i++)
        if (engine->model->units[i].trainable)
            sum += sw_norm_sum(engine->partials + engine->partial_start[i],
                               sw_norm_partial_count(engine->model->units[i].elements));
    sw_norm_finish(engine->config.optim, sum, &engine->norm);
}

/* Where every replica steps all of a unit, each has its own. */
static float *factors_of(const struct sw_engine *engine, const struct sw_op *op)
{
    float **factors = engine->store.units[op->unit].factors;
    if (factors == NULL)
        return NULL;
    return factors[sw_plan_factor_sets(engine->plan, op->unit) > 1
                       ? sw_engine_rank_of(engine, op)->replica
                       : 0];
}

static void step_adafactor(struct sw_engine *engine, const struct sw_op *op,
                           const struct sw_optim_chunk *chunk)
{
    const struct sw_optim_unit *unit = &engine->plan->optim_units[op->unit];
    const struct sw_adafactor adafactor = {
        .settings = engine->config.optim,
        .update = &engine->update,
        .unit = unit,
        .state = factors_of(engine, op),
        .scratch = engine->store.factor_scratch,
    };
    enum sw_adafactor_phase phase = (enum sw_adafactor_phase)op->phase;
    if (op->first == 0 && op->phase == 0)
        sw_adafactor_begin(&adafactor);
    sw_adafactor_visit(engine->config.pool, &adafactor, phase, chunk);
    if (op->first + op->count == unit->elements)
        sw_adafactor_finish(engine->config.pool, &adafactor, phase);
}

void sw_engine_step_op(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_unit_state *unit = &engine->store.units[op->unit];
    const struct sw_optim_settings *optim = engine->config.optim;
    const struct sw_optim_chunk chunk = {
        .first = op->first,
        .count = op->count,
        .gradient = gradient_at(engine, op),
        .gradient_dtype = sw_plan_part_dtype(engine->plan, SW_PART_GRADIENT),
        .master = (float *)(void *)part_at(engine, op, SW_PART_MASTER),
        .high = (uint16_t *)(void *)part_at(engine, op, SW_PART_HIGH),
        .low = (uint16_t *)(void *)part_at(engine, op, SW_PART_LOW),
        .exp_avg = part_at(engine, op, SW_PART_EXP_AVG),
        .exp_avg_sq = part_at(engine, op, SW_PART_EXP_AVG_SQ),
        .weights = weights_at(engine, op),
        .weights_dtype = engine->plan->request.compute,
    };
    if (op->first == 0 && op->phase <= 0 && sw_engine_rank_of(engine, op)->replica == 0)
        unit->version++;
    if (op->stepping >= 0 ||
        is_remote(engine, op, engine->plan->homes[op->unit].states != SW_TIER_DEVICE)) {
        struct sw_stream *stream = sw_engine_stream(engine, op);
        sw_adamw_step_on(stream, engine->device_ops, optim, &engine->update,
                         &engine->plan->optim_units[op->unit], &chunk);
        return;
    }
    if (op->phase < 0)
        sw_optim_step_unit(engine->config.pool, optim, &engine->update,
                           &engine->plan->optim_units[op->unit], &chunk, factors_of(engine, op),
                           engine->store.factor_scratch);
    else if (optim->name == SW_OPTIM_ADAMW)
        sw_adamw_step(engine->config.pool, optim, &engine->update,
                      &engine->plan->optim_units[op->unit], &chunk);
    else
        step_adafactor(engine, op, &chunk);
}

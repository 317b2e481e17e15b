/* Weights, states and gradients, from and to outside. */
#include "exec/internal.h"

#include "base/mem.h"

#include <string.h>

struct sw_optim_param sw_engine_optim_param(const struct sw_param *param)
{
    return sw_plan_optim_param(param);
}

static void check_range(const struct sw_engine *engine, int64_t param, int64_t first, int64_t count)
{
    sw_assert(param >= 0 && param < engine->model->param_count);
    sw_assert(first >= 0 && count >= 0 && first + count <= engine->model->params[param].elements);
}

sw_code sw_engine_write_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                              const float *values, struct sw_err *err)
{
    const struct sw_param *p = &engine->model->params[param];
    check_range(engine, param, first, count);
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = sw_store_put_master(&engine->store, p->unit, p->offset + first, count, values, err);
    return code != SW_OK ? sw_err_while(err, "writing %s", p->name) : SW_OK;
}

sw_code sw_engine_read_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                             float *values, struct sw_err *err)
{
    const struct sw_param *p = &engine->model->params[param];
    check_range(engine, param, first, count);
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = sw_store_get_master(&engine->store, p->unit, p->offset + first, count, values, err);
    return code != SW_OK ? sw_err_while(err, "reading %s", p->name) : SW_OK;
}

/* Where a state lies: in sets of factors in host memory, or in an array of the store. */
struct state_place {
    enum sw_part part;
    int64_t first, sets;
    float **factors; /* NULL: an array */
};

static struct state_place state_at(struct sw_engine *engine, int64_t param, int state,
                                   int64_t first, int64_t count)
{
    const struct sw_param *p = &engine->model->params[param];
    struct sw_optim_state described;
    sw_optim_state_describe(engine->config.optim, &engine->plan->optim_units[p->unit],
                            param - engine->model->units[p->unit].first_param, state, &described);
    sw_assert(first >= 0 && count >= 0 && first + count <= described.elements);
    return (struct state_place){
        .part = (enum sw_part)((int)SW_PART_EXP_AVG + described.array),
        .first = described.offset + first,
        .sets = sw_plan_factor_sets(engine->plan, p->unit),
        .factors = engine->store.units[p->unit].factors,
    };
}

sw_code sw_engine_write_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                              int64_t count, const void *values, struct sw_err *err)
{
    const struct sw_param *p = &engine->model->params[param];
    const struct state_place at = state_at(engine, param, state, first, count);
    sw_code code = sw_engine_drain(engine, err);
    for (int64_t i = 0; at.factors != NULL && i < at.sets && code == SW_OK; i++)
        memcpy(at.factors[i] + at.first, values, (size_t)count * sizeof(float));
    if (code == SW_OK && at.factors == NULL)
        code = sw_store_put(&engine->store, p->unit, at.part, at.first, count, values, err);
    return code != SW_OK ? sw_err_while(err, "writing a state of %s", p->name) : SW_OK;
}

sw_code sw_engine_read_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                             int64_t count, void *values, struct sw_err *err)
{
    const struct sw_param *p = &engine->model->params[param];
    const struct state_place at = state_at(engine, param, state, first, count);
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK && at.factors != NULL)
        memcpy(values, at.factors[0] + at.first, (size_t)count * sizeof(float));
    else if (code == SW_OK)
        code = sw_store_get(&engine->store, p->unit, at.part, at.first, count, values, err);
    return code != SW_OK ? sw_err_while(err, "reading a state of %s", p->name) : SW_OK;
}

sw_code sw_engine_read_gradient(struct sw_engine *engine, int64_t param, int64_t first,
                                int64_t count, float *values, struct sw_err *err)
{
    const struct sw_param *p = &engine->model->params[param];
    const struct sw_place *held = &engine->store.units[p->unit].parts[SW_PART_GRADIENT];
    check_range(engine, param, first, count);
    if (!engine->held || held->tier == SW_TIER_AUTO)
        return SW_FAIL(err, SW_E_FAILED, "no gradient of %s is held", p->name);
    if (held->dtype == SW_F32)
        return sw_store_get(&engine->store, p->unit, SW_PART_GRADIENT, p->offset + first, count,
                            values, err);
    /* bf16 into the upper half of the floats' memory, then spread from the front. */
    uint16_t *halves = (uint16_t *)(void *)values + count;
    sw_code code = sw_store_get(&engine->store, p->unit, SW_PART_GRADIENT, p->offset + first, count,
                                halves, err);
    for (int64_t i = 0; code == SW_OK && i < count; i++) {
        float value = sw_bf16_to_float(halves[i]);
        memcpy(values + i, &value, sizeof value);
    }
    return code;
}

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

/* Where a state lies: factors in host memory, or an array of the store. */
struct state_place {
    struct sw_place place;
    int64_t first;
};

static struct state_place state_at(struct sw_engine *engine, int64_t param, int state,
                                   int64_t first, int64_t count)
{
    const struct sw_param *p = &engine->model->params[param];
    const struct sw_unit_state *unit = &engine->store.units[p->unit];
    struct sw_optim_state described;
    sw_optim_state_describe(engine->config.optim, &engine->plan->optim_units[p->unit],
                            param - engine->model->units[p->unit].first_param, state, &described);
    sw_assert(first >= 0 && count >= 0 && first + count <= described.elements);
    struct state_place out = {.first = described.offset + first};
    if (unit->factors == NULL) {
        out.place = unit->parts[SW_PART_EXP_AVG + described.array];
        return out;
    }
    out.place = (struct sw_place){
        .tier = SW_TIER_HOST,
        .dtype = SW_F32,
        .bytes = sw_adafactor_state_elements(&engine->plan->optim_units[p->unit]) * 4,
        .memory = (char *)unit->factors,
    };
    return out;
}

sw_code sw_engine_write_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                              int64_t count, const void *values, struct sw_err *err)
{
    const struct state_place at = state_at(engine, param, state, first, count);
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = sw_store_put(&engine->store, &at.place, at.first, count, values, err);
    if (code != SW_OK)
        return sw_err_while(err, "writing a state of %s", engine->model->params[param].name);
    return SW_OK;
}

sw_code sw_engine_read_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                             int64_t count, void *values, struct sw_err *err)
{
    const struct state_place at = state_at(engine, param, state, first, count);
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = sw_store_get(&engine->store, &at.place, at.first, count, values, err);
    if (code != SW_OK)
        return sw_err_while(err, "reading a state of %s", engine->model->params[param].name);
    return SW_OK;
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
        return sw_store_get(&engine->store, held, p->offset + first, count, values, err);
    /* bf16 into the upper half of the floats' memory, then spread from the front. */
    uint16_t *halves = (uint16_t *)(void *)values + count;
    sw_code code = sw_store_get(&engine->store, held, p->offset + first, count, halves, err);
    for (int64_t i = 0; code == SW_OK && i < count; i++) {
        float value = sw_bf16_to_float(halves[i]);
        memcpy(values + i, &value, sizeof value);
    }
    return code;
}

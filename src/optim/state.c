#include "optim/adafactor.h"
#include "optim/walk.h"

int sw_optim_state_count(const struct sw_optim_settings *settings,
                         const struct sw_optim_param *param)
{
    if (!param->trainable)
        return 0;
    return settings->name == SW_OPTIM_ADAMW || param->factored ? 2 : 1;
}

int64_t sw_optim_parallel_state_bytes(const struct sw_optim_settings *settings)
{
    return settings->name == SW_OPTIM_ADAMW ? 2 * sw_dtype_bytes(settings->moments) : 0;
}

static void describe_adamw(const struct sw_optim_settings *settings,
                           const struct sw_optim_param *param, int state,
                           struct sw_optim_state *out)
{
    *out = (struct sw_optim_state){
        .name = state == 0 ? "exp_avg" : "exp_avg_sq",
        .dtype = settings->moments,
        .dims = param->factored ? 2 : 1,
        .shape = {param->factored ? param->rows : sw_param_elements(param),
                  param->factored ? param->columns : 1},
        .elements = sw_param_elements(param),
        .array = state,
        .offset = param->offset,
    };
}

static void describe_adafactor(const struct sw_optim_unit *unit, int64_t index, int state,
                               struct sw_optim_state *out)
{
    const struct sw_optim_param *param = &unit->params[index];
    int64_t first = sw_adafactor_state_offset(unit, index);
    int64_t elements = param->columns;
    const char *name = "exp_avg_sq";
    if (param->factored) {
        name = state == 0 ? "exp_avg_sq_row" : "exp_avg_sq_col";
        elements = state == 0 ? param->rows : param->columns;
        first += state == 0 ? 0 : sw_adafactor_padded(param->rows);
    }
    *out = (struct sw_optim_state){
        .name = name,
        .dtype = SW_F32,
        .dims = 1,
        .shape = {elements, 1},
        .elements = elements,
        .array = 0,
        .offset = first,
    };
}

void sw_optim_state_describe(const struct sw_optim_settings *settings,
                             const struct sw_optim_unit *unit, int64_t param, int state,
                             struct sw_optim_state *out)
{
    sw_assert(param >= 0 && param < unit->param_count);
    sw_assert(state >= 0 && state < sw_optim_state_count(settings, &unit->params[param]));
    if (settings->name == SW_OPTIM_ADAMW)
        describe_adamw(settings, &unit->params[param], state, out);
    else
        describe_adafactor(unit, param, state, out);
}

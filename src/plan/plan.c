#include "plan/search.h"

#include "plan/agenda.h"

#include "base/mem.h"

#include <stdlib.h>

const char *sw_tier_name(enum sw_tier tier)
{
    static const char *const names[SW_TIERS] = {"auto", "device", "host", "nvme"};
    return names[tier];
}

const char *sw_schedule_name(enum sw_schedule schedule)
{
    static const char *const names[] = {"auto", "layered", "1f1b", "gpipe"};
    return names[schedule];
}

struct sw_optim_param sw_plan_optim_param(const struct sw_param *param)
{
    return (struct sw_optim_param){
        .offset = param->offset,
        .rows = param->dims == 2 ? param->shape[0] : 1,
        .columns = param->dims == 2 ? param->shape[1] : param->shape[0],
        .factored = param->dims == 2,
        .decays = param->decays,
        .trainable = param->trainable,
    };
}

/* The optimizer's description of every unit. */
static void describe_units(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t i = 0; i < model->param_count; i++)
        plan->optim_params[i] = sw_plan_optim_param(&model->params[i]);
    for (int64_t i = 0; i < model->unit_count; i++)
        plan->optim_units[i] = (struct sw_optim_unit){
            .params = plan->optim_params + model->units[i].first_param,
            .param_count = model->units[i].param_count,
            .elements = model->units[i].elements,
            .index = i,
        };
}

static sw_code alloc_tables(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_model *model = plan->request.model;
    plan->stages = plan->request.pipeline > 0 ? plan->request.pipeline : 1;
    plan->replicas = plan->request.data > 0 ? plan->request.data : 1;
    if (plan->request.purpose == SW_FOR_GENERATION) /* on one rank */
        plan->stages = plan->replicas = 1;
    plan->ranks = plan->stages * plan->replicas;
    plan->schedule =
        plan->request.schedule == SW_SCHEDULE_AUTO ? SW_SCHEDULE_LAYERED : plan->request.schedule;
    plan->block_stage = sw_calloc(model->block_count, sizeof *plan->block_stage);
    plan->unit_stage = sw_calloc(model->unit_count, sizeof *plan->unit_stage);
    plan->stage = sw_calloc(plan->stages, sizeof *plan->stage);
    bool had = plan->block_stage != NULL && plan->unit_stage != NULL && plan->stage != NULL;
    for (int32_t s = 0; had && s < plan->stages; s++) {
        plan->stage[s].keeps = sw_calloc(model->block_count, sizeof(bool));
        had = plan->stage[s].keeps != NULL;
    }
    plan->sizes = sw_calloc(model->block_count, sizeof *plan->sizes);
    plan->homes = sw_calloc(model->unit_count, sizeof *plan->homes);
    plan->optim_params = sw_calloc(model->param_count, sizeof *plan->optim_params);
    plan->optim_units = sw_calloc(model->unit_count, sizeof *plan->optim_units);
    if (!had || plan->sizes == NULL || plan->homes == NULL || plan->optim_params == NULL ||
        plan->optim_units == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    describe_units(plan);
    return SW_OK;
}

/* Are the rates known that the plan's lanes go by? */
static bool can_predict(const struct sw_plan *plan)
{
    const struct sw_plan_rates *rates = &plan->request.rates;
    bool spills = plan->total_bytes[SW_TIER_NVME] > 0;
    return rates->gemm_flops > 0 && (rates->optimizer_bytes > 0 || rates->host_bytes > 0) &&
           (!spills || (rates->nvme_read_bytes > 0 && rates->nvme_write_bytes > 0));
}

static sw_code predict(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t i = 0; i < model->block_count; i++)
        plan->step_flops += (double)(plan->microbatches * plan->replicas) *
                            (plan->sizes[i].forward_flops * (plan->recompute ? 2 : 1) +
                             plan->sizes[i].backward_flops);
    plan->has_prediction = can_predict(plan);
    return plan->has_prediction ? sw_plan_predict(plan, &plan->predicted, err) : SW_OK;
}

sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err)
{
    struct sw_plan *plan = sw_calloc(1, sizeof *plan);
    if (plan == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    plan->request = *request;
    sw_code code = alloc_tables(plan, err);
    if (code == SW_OK)
        code = sw_plan_place(plan, err);
    if (code == SW_OK)
        code = sw_plan_build_programs(plan, err);
    if (code == SW_OK)
        code = predict(plan, err);
    if (code != SW_OK) {
        sw_plan_free(plan);
        return code;
    }
    *out = plan;
    return SW_OK;
}

void sw_plan_drop_programs(struct sw_plan *plan)
{
    struct sw_program **programs[] = {&plan->step, &plan->drain, &plan->evaluation, &plan->begin,
                                      &plan->decode};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        sw_program_free(*programs[i]);
        *programs[i] = NULL;
    }
}

void sw_plan_free(struct sw_plan *plan)
{
    if (plan == NULL)
        return;
    sw_plan_drop_programs(plan);
    sw_plan_free_agendas(plan);
    for (int32_t s = 0; plan->stage != NULL && s < plan->stages; s++)
        free(plan->stage[s].keeps);
    free(plan->stage);
    free(plan->block_stage);
    free(plan->unit_stage);
    free(plan->sizes);
    free(plan->homes);
    free(plan->optim_params);
    free(plan->optim_units);
    free(plan);
}

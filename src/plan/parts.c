/* Which arrays a unit has, where they are, and the way they go when it is stepped. */
#include "plan/plan.h"

static bool trains(const struct sw_plan *plan, int64_t unit)
{
    return plan->request.purpose == SW_FOR_TRAINING && plan->request.model->units[unit].trainable;
}

static bool early(const struct sw_plan *plan)
{
    return plan->request.optim != NULL && plan->request.optim->early_step;
}

/* ---- ranges ---- */

/* Arrays at home on the device are cut from some stage of ZeRO on. */
static bool shards(const struct sw_plan *plan, int64_t unit, enum sw_tier home, int from)
{
    return plan->replicas > 1 && home == SW_TIER_DEVICE && plan->request.zero >= from &&
           unit != plan->request.model->common_unit;
}

bool sw_plan_is_sharded(const struct sw_plan *plan, int64_t unit, enum sw_part part)
{
    enum sw_tier home = sw_plan_part_tier(plan, unit, part);
    switch (part) {
    case SW_PART_WEIGHTS:
        return shards(plan, unit, home, 3);
    case SW_PART_GRADIENT:
        return shards(plan, unit, home, 2);
    default:
        return shards(plan, unit, home, 1);
    }
}

struct sw_range sw_plan_range(const struct sw_plan *plan, int64_t unit, int32_t replica)
{
    int64_t elements = plan->request.model->units[unit].elements;
    int64_t blocks = (elements + SW_OPTIM_BLOCK - 1) / SW_OPTIM_BLOCK;
    if (unit == plan->request.model->common_unit)
        return (struct sw_range){0, replica == 0 ? elements : 0};
    int64_t first = blocks * replica / plan->replicas * SW_OPTIM_BLOCK;
    int64_t end = blocks * (replica + 1) / plan->replicas * SW_OPTIM_BLOCK;
    if (end > elements)
        end = elements;
    return (struct sw_range){first, end > first ? end - first : 0};
}

struct sw_range sw_plan_part_range(const struct sw_plan *plan, int64_t unit, enum sw_part part,
                                   int32_t replica)
{
    if (sw_plan_is_sharded(plan, unit, part))
        return sw_plan_range(plan, unit, replica);
    return (struct sw_range){0, plan->request.model->units[unit].elements};
}

bool sw_plan_stage_has(const struct sw_plan *plan, int32_t stage, int64_t unit)
{
    return unit == plan->request.model->common_unit || plan->unit_stage[unit] == stage;
}

bool sw_plan_is_slotted(const struct sw_plan *plan, int64_t unit)
{
    return plan->homes[unit].weights != SW_TIER_DEVICE || shards(plan, unit, SW_TIER_DEVICE, 3);
}

bool sw_plan_uploads_ranges(const struct sw_plan *plan, int64_t unit)
{
    return plan->uploads_ranges && plan->replicas > 1 &&
           plan->homes[unit].weights != SW_TIER_DEVICE;
}

bool sw_plan_steps_everywhere(const struct sw_plan *plan, int64_t unit)
{
    return plan->homes[unit].states == SW_TIER_DEVICE && !shards(plan, unit, SW_TIER_DEVICE, 1);
}

/* ---- parts ---- */

enum sw_part sw_plan_weights_part(const struct sw_plan *plan, int64_t unit)
{
    const struct sw_plan_request *request = &plan->request;
    if (request->purpose != SW_FOR_TRAINING ||
        plan->homes[unit].weights != plan->homes[unit].states)
        return SW_PART_WEIGHTS;
    if (shards(plan, unit, plan->homes[unit].weights, 3) !=
        shards(plan, unit, plan->homes[unit].states, 1))
        return SW_PART_WEIGHTS;
    if (request->compute == SW_F32 && request->optim->master == SW_MASTER_FP32)
        return SW_PART_MASTER;
    if (request->compute == SW_BF16 && request->optim->master == SW_MASTER_SPLIT)
        return SW_PART_HIGH;
    return SW_PART_WEIGHTS;
}

enum sw_tier sw_plan_part_tier(const struct sw_plan *plan, int64_t unit, enum sw_part part)
{
    const struct sw_unit_homes *homes = &plan->homes[unit];
    bool training = plan->request.purpose == SW_FOR_TRAINING;
    bool split = training && plan->request.optim->master == SW_MASTER_SPLIT;
    switch (part) {
    case SW_PART_WEIGHTS:
        return sw_plan_weights_part(plan, unit) == part ? homes->weights : SW_TIER_AUTO;
    case SW_PART_MASTER:
        return training && !split ? homes->states : SW_TIER_AUTO;
    case SW_PART_HIGH:
    case SW_PART_LOW:
        return split ? homes->states : SW_TIER_AUTO;
    case SW_PART_EXP_AVG:
    case SW_PART_EXP_AVG_SQ:
        return trains(plan, unit) && plan->request.optim->name == SW_OPTIM_ADAMW ? homes->states
                                                                                 : SW_TIER_AUTO;
    case SW_PART_GRADIENT:
        return trains(plan, unit) && !early(plan) ? homes->gradient : SW_TIER_AUTO;
    case SW_PARTS:
        break;
    }
    return SW_TIER_AUTO;
}

enum sw_dtype sw_plan_part_dtype(const struct sw_plan *plan, enum sw_part part)
{
    switch (part) {
    case SW_PART_WEIGHTS:
        return plan->request.compute;
    case SW_PART_HIGH:
    case SW_PART_LOW:
        return SW_BF16;
    case SW_PART_EXP_AVG:
    case SW_PART_EXP_AVG_SQ:
        return plan->request.optim->moments;
    case SW_PART_GRADIENT:
        return early(plan) ? SW_F32 : plan->request.optim->grads;
    case SW_PART_MASTER:
    case SW_PARTS:
        break;
    }
    return SW_F32;
}

enum sw_pool_kind sw_plan_pool(const struct sw_plan *plan, int64_t unit)
{
    const struct sw_model *model = plan->request.model;
    return unit == model->embedding_unit || unit == model->head_unit ? SW_POOL_TABLES
                                                                     : SW_POOL_BLOCKS;
}

bool sw_plan_gradient_stays(const struct sw_plan *plan, int64_t unit)
{
    return sw_plan_part_tier(plan, unit, SW_PART_GRADIENT) == SW_TIER_DEVICE &&
           plan->request.optim->grads == SW_F32 &&
           (sw_plan_gradient_sums(plan, unit) || !sw_plan_is_sharded(plan, unit, SW_PART_GRADIENT));
}

bool sw_plan_gradient_sums(const struct sw_plan *plan, int64_t unit)
{
    return trains(plan, unit) && plan->schedule != SW_SCHEDULE_LAYERED &&
           sw_plan_pool(plan, unit) == SW_POOL_BLOCKS && shards(plan, unit, SW_TIER_DEVICE, 2);
}

bool sw_plan_gradient_slotted(const struct sw_plan *plan, int64_t unit)
{
    return trains(plan, unit) && unit != plan->request.model->common_unit &&
           (sw_plan_gradient_sums(plan, unit) || !sw_plan_gradient_stays(plan, unit));
}

/* Parts that a step reads and writes, beside gradient and weights. */
static uint32_t state_parts(const struct sw_plan *plan)
{
    uint32_t parts = plan->request.optim->master == SW_MASTER_SPLIT
                         ? 1U << SW_PART_HIGH | 1U << SW_PART_LOW
                         : 1U << SW_PART_MASTER;
    if (plan->request.optim->name == SW_OPTIM_ADAMW)
        parts |= 1U << SW_PART_EXP_AVG | 1U << SW_PART_EXP_AVG_SQ;
    return parts;
}

/* Is there a host array, stepped in place, with just the weights that the device wants? */
static bool host_has_weights(const struct sw_plan *plan)
{
    bool split = plan->request.optim->master == SW_MASTER_SPLIT;
    return split ? plan->request.compute == SW_BF16 : plan->request.compute == SW_F32;
}

void sw_plan_unit_flow(const struct sw_plan *plan, int64_t unit, struct sw_unit_flow *out)
{
    const struct sw_unit_homes *homes = &plan->homes[unit];
    *out = (struct sw_unit_flow){0};
    if (!trains(plan, unit) || homes->states == SW_TIER_DEVICE)
        return;
    bool own_weights = sw_plan_weights_part(plan, unit) == SW_PART_WEIGHTS;
    if (homes->states == SW_TIER_NVME)
        out->read_parts = out->write_parts = state_parts(plan);
    if (sw_plan_part_tier(plan, unit, SW_PART_GRADIENT) == SW_TIER_NVME)
        out->read_parts |= 1U << SW_PART_GRADIENT;
    if (own_weights && homes->weights == SW_TIER_NVME)
        out->write_parts |= 1U << SW_PART_WEIGHTS;
    bool held_there = early(plan) || homes->gradient == SW_TIER_DEVICE;
    out->streamed = homes->streamed;
    if (out->streamed) {
        out->up_parts = state_parts(plan) | (held_there ? 0 : 1U << SW_PART_GRADIENT);
        out->down_parts = state_parts(plan);
        if (own_weights && homes->weights != SW_TIER_DEVICE)
            out->down_parts |= 1U << SW_PART_WEIGHTS;
        out->chunked = out->read_parts != 0 || out->write_parts != 0;
        return;
    }
    out->gradient_down = held_there;
    out->chunked = out->read_parts != 0 || out->write_parts != 0 || out->gradient_down;
    if (own_weights && homes->weights == SW_TIER_DEVICE) {
        out->weights_whole = !out->chunked && host_has_weights(plan);
        out->weights_up = !out->weights_whole;
        out->chunked = out->chunked || out->weights_up;
    }
}

int sw_plan_phases(const struct sw_plan *plan)
{
    return plan->request.optim->name == SW_OPTIM_ADAFACTOR ? SW_ADAFACTOR_PHASES : 1;
}

bool sw_plan_phase_reads_master(const struct sw_plan *plan, int phase)
{
    return plan->request.optim->name == SW_OPTIM_ADAMW ||
           sw_adafactor_phase_reads_weights(plan->request.optim, (enum sw_adafactor_phase)phase);
}

bool sw_plan_may_step_on_device(const struct sw_plan_request *request)
{
    return request->optim != NULL &&
           (!request->device_is_remote ||
            (request->optim->name == SW_OPTIM_ADAMW && request->where != SW_STEP_HOST));
}

int64_t sw_plan_partials_bytes(const struct sw_plan *plan)
{
    int64_t elements = 0;
    if (plan->request.purpose != SW_FOR_TRAINING || !plan->request.device_is_remote)
        return 0;
    for (int64_t i = 0; i < plan->request.model->unit_count; i++)
        if (plan->request.model->units[i].elements > elements)
            elements = plan->request.model->units[i].elements;
    return sw_norm_partial_count(elements) * (int64_t)sizeof(double);
}

int64_t sw_plan_encoder_end(const struct sw_model *model)
{
    int64_t block = 0;
    while (model->blocks[block].kind != SW_BLOCK_ENCODER_END)
        block++;
    return block;
}

int64_t sw_plan_activation_index(const struct sw_plan *plan, int64_t block, int64_t microbatch)
{
    return block * plan->microbatches + microbatch;
}

/* What follows from a choice: the bounds of a micro-batch, and the slots of each stage. */
#include "plan/search.h"

#include <string.h>

enum {
    /* Logits of this many bytes at once: large enough for fast GEMMs, small beside the weights.
     * Results depend on where chunks are cut (in rounding), so this is a function of the
     * vocabulary alone, and shorter only where a whole micro-batch is. */
    HEAD_CHUNK_BYTES = 64 << 20,
    HEAD_CHUNK_STEP = 32,
    GRADIENT_SLOTS = 2,
};

/* `tokens`: target tokens of a micro-batch at most; a longer chunk would be memory for nothing. */
static int64_t head_chunk(const struct sw_plan_request *request, int64_t tokens)
{
    int64_t chunk = HEAD_CHUNK_BYTES / ((int64_t)sizeof(float) * request->model->t5.vocab_size);
    chunk -= chunk % HEAD_CHUNK_STEP;
    if (chunk < HEAD_CHUNK_STEP)
        chunk = HEAD_CHUNK_STEP;
    return chunk < tokens ? chunk : tokens;
}

int64_t sw_plan_replica_rows(const struct sw_plan *plan)
{
    return (plan->request.global_batch + plan->replicas - 1) / plan->replicas;
}

int64_t sw_plan_microbatches(const struct sw_plan *plan, int64_t rows)
{
    return plan->request.purpose == SW_FOR_GENERATION
               ? 1
               : (sw_plan_replica_rows(plan) + rows - 1) / rows;
}

void sw_plan_set_bounds(struct sw_plan *plan, int64_t rows)
{
    const struct sw_plan_request *request = &plan->request;
    bool generating = request->purpose == SW_FOR_GENERATION;
    int64_t target_length = generating ? request->generation_length : request->target_length;
    if (plan->bounds.rows == rows)
        return;
    plan->bounds = (struct sw_bounds){
        .rows = rows,
        .source_length = request->source_length,
        .target_length = target_length,
        .head_chunk_tokens = head_chunk(request, rows * target_length),
    };
    plan->microbatches = sw_plan_microbatches(plan, rows);
    plan->reach = sw_model_tables_reach(plan->bounds.source_length, plan->bounds.target_length);
    sw_plan_measure_blocks(plan);
}

bool sw_plan_cuts_gradients(const struct sw_plan *plan)
{
    return plan->replicas > 1 && plan->request.zero >= 2;
}

static void set_pools(struct sw_plan *plan, int32_t index, int64_t slots)
{
    const struct sw_model *model = plan->request.model;
    struct sw_stage_plan *stage = &plan->stage[index];
    int64_t weights[SW_POOL_KINDS] = {0}, gradients[SW_POOL_KINDS] = {0};
    memset(stage->weight_pools, 0, sizeof stage->weight_pools);
    memset(stage->gradient_pools, 0, sizeof stage->gradient_pools);
    for (int64_t i = 0; i < model->unit_count; i++) {
        if (i == model->common_unit || plan->unit_stage[i] != index)
            continue;
        enum sw_pool_kind pool = sw_plan_pool(plan, i);
        int64_t elements = model->units[i].elements;
        if (sw_plan_is_slotted(plan, i)) {
            weights[pool]++;
            if (elements > stage->weight_pools[pool].elements)
                stage->weight_pools[pool].elements = elements;
        }
        if (sw_plan_gradient_slotted(plan, i)) {
            gradients[pool]++;
            if (elements > stage->gradient_pools[pool].elements)
                stage->gradient_pools[pool].elements = elements;
        }
    }
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        int64_t most = slots < GRADIENT_SLOTS ? slots : GRADIENT_SLOTS;
        if (plan->schedule != SW_SCHEDULE_LAYERED && !sw_plan_cuts_gradients(plan))
            most = gradients[pool]; /* all grow at the same time */
        stage->weight_pools[pool].slots = weights[pool] < slots ? weights[pool] : slots;
        stage->gradient_pools[pool].slots = gradients[pool] < most ? gradients[pool] : most;
    }
}

void sw_plan_set_pools(struct sw_plan *plan, int64_t slots)
{
    for (int32_t stage = 0; stage < plan->stages; stage++)
        set_pools(plan, stage, slots);
}

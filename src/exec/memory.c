/* What the engine has allocated beside the store: activations, workspace, batches, tables. */
#include "exec/internal.h"

#include "base/mem.h"

static sw_code host_table(void *out, int64_t count, int64_t size_bytes, struct sw_err *err)
{
    void *memory = sw_calloc(count > 0 ? count : 1, size_bytes);
    if (memory == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the engine's tables");
    *(void **)out = memory;
    return SW_OK;
}

static sw_code on_device(struct sw_engine *engine, int32_t rank, int64_t bytes, void *out,
                         struct sw_err *err)
{
    return sw_store_alloc_device(&engine->store, rank, bytes, out, err);
}

static sw_code alloc_batches(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    struct sw_engine_rank *rank = &engine->ranks[index];
    int64_t count = engine->plan->microbatches, bytes = engine->plan->batch_bytes;
    sw_code code = host_table(&rank->batches, count, sizeof *rank->batches, err);
    for (int64_t m = 0; m < count && code == SW_OK; m++) {
        code = on_device(engine, index, bytes, &rank->batches[m].device, err);
        if (code == SW_OK)
            code = sw_store_alloc_host(&engine->store, bytes, &rank->batches[m].staging, err);
    }
    return code;
}

/* `count` more arrays of `bytes` each, in `table` from `*at` on. */
static sw_code alloc_many(struct sw_engine *engine, int32_t rank, void **table, int64_t *at,
                          int64_t count, int64_t bytes, struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int64_t i = 0; i < count && code == SW_OK; i++)
        code = on_device(engine, rank, bytes, &table[(*at)++], err);
    return code;
}

static sw_code alloc_outputs(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    struct sw_engine_rank *rank = &engine->ranks[index];
    const int64_t *slots = plan->stage[rank->stage].slots;
    bool home = plan->activations == SW_TIER_DEVICE;
    int64_t at = 0;
    sw_code code =
        host_table(&rank->activations,
                   home ? slots[SW_SLOTS_SOURCE] + slots[SW_SLOTS_TARGET] : plan->activation_slots,
                   sizeof(void *), err);
    if (code == SW_OK && !home)
        return alloc_many(engine, index, rank->activations, &at, plan->activation_slots,
                          plan->activation_bytes, err);
    for (int c = SW_SLOTS_SOURCE; c <= SW_SLOTS_TARGET && code == SW_OK; c++)
        code =
            alloc_many(engine, index, rank->activations, &at, slots[c], plan->class_bytes[c], err);
    return code;
}

static sw_code alloc_contexts(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    struct sw_engine_rank *rank = &engine->ranks[index];
    const int64_t *slots = plan->stage[rank->stage].slots;
    int64_t count = 1, at = 0;
    for (int c = SW_SLOTS_CONTEXT; c < SW_SLOT_CLASSES; c++)
        count += slots[c];
    sw_code code = host_table(&rank->contexts, count, sizeof(void *), err);
    if (code == SW_OK && plan->recompute) {
        code = on_device(engine, index, plan->context_bytes, &rank->contexts[0], err);
        if (code == SW_OK)
            code = on_device(engine, index, plan->activation_bytes, &rank->recomputed, err);
        return code;
    }
    for (int c = SW_SLOTS_CONTEXT; c < SW_SLOT_CLASSES && code == SW_OK; c++)
        code = alloc_many(engine, index, rank->contexts, &at, slots[c], plan->class_bytes[c], err);
    return code;
}

static sw_code alloc_activations(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    struct sw_engine_rank *rank = &engine->ranks[index];
    int64_t m = plan->microbatches, at = 0;
    sw_code code = alloc_outputs(engine, index, err);
    if (code == SW_OK)
        code = on_device(engine, index, plan->workspace_bytes, &rank->workspace, err);
    if (code == SW_OK && rank->stage == 0 && plan->ends_workspace_bytes > 0)
        code = on_device(engine, index, plan->ends_workspace_bytes, &rank->ends_workspace, err);
    if (code != SW_OK || plan->request.purpose != SW_FOR_TRAINING)
        return code;
    code = alloc_contexts(engine, index, err);
    if (code == SW_OK)
        code = host_table(&rank->gradients, m, sizeof(void *), err);
    if (code == SW_OK)
        code = host_table(&rank->encoder_gradients, m, sizeof(void *), err);
    if (code == SW_OK)
        code = alloc_many(engine, index, rank->gradients, &at, m, plan->activation_bytes, err);
    at = 0;
    if (code == SW_OK)
        code =
            alloc_many(engine, index, rank->encoder_gradients, &at, m, plan->activation_bytes, err);
    return code;
}

static sw_code alloc_mailboxes(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    struct sw_engine_rank *rank = &engine->ranks[index];
    if (engine->plan->mailboxes == 0)
        return SW_OK;
    sw_code code = host_table(&rank->mailboxes, engine->plan->mailboxes, sizeof(char *), err);
    for (int64_t i = 0; i < engine->plan->mailboxes && code == SW_OK; i++)
        code = sw_store_alloc_host(&engine->store, engine->plan->mailbox_bytes, &rank->mailboxes[i],
                                   err);
    return code;
}

static sw_code fill_tables(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    struct sw_engine_rank *rank = &engine->ranks[index];
    int64_t reach = engine->plan->reach, bytes = sw_model_tables_bytes(reach);
    void *device_copy = NULL, *staging = NULL;
    sw_code code = on_device(engine, index, bytes, &device_copy, err);
    if (code == SW_OK)
        code = engine->device_ops->host_alloc(rank->device, bytes, &staging, err);
    if (code != SW_OK)
        return code;
    sw_model_tables_fill(engine->model, reach, staging);
    engine->device_ops->copy(rank->streams[SW_LANE_H2D], device_copy, staging, bytes);
    code = engine->device_ops->stream_sync(rank->streams[SW_LANE_H2D], err);
    engine->device_ops->host_free(rank->device, staging, bytes);
    sw_model_tables_at(&rank->tables, reach, device_copy);
    return code;
}

/* Bucket tables, and what the relative bias's gradient needs: partials of the rank's blocks, and on
 * stage 0 of all of them. */
static sw_code alloc_bias(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    const struct sw_model *model = engine->model;
    struct sw_engine_rank *rank = &engine->ranks[index];
    float *shared = NULL;
    sw_code code = fill_tables(engine, index, err);
    if (code == SW_OK)
        code = host_table(&rank->bias_partials, model->block_count, sizeof(float *), err);
    if (code == SW_OK)
        code = host_table(&rank->bias_gradients, model->block_count, sizeof(float *), err);
    if (code != SW_OK || engine->config.optim == NULL ||
        !model->units[model->common_unit].trainable)
        return code;
    bool share = sw_plan_bias_gradients(plan, rank->stage) == 1;
    int64_t bytes = (2 * plan->reach - 1) * model->t5.heads * 4;
    for (int64_t i = 0; i < model->block_count && code == SW_OK; i++) {
        bool mine = plan->block_stage[i] == rank->stage;
        if (model->blocks[i].kind != SW_BLOCK_ENCODER && model->blocks[i].kind != SW_BLOCK_DECODER)
            continue;
        if (mine && (shared == NULL || !share))
            code = on_device(engine, index, bytes, &shared, err);
        rank->bias_gradients[i] = mine ? shared : NULL;
        if (code == SW_OK && (mine || rank->stage == 0))
            code = on_device(engine, index, model->t5.bias_buckets * model->t5.heads * 4,
                             &rank->bias_partials[i], err);
    }
    return code;
}

static sw_code alloc_partials(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    int64_t partials = 0;
    sw_code code = host_table(&engine->partial_start, model->unit_count, sizeof(int64_t), err);
    for (int64_t i = 0; i < model->unit_count && code == SW_OK; i++) {
        engine->partial_start[i] = partials;
        partials += sw_norm_partial_count(model->units[i].elements);
    }
    if (code == SW_OK)
        code = host_table(&engine->partials, partials, sizeof(double), err);
    return code;
}

static sw_code alloc_rank(struct sw_engine *engine, int32_t index, struct sw_err *err)
{
    struct sw_engine_rank *rank = &engine->ranks[index];
    sw_store_near(&engine->store, index);
    sw_code code = alloc_batches(engine, index, err);
    if (code == SW_OK)
        code = alloc_activations(engine, index, err);
    if (code == SW_OK)
        code = alloc_mailboxes(engine, index, err);
    if (code == SW_OK)
        code = alloc_bias(engine, index, err);
    if (code == SW_OK)
        code = on_device(engine, index, (int64_t)sizeof(double), &rank->loss_sum, err);
    if (code == SW_OK && sw_plan_partials_bytes(engine->plan) > 0)
        code = on_device(engine, index, sw_plan_partials_bytes(engine->plan), &rank->partials, err);
    if (code == SW_OK)
        code = engine->device_ops->stream_sync(rank->streams[SW_LANE_H2D], err);
    return code;
}

sw_code sw_engine_alloc(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    sw_code code = sw_store_open(&engine->store, engine->config.spill, err);
    if (code == SW_OK)
        code = host_table(&engine->row_numbers,
                          plan->bounds.rows * plan->microbatches * plan->replicas, sizeof(int32_t),
                          err);
    for (int32_t rank = 0; rank < plan->ranks && code == SW_OK; rank++)
        code = alloc_rank(engine, rank, err);
    if (code == SW_OK)
        code = alloc_partials(engine, err);
    if (code == SW_OK && plan->request.purpose == SW_FOR_GENERATION)
        code = sw_generation_open(engine, err);
    if (code == SW_OK)
        code = engine->device_ops->stream_sync(engine->ranks[0].streams[SW_LANE_H2D], err);
    return code != SW_OK ? sw_err_while(err, "allocating what the plan says") : SW_OK;
}

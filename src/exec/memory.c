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

static sw_code alloc_batches(struct sw_engine *engine, struct sw_err *err)
{
    int64_t count = engine->plan->microbatches, bytes = engine->plan->batch_bytes;
    sw_code code = host_table(&engine->batches, count, sizeof *engine->batches, err);
    for (int64_t m = 0; m < count && code == SW_OK; m++) {
        code = sw_store_alloc_device(&engine->store, bytes, &engine->batches[m].device, err);
        if (code == SW_OK)
            code = sw_store_alloc_host(&engine->store, bytes, &engine->batches[m].staging, err);
    }
    return code;
}

/* Arrays of one size: `*table` [count] of `bytes` each. */
static sw_code alloc_many(struct sw_engine *engine, void ***table, int64_t count, int64_t bytes,
                          struct sw_err *err)
{
    sw_code code = host_table(table, count, sizeof(void *), err);
    for (int64_t i = 0; i < count && code == SW_OK; i++)
        code = sw_store_alloc_device(&engine->store, bytes, &(*table)[i], err);
    return code;
}

static sw_code alloc_activations(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    bool training = plan->request.purpose == SW_FOR_TRAINING;
    bool home = plan->activations == SW_TIER_DEVICE;
    int64_t m = plan->microbatches, slots = plan->activation_slots * (home ? m : 1);
    sw_code code = host_table(&engine->activations, slots, sizeof(void *), err);
    for (int64_t i = 0; i < slots && code == SW_OK; i++) {
        int64_t bytes = home && training ? plan->sizes[i / m].output_bytes : plan->activation_bytes;
        code = sw_store_alloc_device(&engine->store, bytes, &engine->activations[i], err);
    }
    if (code == SW_OK)
        code =
            sw_store_alloc_device(&engine->store, plan->workspace_bytes, &engine->workspace, err);
    if (code != SW_OK || !training)
        return code;
    code = host_table(&engine->contexts, plan->context_slots, sizeof(void *), err);
    for (int64_t i = 0; i < plan->context_slots && code == SW_OK; i++) {
        int64_t bytes = plan->recompute ? plan->context_bytes : plan->sizes[i / m].context_bytes;
        code = sw_store_alloc_device(&engine->store, bytes, &engine->contexts[i], err);
    }
    if (code == SW_OK && plan->recompute)
        code =
            sw_store_alloc_device(&engine->store, plan->activation_bytes, &engine->recomputed, err);
    if (code == SW_OK)
        code = alloc_many(engine, &engine->gradients, m, plan->activation_bytes, err);
    if (code == SW_OK)
        code = alloc_many(engine, &engine->encoder_gradients, m, plan->activation_bytes, err);
    return code;
}

static sw_code fill_tables(struct sw_engine *engine, struct sw_err *err)
{
    int64_t reach = engine->plan->reach, bytes = sw_model_tables_bytes(reach);
    void *device_copy = NULL, *staging = NULL;
    sw_code code = sw_store_alloc_device(&engine->store, bytes, &device_copy, err);
    if (code == SW_OK)
        code = engine->device_ops->host_alloc(engine->device, bytes, &staging, err);
    if (code != SW_OK)
        return code;
    sw_model_tables_fill(engine->model, reach, staging);
    engine->device_ops->copy(engine->streams[SW_LANE_H2D], device_copy, staging, bytes);
    code = engine->device_ops->stream_sync(engine->streams[SW_LANE_H2D], err);
    engine->device_ops->host_free(engine->device, staging, bytes);
    sw_model_tables_at(&engine->tables, reach, device_copy);
    return code;
}

/* Bucket tables, and what the relative bias's gradient needs. */
static sw_code alloc_bias(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    sw_code code = fill_tables(engine, err);
    if (code == SW_OK)
        code = host_table(&engine->bias_partials, model->block_count, sizeof(float *), err);
    if (code != SW_OK || engine->config.optim == NULL ||
        !model->units[model->common_unit].trainable)
        return code;
    code =
        sw_store_alloc_device(&engine->store, (2 * engine->plan->reach - 1) * model->t5.heads * 4,
                              &engine->bias_gradient, err);
    for (int64_t i = 0; i < model->block_count && code == SW_OK; i++)
        if (model->blocks[i].kind == SW_BLOCK_ENCODER || model->blocks[i].kind == SW_BLOCK_DECODER)
            code =
                sw_store_alloc_device(&engine->store, model->t5.bias_buckets * model->t5.heads * 4,
                                      &engine->bias_partials[i], err);
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

sw_code sw_engine_alloc(struct sw_engine *engine, struct sw_err *err)
{
    sw_code code = sw_store_open(&engine->store, engine->config.spill, err);
    if (code == SW_OK)
        code = alloc_batches(engine, err);
    if (code == SW_OK)
        code = alloc_activations(engine, err);
    if (code == SW_OK)
        code = alloc_bias(engine, err);
    if (code == SW_OK)
        code = alloc_partials(engine, err);
    if (code == SW_OK)
        code =
            sw_store_alloc_device(&engine->store, (int64_t)sizeof(double), &engine->loss_sum, err);
    if (code == SW_OK && engine->plan->request.purpose == SW_FOR_GENERATION)
        code = sw_generation_open(engine, err);
    if (code == SW_OK)
        code = engine->device_ops->stream_sync(engine->streams[SW_LANE_H2D], err);
    return code != SW_OK ? sw_err_while(err, "allocating what the plan says") : SW_OK;
}

/* All memory of the engine, allocated once from what the plan says. */
#include "exec/internal.h"

#include "base/mem.h"

static sw_code device_alloc(struct sw_engine *engine, int64_t bytes, void *out, struct sw_err *err)
{
    void *memory = NULL;
    sw_code code = engine->device_ops->alloc(engine->device, bytes, &memory, err);
    if (code == SW_OK)
        *(void **)out = memory;
    return code;
}

static sw_code host_table(void *out, int64_t count, int64_t size_bytes, struct sw_err *err)
{
    void *memory = sw_calloc(count > 0 ? count : 1, size_bytes);
    if (memory == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the engine's tables");
    *(void **)out = memory;
    return SW_OK;
}

struct sw_optim_param sw_engine_optim_param(const struct sw_param *param)
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
static sw_code describe_units(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    sw_code code =
        host_table(&engine->optim_params, model->param_count, sizeof *engine->optim_params, err);
    if (code != SW_OK)
        return code;
    for (int64_t i = 0; i < model->param_count; i++)
        engine->optim_params[i] = sw_engine_optim_param(&model->params[i]);
    for (int64_t i = 0; i < model->unit_count; i++)
        engine->units[i].optim = (struct sw_optim_unit){
            .params = engine->optim_params + model->units[i].first_param,
            .param_count = model->units[i].param_count,
            .elements = model->units[i].elements,
            .index = i,
        };
    return SW_OK;
}

static sw_code alloc_masters(struct sw_engine *engine, int64_t index, struct sw_err *err)
{
    struct sw_unit_memory *unit = &engine->units[index];
    int64_t elements = engine->model->units[index].elements;
    bool bf16 = engine->plan->request.compute == SW_BF16;
    if (engine->config.optim == NULL) /* nothing is trained: compute weights are all there is */
        return SW_OK;
    if (engine->config.optim->master == SW_MASTER_SPLIT) {
        sw_code code = device_alloc(engine, elements * 2, &unit->low, err);
        if (code == SW_OK && !bf16)
            return device_alloc(engine, elements * 2, &unit->high, err);
        unit->high = unit->weights;
        return code;
    }
    if (bf16)
        return device_alloc(engine, elements * 4, &unit->master, err);
    unit->master = unit->weights;
    return SW_OK;
}

static sw_code alloc_states(struct sw_engine *engine, int64_t index, int64_t *scratch_bytes,
                            struct sw_err *err)
{
    struct sw_unit_memory *unit = &engine->units[index];
    const struct sw_optim_settings *optim = engine->config.optim;
    int64_t elements = engine->model->units[index].elements;
    if (optim == NULL || !engine->model->units[index].trainable)
        return SW_OK;
    sw_code code = device_alloc(engine, elements * 4, &unit->gradient, err);
    if (optim->name == SW_OPTIM_ADAMW) {
        for (int i = 0; i < 2 && code == SW_OK; i++)
            code = device_alloc(engine, elements * sw_dtype_bytes(optim->moments),
                                &unit->moments[i], err);
        return code;
    }
    int64_t bytes = sw_adafactor_scratch_bytes(&unit->optim);
    if (bytes > *scratch_bytes)
        *scratch_bytes = bytes;
    if (code == SW_OK)
        code = device_alloc(engine, sw_adafactor_state_elements(&unit->optim) * 4, &unit->factors,
                            err);
    return code;
}

static sw_code alloc_units(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    int64_t partials = 0, scratch_bytes = 0;
    sw_code code = host_table(&engine->units, model->unit_count, sizeof *engine->units, err);
    if (code == SW_OK)
        code = describe_units(engine, err);
    if (code == SW_OK)
        code = host_table(&engine->partial_start, model->unit_count, sizeof(int64_t), err);
    for (int64_t i = 0; i < model->unit_count && code == SW_OK; i++) {
        engine->partial_start[i] = partials;
        partials += sw_norm_partial_count(model->units[i].elements);
        code = device_alloc(
            engine, model->units[i].elements * sw_dtype_bytes(engine->plan->request.compute),
            &engine->units[i].weights, err);
        if (code == SW_OK)
            code = alloc_masters(engine, i, err);
        if (code == SW_OK)
            code = alloc_states(engine, i, &scratch_bytes, err);
    }
    if (code == SW_OK)
        code = host_table(&engine->partials, partials, sizeof(double), err);
    if (code == SW_OK && scratch_bytes > 0)
        code = device_alloc(engine, scratch_bytes, &engine->scratch, err);
    return code;
}

static sw_code alloc_batches(struct sw_engine *engine, struct sw_err *err)
{
    int64_t count = engine->plan->microbatches, bytes = engine->plan->batch_bytes;
    sw_code code = host_table(&engine->batches, count, sizeof *engine->batches, err);
    for (int64_t m = 0; m < count && code == SW_OK; m++) {
        void *staging = NULL;
        code = device_alloc(engine, bytes, &engine->batches[m].device, err);
        if (code == SW_OK)
            code = engine->device_ops->host_alloc(engine->device, bytes, &staging, err);
        if (code == SW_OK)
            engine->batches[m].staging = staging;
    }
    return code;
}

/* Arrays of one size: `*table` [count] of `bytes` each. */
static sw_code alloc_many(struct sw_engine *engine, void ***table, int64_t count, int64_t bytes,
                          struct sw_err *err)
{
    sw_code code = host_table(table, count, sizeof(void *), err);
    for (int64_t i = 0; i < count && code == SW_OK; i++)
        code = device_alloc(engine, bytes, &(*table)[i], err);
    return code;
}

static sw_code alloc_activations(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    bool training = plan->request.purpose == SW_FOR_TRAINING;
    int64_t m = plan->microbatches;
    sw_code code =
        host_table(&engine->activations, plan->activation_slots * m, sizeof(void *), err);
    for (int64_t i = 0; i < plan->activation_slots * m && code == SW_OK; i++) {
        int64_t bytes = training ? plan->sizes[i / m].output_bytes : plan->activation_bytes;
        code = device_alloc(engine, bytes, &engine->activations[i], err);
    }
    if (code == SW_OK)
        code = device_alloc(engine, plan->workspace_bytes, &engine->workspace, err);
    if (code != SW_OK || !training)
        return code;
    code = host_table(&engine->contexts, plan->context_slots, sizeof(void *), err);
    for (int64_t i = 0; i < plan->context_slots && code == SW_OK; i++) {
        int64_t bytes = plan->recompute ? plan->context_bytes : plan->sizes[i / m].context_bytes;
        code = device_alloc(engine, bytes, &engine->contexts[i], err);
    }
    if (code == SW_OK)
        code = alloc_many(engine, &engine->gradients, m, plan->activation_bytes, err);
    if (code == SW_OK)
        code = alloc_many(engine, &engine->encoder_gradients, m, plan->activation_bytes, err);
    return code;
}

/* Bucket tables, and what the relative bias's gradient needs. */
static sw_code alloc_bias(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    int64_t reach = engine->plan->reach, bytes = sw_model_tables_bytes(reach);
    void *device_copy = NULL, *staging = NULL;
    sw_code code = device_alloc(engine, bytes, &device_copy, err);
    if (code == SW_OK)
        code = engine->device_ops->host_alloc(engine->device, bytes, &staging, err);
    if (code != SW_OK)
        return code;
    sw_model_tables_fill(model, reach, staging);
    engine->device_ops->copy(engine->streams[SW_LANE_H2D], device_copy, staging, bytes);
    code = engine->device_ops->stream_sync(engine->streams[SW_LANE_H2D], err);
    engine->device_ops->host_free(engine->device, staging, bytes);
    sw_model_tables_at(&engine->tables, reach, device_copy);
    if (code == SW_OK)
        code = host_table(&engine->bias_partials, model->block_count, sizeof(float *), err);
    if (code != SW_OK || engine->config.optim == NULL ||
        engine->units[model->common_unit].gradient == NULL)
        return code;
    code = device_alloc(engine, (2 * reach - 1) * model->t5.heads * 4, &engine->bias_gradient, err);
    for (int64_t i = 0; i < model->block_count && code == SW_OK; i++)
        if (model->blocks[i].kind == SW_BLOCK_ENCODER || model->blocks[i].kind == SW_BLOCK_DECODER)
            code = device_alloc(engine, model->t5.bias_buckets * model->t5.heads * 4,
                                &engine->bias_partials[i], err);
    return code;
}

sw_code sw_engine_alloc(struct sw_engine *engine, struct sw_err *err)
{
    sw_code code = alloc_units(engine, err);
    if (code == SW_OK)
        code = alloc_batches(engine, err);
    if (code == SW_OK)
        code = alloc_activations(engine, err);
    if (code == SW_OK)
        code = alloc_bias(engine, err);
    if (code == SW_OK)
        code = device_alloc(engine, (int64_t)sizeof(double), &engine->loss_sum, err);
    if (code == SW_OK && engine->plan->request.purpose == SW_FOR_GENERATION)
        code = sw_generation_open(engine, err);
    return code != SW_OK ? sw_err_while(err, "allocating what the plan says") : SW_OK;
}

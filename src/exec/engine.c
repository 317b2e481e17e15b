#include "exec/internal.h"

#include "base/mem.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRACED_OPS = 1 << 20 };

static sw_code open_streams(struct sw_engine *engine, struct sw_err *err)
{
    static const struct {
        enum sw_lane lane;
        enum sw_stream_kind kind;
    } streams[] = {{SW_LANE_COMPUTE, SW_STREAM_COMPUTE},
                   {SW_LANE_H2D, SW_STREAM_H2D},
                   {SW_LANE_OPTIMIZER, SW_STREAM_D2H}};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        sw_code code = engine->device_ops->stream_open(engine->device, streams[i].kind,
                                                       &engine->streams[streams[i].lane], err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

sw_code sw_engine_open(struct sw_engine **out, const struct sw_engine_config *config,
                       struct sw_err *err)
{
    struct sw_engine *engine = sw_calloc(1, sizeof *engine);
    if (engine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the engine");
    engine->config = *config;
    engine->plan = config->plan;
    engine->model = config->model;
    engine->device_ops = config->device;
    engine->last_end_seconds = -1;
    const struct sw_device_config device = {.physical_index = config->device_index,
                                            .memory_bytes =
                                                config->plan->request.device_memory_bytes,
                                            .pool = config->pool};
    sw_code code = config->device->open(&engine->device, &device, err);
    if (code == SW_OK)
        code = open_streams(engine, err);
    if (code == SW_OK)
        code = sw_engine_alloc(engine, err);
    if (code == SW_OK) {
        const struct sw_executor_config executor = {sw_engine_run_op, engine, config->overlap};
        code = sw_executor_open(&engine->executor, &executor, err);
    }
    if (code != SW_OK) {
        sw_engine_close(engine);
        return code;
    }
    *out = engine;
    return SW_OK;
}

static void free_tables(struct sw_engine *engine)
{
    free(engine->units);
    free(engine->optim_params);
    free(engine->batches);
    free(engine->activations);
    free(engine->contexts);
    free(engine->gradients);
    free(engine->encoder_gradients);
    free(engine->bias_partials);
    free(engine->partials);
    free(engine->partial_start);
}

void sw_engine_close(struct sw_engine *engine)
{
    if (engine == NULL)
        return;
    sw_memory_unseal();
    sw_executor_close(engine->executor);
    sw_generation_close(engine);
    for (int64_t m = 0; engine->batches != NULL && m < engine->plan->microbatches; m++)
        engine->device_ops->host_free(engine->device, engine->batches[m].staging,
                                      engine->plan->batch_bytes);
    for (int i = 0; i < SW_LANES; i++)
        if (engine->streams[i] != NULL)
            engine->device_ops->stream_close(engine->streams[i]);
    if (engine->device != NULL)
        engine->device_ops->close(engine->device);
    free_tables(engine);
    free(engine);
}

/* ---- weights and states ---- */

static void check_range(const struct sw_engine *engine, int64_t param, int64_t first, int64_t count)
{
    sw_assert(param >= 0 && param < engine->model->param_count);
    sw_assert(first >= 0 && count >= 0 && first + count <= engine->model->params[param].elements);
}

sw_code sw_engine_write_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                              const float *values, struct sw_err *err)
{
    check_range(engine, param, first, count);
    const struct sw_unit_memory *unit = &engine->units[engine->model->params[param].unit];
    int64_t at = engine->model->params[param].offset + first;
    enum sw_dtype dtype = engine->plan->request.compute;
    if (unit->master != NULL)
        memcpy(unit->master + at, values, (size_t)count * sizeof *values);
    else if (unit->low != NULL)
        sw_weights_split(engine->config.pool, values, unit->high + at, unit->low + at, count);
    if (unit->weights == (void *)unit->master || unit->weights == (void *)unit->high)
        return SW_OK;
    if (dtype == SW_BF16)
        sw_weights_round(engine->config.pool, values, (uint16_t *)unit->weights + at, count);
    else
        memcpy((float *)unit->weights + at, values, (size_t)count * sizeof *values);
    (void)err;
    return SW_OK;
}

sw_code sw_engine_read_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                             float *values, struct sw_err *err)
{
    sw_code code = sw_engine_drain(engine, err);
    if (code != SW_OK)
        return code;
    check_range(engine, param, first, count);
    const struct sw_unit_memory *unit = &engine->units[engine->model->params[param].unit];
    int64_t at = engine->model->params[param].offset + first;
    if (unit->master != NULL)
        memcpy(values, unit->master + at, (size_t)count * sizeof *values);
    else if (unit->low != NULL)
        sw_weights_join(engine->config.pool, unit->high + at, unit->low + at, values, count);
    else if (engine->plan->request.compute == SW_BF16)
        for (int64_t i = 0; i < count; i++)
            values[i] = sw_bf16_to_float(((const uint16_t *)unit->weights)[at + i]);
    else
        memcpy(values, (const float *)unit->weights + at, (size_t)count * sizeof *values);
    return SW_OK;
}

/* Where elements of a state lie. */
static char *state_at(struct sw_engine *engine, int64_t param, int state, int64_t first,
                      int64_t count, size_t *bytes)
{
    const struct sw_param *p = &engine->model->params[param];
    const struct sw_unit_memory *unit = &engine->units[p->unit];
    struct sw_optim_state described;
    sw_optim_state_describe(engine->config.optim, &unit->optim,
                            param - engine->model->units[p->unit].first_param, state, &described);
    sw_assert(first >= 0 && count >= 0 && first + count <= described.elements);
    int64_t size = sw_dtype_bytes(described.dtype);
    char *array = unit->factors != NULL ? (char *)unit->factors : unit->moments[described.array];
    *bytes = (size_t)(count * size);
    return array + (described.offset + first) * size;
}

sw_code sw_engine_write_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                              int64_t count, const void *values, struct sw_err *err)
{
    (void)err;
    size_t bytes = 0;
    char *to = state_at(engine, param, state, first, count, &bytes);
    memcpy(to, values, bytes);
    return SW_OK;
}

sw_code sw_engine_read_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                             int64_t count, void *values, struct sw_err *err)
{
    sw_code code = sw_engine_drain(engine, err);
    if (code != SW_OK)
        return code;
    size_t bytes = 0;
    const char *from = state_at(engine, param, state, first, count, &bytes);
    memcpy(values, from, bytes);
    return SW_OK;
}

sw_code sw_engine_read_gradient(struct sw_engine *engine, int64_t param, int64_t first,
                                int64_t count, float *values, struct sw_err *err)
{
    check_range(engine, param, first, count);
    const struct sw_param *p = &engine->model->params[param];
    if (!engine->held || engine->units[p->unit].gradient == NULL)
        return SW_FAIL(err, SW_E_FAILED, "no gradient of %s is held", p->name);
    memcpy(values, engine->units[p->unit].gradient + p->offset + first,
           (size_t)count * sizeof *values);
    return SW_OK;
}

sw_code sw_engine_start(struct sw_engine *engine, struct sw_err *err)
{
    (void)err;
    engine->started = true;
    sw_memory_seal();
    return SW_OK;
}

int64_t sw_engine_updates(const struct sw_engine *engine)
{
    return engine->update.number - (engine->held && engine->norm.finite ? 1 : 0);
}

void sw_engine_set_updates(struct sw_engine *engine, int64_t updates)
{
    sw_assert(!engine->held);
    engine->update.number = updates;
}

int64_t sw_engine_device_bytes(const struct sw_engine *engine)
{
    return engine->device_ops->high_water_bytes(engine->device);
}

/* ---- running ---- */

static sw_code run(struct sw_engine *engine, const struct sw_program *program, struct sw_err *err)
{
    sw_assert(engine->started);
    return sw_executor_run(engine->executor, program, engine->busy_seconds, err);
}

static sw_code read_loss(struct sw_engine *engine, double *out, struct sw_err *err)
{
    struct sw_stream *stream = engine->streams[SW_LANE_COMPUTE];
    engine->device_ops->copy(stream, out, engine->loss_sum, (int64_t)sizeof *out);
    return engine->device_ops->stream_sync(stream, err);
}

static sw_code clear_loss(struct sw_engine *engine, struct sw_err *err)
{
    struct sw_stream *stream = engine->streams[SW_LANE_COMPUTE];
    engine->device_ops->zero(stream, engine->loss_sum, (int64_t)sizeof(double));
    return engine->device_ops->stream_sync(stream, err);
}

/* Micro-batches longer than the plan's bounds would not fit their memory. */
static sw_code check_batch(const struct sw_engine *engine, const struct sw_batch *batch,
                           struct sw_err *err)
{
    const struct sw_bounds *bounds = &engine->plan->bounds;
    for (int64_t i = 0; i < batch->count; i++)
        if (batch->rows[i].source_length > bounds->source_length ||
            batch->rows[i].target_length > bounds->target_length)
            return SW_FAIL(err, SW_E_FAILED,
                           "a row of %d source and %d target tokens is longer than the plan's "
                           "bounds (%lld, %lld)",
                           batch->rows[i].source_length, batch->rows[i].target_length,
                           (long long)bounds->source_length, (long long)bounds->target_length);
    return SW_OK;
}

/* The first block with a value that is not finite in its output, or -1. */
static int32_t find_nonfinite(const struct sw_engine *engine)
{
    int64_t width = engine->model->t5.d_model;
    if (engine->device_ops->asynchronous || engine->plan->request.compute != SW_F32)
        return -1;
    for (int64_t block = 0; block < engine->model->block_count - 1; block++) {
        bool target = block > sw_plan_encoder_end(engine->model);
        for (int64_t m = 0; m < engine->batch_count; m++) {
            const struct sw_microbatch *view = &engine->batches[m].view;
            int64_t count = (target ? view->target.tokens : view->source.tokens) * width;
            const float *values = engine->activations[block * engine->plan->microbatches + m];
            for (int64_t i = 0; i < count; i++)
                if (!isfinite(values[i]))
                    return (int32_t)block;
        }
    }
    return -1;
}

sw_code sw_engine_step(struct sw_engine *engine, int64_t step, double lr,
                       const struct sw_batch *batch, struct sw_step_result *out, struct sw_err *err)
{
    double begin = sw_seconds_now();
    sw_code code = check_batch(engine, batch, err);
    if (code == SW_OK)
        code = clear_loss(engine, err);
    if (code != SW_OK)
        return code;
    engine->training = true;
    engine->dropout = engine->config.dropout;
    sw_random_key(engine->config.seed, (uint64_t)step << 8 | SW_RANDOM_DROPOUT,
                  engine->dropout_key);
    engine->target_tokens = batch->target_tokens;
    engine->logits = NULL;
    sw_engine_fill_batches(engine, batch, engine->config.smoothing);
    code = run(engine, engine->plan->step, err);
    double loss_sum = 0;
    if (code == SW_OK)
        code = read_loss(engine, &loss_sum, err);
    if (code != SW_OK)
        return sw_err_while(err, "running step %lld", (long long)step);
    *out = (struct sw_step_result){.loss = loss_sum / (double)batch->target_tokens,
                                   .grad_norm = engine->norm.norm,
                                   .nonfinite_block = -1};
    engine->norm.finite = engine->norm.finite && isfinite(out->loss);
    out->finite = engine->norm.finite;
    if (!out->finite)
        out->nonfinite_block = find_nonfinite(engine);
    engine->held = true;
    engine->update.lr = lr;
    engine->update.clip_scale = engine->norm.clip_scale;
    if (out->finite)
        engine->update.number++;
    double end = sw_seconds_now();
    out->seconds = end - (engine->last_end_seconds >= 0 ? engine->last_end_seconds : begin);
    engine->last_end_seconds = end;
    memcpy(out->busy_seconds, engine->busy_seconds, sizeof out->busy_seconds);
    memset(engine->busy_seconds, 0, sizeof engine->busy_seconds);
    return SW_OK;
}

sw_code sw_engine_drain(struct sw_engine *engine, struct sw_err *err)
{
    if (!engine->held)
        return SW_OK;
    sw_code code = run(engine, engine->plan->drain, err);
    if (code != SW_OK)
        return sw_err_while(err, "applying the held gradients");
    engine->held = false;
    engine->last_end_seconds = -1;
    return SW_OK;
}

sw_code sw_engine_evaluate(struct sw_engine *engine, const struct sw_batch *batch, double *loss_sum,
                           int64_t *tokens, float *logits, struct sw_err *err)
{
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = check_batch(engine, batch, err);
    if (code == SW_OK)
        code = clear_loss(engine, err);
    if (code == SW_OK && logits != NULL && engine->device_ops->asynchronous)
        code = SW_FAIL(err, SW_E_FAILED, "logits are read on the CPU back end only");
    if (code != SW_OK)
        return code;
    engine->training = false;
    engine->dropout = 0;
    engine->target_tokens = batch->target_tokens;
    engine->last_end_seconds = -1;
    int64_t rows = engine->plan->bounds.rows * engine->plan->microbatches, sum_tokens = 0;
    engine->logits = logits;
    for (int64_t first = 0; first < batch->count && code == SW_OK; first += rows) {
        const struct sw_batch part = {.rows = batch->rows + first,
                                      .count = batch->count - first < rows ? batch->count - first
                                                                           : rows};
        sw_engine_fill_batches(engine, &part, 0.0f);
        code = run(engine, engine->plan->evaluation, err);
        for (int64_t i = 0; i < part.count; i++)
            sum_tokens += part.rows[i].target_length;
    }
    engine->logits = NULL;
    double sum = 0;
    if (code == SW_OK)
        code = read_loss(engine, &sum, err);
    if (code != SW_OK)
        return sw_err_while(err, "evaluating");
    *loss_sum = sum;
    *tokens = sum_tokens;
    return SW_OK;
}

/* ---- trace ---- */

sw_code sw_engine_trace(struct sw_engine *engine, struct sw_err *err)
{
    sw_assert(!engine->started);
    return sw_executor_trace(engine->executor, TRACED_OPS, err);
}

static const char *block_name(void *engine, int32_t block)
{
    return ((const struct sw_engine *)engine)->model->blocks[block].name;
}

static const char *unit_name(void *engine, int32_t unit)
{
    return ((const struct sw_engine *)engine)->model->units[unit].name;
}

sw_code sw_engine_write_trace(struct sw_engine *engine, const char *path, struct sw_err *err)
{
    sw_memory_unseal();
    sw_code code =
        sw_executor_write_trace(engine->executor, path, block_name, unit_name, engine, err);
    sw_memory_seal();
    return code;
}

#include "exec/internal.h"

#include "base/mem.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRACED_OPS = 1 << 18 };

static sw_code open_streams(struct sw_engine *engine, struct sw_err *err)
{
    static const struct {
        enum sw_lane lane;
        enum sw_stream_kind kind;
    } streams[] = {{SW_LANE_COMPUTE, SW_STREAM_COMPUTE},
                   {SW_LANE_H2D, SW_STREAM_H2D},
                   {SW_LANE_D2H, SW_STREAM_D2H}};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        sw_code code = engine->device_ops->stream_open(engine->device, streams[i].kind,
                                                       &engine->streams[streams[i].lane], err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

static sw_code open_executor(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_executor_config config = {
        .run = sw_engine_run_op,
        .start = sw_engine_start_op,
        .finish = sw_engine_finish_op,
        .deep = 1U << SW_LANE_STATE_READ | 1U << SW_LANE_STATE_WRITE | 1U << SW_LANE_FETCH |
                1U << SW_LANE_SPILL,
        .context = engine,
        .ranks = 1,
        .overlap = engine->config.overlap,
    };
    return sw_executor_open(&engine->executor, &config, err);
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
    engine->store = (struct sw_store){.plan = engine->plan,
                                      .ops = engine->device_ops,
                                      .device = engine->device,
                                      .load_stream = engine->streams[SW_LANE_H2D],
                                      .pool = config->pool};
    if (code == SW_OK)
        code = sw_engine_alloc(engine, err);
    if (code == SW_OK)
        code = open_executor(engine, err);
    if (code != SW_OK) {
        sw_engine_close(engine);
        return code;
    }
    *out = engine;
    return SW_OK;
}

void sw_engine_close(struct sw_engine *engine)
{
    if (engine == NULL)
        return;
    sw_memory_unseal();
    sw_executor_close(engine->executor);
    sw_generation_close(engine);
    sw_store_close(&engine->store);
    for (int i = 0; i < SW_LANES; i++)
        if (engine->streams[i] != NULL)
            engine->device_ops->stream_close(engine->streams[i]);
    if (engine->device != NULL)
        engine->device_ops->close(engine->device);
    free(engine->batches);
    free(engine->activations);
    free(engine->contexts);
    free(engine->gradients);
    free(engine->encoder_gradients);
    free(engine->bias_partials);
    free(engine->partials);
    free(engine->partial_start);
    free(engine);
}

sw_code sw_engine_start(struct sw_engine *engine, struct sw_err *err)
{
    (void)err;
    if (engine->store.spill != NULL)
        sw_spill_counters(engine->store.spill, &engine->io_before);
    engine->started = true;
    engine->sealed_bytes = sw_memory_process_bytes();
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

int64_t sw_engine_sealed_bytes(const struct sw_engine *engine)
{
    return engine->sealed_bytes;
}

void sw_engine_io(const struct sw_engine *engine, struct sw_spill_counters *out)
{
    *out = (struct sw_spill_counters){0};
    if (engine->store.spill != NULL)
        sw_spill_counters(engine->store.spill, out);
}

/* ---- running ---- */

static sw_code run(struct sw_engine *engine, const struct sw_program *program, struct sw_err *err)
{
    sw_assert(engine->started);
    if (engine->broken)
        return SW_FAIL(err, SW_E_FAILED, "an earlier step failed half way");
    engine->applying = engine->held && engine->norm.finite;
    sw_code code = sw_executor_run(engine->executor, program, engine->busy_seconds, err);
    engine->broken = code != SW_OK;
    return code;
}

static sw_code read_loss(struct sw_engine *engine, double *out, struct sw_err *err)
{
    struct sw_stream *stream = engine->streams[SW_LANE_D2H];
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

static void begin_diagnosis(struct sw_engine *engine)
{
    engine->diagnosing = true;
    engine->nonfinite_block = -1;
}

/* A loss that is not finite though every block's output is comes from the head, the last block. */
static void end_diagnosis(struct sw_engine *engine, double loss)
{
    engine->diagnosing = false;
    if (engine->nonfinite_block < 0 && !isfinite(loss) && !engine->device_ops->asynchronous)
        engine->nonfinite_block = (int32_t)engine->model->block_count - 1;
}

/* The step's loss or gradient is not finite: run forward again, with its dropout, and look at every
 * block's output. */
static sw_code find_nonfinite(struct sw_engine *engine, struct sw_step_result *result,
                              struct sw_err *err)
{
    engine->training = false;
    begin_diagnosis(engine);
    sw_code code = run(engine, engine->plan->evaluation, err);
    end_diagnosis(engine, result->loss);
    result->nonfinite_block = engine->nonfinite_block;
    return code;
}

const char *sw_engine_nonfinite(const struct sw_engine *engine)
{
    int32_t block = engine->nonfinite_block;
    return block >= 0 ? engine->model->blocks[block].name : NULL;
}

static void begin_step(struct sw_engine *engine, int64_t step, double lr,
                       const struct sw_batch *batch)
{
    engine->training = true;
    engine->diagnosing = false;
    engine->dropout = engine->config.dropout;
    sw_random_key(engine->config.seed, (uint64_t)step << 8 | SW_RANDOM_DROPOUT,
                  engine->dropout_key);
    engine->target_tokens = batch->target_tokens;
    engine->logits = NULL;
    sw_engine_fill_batches(engine, batch, engine->config.smoothing);
    if (sw_engine_early(engine))
        engine->update = (struct sw_optim_update){engine->update.number + 1, lr, 1.0f};
}

/* What the window that comes will need. */
static void hold(struct sw_engine *engine, double lr)
{
    if (sw_engine_early(engine))
        return;
    engine->held = true;
    engine->update.lr = lr;
    engine->update.clip_scale = engine->norm.clip_scale;
    if (engine->norm.finite)
        engine->update.number++;
}

static void take_counters(struct sw_engine *engine, struct sw_step_result *out)
{
    struct sw_spill_counters io;
    sw_engine_io(engine, &io);
    out->nvme_read_bytes = io.read_bytes - engine->io_before.read_bytes;
    out->nvme_written_bytes = io.written_bytes - engine->io_before.written_bytes;
    engine->io_before = io;
    memcpy(out->busy_seconds, engine->busy_seconds, sizeof out->busy_seconds);
    memset(engine->busy_seconds, 0, sizeof engine->busy_seconds);
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
    begin_step(engine, step, lr, batch);
    code = run(engine, engine->plan->step, err);
    double loss_sum = 0;
    if (code == SW_OK)
        code = read_loss(engine, &loss_sum, err);
    double end = sw_seconds_now();
    if (code != SW_OK)
        return sw_err_while(err, "running step %lld", (long long)step);
    *out = (struct sw_step_result){.loss = loss_sum / (double)batch->target_tokens,
                                   .grad_norm = engine->norm.norm,
                                   .nonfinite_block = -1};
    out->finite = engine->norm.finite = engine->norm.finite && isfinite(out->loss);
    hold(engine, lr);
    out->seconds = end - (engine->last_end_seconds >= 0 ? engine->last_end_seconds : begin);
    engine->last_end_seconds = end;
    take_counters(engine, out);
    if (!out->finite)
        code = find_nonfinite(engine, out, err);
    if (code == SW_OK && !out->finite && sw_engine_early(engine))
        code = SW_FAIL(err, SW_E_NONFINITE,
                       "the loss is not finite, and with optimizer.early_step "
                       "the step cannot be undone");
    return code;
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
    begin_diagnosis(engine);
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
    end_diagnosis(engine, sum);
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

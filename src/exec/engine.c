#include "exec/internal.h"

#include "base/mem.h"
#include "base/random.h"
#include "base/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRACED_OPS = 1 << 18 };
/* No op of a step takes as long, on any machine that a step is worth waiting for on. */
static const double STALL_SECONDS = 180;

static sw_code open_ranks(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    engine->ranks = sw_calloc(plan->ranks, sizeof *engine->ranks);
    engine->store.ranks = sw_calloc(plan->ranks, sizeof *engine->store.ranks);
    if (engine->ranks == NULL || engine->store.ranks == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the engine");
    sw_code code = SW_OK;
    for (int32_t r = 0; r < plan->ranks && code == SW_OK; r++) {
        struct sw_engine_rank *rank = &engine->ranks[r];
        const struct sw_device_config device = {
            .physical_index = engine->config.devices != NULL ? engine->config.devices[r] : 0,
            .memory_bytes = plan->request.device_memory_bytes,
            .pool = engine->config.pool};
        rank->stage = r % plan->stages;
        rank->replica = r / plan->stages;
        code = engine->device_ops->open(&rank->device, &device, err);
        if (code == SW_OK)
            code = sw_engine_open_streams(engine, rank, err);
        engine->store.ranks[r].device = rank->device;
        engine->store.ranks[r].load_stream = rank->streams[SW_LANE_H2D];
        if (code != SW_OK && plan->ranks > 1)
            (void)sw_err_while(err, "opening the device of rank %d", (int)r);
    }
    return code;
}

/* Groups of the replicas of each stage. */
static sw_code open_comms(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    if (plan->replicas == 1)
        return SW_OK;
    engine->replica_comms = sw_calloc(plan->stages, sizeof(struct sw_comm *));
    struct sw_stream **streams = sw_calloc(plan->replicas, sizeof(struct sw_stream *));
    int32_t *physical = sw_calloc(plan->replicas, sizeof *physical);
    sw_code code = engine->replica_comms != NULL && streams != NULL && physical != NULL
                       ? SW_OK
                       : SW_FAIL(err, SW_E_MEMORY, "no memory for the engine");
    for (int32_t stage = 0; stage < plan->stages && code == SW_OK; stage++) {
        for (int32_t d = 0; d < plan->replicas; d++) {
            int32_t rank = sw_plan_rank(plan, stage, d);
            streams[d] = engine->ranks[rank].streams[SW_LANE_COLLECTIVE];
            physical[d] = engine->config.devices != NULL ? engine->config.devices[rank] : 0;
        }
        const struct sw_comm_group group = {
            .device = engine->device_ops, .size = plan->replicas, .streams = streams};
        code = sw_comm_choose(engine->device_ops, physical, plan->replicas)
                   ->open(&engine->replica_comms[stage], &group, err);
    }
    free(physical);
    free(streams);
    return code;
}

/* Lanes stand still: which, and what the drives have under way. */
static void tell_of_stall(void *context, const char *lanes)
{
    struct sw_engine *engine = context;
    char drives[1024] = "", text[6144];
    if (engine->store.spill != NULL)
        sw_spill_describe(engine->store.spill, drives, sizeof drives);
    snprintf(text, sizeof text, "%s%s%s", lanes, drives[0] != '\0' ? "; drives: " : "", drives);
    engine->config.note(engine->config.note_context, text);
}

static sw_code open_executor(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_executor_config config = {
        .run = sw_engine_run_op,
        .start = sw_engine_start_op,
        .finish = sw_engine_finish_op,
        .deep = sw_engine_queued_lanes() | 1U << SW_LANE_STATE_READ | 1U << SW_LANE_STATE_WRITE |
                1U << SW_LANE_FETCH | 1U << SW_LANE_SPILL,
        .context = engine,
        .ranks = engine->plan->ranks,
        .overlap = engine->config.overlap,
        .stalled = engine->config.note != NULL ? tell_of_stall : NULL,
        .name = sw_engine_op_name,
        .stall_seconds = STALL_SECONDS,
    };
    return sw_executor_open(&engine->executor, &config, err);
}

sw_code sw_engine_open(struct sw_engine **out, const struct sw_engine_config *config,
                       struct sw_err *err)
{
    struct sw_engine *engine = sw_calloc(1, sizeof *engine);
    if (engine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the engine");
    /* else blocks would want more than was planned */
    sw_assert(config->plan->request.dropout > 0.0f || !(config->dropout > 0.0f));
    engine->config = *config;
    engine->plan = config->plan;
    engine->model = config->model;
    engine->device_ops = config->device;
    engine->last_end_seconds = -1;
    engine->store = (struct sw_store){.plan = engine->plan,
                                      .ops = engine->device_ops,
                                      .pool = config->pool,
                                      .near = config->near,
                                      .near_context = config->near_context};
    sw_code code = open_ranks(engine, err);
    if (code == SW_OK)
        code = open_comms(engine, err);
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

static void close_rank(struct sw_engine *engine, struct sw_engine_rank *rank)
{
    sw_engine_close_streams(engine, rank);
    if (rank->device != NULL)
        engine->device_ops->close(rank->device);
    free(rank->batches);
    free(rank->activations);
    free(rank->contexts);
    free(rank->gradients);
    free(rank->encoder_gradients);
    free(rank->mailboxes);
    free(rank->bias_gradients);
    free(rank->bias_partials);
}

void sw_engine_close(struct sw_engine *engine)
{
    if (engine == NULL)
        return;
    sw_memory_unseal();
    sw_executor_close(engine->executor);
    sw_generation_close(engine);
    for (int32_t i = 0; engine->replica_comms != NULL && i < engine->plan->stages; i++)
        if (engine->replica_comms[i] != NULL)
            engine->replica_comms[i]->ops->close(engine->replica_comms[i]);
    free(engine->replica_comms);
    sw_store_close(&engine->store);
    for (int32_t r = 0; engine->ranks != NULL && r < engine->plan->ranks; r++)
        close_rank(engine, &engine->ranks[r]);
    free(engine->ranks);
    free(engine->row_numbers);
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

int64_t sw_engine_device_bytes(const struct sw_engine *engine, int32_t rank)
{
    return engine->device_ops->high_water_bytes(engine->ranks[rank].device);
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

/* The head is on stage 0 of every replica; sums in their order. */
static sw_code read_loss(struct sw_engine *engine, double *out, struct sw_err *err)
{
    sw_code code = SW_OK;
    *out = 0;
    for (int32_t d = 0; d < engine->plan->replicas && code == SW_OK; d++) {
        struct sw_engine_rank *rank = &engine->ranks[sw_plan_rank(engine->plan, 0, d)];
        struct sw_stream *stream = rank->streams[SW_LANE_D2H];
        double sum = 0;
        engine->device_ops->copy(stream, &sum, rank->loss_sum, (int64_t)sizeof sum);
        code = engine->device_ops->stream_sync(stream, err);
        *out += sum;
    }
    return code;
}

static sw_code clear_loss(struct sw_engine *engine, struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int32_t d = 0; d < engine->plan->replicas && code == SW_OK; d++) {
        struct sw_engine_rank *rank = &engine->ranks[sw_plan_rank(engine->plan, 0, d)];
        struct sw_stream *stream = rank->streams[SW_LANE_COMPUTE];
        engine->device_ops->zero(stream, rank->loss_sum, (int64_t)sizeof(double));
        code = engine->device_ops->stream_sync(stream, err);
    }
    return code;
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
    if (code != SW_OK)
        return code;
    engine->training = false;
    engine->dropout = 0;
    engine->target_tokens = batch->target_tokens;
    engine->last_end_seconds = -1;
    int64_t rows = engine->plan->bounds.rows * engine->plan->microbatches * engine->plan->replicas;
    int64_t sum_tokens = 0;
    engine->logits = logits;
    begin_diagnosis(engine);
    for (int64_t first = 0; first < batch->count && code == SW_OK; first += rows) {
        const struct sw_batch part = {.rows = batch->rows + first,
                                      .count = batch->count - first < rows ? batch->count - first
                                                                           : rows};
        sw_engine_fill_batches(engine, &part, 0.0f);
        code = run(engine, engine->plan->evaluation, err);
        int64_t before = sum_tokens;
        for (int64_t i = 0; i < part.count; i++)
            sum_tokens += part.rows[i].target_length;
        if (engine->logits != NULL)
            engine->logits += (sum_tokens - before) * engine->model->t5.vocab_size;
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

/* Generation: the encoder, then decode steps over all decoder blocks. */
#include "exec/internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sw_generation {
    struct sw_decode_bounds bounds;
    struct sw_decode_sizes sizes;
    struct sw_decode_index host, device; /* the same arrays on both sides */
    void *host_index, *device_index;
    float *bias;
    void **caches; /* [block_count]; one spare at the end */
    void *spare;
    void **cross; /* [block_count] */
    void *hidden;
    float *log_probabilities; /* device */
    void *workspace;
    struct sw_decode_run run; /* of the step in progress */
};

static sw_code get(struct sw_engine *engine, int64_t bytes, void *out, struct sw_err *err)
{
    return sw_store_alloc_device(&engine->store, 0, bytes, out, err);
}

static sw_code alloc_caches(struct sw_engine *engine, struct sw_generation *g, struct sw_err *err)
{
    const struct sw_model *model = engine->model;
    sw_code code = get(engine, g->sizes.cache_bytes, &g->spare, err);
    g->caches = sw_calloc(model->block_count, sizeof(void *));
    g->cross = sw_calloc(model->block_count, sizeof(void *));
    if (code == SW_OK && (g->caches == NULL || g->cross == NULL))
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to generate");
    for (int64_t i = 0; i < model->block_count && code == SW_OK; i++) {
        if (model->blocks[i].kind != SW_BLOCK_DECODER)
            continue;
        code = get(engine, g->sizes.cache_bytes, &g->caches[i], err);
        if (code == SW_OK)
            code = get(engine, g->sizes.cross_bytes, &g->cross[i], err);
    }
    return code;
}

sw_code sw_generation_open(struct sw_engine *engine, struct sw_err *err)
{
    const struct sw_plan_request *request = &engine->plan->request;
    struct sw_generation *g = sw_calloc(1, sizeof *g);
    if (g == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to generate");
    engine->generation = g;
    g->bounds = (struct sw_decode_bounds){request->generation_rows, request->generation_beams,
                                          request->source_length, request->generation_length};
    sw_decode_sizes(engine->model, &g->bounds, request->compute, engine->device_ops->kernels,
                    &g->sizes);
    sw_code code = get(engine, g->sizes.index_bytes, &g->device_index, err);
    if (code == SW_OK)
        code = sw_store_alloc_host(&engine->store, g->sizes.index_bytes, &g->host_index, err);
    if (code == SW_OK)
        code = get(engine, g->sizes.bias_bytes, &g->bias, err);
    if (code == SW_OK)
        code = get(engine, g->sizes.hidden_bytes, &g->hidden, err);
    if (code == SW_OK)
        code = get(engine, g->sizes.log_probabilities_bytes, &g->log_probabilities, err);
    if (code == SW_OK)
        code = get(engine, g->sizes.workspace_bytes, &g->workspace, err);
    if (code == SW_OK)
        code = alloc_caches(engine, g, err);
    if (code != SW_OK)
        return code;
    sw_decode_index_at(&g->host, g->host_index, &g->bounds);
    sw_decode_index_at(&g->device, g->device_index, &g->bounds);
    return SW_OK;
}

void sw_generation_close(struct sw_engine *engine)
{
    struct sw_generation *g = engine->generation;
    if (g == NULL)
        return;
    free(g->caches);
    free(g->cross);
    free(g);
}

static sw_code copy_index(struct sw_engine *engine, struct sw_err *err)
{
    struct sw_generation *g = engine->generation;
    struct sw_stream *stream = engine->ranks[0].streams[SW_LANE_COMPUTE];
    engine->device_ops->copy(stream, g->device_index, g->host_index, g->sizes.index_bytes);
    return engine->device_ops->stream_sync(stream, err);
}

sw_code sw_engine_generate_begin(struct sw_engine *engine, const struct sw_row *rows, int64_t count,
                                 int64_t beams, struct sw_err *err)
{
    struct sw_generation *g = engine->generation;
    sw_assert(g != NULL && count >= 1 && count <= g->bounds.rows && beams == g->bounds.beams);
    int32_t lengths[1024];
    sw_assert(count <= (int64_t)(sizeof lengths / sizeof *lengths));
    struct sw_row sources[1024];
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = rows[i].source_length;
        sources[i] = (struct sw_row){.source = rows[i].source, .source_length = lengths[i]};
        if (lengths[i] > g->bounds.source_length)
            return SW_FAIL(err, SW_E_FAILED, "a source of %d tokens is longer than the plan's %lld",
                           lengths[i], (long long)g->bounds.source_length);
    }
    sw_decode_index_begin(&g->host, &g->bounds, count, lengths);
    sw_code code = copy_index(engine, err);
    if (code != SW_OK)
        return code;
    const struct sw_batch batch = {.rows = sources, .count = count};
    engine->training = false;
    engine->dropout = 0;
    engine->target_tokens = 1;
    engine->diagnosing = true;
    engine->nonfinite_block = -1;
    sw_engine_fill_batches(engine, &batch, 0.0f);
    const struct sw_rows *source = &engine->ranks[0].batches[0].view.source;
    g->run = (struct sw_decode_run){
        .stream = engine->ranks[0].streams[SW_LANE_COMPUTE],
        .kernels = engine->device_ops->kernels,
        .model = engine->model,
        .tables = &engine->ranks[0].tables,
        .dtype = engine->plan->request.compute,
        .bounds = g->bounds,
        .index = &g->device,
        .rows = count,
        .source_tokens = source->tokens,
        .source_longest = source->longest,
        .position = -1,
        .bias = g->bias,
        .hidden = g->hidden,
        .log_probabilities = g->log_probabilities,
        .workspace = g->workspace,
    };
    return sw_executor_run(engine->executor, engine->plan->begin, engine->busy_seconds, err);
}

/* A search would rank NaN somewhere and print a likely text. */
static sw_code check_finite(struct sw_engine *engine, const float *log_probabilities, int64_t count,
                            struct sw_err *err)
{
    enum { EXPONENT = 0x7F800000 };
    uint32_t broken = 0; /* no early way out: this loop is vectorised */
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &log_probabilities[i], sizeof bits);
        broken |= (bits & EXPONENT) == EXPONENT;
    }
    if (!broken)
        return SW_OK;
    if (engine->nonfinite_block < 0 && !engine->device_ops->asynchronous)
        engine->nonfinite_block = (int32_t)engine->model->block_count - 1;
    const char *block = sw_engine_nonfinite(engine);
    return SW_FAIL(err, SW_E_NONFINITE,
                   "the model's output is not finite%s%s: its weights are broken, or too large for "
                   "precision.compute %s",
                   block != NULL ? ", first in " : "", block != NULL ? block : "",
                   sw_dtype_name(engine->plan->request.compute));
}

sw_code sw_engine_generate_step(struct sw_engine *engine, const int32_t *tokens,
                                const int32_t *parents, float *log_probabilities,
                                struct sw_err *err)
{
    struct sw_generation *g = engine->generation;
    struct sw_stream *stream = engine->ranks[0].streams[SW_LANE_COMPUTE];
    g->run.position++;
    g->run.reorder =
        sw_decode_index_step(&g->host, &g->bounds, g->run.rows, g->run.position, tokens, parents);
    sw_code code = copy_index(engine, err);
    if (code == SW_OK)
        code = sw_executor_run(engine->executor, engine->plan->decode, engine->busy_seconds, err);
    if (code != SW_OK)
        return sw_err_while(err, "generating token %lld", (long long)g->run.position + 1);
    int64_t count = g->run.rows * g->bounds.beams * engine->model->t5.vocab_size;
    engine->device_ops->copy(stream, log_probabilities, g->log_probabilities,
                             count * (int64_t)sizeof(float));
    code = engine->device_ops->stream_sync(stream, err);
    return code == SW_OK ? check_finite(engine, log_probabilities, count, err) : code;
}

sw_code sw_generation_run_op(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    struct sw_generation *g = engine->generation;
    struct sw_decode_run run = g->run;
    run.block = op->block >= 0 ? op->block : 0;
    if (op->block >= 0)
        for (int i = 0; i < SW_BLOCK_UNITS; i++) {
            int32_t unit = engine->model->blocks[op->block].units[i];
            if (unit >= 0)
                run.weights[i] = sw_store_weights(&engine->store, 0, unit, op->weights);
        }
    switch (op->kind) {
    case SW_OP_DECODE_BEGIN:
        run.weights[1] = sw_store_weights(&engine->store, 0, engine->model->common_unit, -1);
        sw_decode_begin(&run);
        break;
    case SW_OP_DECODE_CROSS: {
        run.encoder_output = engine->ranks[0].activations[op->memory];
        run.cross = g->cross[op->block];
        sw_decode_cross(&run);
        break;
    }
    case SW_OP_DECODE_EMBED:
        sw_decode_embed(&run);
        sw_engine_diagnose(engine, op->block, g->hidden, run.rows * run.bounds.beams);
        break;
    case SW_OP_DECODE_BLOCK:
        run.cross = g->cross[op->block];
        sw_decode_block(&run, &g->caches[op->block], &g->spare);
        sw_engine_diagnose(engine, op->block, g->hidden, run.rows * run.bounds.beams);
        break;
    case SW_OP_DECODE_HEAD:
        sw_decode_head(&run);
        break;
    default:
        return SW_FAIL(err, SW_E_FAILED, "op %s has no place here", sw_op_name(op->kind));
    }
    return engine->device_ops->stream_sync(run.stream, err);
}

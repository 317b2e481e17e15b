#include "model/decode.h"

#include "model/carve.h"
#include "model/t5_ops.h"

#include <string.h>

enum { INDEX_ARRAYS = 8 };

static int64_t hypotheses_of(const struct sw_decode_bounds *bounds)
{
    return bounds->rows * bounds->beams;
}

static int64_t inner_of(const struct sw_model *model)
{
    return model->t5.heads * model->t5.d_kv;
}

/* --- Index -------------------------------------------------------------------------------------*/

void sw_decode_index_at(struct sw_decode_index *out, void *buffer,
                        const struct sw_decode_bounds *bounds)
{
    int64_t count = hypotheses_of(bounds);
    int32_t *array = buffer;
    int32_t **const members[INDEX_ARRAYS] = {
        &out->query_starts,   &out->query_lengths, &out->cache_starts, &out->source_starts,
        &out->source_lengths, &out->tokens,        &out->parents,      &out->cache_lengths};
    sw_assert(count > 0 && count <= INT32_MAX / bounds->steps);
    for (int i = 0; i < INDEX_ARRAYS; i++)
        *members[i] = array + i * count;
}

void sw_decode_index_begin(const struct sw_decode_index *host,
                           const struct sw_decode_bounds *bounds, int64_t rows,
                           const int32_t *source_lengths)
{
    int64_t start = 0;
    sw_assert(rows > 0 && rows <= bounds->rows);
    for (int64_t row = 0; row < rows; row++) {
        sw_assert(source_lengths[row] <= bounds->source_length);
        for (int64_t beam = 0; beam < bounds->beams; beam++) {
            int64_t i = row * bounds->beams + beam;
            host->query_starts[i] = (int32_t)i;
            host->query_lengths[i] = 1;
            host->cache_starts[i] = (int32_t)(i * bounds->steps);
            host->source_starts[i] = (int32_t)start;
            host->source_lengths[i] = source_lengths[row];
        }
        start += source_lengths[row];
    }
}

bool sw_decode_index_step(const struct sw_decode_index *host, const struct sw_decode_bounds *bounds,
                          int64_t rows, int64_t position, const int32_t *tokens,
                          const int32_t *parents)
{
    bool reorder = false;
    sw_assert(position >= 0 && position < bounds->steps);
    for (int64_t i = 0; i < rows * bounds->beams; i++) {
        sw_assert(parents[i] >= 0 && parents[i] < rows * bounds->beams);
        host->tokens[i] = tokens[i];
        host->parents[i] = parents[i];
        host->cache_lengths[i] = (int32_t)(position + 1);
        reorder |= parents[i] != i;
    }
    return reorder;
}

/* --- Steps as block runs -----------------------------------------------------------------------*/

/* The parts of a step that do not know about caches take a block run without dropout. */
static struct sw_block_run as_block_run(const struct sw_decode_run *run)
{
    return (struct sw_block_run){
        .stream = run->stream,
        .kernels = run->kernels,
        .model = run->model,
        .tables = run->tables,
        .block = run->block,
        .dtype = run->dtype,
        .weights = {run->weights[0], run->weights[1]},
    };
}

static int64_t hypotheses(const struct sw_decode_run *run)
{
    return run->rows * run->bounds.beams;
}

static struct sw_rows query_rows(const struct sw_decode_run *run)
{
    return (struct sw_rows){
        .count = hypotheses(run),
        .tokens = hypotheses(run),
        .longest = 1,
        .starts = run->index->query_starts,
        .lengths = run->index->query_lengths,
    };
}

/* The first position + 1 keys of every hypothesis. */
static struct sw_rows cache_rows(const struct sw_decode_run *run)
{
    return (struct sw_rows){
        .count = hypotheses(run),
        .tokens = hypotheses(run) * (run->position + 1),
        .longest = run->position + 1,
        .starts = run->index->cache_starts,
        .lengths = run->index->cache_lengths,
    };
}

/* All beams of a row read the same keys. */
static struct sw_rows source_rows(const struct sw_decode_run *run)
{
    return (struct sw_rows){
        .count = hypotheses(run),
        .tokens = run->source_tokens * run->bounds.beams,
        .longest = run->source_longest,
        .starts = run->index->source_starts,
        .lengths = run->index->source_lengths,
    };
}

/* y [rows, out], rows `stride` elements apart, = x W^T */
static void linear(const struct sw_decode_run *run, const struct sw_t5_matrix *matrix, int64_t rows,
                   void *y, int64_t stride, const void *x, bool accumulate)
{
    const struct sw_gemm gemm = {
        .m = rows,
        .n = matrix->out,
        .k = matrix->in,
        .trans_b = true,
        .a = x,
        .lda = matrix->in,
        .b = matrix->weight,
        .ldb = matrix->in,
        .c = y,
        .ldc = stride,
        .alpha = 1.0f,
        .beta = accumulate ? 1.0f : 0.0f,
        .ab_dtype = run->dtype,
        .c_dtype = run->dtype,
    };
    run->kernels->gemm(run->stream, &gemm);
}

/* What a step works in; the largest of its parts is the workspace. */
struct scratch {
    void *normed;  /* [H, D] */
    float *rstd;   /* [H] */
    void *q, *o;   /* [H, I] */
    float *lse;    /* [heads, H] */
    void *h, *g;   /* [H, 2 F], [H, F] */
    float *logits; /* [H, vocabulary] */
    void *attention;
};

static void carve_norm(const struct sw_decode_run *run, struct sw_carve *carve, struct scratch *out)
{
    out->normed =
        sw_carve(carve, hypotheses(run) * run->model->t5.d_model * sw_dtype_bytes(run->dtype));
    out->rstd = sw_carve(carve, hypotheses(run) * (int64_t)sizeof(float));
}

/* --- Attention ---------------------------------------------------------------------------------*/

static struct sw_attention attention_over(const struct sw_decode_run *run, bool cross,
                                          const void *q, const void *kv)
{
    int64_t inner = inner_of(run->model);
    return (struct sw_attention){
        .heads = run->model->t5.heads,
        .head_dim = run->model->t5.d_kv,
        .scale = 1.0f,
        .causal = !cross,
        .queries = query_rows(run),
        .keys = cross ? source_rows(run) : cache_rows(run),
        .q = q,
        .k = kv,
        .v = sw_t5_at(kv, inner, run->dtype),
        .q_stride = inner,
        .kv_stride = 2 * inner,
        .o_stride = inner,
        .bias = cross ? NULL : run->bias,
        .bias_reach = cross ? 0 : run->bounds.steps,
        .dtype = run->dtype,
    };
}

static void carve_attention(const struct sw_decode_run *run, bool cross, struct sw_carve *carve,
                            struct scratch *out)
{
    int64_t width = hypotheses(run) * inner_of(run->model) * sw_dtype_bytes(run->dtype);
    carve_norm(run, carve, out);
    out->q = sw_carve(carve, width);
    out->o = sw_carve(carve, width);
    out->lse = sw_carve(carve, run->model->t5.heads * hypotheses(run) * (int64_t)sizeof(float));
    const struct sw_attention math = attention_over(run, cross, NULL, NULL);
    out->attention = sw_carve(carve, run->kernels->attention_forward_workspace_bytes(&math));
}

/* hidden += o's projection of attention over `kv`, with q's projection done. */
static void attend(const struct sw_decode_run *run, bool cross,
                   const struct sw_t5_attention_params *params, const struct scratch *scratch,
                   const void *kv)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_attention math = attention_over(run, cross, scratch->q, kv);
    const struct sw_t5_matrix o = sw_t5_matrix(&block, params->o, 1);
    run->kernels->attention_forward(run->stream, &math, scratch->o, scratch->lse,
                                    scratch->attention);
    linear(run, &o, hypotheses(run), run->hidden, o.out, scratch->o, true);
}

static void self_attention(const struct sw_decode_run *run,
                           const struct sw_t5_attention_params *params, void *cache,
                           struct sw_carve carve)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_t5_matrix q = sw_t5_matrix(&block, params->q, 1);
    const struct sw_t5_matrix kv = sw_t5_matrix(&block, params->k, 2);
    struct scratch scratch;
    carve_attention(run, false, &carve, &scratch);
    sw_t5_norm_forward(&block, 0, params->norm, hypotheses(run), scratch.normed, scratch.rstd,
                       run->hidden);
    linear(run, &q, hypotheses(run), scratch.q, q.out, scratch.normed, false);
    /* straight into this position of every hypothesis's part of the cache */
    linear(run, &kv, hypotheses(run), sw_t5_at_mutable(cache, run->position * kv.out, run->dtype),
           run->bounds.steps * kv.out, scratch.normed, false);
    attend(run, false, params, &scratch, cache);
}

static void cross_attention(const struct sw_decode_run *run,
                            const struct sw_t5_attention_params *params, struct sw_carve carve)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_t5_matrix q = sw_t5_matrix(&block, params->q, 1);
    struct scratch scratch;
    carve_attention(run, true, &carve, &scratch);
    sw_t5_norm_forward(&block, 0, params->norm, hypotheses(run), scratch.normed, scratch.rstd,
                       run->hidden);
    linear(run, &q, hypotheses(run), scratch.q, q.out, scratch.normed, false);
    attend(run, true, params, &scratch, run->cross);
}

/* --- Feed-forward ------------------------------------------------------------------------------*/

static void carve_feed_forward(const struct sw_decode_run *run, struct sw_carve *carve,
                               struct scratch *out)
{
    int64_t width = hypotheses(run) * run->model->t5.d_ff * sw_dtype_bytes(run->dtype);
    carve_norm(run, carve, out);
    out->h = sw_carve(carve, run->model->t5.gated ? 2 * width : width);
    out->g = sw_carve(carve, width);
}

static void feed_forward(const struct sw_decode_run *run, const struct sw_t5_block_params *params,
                         struct sw_carve carve)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_rows rows = query_rows(run);
    const struct sw_t5_matrix in =
        sw_t5_matrix(&block, params->ffn_in, params->ffn_gate != NULL ? 2 : 1);
    const struct sw_t5_matrix out = sw_t5_matrix(&block, params->ffn_out, 1);
    const struct sw_ffn math = {
        .rows = rows.tokens,
        .width = run->model->t5.d_ff,
        .gated = run->model->t5.gated,
        .activation = run->model->t5.activation,
        .dtype = run->dtype,
        .layout = &rows,
    };
    struct scratch scratch;
    carve_feed_forward(run, &carve, &scratch);
    sw_t5_norm_forward(&block, 0, params->ffn_norm, rows.tokens, scratch.normed, scratch.rstd,
                       run->hidden);
    linear(run, &in, rows.tokens, scratch.h, in.out, scratch.normed, false);
    run->kernels->ffn_forward(run->stream, &math, scratch.g, scratch.h);
    linear(run, &out, rows.tokens, run->hidden, out.out, scratch.g, true);
}

/* --- The interface -----------------------------------------------------------------------------*/

void sw_decode_begin(const struct sw_decode_run *run)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_t5_config *t5 = &run->model->t5;
    int64_t steps = run->bounds.steps;
    sw_assert(run->tables->reach >= steps);
    run->kernels->bias_expand(
        run->stream, run->bias,
        sw_t5_weight(&block, 1, sw_t5_common_param(run->model, SW_T5_DECODER_BIAS)), run->dtype,
        run->tables->decoder_buckets + (run->tables->reach - steps), t5->bias_buckets, t5->heads,
        steps);
}

void sw_decode_cross(const struct sw_decode_run *run)
{
    const struct sw_block_run block = as_block_run(run);
    struct sw_t5_block_params params;
    sw_t5_block_params(run->model, run->block, &params);
    const struct sw_t5_matrix kv = sw_t5_matrix(&block, params.cross.k, 2);
    linear(run, &kv, run->source_tokens, run->cross, kv.out, run->encoder_output, false);
}

void sw_decode_embed(const struct sw_decode_run *run)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_unit *unit = &run->model->units[run->model->embedding_unit];
    const struct sw_param *table = &run->model->params[unit->first_param];
    run->kernels->embedding_forward(run->stream, run->hidden, sw_t5_weight(&block, 0, table),
                                    run->index->tokens, hypotheses(run), run->model->t5.d_model,
                                    run->dtype);
}

void sw_decode_block(const struct sw_decode_run *run, void **cache, void **spare)
{
    const struct sw_carve carve = {.base = run->workspace};
    struct sw_t5_block_params params;
    sw_assert(run->model->blocks[run->block].kind == SW_BLOCK_DECODER);
    sw_t5_block_params(run->model, run->block, &params);
    if (run->reorder && run->position > 0) {
        int64_t row_bytes =
            run->bounds.steps * 2 * inner_of(run->model) * sw_dtype_bytes(run->dtype);
        void *gathered = *spare;
        run->kernels->gather_rows(run->stream, gathered, *cache, run->index->parents,
                                  hypotheses(run), row_bytes);
        *spare = *cache;
        *cache = gathered;
    }
    self_attention(run, &params.self, *cache, carve);
    cross_attention(run, &params.cross, carve);
    feed_forward(run, &params, carve);
}

static void carve_logits(const struct sw_decode_run *run, struct sw_carve *carve,
                         struct scratch *out)
{
    carve_norm(run, carve, out);
    out->logits =
        sw_carve(carve, hypotheses(run) * run->model->t5.vocab_size * (int64_t)sizeof(float));
}

void sw_decode_head(const struct sw_decode_run *run)
{
    const struct sw_block_run block = as_block_run(run);
    const struct sw_t5_config *t5 = &run->model->t5;
    const struct sw_unit *unit = &run->model->units[run->model->head_unit];
    struct sw_carve carve = {.base = run->workspace};
    struct scratch scratch;
    carve_logits(run, &carve, &scratch);
    sw_t5_norm_forward(&block, 1, sw_t5_common_param(run->model, SW_T5_DECODER_NORM),
                       hypotheses(run), scratch.normed, scratch.rstd, run->hidden);
    const struct sw_gemm gemm = {
        .m = hypotheses(run),
        .n = t5->vocab_size,
        .k = t5->d_model,
        .trans_b = true,
        .a = scratch.normed,
        .lda = t5->d_model,
        .b = sw_t5_weight(&block, 0, &run->model->params[unit->first_param]),
        .ldb = t5->d_model,
        .c = scratch.logits,
        .ldc = t5->vocab_size,
        .alpha = sw_t5_head_scale(run->model),
        .ab_dtype = run->dtype,
        .c_dtype = SW_F32,
    };
    run->kernels->gemm(run->stream, &gemm);
    run->kernels->log_softmax(run->stream, run->log_probabilities, scratch.logits, hypotheses(run),
                              t5->vocab_size);
}

/* --- Sizes -------------------------------------------------------------------------------------*/

static int64_t workspace_bytes(const struct sw_decode_run *run)
{
    struct sw_carve carve = {.measuring = true};
    struct scratch scratch;
    carve_attention(run, false, &carve, &scratch);
    carve.used_bytes = 0;
    carve_attention(run, true, &carve, &scratch);
    carve.used_bytes = 0;
    carve_feed_forward(run, &carve, &scratch);
    carve.used_bytes = 0;
    carve_logits(run, &carve, &scratch);
    return carve.high_bytes;
}

void sw_decode_sizes(const struct sw_model *model, const struct sw_decode_bounds *bounds,
                     enum sw_dtype dtype, const struct sw_kernels *kernels,
                     struct sw_decode_sizes *out)
{
    const struct sw_decode_index index = {0};
    const struct sw_decode_run run = {
        .kernels = kernels,
        .model = model,
        .dtype = dtype,
        .bounds = *bounds,
        .index = &index,
        .rows = bounds->rows,
        .source_tokens = bounds->rows * bounds->source_length,
        .source_longest = bounds->source_length,
        .position = bounds->steps - 1,
    };
    const struct sw_t5_config *t5 = &model->t5;
    int64_t count = hypotheses_of(bounds);
    int64_t kv_bytes = 2 * inner_of(model) * sw_dtype_bytes(dtype);
    out->index_bytes = INDEX_ARRAYS * count * (int64_t)sizeof(int32_t);
    out->bias_bytes = t5->heads * (2 * bounds->steps - 1) * (int64_t)sizeof(float);
    out->cache_bytes = count * bounds->steps * kv_bytes;
    out->cross_bytes = run.source_tokens * kv_bytes;
    out->hidden_bytes = count * t5->d_model * sw_dtype_bytes(dtype);
    out->log_probabilities_bytes = count * t5->vocab_size * (int64_t)sizeof(float);
    out->workspace_bytes = workspace_bytes(&run);
}

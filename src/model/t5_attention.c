/* T5's attention as a part of a block: norm, projections, attention, output, residual. */
#include "model/t5_ops.h"

static int64_t inner_width(const struct sw_block_run *run)
{
    return run->model->t5.heads * run->model->t5.d_kv;
}

static int64_t bytes_of(const struct sw_block_run *run, int64_t rows, int64_t width)
{
    return rows * width * sw_dtype_bytes(run->dtype);
}

void sw_t5_attention_carve(const struct sw_t5_attention *attention, struct sw_carve *carve,
                           struct sw_t5_attention_context *out)
{
    const struct sw_block_run *run = attention->run;
    int64_t tokens = attention->queries.tokens;
    int64_t inner = inner_width(run);
    out->normed = sw_carve(carve, bytes_of(run, tokens, run->model->t5.d_model));
    out->rstd = sw_carve(carve, tokens * (int64_t)sizeof(float));
    out->q = sw_carve(carve, bytes_of(run, tokens, attention->cross ? inner : 3 * inner));
    out->kv =
        attention->cross ? sw_carve(carve, bytes_of(run, attention->keys.tokens, 2 * inner)) : NULL;
    out->o = sw_carve(carve, bytes_of(run, tokens, inner));
    out->lse = sw_carve(carve, run->model->t5.heads * tokens * (int64_t)sizeof(float));
}

/* Where q, k and v, or their gradients, are within two buffers laid out as in the context. */
struct parts {
    void *q, *k, *v;
};

static struct parts parts_of(const struct sw_t5_attention *attention, void *q, void *kv)
{
    int64_t inner = inner_width(attention->run);
    enum sw_dtype dtype = attention->run->dtype;
    void *keys = attention->cross ? kv : sw_t5_at_mutable(q, inner, dtype);
    return (struct parts){q, keys, sw_t5_at_mutable(keys, inner, dtype)};
}

/* T5 does not scale scores: its initialisation does. Cross-attention has no bias. */
static struct sw_attention describe(const struct sw_t5_attention *attention,
                                    const struct sw_t5_attention_context *context,
                                    const float *bias)
{
    const struct sw_block_run *run = attention->run;
    int64_t inner = inner_width(run);
    struct parts parts = parts_of(attention, context->q, context->kv);
    return (struct sw_attention){
        .heads = run->model->t5.heads,
        .head_dim = run->model->t5.d_kv,
        .scale = 1.0f,
        .causal = attention->causal,
        .queries = attention->queries,
        .keys = attention->keys,
        .q = parts.q,
        .k = parts.k,
        .v = parts.v,
        .q_stride = attention->cross ? inner : 3 * inner,
        .kv_stride = attention->cross ? 2 * inner : 3 * inner,
        .o_stride = inner,
        .bias = bias,
        .bias_reach = attention->cross ? 0 : run->tables->reach,
        .dropout = sw_t5_dropout(run, attention->cross ? SW_T5_AT_CROSS_PROBABILITIES
                                                       : SW_T5_AT_SELF_PROBABILITIES),
        .dtype = run->dtype,
    };
}

/* --- The relative bias of a stack ----------------------------------------------------------------
 */

static const struct sw_param *bias_table(const struct sw_t5_attention *attention)
{
    return sw_t5_common_param(attention->run->model,
                              attention->causal ? SW_T5_DECODER_BIAS : SW_T5_ENCODER_BIAS);
}

static const int32_t *buckets_of(const struct sw_t5_attention *attention)
{
    const struct sw_model_tables *tables = attention->run->tables;
    return attention->causal ? tables->decoder_buckets : tables->encoder_buckets;
}

/* fp32 [heads][2 * reach - 1] from the workspace; NULL for cross-attention. */
static float *carve_bias(const struct sw_t5_attention *attention, struct sw_carve *carve)
{
    const struct sw_block_run *run = attention->run;
    if (attention->cross)
        return NULL;
    int64_t entries = run->model->t5.heads * (2 * run->tables->reach - 1);
    return sw_carve(carve, entries * (int64_t)sizeof(float));
}

static void expand_bias(const struct sw_t5_attention *attention, float *bias)
{
    const struct sw_block_run *run = attention->run;
    const struct sw_t5_config *t5 = &run->model->t5;
    if (!attention->cross)
        run->kernels->bias_expand(run->stream, bias, sw_t5_weight(run, 1, bias_table(attention)),
                                  run->dtype, buckets_of(attention), t5->bias_buckets, t5->heads,
                                  run->tables->reach);
}

static float *bias_gradient(const struct sw_t5_attention *attention)
{
    return attention->cross || !bias_table(attention)->trainable ? NULL
                                                                 : attention->run->bias_gradient;
}

static void reduce_bias(const struct sw_t5_attention *attention)
{
    const struct sw_block_run *run = attention->run;
    const struct sw_t5_config *t5 = &run->model->t5;
    const float *gradient = bias_gradient(attention);
    if (gradient != NULL && run->last_microbatch)
        run->kernels->bias_reduce(run->stream, run->bias_partial, gradient, buckets_of(attention),
                                  t5->bias_buckets, t5->heads, run->tables->reach);
}

/* --- Projections ---------------------------------------------------------------------------------
 */

static void project(const struct sw_t5_attention *attention,
                    const struct sw_t5_attention_context *context)
{
    const struct sw_block_run *run = attention->run;
    struct sw_t5_matrix q = sw_t5_matrix(run, attention->params->q, attention->cross ? 1 : 3);
    sw_t5_linear(run, &q, attention->queries.tokens, context->q, context->normed);
    if (attention->cross) {
        struct sw_t5_matrix kv = sw_t5_matrix(run, attention->params->k, 2);
        sw_t5_linear(run, &kv, attention->keys.tokens, context->kv, run->encoder_output);
    }
}

/* d_normed from dq and dkv, laid out as q and kv; the encoder's gradient, the weights' gradients.
 */
static void project_backward(const struct sw_t5_attention *attention,
                             const struct sw_t5_attention_context *context, void *d_normed,
                             const void *dq, const void *dkv)
{
    const struct sw_block_run *run = attention->run;
    int64_t tokens = attention->queries.tokens;
    struct sw_t5_matrix q = sw_t5_matrix(run, attention->params->q, attention->cross ? 1 : 3);
    sw_t5_linear_weight(run, &q, tokens, dq, context->normed);
    sw_t5_linear_input(run, &q, tokens, d_normed, dq, false);
    if (attention->cross) {
        struct sw_t5_matrix kv = sw_t5_matrix(run, attention->params->k, 2);
        sw_t5_linear_weight(run, &kv, attention->keys.tokens, dkv, run->encoder_output);
        sw_t5_linear_input(run, &kv, attention->keys.tokens, run->encoder_gradient, dkv, true);
    }
}

/* --- Forward and backward ------------------------------------------------------------------------
 */

static struct sw_dropout residual_dropout(const struct sw_t5_attention *attention)
{
    return sw_t5_dropout(attention->run,
                         attention->cross ? SW_T5_AT_CROSS_RESIDUAL : SW_T5_AT_SELF_RESIDUAL);
}

void sw_t5_attention_forward(const struct sw_t5_attention *attention,
                             const struct sw_t5_attention_context *context, void *y, const void *x,
                             struct sw_carve *carve)
{
    const struct sw_block_run *run = attention->run;
    int64_t tokens = attention->queries.tokens;
    void *branch = sw_t5_branch(run, tokens, carve);
    float *bias = carve_bias(attention, carve);
    const struct sw_attention math = describe(attention, context, bias);
    void *workspace = sw_carve(carve, run->kernels->attention_forward_workspace_bytes(&math));
    if (carve->measuring)
        return;
    const struct sw_dropout dropout = residual_dropout(attention);
    const struct sw_t5_matrix o = sw_t5_matrix(run, attention->params->o, 1);
    sw_t5_norm_forward(run, 0, attention->params->norm, tokens, context->normed, context->rstd, x);
    project(attention, context);
    expand_bias(attention, bias);
    run->kernels->attention_forward(run->stream, &math, context->o, context->lse, workspace);
    sw_t5_linear_residual(run, &o, &attention->queries, &dropout, y, x, context->o, branch);
}

struct gradients {
    void *branch; /* [N, D] d(o's projection), later d(normed) */
    void *o;      /* [N, I] */
    void *q, *kv; /* as in the context */
    float *bias;
};

static void carve_gradients(const struct sw_t5_attention *attention, struct sw_carve *carve,
                            struct gradients *out)
{
    const struct sw_block_run *run = attention->run;
    int64_t tokens = attention->queries.tokens;
    int64_t inner = inner_width(run);
    out->branch = sw_carve(carve, bytes_of(run, tokens, run->model->t5.d_model));
    out->o = sw_carve(carve, bytes_of(run, tokens, inner));
    out->q = sw_carve(carve, bytes_of(run, tokens, attention->cross ? inner : 3 * inner));
    out->kv =
        attention->cross ? sw_carve(carve, bytes_of(run, attention->keys.tokens, 2 * inner)) : NULL;
    out->bias = carve_bias(attention, carve);
}

void sw_t5_attention_backward(const struct sw_t5_attention *attention,
                              const struct sw_t5_attention_context *context, void *gradient,
                              const void *x, struct sw_carve *carve)
{
    const struct sw_block_run *run = attention->run;
    int64_t tokens = attention->queries.tokens;
    int64_t mark = carve->used_bytes;
    struct gradients d;
    carve_gradients(attention, carve, &d);
    const struct sw_attention math = describe(attention, context, d.bias);
    void *workspace = sw_carve(carve, run->kernels->attention_backward_workspace_bytes(&math));
    if (!carve->measuring) {
        const struct sw_dropout dropout = residual_dropout(attention);
        const struct sw_t5_matrix o = sw_t5_matrix(run, attention->params->o, 1);
        const struct parts dq = parts_of(attention, d.q, d.kv);
        const void *branch = gradient;
        if (dropout.p > 0.0f) {
            run->kernels->residual_backward(run->stream, d.branch, gradient, run->model->t5.d_model,
                                            &attention->queries, &dropout, run->dtype);
            branch = d.branch;
        }
        sw_t5_linear_weight(run, &o, tokens, branch, context->o);
        sw_t5_linear_input(run, &o, tokens, d.o, branch, false);
        expand_bias(attention, d.bias);
        run->kernels->attention_backward(run->stream, &math, dq.q, dq.k, dq.v,
                                         bias_gradient(attention), d.o, context->o, context->lse,
                                         workspace);
        reduce_bias(attention);
        project_backward(attention, context, d.branch, d.q, d.kv);
    }
    sw_t5_norm_backward(run, 0, attention->params->norm, tokens, gradient, d.branch, x,
                        context->rstd, carve);
    carve->used_bytes = mark;
}

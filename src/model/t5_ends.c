/* Both ends of T5's stacks: embeddings, the encoder's final norm, the head with its loss. */
#include "model/t5_ops.h"

#include <math.h>

static int64_t residual_bytes(const struct sw_block_run *run, int64_t tokens)
{
    return tokens * run->model->t5.d_model * sw_dtype_bytes(run->dtype);
}

/* --- Embeddings --------------------------------------------------------------------------------*/

static bool reads_source(const struct sw_block_run *run)
{
    return run->model->blocks[run->block].kind == SW_BLOCK_EMBED_SOURCE;
}

static const struct sw_param *table_of(const struct sw_block_run *run)
{
    const struct sw_block *block = &run->model->blocks[run->block];
    return &run->model->params[run->model->units[block->units[0]].first_param];
}

void sw_t5_embed_forward(const struct sw_block_run *run)
{
    const struct sw_microbatch *batch = run->batch;
    const struct sw_rows *rows = reads_source(run) ? &batch->source : &batch->target;
    const int32_t *ids = reads_source(run) ? batch->source_ids : batch->target_ids;
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_OUTPUT);
    int64_t width = run->model->t5.d_model;
    run->kernels->embedding_forward(run->stream, run->output, sw_t5_weight(run, 0, table_of(run)),
                                    ids, rows->tokens, width, run->dtype);
    if (dropout.p > 0.0f)
        run->kernels->residual_forward(run->stream, run->output, NULL, run->output, width, rows,
                                       &dropout, run->dtype);
}

void sw_t5_embed_backward(const struct sw_block_run *run, struct sw_carve *carve)
{
    const struct sw_microbatch *batch = run->batch;
    const struct sw_rows *rows = reads_source(run) ? &batch->source : &batch->target;
    const int32_t *ids = reads_source(run) ? batch->source_ids : batch->target_ids;
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_OUTPUT);
    const struct sw_t5_config *t5 = &run->model->t5;
    void *dropped = sw_carve(carve, residual_bytes(run, rows->tokens));
    void *workspace = sw_carve(carve, run->kernels->embedding_backward_workspace_bytes(
                                          rows->tokens, t5->d_model, t5->vocab_size));
    if (carve->measuring)
        return;
    float *gradient = sw_t5_gradient(run, 0, table_of(run));
    const void *dx = run->gradient;
    if (gradient == NULL)
        return;
    if (dropout.p > 0.0f) {
        run->kernels->residual_backward(run->stream, dropped, run->gradient, t5->d_model, rows,
                                        &dropout, run->dtype);
        dx = dropped;
    }
    run->kernels->embedding_backward(run->stream, gradient, dx, ids, rows->tokens, t5->d_model,
                                     t5->vocab_size, run->dtype, workspace);
}

/* --- The encoder's final norm ------------------------------------------------------------------*/

void sw_t5_end_forward(const struct sw_block_run *run, struct sw_carve *carve)
{
    const struct sw_rows *rows = &run->batch->source;
    float *rstd = sw_carve(carve, rows->tokens * (int64_t)sizeof(float));
    if (carve->measuring)
        return;
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_OUTPUT);
    sw_t5_norm_forward(run, 1, sw_t5_common_param(run->model, SW_T5_ENCODER_NORM), rows->tokens,
                       run->output, run->context != NULL ? run->context : rstd, run->input);
    if (dropout.p > 0.0f)
        run->kernels->residual_forward(run->stream, run->output, NULL, run->output,
                                       run->model->t5.d_model, rows, &dropout, run->dtype);
}

/* d(x) of a final norm whose output went through dropout; dy and dx may be the same. */
static void final_norm_backward(const struct sw_block_run *run, enum sw_t5_common which,
                                const struct sw_rows *rows, const void *dy, const float *rstd,
                                struct sw_carve *carve)
{
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_OUTPUT);
    void *dropped = sw_carve(carve, residual_bytes(run, rows->tokens));
    if (!carve->measuring) {
        run->kernels->residual_backward(run->stream, dropped, dy, run->model->t5.d_model, rows,
                                        &dropout, run->dtype);
        run->device->zero(run->stream, run->gradient, residual_bytes(run, rows->tokens));
    }
    sw_t5_norm_backward(run, 1, sw_t5_common_param(run->model, which), rows->tokens, run->gradient,
                        dropped, run->input, rstd, carve);
}

void sw_t5_end_backward(const struct sw_block_run *run, struct sw_carve *carve)
{
    final_norm_backward(run, SW_T5_ENCODER_NORM, &run->batch->source, run->gradient, run->context,
                        carve);
}

/* --- Head --------------------------------------------------------------------------------------*/

struct head {
    const struct sw_block_run *run;
    const struct sw_rows *rows;
    int64_t vocabulary, width;
    int64_t chunk; /* tokens whose logits exist at once */
    float alpha;   /* scale of the head's input */
    const void *weight;
    float *rstd;    /* [N] */
    void *normed;   /* [N, D] */
    void *d_normed; /* [N, D] */
    float *logits;  /* [chunk, vocabulary] */
    void *d_logits; /* [chunk, vocabulary] */
    float *losses;  /* [chunk] */
};

static void carve_head(struct head *head, bool backward, struct sw_carve *carve)
{
    const struct sw_block_run *run = head->run;
    int64_t tokens = head->rows->tokens;
    int64_t logits = head->chunk * head->vocabulary;
    head->rstd = sw_carve(carve, tokens * (int64_t)sizeof(float));
    head->normed = sw_carve(carve, residual_bytes(run, tokens));
    head->losses = sw_carve(carve, head->chunk * (int64_t)sizeof(float));
    head->logits = sw_carve(carve, logits * (int64_t)sizeof(float));
    head->d_logits = head->logits; /* cross-entropy works in place in fp32 */
    if (!backward)
        return;
    head->d_normed = sw_carve(carve, residual_bytes(run, tokens));
    if (run->dtype != SW_F32)
        head->d_logits = sw_carve(carve, logits * sw_dtype_bytes(run->dtype));
}

static void normalise(const struct head *head)
{
    const struct sw_block_run *run = head->run;
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_OUTPUT);
    sw_t5_norm_forward(run, 1, sw_t5_common_param(run->model, SW_T5_DECODER_NORM),
                       head->rows->tokens, head->normed, head->rstd, run->input);
    if (dropout.p > 0.0f)
        run->kernels->residual_forward(run->stream, head->normed, NULL, head->normed, head->width,
                                       head->rows, &dropout, run->dtype);
}

/* logits [count, vocabulary] = alpha * x E^T */
static void chunk_logits(const struct head *head, int64_t first, int64_t count, float *logits)
{
    const struct sw_gemm gemm = {
        .m = count,
        .n = head->vocabulary,
        .k = head->width,
        .trans_b = true,
        .a = sw_t5_at(head->normed, first * head->width, head->run->dtype),
        .lda = head->width,
        .b = head->weight,
        .ldb = head->width,
        .c = logits,
        .ldc = head->vocabulary,
        .alpha = head->alpha,
        .ab_dtype = head->run->dtype,
        .c_dtype = SW_F32,
    };
    head->run->kernels->gemm(head->run->stream, &gemm);
}

/* d(x) = alpha * d(logits) E; dE += alpha * d(logits)^T x */
static void chunk_backward(const struct head *head, int64_t first, int64_t count)
{
    const struct sw_block_run *run = head->run;
    struct sw_gemm gemm = {
        .m = count,
        .n = head->width,
        .k = head->vocabulary,
        .a = head->d_logits,
        .lda = head->vocabulary,
        .b = head->weight,
        .ldb = head->width,
        .c = sw_t5_at_mutable(head->d_normed, first * head->width, run->dtype),
        .ldc = head->width,
        .alpha = head->alpha,
        .ab_dtype = run->dtype,
        .c_dtype = run->dtype,
    };
    run->kernels->gemm(run->stream, &gemm);
    gemm.m = head->vocabulary;
    gemm.k = count;
    gemm.trans_a = true;
    gemm.b = sw_t5_at(head->normed, first * head->width, run->dtype);
    gemm.c = sw_t5_gradient(run, 0, table_of(run));
    gemm.beta = 1.0f;
    gemm.c_dtype = SW_F32;
    if (gemm.c != NULL)
        run->kernels->gemm(run->stream, &gemm);
}

static void chunk(const struct head *head, bool backward, int64_t first, int64_t count)
{
    const struct sw_block_run *run = head->run;
    const struct sw_cross_entropy loss = {
        .rows = count,
        .vocabulary = head->vocabulary,
        .smoothing = run->batch->smoothing,
        .gradient_scale = run->batch->loss_scale,
    };
    float *logits = run->logits != NULL ? run->logits + first * head->vocabulary : head->logits;
    chunk_logits(head, first, count, logits);
    run->kernels->cross_entropy(run->stream, &loss, head->losses, backward ? head->d_logits : NULL,
                                run->dtype, logits, run->batch->labels + first);
    run->kernels->sum_in_order(run->stream, run->loss_sum, head->losses, count);
    if (backward)
        chunk_backward(head, first, count);
}

float sw_t5_head_scale(const struct sw_model *model)
{
    return model->t5.scale_head ? (float)(1.0 / sqrt((double)model->t5.d_model)) : 1.0f;
}

void sw_t5_head(const struct sw_block_run *run, bool backward, struct sw_carve *carve)
{
    struct head head = {
        .run = run,
        .rows = &run->batch->target,
        .vocabulary = run->model->t5.vocab_size,
        .width = run->model->t5.d_model,
        .chunk = run->bounds.head_chunk_tokens,
        .alpha = sw_t5_head_scale(run->model),
        .weight = sw_t5_weight(run, 0, table_of(run)),
    };
    int64_t tokens = head.rows->tokens;
    sw_assert(head.chunk > 0 && (run->logits == NULL || !backward));
    carve_head(&head, backward, carve);
    if (!carve->measuring) {
        normalise(&head);
        for (int64_t first = 0; first < tokens; first += head.chunk)
            chunk(&head, backward, first,
                  tokens - first < head.chunk ? tokens - first : head.chunk);
    }
    if (backward)
        final_norm_backward(run, SW_T5_DECODER_NORM, head.rows, head.d_normed, head.rstd, carve);
}

/* T5's feed-forward as a part of a block: norm, one or two matrices in, activation, one out. */
#include "model/t5_ops.h"

static int64_t inner_bytes(const struct sw_t5_ffn *ffn, int64_t halves)
{
    return ffn->rows.tokens * ffn->run->model->t5.d_ff * halves * sw_dtype_bytes(ffn->run->dtype);
}

static int64_t residual_bytes(const struct sw_t5_ffn *ffn)
{
    return ffn->rows.tokens * ffn->run->model->t5.d_model * sw_dtype_bytes(ffn->run->dtype);
}

static int halves(const struct sw_t5_ffn *ffn)
{
    return ffn->params->ffn_gate != NULL ? 2 : 1;
}

/* `ffn` must outlive the result. */
static struct sw_ffn describe(const struct sw_t5_ffn *ffn)
{
    const struct sw_block_run *run = ffn->run;
    return (struct sw_ffn){
        .rows = ffn->rows.tokens,
        .width = run->model->t5.d_ff,
        .gated = run->model->t5.gated,
        .activation = run->model->t5.activation,
        .dtype = run->dtype,
        .dropout = sw_t5_dropout(run, SW_T5_AT_ACTIVATION),
        .layout = &ffn->rows,
    };
}

void sw_t5_ffn_carve(const struct sw_t5_ffn *ffn, struct sw_carve *carve,
                     struct sw_t5_ffn_context *out)
{
    out->normed = sw_carve(carve, residual_bytes(ffn));
    out->rstd = sw_carve(carve, ffn->rows.tokens * (int64_t)sizeof(float));
    out->h = sw_carve(carve, inner_bytes(ffn, halves(ffn)));
}

void sw_t5_ffn_forward(const struct sw_t5_ffn *ffn, const struct sw_t5_ffn_context *context,
                       void *y, const void *x, struct sw_carve *carve)
{
    const struct sw_block_run *run = ffn->run;
    int64_t tokens = ffn->rows.tokens;
    void *g = sw_carve(carve, inner_bytes(ffn, 1));
    void *branch = sw_t5_branch(run, tokens, carve);
    if (carve->measuring)
        return;
    const struct sw_ffn math = describe(ffn);
    const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_FFN_RESIDUAL);
    const struct sw_t5_matrix in = sw_t5_matrix(run, ffn->params->ffn_in, halves(ffn));
    const struct sw_t5_matrix out = sw_t5_matrix(run, ffn->params->ffn_out, 1);
    sw_t5_norm_forward(run, 0, ffn->params->ffn_norm, tokens, context->normed, context->rstd, x);
    sw_t5_linear(run, &in, tokens, context->h, context->normed);
    run->kernels->ffn_forward(run->stream, &math, g, context->h);
    sw_t5_linear_residual(run, &out, &ffn->rows, &dropout, y, x, g, branch);
}

/* g is not kept: it is as big as what it is made from, and cheap to make again. */
void sw_t5_ffn_backward(const struct sw_t5_ffn *ffn, const struct sw_t5_ffn_context *context,
                        void *gradient, const void *x, struct sw_carve *carve)
{
    const struct sw_block_run *run = ffn->run;
    int64_t tokens = ffn->rows.tokens;
    int64_t mark = carve->used_bytes;
    void *g = sw_carve(carve, inner_bytes(ffn, 1));      /* then its gradient */
    void *branch = sw_carve(carve, residual_bytes(ffn)); /* then d(normed) */
    if (!carve->measuring) {
        const struct sw_ffn math = describe(ffn);
        const struct sw_dropout dropout = sw_t5_dropout(run, SW_T5_AT_FFN_RESIDUAL);
        const struct sw_t5_matrix in = sw_t5_matrix(run, ffn->params->ffn_in, halves(ffn));
        const struct sw_t5_matrix out = sw_t5_matrix(run, ffn->params->ffn_out, 1);
        const void *d_branch = gradient;
        if (dropout.p > 0.0f) {
            run->kernels->residual_backward(run->stream, branch, gradient, run->model->t5.d_model,
                                            &ffn->rows, &dropout, run->dtype);
            d_branch = branch;
        }
        if (out.gradient != NULL)
            run->kernels->ffn_forward(run->stream, &math, g, context->h);
        sw_t5_linear_weight(run, &out, tokens, d_branch, g);
        sw_t5_linear_input(run, &out, tokens, g, d_branch, false);
        run->kernels->ffn_backward(run->stream, &math, context->h, g, context->h);
        sw_t5_linear_weight(run, &in, tokens, context->h, context->normed);
        sw_t5_linear_input(run, &in, tokens, branch, context->h, false);
    }
    sw_t5_norm_backward(run, 0, ffn->params->ffn_norm, tokens, gradient, branch, x, context->rstd,
                        carve);
    carve->used_bytes = mark;
}

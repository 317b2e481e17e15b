#include "model/t5_ops.h"

struct sw_dropout sw_t5_dropout(const struct sw_block_run *run, enum sw_t5_place place)
{
    struct sw_dropout dropout = {
        .p = run->dropout,
        .key = {run->dropout_key[0], run->dropout_key[1]},
        .site = (uint32_t)run->block * SW_T5_PLACES + (uint32_t)place,
        .global_rows = run->batch->global_rows,
    };
    return dropout;
}

const void *sw_t5_at(const void *base, int64_t element, enum sw_dtype dtype)
{
    return base == NULL ? NULL : (const char *)base + element * sw_dtype_bytes(dtype);
}

void *sw_t5_at_mutable(void *base, int64_t element, enum sw_dtype dtype)
{
    return base == NULL ? NULL : (char *)base + element * sw_dtype_bytes(dtype);
}

const void *sw_t5_weight(const struct sw_block_run *run, int which, const struct sw_param *param)
{
    return sw_t5_at(run->weights[which], param->offset, run->dtype);
}

float *sw_t5_gradient(const struct sw_block_run *run, int which, const struct sw_param *param)
{
    if (run->gradients[which] == NULL || !param->trainable)
        return NULL;
    return run->gradients[which] + param->offset;
}

struct sw_t5_matrix sw_t5_matrix(const struct sw_block_run *run, const struct sw_param *first,
                                 int parts)
{
    struct sw_t5_matrix matrix = {
        .out = first->shape[0] * parts,
        .in = first->shape[1],
        .weight = sw_t5_weight(run, 0, first),
    };
    for (int i = 0; i < parts; i++) {
        if (sw_t5_gradient(run, 0, &first[i]) != NULL)
            matrix.gradient = run->gradients[0] + first->offset;
    }
    return matrix;
}

/* y = x W^T, or `addend` + that */
static void linear(const struct sw_block_run *run, const struct sw_t5_matrix *matrix, int64_t rows,
                   void *y, const void *addend, const void *x)
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
        .ldc = matrix->out,
        .addend = addend,
        .alpha = 1.0f,
        .beta = addend != NULL ? 1.0f : 0.0f,
        .ab_dtype = run->dtype,
        .c_dtype = run->dtype,
    };
    run->kernels->gemm(run->stream, &gemm);
}

void sw_t5_linear(const struct sw_block_run *run, const struct sw_t5_matrix *matrix, int64_t rows,
                  void *y, const void *x)
{
    linear(run, matrix, rows, y, NULL, x);
}

void *sw_t5_branch(const struct sw_block_run *run, int64_t rows, struct sw_carve *carve)
{
    int64_t bytes = rows * run->model->t5.d_model * sw_dtype_bytes(run->dtype);
    return run->dropout > 0.0f ? sw_carve(carve, bytes) : NULL;
}

void sw_t5_linear_residual(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                           const struct sw_rows *layout, const struct sw_dropout *dropout, void *y,
                           const void *residual, const void *x, void *branch)
{
    if (dropout->p > 0.0f) {
        linear(run, matrix, layout->tokens, branch, NULL, x);
        run->kernels->residual_forward(run->stream, y, residual, branch, matrix->out, layout,
                                       dropout, run->dtype);
    } else {
        linear(run, matrix, layout->tokens, y, residual, x);
    }
}

void sw_t5_linear_input(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                        int64_t rows, void *dx, const void *dy, bool accumulate)
{
    const struct sw_gemm gemm = {
        .m = rows,
        .n = matrix->in,
        .k = matrix->out,
        .a = dy,
        .lda = matrix->out,
        .b = matrix->weight,
        .ldb = matrix->in,
        .c = dx,
        .ldc = matrix->in,
        .alpha = 1.0f,
        .beta = accumulate ? 1.0f : 0.0f,
        .ab_dtype = run->dtype,
        .c_dtype = run->dtype,
    };
    run->kernels->gemm(run->stream, &gemm);
}

void sw_t5_linear_weight(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                         int64_t rows, const void *dy, const void *x)
{
    const struct sw_gemm gemm = {
        .m = matrix->out,
        .n = matrix->in,
        .k = rows,
        .trans_a = true,
        .a = dy,
        .lda = matrix->out,
        .b = x,
        .ldb = matrix->in,
        .c = matrix->gradient,
        .ldc = matrix->in,
        .alpha = 1.0f,
        .beta = 1.0f,
        .ab_dtype = run->dtype,
        .c_dtype = SW_F32,
    };
    if (matrix->gradient != NULL)
        run->kernels->gemm(run->stream, &gemm);
}

struct sw_norm sw_t5_norm(const struct sw_model *model, enum sw_dtype dtype, int64_t rows)
{
    return (struct sw_norm){
        .rows = rows, .width = model->t5.d_model, .eps = model->t5.norm_eps, .dtype = dtype};
}

void sw_t5_norm_forward(const struct sw_block_run *run, int which, const struct sw_param *param,
                        int64_t rows, void *y, float *rstd, const void *x)
{
    const struct sw_norm norm = sw_t5_norm(run->model, run->dtype, rows);
    run->kernels->rmsnorm_forward(run->stream, &norm, y, rstd, x, sw_t5_weight(run, which, param));
}

void sw_t5_norm_backward(const struct sw_block_run *run, int which, const struct sw_param *param,
                         int64_t rows, void *dx, const void *dy, const void *x, const float *rstd,
                         struct sw_carve *carve)
{
    const struct sw_norm norm = sw_t5_norm(run->model, run->dtype, rows);
    float *unwanted = sw_carve(carve, norm.width * (int64_t)sizeof(float));
    void *workspace = sw_carve(carve, run->kernels->rmsnorm_backward_workspace_bytes(&norm));
    if (carve->measuring)
        return;
    float *dw = sw_t5_gradient(run, which, param);
    run->kernels->rmsnorm_backward(run->stream, &norm, dx, dw != NULL ? dw : unwanted, dy, x, rstd,
                                   sw_t5_weight(run, which, param), workspace);
}

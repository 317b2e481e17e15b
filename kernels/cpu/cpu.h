/* Inside the CPU back end: how its kernels reach the worker pool and the lane variants. */
#ifndef SPILLWAY_KERNELS_CPU_CPU_H
#define SPILLWAY_KERNELS_CPU_CPU_H

#include "kernels/cpu/lanes.h"
#include "kernels/kernels.h"

/* A job of independent tasks on the stream's pool; does nothing once the stream has failed. */
void sw_cpu_run(struct sw_stream *stream, sw_task_fn task, void *context, int64_t tasks);

static inline bool sw_cpu_failed(const struct sw_stream *stream)
{
    return stream->error.code != SW_OK;
}

static inline int64_t sw_cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t sw_cpu_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t sw_cpu_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline const void *sw_cpu_at(const void *base, int64_t elements, enum sw_dtype dtype)
{
    return (const char *)base + elements * sw_dtype_bytes(dtype);
}

static inline void *sw_cpu_at_mutable(void *base, int64_t elements, enum sw_dtype dtype)
{
    return (char *)base + elements * sw_dtype_bytes(dtype);
}

/* C = alpha * op(A) op(B) + beta * C on the calling thread, fp32. Dimensions below 2^31. */
void sw_cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                  int64_t ldc);
/* Keep the BLAS from starting threads of its own. */
void sw_cpu_blas_init(void);

/* The members of sw_cpu_kernels, a file per family. */
void sw_cpu_gemm(struct sw_stream *stream, const struct sw_gemm *gemm);

void sw_cpu_rmsnorm_forward(struct sw_stream *stream, const struct sw_norm *norm, void *y,
                            float *rstd, const void *x, const void *w);
void sw_cpu_rmsnorm_backward(struct sw_stream *stream, const struct sw_norm *norm, void *dx,
                             float *dw, const void *dy, const void *x, const float *rstd,
                             const void *w, void *workspace);
int64_t sw_cpu_rmsnorm_backward_workspace_bytes(const struct sw_norm *bound);

void sw_cpu_ffn_forward(struct sw_stream *stream, const struct sw_ffn *ffn, void *g, const void *h);
void sw_cpu_ffn_backward(struct sw_stream *stream, const struct sw_ffn *ffn, void *dh,
                         const void *dg, const void *h);

void sw_cpu_residual_forward(struct sw_stream *stream, void *y, const void *x, const void *r,
                             int64_t width, const struct sw_rows *layout,
                             const struct sw_dropout *dropout, enum sw_dtype dtype);
void sw_cpu_residual_backward(struct sw_stream *stream, void *dr, const void *dy, int64_t width,
                              const struct sw_rows *layout, const struct sw_dropout *dropout,
                              enum sw_dtype dtype);
void sw_cpu_add(struct sw_stream *stream, void *y, const void *x, int64_t count,
                enum sw_dtype dtype);
void sw_cpu_gather_rows(struct sw_stream *stream, void *y, const void *x, const int32_t *index,
                        int64_t rows, int64_t row_bytes);
void sw_cpu_convert(struct sw_stream *stream, void *y, enum sw_dtype y_dtype, const void *x,
                    enum sw_dtype x_dtype, int64_t count);

void sw_cpu_attention_forward(struct sw_stream *stream, const struct sw_attention *attention,
                              void *o, float *lse, void *workspace);
int64_t sw_cpu_attention_forward_workspace_bytes(const struct sw_attention *bound);
void sw_cpu_attention_backward(struct sw_stream *stream, const struct sw_attention *attention,
                               void *dq, void *dk, void *dv, float *dbias, const void *d_o,
                               const void *o, const float *lse, void *workspace);
int64_t sw_cpu_attention_backward_workspace_bytes(const struct sw_attention *bound);

void sw_cpu_bias_expand(struct sw_stream *stream, float *bias, const void *table,
                        enum sw_dtype dtype, const int32_t *bucket_of, int64_t buckets,
                        int64_t heads, int64_t reach);
void sw_cpu_bias_reduce(struct sw_stream *stream, float *dtable, const float *dbias,
                        const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach);
void sw_cpu_embedding_forward(struct sw_stream *stream, void *x, const void *table,
                              const int32_t *ids, int64_t tokens, int64_t width,
                              enum sw_dtype dtype);
void sw_cpu_embedding_backward(struct sw_stream *stream, float *dtable, const void *dx,
                               const int32_t *ids, int64_t tokens, int64_t width,
                               int64_t vocabulary, enum sw_dtype dtype, void *workspace);
int64_t sw_cpu_embedding_backward_workspace_bytes(int64_t tokens, int64_t width,
                                                  int64_t vocabulary);

void sw_cpu_cross_entropy(struct sw_stream *stream, const struct sw_cross_entropy *entropy,
                          float *loss, void *dlogits, enum sw_dtype dlogits_dtype,
                          const float *logits, const int32_t *labels);
void sw_cpu_sum_in_order(struct sw_stream *stream, double *sum, const float *values, int64_t count);
void sw_cpu_log_softmax(struct sw_stream *stream, float *log_probabilities, const float *logits,
                        int64_t rows, int64_t vocabulary);

void sw_cpu_adamw(struct sw_stream *stream, const struct sw_adamw_run *run);
void sw_cpu_weights_copy(struct sw_stream *stream, const struct sw_run_weights *weights,
                         int64_t count);
void sw_cpu_square_sums(struct sw_stream *stream, double *partials, const void *x,
                        enum sw_dtype dtype, int64_t first, int64_t count);

#endif

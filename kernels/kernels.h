/* The math that models and optimizers are written in. One table of functions a back end;
 * kernels/cpu is the reference.
 *
 * Conventions
 * - Tensors are row-major. N is the number of tokens of a micro-batch: rows are packed one behind
 *   the other, without padding (struct sw_rows), so no kernel ever sees a padding token.
 * - `dtype` is the type of activations and weights (fp32 or bf16). Statistics, losses and parameter
 *   gradients are fp32, accumulation is fp32.
 * - Pointers are device memory of the stream's device. Outputs may not alias inputs unless said.
 * - Nothing allocates. Scratch memory is passed in; its size is the *_workspace_bytes function of
 *   the same name, a pure function of the bounds.
 * - Deterministic: same inputs, same bits, whatever the number of threads (docs/NUMERICS.md).
 * - "+=" outputs are accumulated into.
 */
#ifndef SPILLWAY_KERNELS_KERNELS_H
#define SPILLWAY_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Token ranges of rows: row r's tokens are starts[r] .. starts[r] + lengths[r] - 1. */
struct sw_rows {
    int64_t count;          /* rows */
    int64_t tokens;         /* sum of lengths; N */
    int64_t longest;        /* longest row */
    const int32_t *starts;  /* device [count] */
    const int32_t *lengths; /* device [count] */
    /* For element-wise dropout: row of each token, device [tokens]; may be NULL elsewhere. */
    const int32_t *row_of_token;
};

/* Dropout: which numbers are drawn. Keep probability 1 - p, kept values scaled by 1/(1-p); a value
 * is dropped when sw_random_unit(word) < p. Philox key: `key`, which mixes seed and step. Counter:
 *   element-wise  (channel / 4, position in row, global row, site), word channel % 4
 *   attention     (key position / 4, query position, global row, site | head << 16), word key % 4
 * so neither padding, packing, micro-batches nor recomputation change them. p = 0: off. */
struct sw_dropout {
    float p;
    uint32_t key[2];
    uint32_t site;              /* block index * 8 + place within the block; < 65536 */
    const int32_t *global_rows; /* device [rows]: row numbers within the step's global batch */
};

struct sw_gemm {
    /* C[m, n] = alpha * op(A)[m, k] * op(B)[k, n] + beta * C; op transposes when trans_* is set.
     * lda, ldb, ldc are elements between rows as stored. beta is 0 or 1; with 0, C is not read;
     * with 1, `addend` is read in C's place where there is one: as C is in type and rows, and C
     * itself or all outside it; which of the two changes no bit. With 1 and bf16 C, a back end may
     * round the product to bf16 before it adds to it. */
    int64_t m, n, k;
    bool trans_a, trans_b;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    const void *addend; /* NULL: C */
    float alpha, beta;
    enum sw_dtype ab_dtype, c_dtype;
};

enum sw_activation { SW_ACT_RELU, SW_ACT_GELU_TANH, SW_ACT_GELU_ERF, SW_ACT_SILU };

struct sw_norm {
    /* RMS norm (T5): y = w * x / sqrt(mean(x^2) + eps), in fp32, stored as dtype.
     * x, y [rows, width]; w [width]; rstd [rows] fp32. */
    int64_t rows, width;
    float eps;
    enum sw_dtype dtype;
};

struct sw_ffn {
    /* h [rows, 2*width] when gated (columns 0..width-1 go through the activation, the rest is the
     * linear half), else [rows, width]; g [rows, width] = dropout(act(h0) * h1 or act(h)). */
    int64_t rows, width;
    bool gated;
    enum sw_activation activation;
    enum sw_dtype dtype;
    struct sw_dropout dropout;
    const struct sw_rows *layout; /* for dropout's row numbers; rows == layout->tokens */
};

struct sw_attention {
    /* o = softmax(scale * q k^T + bias) v per row and head, over the keys of the same row index in
     * `keys`. Token t, head h of q is q[t * q_stride + h * head_dim]; likewise k, v (kv_stride), o.
     * Query i of a row stands at position i + (key length - query length) when causal, else i;
     * causal: keys at later positions are left out. Masked keys are left out, never added to.
     * A row with no keys or no queries is skipped (its o is zero).
     * bias: fp32 [heads][2 * bias_reach - 1]; entry key - query + bias_reach - 1; NULL: none. */
    int64_t heads, head_dim;
    float scale;
    bool causal;
    struct sw_rows queries, keys;
    const void *q, *k, *v;
    int64_t q_stride, kv_stride, o_stride;
    const float *bias;
    int64_t bias_reach;
    struct sw_dropout dropout; /* on the probabilities */
    enum sw_dtype dtype;
};

struct sw_cross_entropy {
    /* logits fp32 [rows, vocabulary] of a chunk of target tokens; labels int32 [rows].
     * loss[row] = (1 - s) * (logsumexp - logit[label]) + s * (logsumexp - mean(logits)), s =
     * smoothing. */
    int64_t rows, vocabulary;
    float smoothing;
    float gradient_scale; /* dlogits = gradient_scale * d(loss) */
};

/* --- Optimizers, for states that lie on the device; formulas and order: docs/NUMERICS.md ---------
 *
 * A run is elements of one parameter; src/optim cuts a chunk of a unit into runs. Only IEEE add,
 * multiply, divide and square root, none fused: the bits are those of the host's optimizer. */

/* Squares are summed per block of this many elements of a unit, counted from its start. */
enum { SW_OPTIM_BLOCK = 65536 };

/* Everything that AdamW needs beside the element: computed in double, rounded once. */
struct sw_adamw_scalars {
    float clip_scale;
    float beta1_rest, beta2, beta2_rest; /* 1 - beta1; beta2; 1 - beta2 */
    float root_scale;                    /* 1 / sqrt(1 - beta2^number) */
    float eps;
    float step_size; /* lr / (1 - beta1^number) */
    float keep;      /* 1 - lr * weight_decay, where a parameter decays */
    uint32_t rounding_key[2];
    uint32_t number; /* low bits of the update's number */
};

/* Weights of a run, all from its first element on: fp32, or two halves (bf16 and what it lacks). */
struct sw_run_weights {
    float *master;        /* or */
    uint16_t *high, *low; /* these two */
    void *copy;           /* what blocks compute with, written too; NULL: not wanted */
    enum sw_dtype copy_dtype;
};

struct sw_adamw_run {
    struct sw_adamw_scalars scalars;
    float keep;    /* scalars.keep, or 1 where the parameter does not decay */
    uint32_t unit; /* its index: with `first`, keys the random numbers of bf16 moments */
    int64_t first; /* element of the unit that all pointers point at */
    int64_t count;
    const void *gradient;
    enum sw_dtype gradient_dtype;
    struct sw_run_weights weights;
    void *exp_avg, *exp_avg_sq;
    enum sw_dtype moments_dtype;
};

struct sw_kernels {
    const char *name;

    void (*gemm)(struct sw_stream *, const struct sw_gemm *);

    void (*rmsnorm_forward)(struct sw_stream *, const struct sw_norm *, void *y, float *rstd,
                            const void *x, const void *w);
    /* dx += , dw += (fp32). dx may not alias dy. workspace: rmsnorm_backward_workspace_bytes. */
    void (*rmsnorm_backward)(struct sw_stream *, const struct sw_norm *, void *dx, float *dw,
                             const void *dy, const void *x, const float *rstd, const void *w,
                             void *workspace);
    int64_t (*rmsnorm_backward_workspace_bytes)(const struct sw_norm *bound);

    void (*ffn_forward)(struct sw_stream *, const struct sw_ffn *, void *g, const void *h);
    /* dh from dg; dh may alias h. */
    void (*ffn_backward)(struct sw_stream *, const struct sw_ffn *, void *dh, const void *dg,
                         const void *h);

    /* y = x + dropout(r), [layout->tokens, width]; x may be NULL (then y = dropout(r)); y may alias
     * x or r. */
    void (*residual_forward)(struct sw_stream *, void *y, const void *x, const void *r,
                             int64_t width, const struct sw_rows *layout,
                             const struct sw_dropout *dropout, enum sw_dtype dtype);
    /* dr = dropout'(dy) (a copy when p = 0). */
    void (*residual_backward)(struct sw_stream *, void *dr, const void *dy, int64_t width,
                              const struct sw_rows *layout, const struct sw_dropout *dropout,
                              enum sw_dtype dtype);
    /* y += x, [count] elements of dtype. */
    void (*add)(struct sw_stream *, void *y, const void *x, int64_t count, enum sw_dtype dtype);

    /* lse fp32 [heads][queries.tokens]: logsumexp of the scaled, biased, masked scores. */
    void (*attention_forward)(struct sw_stream *, const struct sw_attention *, void *o, float *lse,
                              void *workspace);
    int64_t (*attention_forward_workspace_bytes)(const struct sw_attention *bound);
    /* dq (stride q_stride), dk, dv (kv_stride) are overwritten; dbias (as bias, may be NULL) += .
     */
    void (*attention_backward)(struct sw_stream *, const struct sw_attention *, void *dq, void *dk,
                               void *dv, float *dbias, const void *d_o, const void *o,
                               const float *lse, void *workspace);
    int64_t (*attention_backward_workspace_bytes)(const struct sw_attention *bound);

    /* T5's relative position bias: bias[h][key - query + reach - 1] = table[bucket][h], table
     * dtype [buckets, heads]; and back: dtable fp32 += , over the entries of each bucket in
     * ascending key - query. bucket_of: device int32 [2 * reach - 1]. */
    void (*bias_expand)(struct sw_stream *, float *bias, const void *table, enum sw_dtype dtype,
                        const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach);
    void (*bias_reduce)(struct sw_stream *, float *dtable, const float *dbias,
                        const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach);

    /* x [tokens, width] = table[ids[t]]; dtable fp32 += in token order. ids int32. */
    void (*embedding_forward)(struct sw_stream *, void *x, const void *table, const int32_t *ids,
                              int64_t tokens, int64_t width, enum sw_dtype dtype);
    void (*embedding_backward)(struct sw_stream *, float *dtable, const void *dx,
                               const int32_t *ids, int64_t tokens, int64_t width,
                               int64_t vocabulary, enum sw_dtype dtype, void *workspace);
    int64_t (*embedding_backward_workspace_bytes)(int64_t tokens, int64_t width,
                                                  int64_t vocabulary);

    /* loss fp32 [rows]; dlogits (dlogits_dtype, may alias logits when fp32; NULL: loss only). */
    void (*cross_entropy)(struct sw_stream *, const struct sw_cross_entropy *, float *loss,
                          void *dlogits, enum sw_dtype dlogits_dtype, const float *logits,
                          const int32_t *labels);
    /* *sum += values[0] + values[1] + ... in double, in order. sum: device double. */
    void (*sum_in_order)(struct sw_stream *, double *sum, const float *values, int64_t count);

    /* log_probabilities fp32 [rows, vocabulary] = logits - logsumexp(logits); for generation. */
    void (*log_softmax)(struct sw_stream *, float *log_probabilities, const float *logits,
                        int64_t rows, int64_t vocabulary);
    /* y[i] = x[index[i]] for rows of row_bytes bytes (multiple of 2). */
    void (*gather_rows)(struct sw_stream *, void *y, const void *x, const int32_t *index,
                        int64_t rows, int64_t row_bytes);

    /* y = x converted, [count] elements. */
    void (*convert)(struct sw_stream *, void *y, enum sw_dtype y_dtype, const void *x,
                    enum sw_dtype x_dtype, int64_t count);

    /* Steps the run: moments, weights and their copy. */
    void (*adamw)(struct sw_stream *, const struct sw_adamw_run *);
    /* The copy of [count] weights that are not stepped; copy must not be NULL. */
    void (*weights_copy)(struct sw_stream *, const struct sw_run_weights *, int64_t count);
    /* Sums of the squares of [count] elements from element `first` of the unit, of each block that
     * they are in: partials[0] (of the block that holds `first`), partials[1], ... += , fp64. */
    void (*square_sums)(struct sw_stream *, double *partials, const void *x, enum sw_dtype dtype,
                        int64_t first, int64_t count);
};

extern const struct sw_kernels sw_cpu_kernels;

#ifdef __cplusplus
}
#endif
#endif

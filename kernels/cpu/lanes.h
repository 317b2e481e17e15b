/* What the CPU kernels do with vectors: one table of functions for each instruction set, built from
 * one source (lanes_*.inc.h) over a small set of 16-lane primitives (simd_*.h).
 *
 * All tables give the same bits: a reduction has 16 partial sums (element i goes to partial
 * i mod 16), added up by halves at the end; no fused multiply-add anywhere; exp is our own.
 * Functions work on the calling thread and take ranges, so that tasks of the pool can call them. */
#ifndef SPILLWAY_KERNELS_CPU_LANES_H
#define SPILLWAY_KERNELS_CPU_LANES_H

#include "kernels/kernels.h"

/* The random numbers of one row of elements: counter (channel / 4 or key / 4, c1, c2, c3). */
struct sw_cpu_mask {
    bool on;
    uint32_t threshold; /* dropped when word >> 8 is below */
    float scale;        /* of what is kept */
    uint32_t key[2];
    uint32_t c1, c2, c3;
};

/* One softmax row of a block of scores. */
struct sw_cpu_softmax_row {
    int64_t keys;      /* in the block */
    int64_t visible;   /* the first so many take part; the others become 0 */
    int64_t first_key; /* position of the block's first key within its row; a multiple of 4 */
    float scale;
    const float *bias; /* of the block's first key, or NULL */
    struct sw_cpu_mask mask;
};

struct sw_cpu_lanes {
    const char *name; /* "avx512", "avx2", "generic" */

    void (*rmsnorm_forward)(const struct sw_norm *, int64_t first, int64_t end, void *y,
                            float *rstd, const void *x, const void *w);
    /* dx += ; partial [width] = sum over the rows in order. */
    void (*rmsnorm_backward)(const struct sw_norm *, int64_t first, int64_t end, void *dx,
                             float *partial, const void *dy, const void *x, const float *rstd,
                             const void *w);
    /* y[i] += partials[0][i] + partials[1][i] + ..., the sum of the partials first. */
    void (*add_partials)(float *y, const float *partials, int64_t count, int64_t stride,
                         int64_t partial_count);

    /* One row each. */
    void (*ffn_forward)(const struct sw_ffn *, const struct sw_cpu_mask *, void *g, const void *h);
    void (*ffn_backward)(const struct sw_ffn *, const struct sw_cpu_mask *, void *dh,
                         const void *dg, const void *h);
    /* y = x + mask(r); x NULL: y = mask(r). */
    void (*residual)(enum sw_dtype, const struct sw_cpu_mask *, void *y, const void *x,
                     const void *r, int64_t count);
    void (*convert)(void *y, enum sw_dtype y_dtype, const void *x, enum sw_dtype x_dtype,
                    int64_t count);
    /* y += x, y fp32. */
    void (*accumulate)(float *y, const void *x, enum sw_dtype x_dtype, int64_t count);

    /* Loss of one row; d (may alias x; NULL: none) its gradient. */
    float (*cross_entropy)(const struct sw_cross_entropy *, void *d, enum sw_dtype d_dtype,
                           const float *x, int32_t label);
    /* y = x - logsumexp(x). */
    void (*log_softmax)(float *y, const float *x, int64_t count);

    /* s = scale * s + bias over the visible keys; returns their greatest, or NaN
     * when one is not finite. */
    float (*scores)(const struct sw_cpu_softmax_row *, float *s);
    /* p = exp(s - shift), then dropped, in place; returns the sum before dropping. */
    float (*softmax)(const struct sw_cpu_softmax_row *, float *p, float shift);
    /* From scores p (see `scores`) and dp: p becomes the dropped probabilities, dp the gradient
     * of the scores, probability * (mask(dp) - delta). dbias (of the first key, or NULL) += it. */
    void (*softmax_backward)(const struct sw_cpu_softmax_row *, float *p, float *dp, float lse,
                             float delta, float *dbias);
    float (*dot)(const float *a, const float *b, int64_t count);
    /* y = a * y */
    void (*multiply)(float *y, float a, int64_t count);
};

extern const struct sw_cpu_lanes sw_cpu_lanes_generic;
#ifdef SW_X86_64
extern const struct sw_cpu_lanes sw_cpu_lanes_avx2;
extern const struct sw_cpu_lanes sw_cpu_lanes_avx512;
#endif

/* The table in use: the widest this CPU has, unless the environment's SPILLWAY_CPU names one. */
const struct sw_cpu_lanes *sw_cpu_lanes(void);
/* Use the table called `name` from now on (for tests); false when this CPU lacks it. */
bool sw_cpu_lanes_select(const char *name);

#endif

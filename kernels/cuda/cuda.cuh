/* Inside the CUDA back end: streams that carry their first failure, and what kernels share.
 *
 * Every member of the table looks like this:
 *
 *     void sw_cuda_thing(struct sw_stream *stream, ...)
 *     {
 *         if (count <= 0 || !sw_cuda_begin(stream))
 *             return;
 *         thing<<<grid, block, 0, sw_cuda_stream(stream)>>>(...);
 *         sw_cuda_end(stream, "thing");
 *     }
 */
#ifndef SPILLWAY_KERNELS_CUDA_CUDA_CUH
#define SPILLWAY_KERNELS_CUDA_CUDA_CUH

#include "base/random.h"
#include "kernels/kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* --- Streams -----------------------------------------------------------------------------------*/

struct sw_cuda_stream {
    struct sw_stream head;
    cudaStream_t stream;
    void *gemm_workspace; /* SW_CUDA_GEMM_WORKSPACE_BYTES; of compute streams only, else NULL */
};

enum {
    SW_CUDA_GEMM_WORKSPACE_BYTES = 32 << 20,
    SW_CUDA_RANK_WORKSPACE_BYTES =
        2 * SW_CUDA_GEMM_WORKSPACE_BYTES /* blocks and the model's ends have a stream each */
};

static inline cudaStream_t sw_cuda_stream(const struct sw_stream *stream)
{
    return reinterpret_cast<const struct sw_cuda_stream *>(stream)->stream;
}

/* Records the stream's first failure. */
void sw_cuda_fail(struct sw_stream *stream, cudaError_t error, const char *what);
/* Makes the stream's GPU the calling thread's. False when the stream has failed: do nothing then.
 */
bool sw_cuda_begin(struct sw_stream *stream);
/* After launches: a failure of one of them becomes the stream's. */
void sw_cuda_end(struct sw_stream *stream, const char *what);
/* Multiprocessors of the stream's GPU, and the most shared memory that a block may have. */
int sw_cuda_processors(const struct sw_stream *stream);
int sw_cuda_shared_bytes(const struct sw_stream *stream);
/* Whether kernels made of wgmma.cuh run there: they are compiled, and the GPU is of capability 9.0.
 */
bool sw_cuda_has_wgmma(const struct sw_stream *stream);

/* --- Pinned host memory --------------------------------------------------------------------------
 */

/* It is registered in pieces that end at multiples of this. */
static const int64_t SW_CUDA_PIECE_BYTES = int64_t{1} << 30;

/* Whole pages, huge ones where they fit, for every GPU. The calling thread's GPU is in use. */
sw_code sw_cuda_pinned_alloc(int64_t bytes, void **out, struct sw_err *err);
void sw_cuda_pinned_free(void *memory, int64_t bytes);

/* --- Other GPUs ---------------------------------------------------------------------------------
 */

/* struct sw_device_ops has both. */
bool sw_cuda_reaches(int one, int other);
const struct sw_comm_ops *sw_cuda_comm(const char **why);
/* A GPU is in use from now on: it and those that were before it reach each other where they can. */
void sw_cuda_reach_others(int ordinal);

/* --- Host arithmetic ---------------------------------------------------------------------------*/

static inline int64_t sw_cuda_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t sw_cuda_align_up(int64_t bytes)
{
    return sw_cuda_ceil_div(bytes, 256) * 256;
}

static inline int64_t sw_cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whether `pointer` and rows `stride_bytes` apart are all aligned to 16. NULL is. */
static inline bool sw_cuda_aligned(const void *pointer, int64_t stride_bytes)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride_bytes % 16 == 0;
}

/* --- Elements ----------------------------------------------------------------------------------*/

typedef __nv_bfloat16 sw_bf16;

static __device__ inline float sw_to_float(float x)
{
    return x;
}

static __device__ inline float sw_to_float(sw_bf16 x)
{
    return __bfloat162float(x);
}

static __device__ inline void sw_from_float(float *out, float x)
{
    *out = x;
}

static __device__ inline void sw_from_float(sw_bf16 *out, float x)
{
    *out = __float2bfloat16_rn(x);
}

/* V elements that are read and written at once; V = 1 where rows are not aligned. */
template <typename T, int V> struct alignas(sizeof(T) * V) sw_pack {
    T at[V];
};

template <typename T> constexpr int sw_vector = 16 / static_cast<int>(sizeof(T));

template <typename T, int V> static __device__ inline void sw_load(float (&out)[V], const T *from)
{
    const sw_pack<T, V> pack = *reinterpret_cast<const sw_pack<T, V> *>(from);
#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = sw_to_float(pack.at[i]);
}

template <typename T, int V> static __device__ inline void sw_store(T *to, const float (&in)[V])
{
    sw_pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; i++)
        sw_from_float(&pack.at[i], in[i]);
    *reinterpret_cast<sw_pack<T, V> *>(to) = pack;
}

/* --- Sums over a warp and a block, always in the same order --------------------------------------
 */

static constexpr int SW_WARP = 32;

static __device__ inline float sw_warp_sum(float x)
{
#pragma unroll
    for (int mask = SW_WARP / 2; mask > 0; mask /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, mask);
    return x;
}

/* NaN is left out, as fmaxf does. */
static __device__ inline float sw_warp_max(float x)
{
#pragma unroll
    for (int mask = SW_WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, mask));
    return x;
}

/* --- Dropout -----------------------------------------------------------------------------------*/

/* struct sw_dropout as kernels take it: u < p with u = (word >> 8) / 2^24 is a comparison of whole
 * numbers. */
struct sw_cuda_dropout {
    bool on;
    uint32_t threshold;
    float scale;
    uint32_t key[2], site;
    const int32_t *global_rows;
};

struct sw_cuda_dropout sw_cuda_dropout(const struct sw_dropout *dropout);

/* 0 or the scale for word `lane` of the four of a counter. */
static __device__ inline float sw_dropout_factor(const struct sw_cuda_dropout *d, uint32_t word)
{
    return word >> 8 < d->threshold ? 0.0f : d->scale;
}

/* The four words of elements 4 * group .. 4 * group + 3. */
static __device__ inline void sw_dropout_words(const struct sw_cuda_dropout *d, uint32_t group,
                                               uint32_t position, uint32_t global_row, uint32_t c3,
                                               uint32_t words[4])
{
    const uint32_t counter[4] = {group, position, global_row, c3};
    sw_philox(d->key, counter, words);
}

/* --- The table's members, a file per family ------------------------------------------------------
 */

void sw_cuda_gemm(struct sw_stream *stream, const struct sw_gemm *gemm);
/* What cuBLASLt needs for a GPU: its handle and the algorithms found so far. NULL: failed, with
 * `err` filled. */
struct sw_cuda_gemm_state *sw_cuda_gemm_open(struct sw_err *err);
void sw_cuda_gemm_close(struct sw_cuda_gemm_state *state);
struct sw_cuda_gemm_state *sw_cuda_gemm_state_of(const struct sw_stream *stream);

void sw_cuda_rmsnorm_forward(struct sw_stream *stream, const struct sw_norm *norm, void *y,
                             float *rstd, const void *x, const void *w);
void sw_cuda_rmsnorm_backward(struct sw_stream *stream, const struct sw_norm *norm, void *dx,
                              float *dw, const void *dy, const void *x, const float *rstd,
                              const void *w, void *workspace);
int64_t sw_cuda_rmsnorm_backward_workspace_bytes(const struct sw_norm *bound);

void sw_cuda_ffn_forward(struct sw_stream *stream, const struct sw_ffn *ffn, void *g,
                         const void *h);
void sw_cuda_ffn_backward(struct sw_stream *stream, const struct sw_ffn *ffn, void *dh,
                          const void *dg, const void *h);

void sw_cuda_residual_forward(struct sw_stream *stream, void *y, const void *x, const void *r,
                              int64_t width, const struct sw_rows *layout,
                              const struct sw_dropout *dropout, enum sw_dtype dtype);
void sw_cuda_residual_backward(struct sw_stream *stream, void *dr, const void *dy, int64_t width,
                               const struct sw_rows *layout, const struct sw_dropout *dropout,
                               enum sw_dtype dtype);
void sw_cuda_add(struct sw_stream *stream, void *y, const void *x, int64_t count,
                 enum sw_dtype dtype);
void sw_cuda_gather_rows(struct sw_stream *stream, void *y, const void *x, const int32_t *index,
                         int64_t rows, int64_t row_bytes);
void sw_cuda_convert(struct sw_stream *stream, void *y, enum sw_dtype y_dtype, const void *x,
                     enum sw_dtype x_dtype, int64_t count);

void sw_cuda_bias_expand(struct sw_stream *stream, float *bias, const void *table,
                         enum sw_dtype dtype, const int32_t *bucket_of, int64_t buckets,
                         int64_t heads, int64_t reach);
void sw_cuda_bias_reduce(struct sw_stream *stream, float *dtable, const float *dbias,
                         const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach);
void sw_cuda_embedding_forward(struct sw_stream *stream, void *x, const void *table,
                               const int32_t *ids, int64_t tokens, int64_t width,
                               enum sw_dtype dtype);
void sw_cuda_embedding_backward(struct sw_stream *stream, float *dtable, const void *dx,
                                const int32_t *ids, int64_t tokens, int64_t width,
                                int64_t vocabulary, enum sw_dtype dtype, void *workspace);
int64_t sw_cuda_embedding_backward_workspace_bytes(int64_t tokens, int64_t width,
                                                   int64_t vocabulary);

void sw_cuda_cross_entropy(struct sw_stream *stream, const struct sw_cross_entropy *entropy,
                           float *loss, void *dlogits, enum sw_dtype dlogits_dtype,
                           const float *logits, const int32_t *labels);
void sw_cuda_sum_in_order(struct sw_stream *stream, double *sum, const float *values,
                          int64_t count);
void sw_cuda_log_softmax(struct sw_stream *stream, float *log_probabilities, const float *logits,
                         int64_t rows, int64_t vocabulary);

void sw_cuda_adamw(struct sw_stream *stream, const struct sw_adamw_run *run);
void sw_cuda_weights_copy(struct sw_stream *stream, const struct sw_run_weights *weights,
                          int64_t count);
void sw_cuda_square_sums(struct sw_stream *stream, double *partials, const void *x,
                         enum sw_dtype dtype, int64_t first, int64_t count);

extern const struct sw_kernels sw_cuda_kernels;

#endif

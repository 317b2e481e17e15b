/* Feed-forward activations, gated or not, with dropout, forward and backward. */
#include "kernels/cuda/rows.cuh"

/* --- Activations ---------------------------------------------------------------------------------
 */

/* x / (1 + exp(-2 u)) is GELU's tanh form; where exp overflows, the quotient is 0 as it should be.
 * NaN comes through all of them. */
static __device__ inline float gelu_u(float x)
{
    return 0.79788456080286536f * (x + 0.044715f * x * x * x);
}

template <int A> static __device__ inline float activation(float x)
{
    if constexpr (A == SW_ACT_RELU)
        return x <= 0.0f ? 0.0f : x;
    else if constexpr (A == SW_ACT_GELU_TANH)
        return x / (1.0f + expf(-2.0f * gelu_u(x)));
    else if constexpr (A == SW_ACT_GELU_ERF)
        return 0.5f * x * erfcf(-0.70710678118654752f * x);
    else
        return x / (1.0f + expf(-x));
}

template <int A> static __device__ inline float slope(float x)
{
    if constexpr (A == SW_ACT_RELU) {
        return x <= 0.0f ? 0.0f : 1.0f;
    } else if constexpr (A == SW_ACT_GELU_TANH) {
        float s = 1.0f / (1.0f + expf(-2.0f * gelu_u(x)));
        float du = 0.79788456080286536f * (1.0f + 0.134145f * x * x);
        return s + 2.0f * x * du * s * (1.0f - s);
    } else if constexpr (A == SW_ACT_GELU_ERF) {
        return 0.5f * erfcf(-0.70710678118654752f * x) +
               x * expf(-0.5f * x * x) * 0.39894228040143268f;
    } else {
        float s = 1.0f / (1.0f + expf(-x));
        return s * (1.0f + x * (1.0f - s));
    }
}

/* --- Kernels -----------------------------------------------------------------------------------*/

struct arrays {
    void *out;          /* g, or dh */
    const void *dg, *h; /* dh may be h */
};

/* g [rows, width] = dropout(act(h0) * h1), h [rows, 2 * width] when gated. */
template <typename T, int V, int A, bool GATED>
static __global__ void __launch_bounds__(SW_CUDA_ROW_THREADS)
    forward(struct arrays a, struct sw_cuda_rows rows, struct sw_cuda_dropout dropout)
{
    int64_t row, column;
    if (!sw_cuda_rows_at<V>(&rows, &row, &column))
        return;
    const T *h = static_cast<const T *>(a.h) + row * rows.width * (GATED ? 2 : 1) + column;
    float x[V], gate[V], factor[V];
    sw_load<T, V>(x, h);
    if constexpr (GATED)
        sw_load<T, V>(gate, h + rows.width);
    sw_cuda_factors<V>(factor, &rows, &dropout, row, column);
#pragma unroll
    for (int i = 0; i < V; i++) {
        x[i] = activation<A>(x[i]);
        if constexpr (GATED)
            x[i] *= gate[i];
        x[i] *= factor[i];
    }
    sw_store<T, V>(static_cast<T *>(a.out) + row * rows.width + column, x);
}

template <typename T, int V, int A, bool GATED>
static __global__ void __launch_bounds__(SW_CUDA_ROW_THREADS)
    backward(struct arrays a, struct sw_cuda_rows rows, struct sw_cuda_dropout dropout)
{
    int64_t row, column;
    if (!sw_cuda_rows_at<V>(&rows, &row, &column))
        return;
    int64_t at = row * rows.width * (GATED ? 2 : 1) + column;
    const T *h = static_cast<const T *>(a.h) + at;
    T *dh = static_cast<T *>(a.out) + at;
    float x[V], gate[V], d[V], d_gate[V], factor[V];
    sw_load<T, V>(x, h);
    if constexpr (GATED)
        sw_load<T, V>(gate, h + rows.width);
    sw_load<T, V>(d, static_cast<const T *>(a.dg) + row * rows.width + column);
    sw_cuda_factors<V>(factor, &rows, &dropout, row, column);
#pragma unroll
    for (int i = 0; i < V; i++) {
        d[i] *= factor[i];
        if constexpr (GATED) {
            d_gate[i] = d[i] * activation<A>(x[i]);
            d[i] *= gate[i];
        }
        d[i] *= slope<A>(x[i]);
    }
    sw_store<T, V>(dh, d);
    if constexpr (GATED)
        sw_store<T, V>(dh + rows.width, d_gate);
}

/* --- Which kernel --------------------------------------------------------------------------------
 */

template <typename T, int V, int A, bool GATED>
static void launch(struct sw_stream *stream, const struct sw_ffn *ffn, const struct arrays *a)
{
    struct sw_cuda_rows rows = sw_cuda_rows_of(ffn->layout, ffn->rows, ffn->width);
    const struct sw_cuda_dropout dropout = sw_cuda_dropout(&ffn->dropout);
    dim3 block, grid = sw_cuda_rows_grid(&rows, V, &block);
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (a->dg == nullptr)
        forward<T, V, A, GATED><<<grid, block, 0, cuda>>>(*a, rows, dropout);
    else
        backward<T, V, A, GATED><<<grid, block, 0, cuda>>>(*a, rows, dropout);
}

template <typename T, int V, int A>
static void by_gate(struct sw_stream *stream, const struct sw_ffn *ffn, const struct arrays *a)
{
    if (ffn->gated)
        launch<T, V, A, true>(stream, ffn, a);
    else
        launch<T, V, A, false>(stream, ffn, a);
}

template <typename T, int V>
static void by_activation(struct sw_stream *stream, const struct sw_ffn *ffn,
                          const struct arrays *a)
{
    switch (ffn->activation) {
    case SW_ACT_RELU:
        by_gate<T, V, SW_ACT_RELU>(stream, ffn, a);
        break;
    case SW_ACT_GELU_TANH:
        by_gate<T, V, SW_ACT_GELU_TANH>(stream, ffn, a);
        break;
    case SW_ACT_GELU_ERF:
        by_gate<T, V, SW_ACT_GELU_ERF>(stream, ffn, a);
        break;
    case SW_ACT_SILU:
        by_gate<T, V, SW_ACT_SILU>(stream, ffn, a);
        break;
    }
}

/* Whether all operands' rows are aligned to `bytes`. */
static bool aligned(const struct arrays *a, int64_t row_bytes, int64_t bytes)
{
    const uintptr_t bits = reinterpret_cast<uintptr_t>(a->out) |
                           reinterpret_cast<uintptr_t>(a->dg) | reinterpret_cast<uintptr_t>(a->h) |
                           static_cast<uintptr_t>(row_bytes);
    return bits % static_cast<uintptr_t>(bytes) == 0;
}

/* Two vectors a thread where rows allow it: numbers are drawn for one while the other arrives. */
template <typename T>
static void by_alignment(struct sw_stream *stream, const struct sw_ffn *ffn, const struct arrays *a)
{
    int64_t row_bytes = ffn->width * static_cast<int64_t>(sizeof(T));
    if (aligned(a, row_bytes, 32))
        by_activation<T, 2 * sw_vector<T>>(stream, ffn, a);
    else if (aligned(a, row_bytes, 16))
        by_activation<T, sw_vector<T>>(stream, ffn, a);
    else
        by_activation<T, 1>(stream, ffn, a);
}

static void run(struct sw_stream *stream, const struct sw_ffn *ffn, const struct arrays *a,
                const char *what)
{
    if (ffn->rows <= 0 || ffn->width <= 0 || !sw_cuda_begin(stream))
        return;
    if (ffn->dtype == SW_F32)
        by_alignment<float>(stream, ffn, a);
    else
        by_alignment<sw_bf16>(stream, ffn, a);
    sw_cuda_end(stream, what);
}

/* Moves rows * width * (read 1 or 2, write 1) elements. */
void sw_cuda_ffn_forward(struct sw_stream *stream, const struct sw_ffn *ffn, void *g, const void *h)
{
    const struct arrays a = {g, nullptr, h};
    run(stream, ffn, &a, "an activation");
}

/* Moves rows * width * (read 2 or 3, write 1 or 2) elements. */
void sw_cuda_ffn_backward(struct sw_stream *stream, const struct sw_ffn *ffn, void *dh,
                          const void *dg, const void *h)
{
    const struct arrays a = {dh, dg, h};
    run(stream, ffn, &a, "an activation's gradient");
}

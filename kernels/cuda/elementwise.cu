/* Residuals, and what else goes element by element. */
#include "kernels/cuda/rows.cuh"

enum { FLAT_THREADS = 256 };

/* --- Residuals -----------------------------------------------------------------------------------
 */

struct residual {
    void *y;
    const void *x, *r; /* x may be NULL */
};

/* y = x + dropout(r). y may be x or r: a thread reads what it writes before it writes it. */
template <typename T, int V>
static __global__ void __launch_bounds__(SW_CUDA_ROW_THREADS)
    residual(struct residual a, struct sw_cuda_rows rows, struct sw_cuda_dropout dropout)
{
    int64_t row, column;
    if (!sw_cuda_rows_at<V>(&rows, &row, &column))
        return;
    int64_t at = row * rows.width + column;
    float r[V], x[V] = {}, factor[V];
    sw_load<T, V>(r, static_cast<const T *>(a.r) + at);
    if (a.x != nullptr)
        sw_load<T, V>(x, static_cast<const T *>(a.x) + at);
    sw_cuda_factors<V>(factor, &rows, &dropout, row, column);
#pragma unroll
    for (int i = 0; i < V; i++)
        r[i] = x[i] + r[i] * factor[i];
    sw_store<T, V>(static_cast<T *>(a.y) + at, r);
}

template <typename T, int V>
static void run_residual(struct sw_stream *stream, const struct residual *a,
                         const struct sw_cuda_rows *layout, const struct sw_cuda_dropout *dropout)
{
    struct sw_cuda_rows rows = *layout;
    dim3 block, grid = sw_cuda_rows_grid(&rows, V, &block);
    residual<T, V><<<grid, block, 0, sw_cuda_stream(stream)>>>(*a, rows, *dropout);
}

template <typename T>
static void choose_residual(struct sw_stream *stream, const struct residual *a,
                            const struct sw_cuda_rows *rows, const struct sw_cuda_dropout *dropout)
{
    int64_t row_bytes = rows->width * static_cast<int64_t>(sizeof(T));
    if (sw_cuda_aligned(a->y, row_bytes) && sw_cuda_aligned(a->x, row_bytes) &&
        sw_cuda_aligned(a->r, row_bytes))
        run_residual<T, sw_vector<T>>(stream, a, rows, dropout);
    else
        run_residual<T, 1>(stream, a, rows, dropout);
}

void sw_cuda_residual_forward(struct sw_stream *stream, void *y, const void *x, const void *r,
                              int64_t width, const struct sw_rows *layout,
                              const struct sw_dropout *dropout, enum sw_dtype dtype)
{
    const struct residual a = {y, x, r};
    const struct sw_cuda_rows rows = sw_cuda_rows_of(layout, layout->tokens, width);
    const struct sw_cuda_dropout mask = sw_cuda_dropout(dropout);
    if (rows.count <= 0 || width <= 0 || !sw_cuda_begin(stream))
        return;
    if (dtype == SW_F32)
        choose_residual<float>(stream, &a, &rows, &mask);
    else
        choose_residual<sw_bf16>(stream, &a, &rows, &mask);
    sw_cuda_end(stream, "a residual");
}

/* d(dropout(r)) is dropout(dy). */
void sw_cuda_residual_backward(struct sw_stream *stream, void *dr, const void *dy, int64_t width,
                               const struct sw_rows *layout, const struct sw_dropout *dropout,
                               enum sw_dtype dtype)
{
    sw_cuda_residual_forward(stream, dr, nullptr, dy, width, layout, dropout, dtype);
}

/* --- Flat arrays ---------------------------------------------------------------------------------
 */

/* `pieces` threads of V elements each, and the rest one by one. */
static unsigned int flat_grid(int64_t threads)
{
    int64_t blocks = sw_cuda_ceil_div(threads, FLAT_THREADS);
    sw_assert(blocks <= INT32_MAX);
    return static_cast<unsigned int>(blocks > 0 ? blocks : 1);
}

static __device__ inline int64_t flat_index()
{
    return static_cast<int64_t>(blockIdx.x) * FLAT_THREADS + threadIdx.x;
}

template <typename T, int V>
static __global__ void __launch_bounds__(FLAT_THREADS) add(T *y, const T *x, int64_t count)
{
    int64_t first = flat_index() * V;
    if (first >= count)
        return;
    if (first + V <= count) {
        float a[V], b[V];
        sw_load<T, V>(a, y + first);
        sw_load<T, V>(b, x + first);
#pragma unroll
        for (int i = 0; i < V; i++)
            a[i] += b[i];
        sw_store<T, V>(y + first, a);
        return;
    }
    for (int64_t i = first; i < count; i++)
        sw_from_float(y + i, sw_to_float(y[i]) + sw_to_float(x[i]));
}

template <typename T>
static void choose_add(struct sw_stream *stream, T *y, const T *x, int64_t count)
{
    constexpr int V = sw_vector<T>;
    if (sw_cuda_aligned(y, 0) && sw_cuda_aligned(x, 0))
        add<T, V>
            <<<flat_grid(sw_cuda_ceil_div(count, V)), FLAT_THREADS, 0, sw_cuda_stream(stream)>>>(
                y, x, count);
    else
        add<T, 1><<<flat_grid(count), FLAT_THREADS, 0, sw_cuda_stream(stream)>>>(y, x, count);
}

void sw_cuda_add(struct sw_stream *stream, void *y, const void *x, int64_t count,
                 enum sw_dtype dtype)
{
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    if (dtype == SW_F32)
        choose_add(stream, static_cast<float *>(y), static_cast<const float *>(x), count);
    else
        choose_add(stream, static_cast<sw_bf16 *>(y), static_cast<const sw_bf16 *>(x), count);
    sw_cuda_end(stream, "an addition");
}

template <typename Y, typename X, int V>
static __global__ void __launch_bounds__(FLAT_THREADS) convert(Y *y, const X *x, int64_t count)
{
    int64_t first = flat_index() * V;
    if (first >= count)
        return;
    if (first + V <= count) {
        float a[V];
        sw_load<X, V>(a, x + first);
        sw_store<Y, V>(y + first, a);
        return;
    }
    for (int64_t i = first; i < count; i++)
        sw_from_float(y + i, sw_to_float(x[i]));
}

template <typename Y, typename X>
static void choose_convert(struct sw_stream *stream, void *y, const void *x, int64_t count)
{
    constexpr int V = 4; /* 16 bytes of the wider type */
    Y *to = static_cast<Y *>(y);
    const X *from = static_cast<const X *>(x);
    if (sw_cuda_aligned(y, 0) && sw_cuda_aligned(x, 0))
        convert<Y, X, V>
            <<<flat_grid(sw_cuda_ceil_div(count, V)), FLAT_THREADS, 0, sw_cuda_stream(stream)>>>(
                to, from, count);
    else
        convert<Y, X, 1>
            <<<flat_grid(count), FLAT_THREADS, 0, sw_cuda_stream(stream)>>>(to, from, count);
}

/* Rounds to nearest even. */
void sw_cuda_convert(struct sw_stream *stream, void *y, enum sw_dtype y_dtype, const void *x,
                     enum sw_dtype x_dtype, int64_t count)
{
    sw_assert(y_dtype != SW_F16 && x_dtype != SW_F16);
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    if (y_dtype == x_dtype)
        (void)cudaMemcpyAsync(y, x, static_cast<size_t>(count * sw_dtype_bytes(x_dtype)),
                              cudaMemcpyDeviceToDevice, sw_cuda_stream(stream));
    else if (y_dtype == SW_F32)
        choose_convert<float, sw_bf16>(stream, y, x, count);
    else
        choose_convert<sw_bf16, float>(stream, y, x, count);
    sw_cuda_end(stream, "a conversion");
}

/* --- Rows by index -------------------------------------------------------------------------------
 */

/* Rows of `units` pieces of type U. */
template <typename U>
static __global__ void __launch_bounds__(SW_CUDA_ROW_THREADS)
    gather(U *y, const U *x, const int32_t *index, struct sw_cuda_rows rows)
{
    int64_t row, unit;
    if (sw_cuda_rows_at<1>(&rows, &row, &unit))
        y[row * rows.width + unit] = x[index[row] * rows.width + unit];
}

template <typename U>
static void run_gather(struct sw_stream *stream, void *y, const void *x, const int32_t *index,
                       int64_t rows, int64_t row_bytes)
{
    struct sw_cuda_rows layout = {};
    layout.count = rows;
    layout.width = row_bytes / static_cast<int64_t>(sizeof(U));
    dim3 block, grid = sw_cuda_rows_grid(&layout, 1, &block);
    gather<U><<<grid, block, 0, sw_cuda_stream(stream)>>>(static_cast<U *>(y),
                                                          static_cast<const U *>(x), index, layout);
}

void sw_cuda_gather_rows(struct sw_stream *stream, void *y, const void *x, const int32_t *index,
                         int64_t rows, int64_t row_bytes)
{
    sw_assert(row_bytes % 2 == 0);
    if (rows <= 0 || row_bytes <= 0 || !sw_cuda_begin(stream))
        return;
    if (sw_cuda_aligned(y, row_bytes) && sw_cuda_aligned(x, row_bytes))
        run_gather<int4>(stream, y, x, index, rows, row_bytes);
    else
        run_gather<uint16_t>(stream, y, x, index, rows, row_bytes);
    sw_cuda_end(stream, "gathering rows");
}

/* RMS norm. Rows are independent, a warp each; the weight's gradient is one partial sum per block
 * of rows, added up in block order. */
#include "kernels/cuda/cuda.cuh"

enum { WARPS = 8, BLOCK_ROWS = 32, COLUMN_THREADS = 128, SUM_WARPS = 8, SUM_BLOCKS = 64 };

/* --- Forward -----------------------------------------------------------------------------------*/

/* y, x [rows, width], w [width] of T; rstd [rows]. V elements a load: width is a multiple of V.
 * Reads x twice, the second time from a cache. */
template <typename T, int V>
static __global__ void __launch_bounds__(WARPS *SW_WARP)
    forward(T *y, float *rstd, const T *x, const T *w, int64_t rows, int64_t width, float eps)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y;
    if (row >= rows)
        return;
    const T *in = x + row * width;
    T *out = y + row * width;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x * V; i < width; i += SW_WARP * V) {
        float v[V];
        sw_load<T, V>(v, in + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            squares += v[k] * v[k];
    }
    float r = 1.0f / sqrtf(sw_warp_sum(squares) / static_cast<float>(width) + eps);
    if (threadIdx.x == 0)
        rstd[row] = r;
    for (int64_t i = threadIdx.x * V; i < width; i += SW_WARP * V) {
        float v[V], weight[V];
        sw_load<T, V>(v, in + i);
        sw_load<T, V>(weight, w + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = weight[k] * (v[k] * r);
        sw_store<T, V>(out + i, v);
    }
}

template <typename T>
static void run_forward(struct sw_stream *stream, const struct sw_norm *norm, void *y, float *rstd,
                        const void *x, const void *w)
{
    constexpr int V = sw_vector<T>;
    int64_t row_bytes = norm->width * static_cast<int64_t>(sizeof(T));
    unsigned int grid = static_cast<unsigned int>(sw_cuda_ceil_div(norm->rows, WARPS));
    dim3 block(SW_WARP, WARPS);
    bool wide = sw_cuda_aligned(x, row_bytes) && sw_cuda_aligned(y, row_bytes) &&
                sw_cuda_aligned(w, row_bytes);
    cudaStream_t cuda = sw_cuda_stream(stream);
    T *out = static_cast<T *>(y);
    const T *in = static_cast<const T *>(x), *weight = static_cast<const T *>(w);
    if (wide)
        forward<T, V>
            <<<grid, block, 0, cuda>>>(out, rstd, in, weight, norm->rows, norm->width, norm->eps);
    else
        forward<T, 1>
            <<<grid, block, 0, cuda>>>(out, rstd, in, weight, norm->rows, norm->width, norm->eps);
}

/* fp32 sums of a warp: lanes, then over lanes. Moves rows * width * (read 1, write 1) elements. */
void sw_cuda_rmsnorm_forward(struct sw_stream *stream, const struct sw_norm *norm, void *y,
                             float *rstd, const void *x, const void *w)
{
    if (norm->rows <= 0 || norm->width <= 0 || !sw_cuda_begin(stream))
        return;
    if (norm->dtype == SW_F32)
        run_forward<float>(stream, norm, y, rstd, x, w);
    else
        run_forward<sw_bf16>(stream, norm, y, rstd, x, w);
    sw_cuda_end(stream, "RMS norm");
}

/* --- Backward ------------------------------------------------------------------------------------
 */

struct backward {
    void *dx;
    const void *dy, *x, *w;
    const float *rstd;
    float *partials; /* [blocks][width] */
    int64_t rows, width;
};

/* With g = w dy and z = x rstd: dx += rstd (g - z mean(g z)). A warp a row. */
template <typename T, int V>
static __global__ void __launch_bounds__(WARPS *SW_WARP) input_gradient(struct backward b)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y;
    if (row >= b.rows)
        return;
    const T *x = static_cast<const T *>(b.x) + row * b.width;
    const T *dy = static_cast<const T *>(b.dy) + row * b.width;
    const T *w = static_cast<const T *>(b.w);
    T *dx = static_cast<T *>(b.dx) + row * b.width;
    float r = b.rstd[row], products = 0.0f;
    for (int64_t i = threadIdx.x * V; i < b.width; i += SW_WARP * V) {
        float v[V], d[V], weight[V];
        sw_load<T, V>(v, x + i);
        sw_load<T, V>(d, dy + i);
        sw_load<T, V>(weight, w + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            products += weight[k] * (d[k] * (v[k] * r));
    }
    float mean = sw_warp_sum(products) / static_cast<float>(b.width);
    for (int64_t i = threadIdx.x * V; i < b.width; i += SW_WARP * V) {
        float v[V], d[V], weight[V], sum[V];
        sw_load<T, V>(v, x + i);
        sw_load<T, V>(d, dy + i);
        sw_load<T, V>(weight, w + i);
        sw_load<T, V>(sum, dx + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k] += r * (weight[k] * d[k] - (v[k] * r) * mean);
        sw_store<T, V>(dx + i, sum);
    }
}

/* partials[block] = the sum of dy z over a block's rows, in order. A thread V columns. */
template <typename T, int V>
static __global__ void __launch_bounds__(COLUMN_THREADS) weight_partials(struct backward b)
{
    int64_t column = (static_cast<int64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x) * V;
    int64_t first = static_cast<int64_t>(blockIdx.x) * BLOCK_ROWS;
    int64_t end = first + BLOCK_ROWS < b.rows ? first + BLOCK_ROWS : b.rows;
    if (column >= b.width)
        return;
    const T *x = static_cast<const T *>(b.x) + column;
    const T *dy = static_cast<const T *>(b.dy) + column;
    float sum[V] = {};
#pragma unroll 8
    for (int64_t row = first; row < end; row++) {
        float v[V], d[V];
        float r = b.rstd[row];
        sw_load<T, V>(v, x + row * b.width);
        sw_load<T, V>(d, dy + row * b.width);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k] += d[k] * (v[k] * r);
    }
    float *out = b.partials + blockIdx.x * b.width + column;
#pragma unroll
    for (int k = 0; k < V; k++)
        out[k] = sum[k];
}

/* dw += partials, in order. A block SW_WARP columns: SUM_BLOCKS partials at a time are brought in
 * side by side, then a warp adds them up. */
static __global__ void __launch_bounds__(SW_WARP *SUM_WARPS)
    weight_gradient(float *dw, const float *partials, int64_t width, int64_t blocks)
{
    __shared__ float part[SUM_BLOCKS][SW_WARP];
    int64_t column = static_cast<int64_t>(blockIdx.x) * SW_WARP + threadIdx.x;
    float sum = 0.0f;
    for (int64_t first = 0; first < blocks; first += SUM_BLOCKS) {
        int count = static_cast<int>(blocks - first < SUM_BLOCKS ? blocks - first : SUM_BLOCKS);
#pragma unroll
        for (int i = 0; i < SUM_BLOCKS; i += SUM_WARPS) {
            int block = i + static_cast<int>(threadIdx.y);
            part[block][threadIdx.x] =
                block < count && column < width ? partials[(first + block) * width + column] : 0.0f;
        }
        __syncthreads();
        if (threadIdx.y == 0)
#pragma unroll 8
            for (int block = 0; block < count; block++)
                sum += part[block][threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < width)
        dw[column] += sum;
}

template <typename T, int V>
static void run_backward(struct sw_stream *stream, const struct backward *b, float *dw)
{
    int64_t blocks = sw_cuda_ceil_div(b->rows, BLOCK_ROWS);
    cudaStream_t cuda = sw_cuda_stream(stream);
    input_gradient<T, V><<<static_cast<unsigned int>(sw_cuda_ceil_div(b->rows, WARPS)),
                           dim3(SW_WARP, WARPS), 0, cuda>>>(*b);
    dim3 grid(static_cast<unsigned int>(blocks),
              static_cast<unsigned int>(sw_cuda_ceil_div(b->width, COLUMN_THREADS * V)));
    weight_partials<T, V><<<grid, COLUMN_THREADS, 0, cuda>>>(*b);
    weight_gradient<<<static_cast<unsigned int>(sw_cuda_ceil_div(b->width, SW_WARP)),
                      dim3(SW_WARP, SUM_WARPS), 0, cuda>>>(dw, b->partials, b->width, blocks);
}

template <typename T>
static void choose_backward(struct sw_stream *stream, const struct backward *b, float *dw)
{
    int64_t row_bytes = b->width * static_cast<int64_t>(sizeof(T));
    if (sw_cuda_aligned(b->x, row_bytes) && sw_cuda_aligned(b->dy, row_bytes) &&
        sw_cuda_aligned(b->dx, row_bytes) && sw_cuda_aligned(b->w, row_bytes))
        run_backward<T, sw_vector<T>>(stream, b, dw);
    else
        run_backward<T, 1>(stream, b, dw);
}

/* Moves rows * width * (read 5, write 1) elements, of which two reads come from a cache when the
 * rows fit it. Deterministic: blocks of 32 rows, in order. */
void sw_cuda_rmsnorm_backward(struct sw_stream *stream, const struct sw_norm *norm, void *dx,
                              float *dw, const void *dy, const void *x, const float *rstd,
                              const void *w, void *workspace)
{
    const struct backward b = {.dx = dx,
                               .dy = dy,
                               .x = x,
                               .w = w,
                               .rstd = rstd,
                               .partials = static_cast<float *>(workspace),
                               .rows = norm->rows,
                               .width = norm->width};
    if (b.rows <= 0 || b.width <= 0 || !sw_cuda_begin(stream))
        return;
    if (norm->dtype == SW_F32)
        choose_backward<float>(stream, &b, dw);
    else
        choose_backward<sw_bf16>(stream, &b, dw);
    sw_cuda_end(stream, "RMS norm's gradient");
}

int64_t sw_cuda_rmsnorm_backward_workspace_bytes(const struct sw_norm *bound)
{
    return sw_cuda_ceil_div(bound->rows, BLOCK_ROWS) * bound->width *
           static_cast<int64_t>(sizeof(float));
}

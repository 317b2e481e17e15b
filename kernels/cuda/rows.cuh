/* Kernels over rows of elements with dropout: where a thread's elements are, and its factors. */
#ifndef SPILLWAY_KERNELS_CUDA_ROWS_CUH
#define SPILLWAY_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/cuda.cuh"

enum { SW_CUDA_ROW_THREADS = 256 };

/* A block of threads takes blockDim.y rows of blockDim.x * V columns. */
struct sw_cuda_rows {
    int64_t count, width;
    uint32_t tiles; /* blocks side by side over the width; by sw_cuda_rows_grid() */
    /* struct sw_rows, for dropout; NULL where there is none */
    const int32_t *starts, *row_of_token;
};

static inline struct sw_cuda_rows sw_cuda_rows_of(const struct sw_rows *layout, int64_t count,
                                                  int64_t width)
{
    struct sw_cuda_rows rows = {};
    rows.count = count;
    rows.width = width;
    if (layout != nullptr) {
        rows.starts = layout->starts;
        rows.row_of_token = layout->row_of_token;
    }
    return rows;
}

/* Threads along a row: a power of two from 32 to 256, no more than the row has use for. */
static inline dim3 sw_cuda_rows_grid(struct sw_cuda_rows *rows, int elements, dim3 *block)
{
    int64_t pieces = sw_cuda_ceil_div(rows->width, elements);
    unsigned int across = SW_WARP;
    while (across < SW_CUDA_ROW_THREADS && across < pieces)
        across *= 2;
    *block = dim3(across, SW_CUDA_ROW_THREADS / across);
    int64_t tiles = sw_cuda_ceil_div(pieces, across);
    int64_t blocks = sw_cuda_ceil_div(rows->count, block->y) * tiles;
    sw_assert(tiles > 0 && blocks <= INT32_MAX);
    rows->tiles = static_cast<uint32_t>(tiles);
    return dim3(static_cast<unsigned int>(blocks));
}

/* Where the thread's V elements are; false: it has none. Rows are multiples of V. */
template <int V>
static __device__ inline bool sw_cuda_rows_at(const struct sw_cuda_rows *rows, int64_t *row,
                                              int64_t *column)
{
    *row = static_cast<int64_t>(blockIdx.x / rows->tiles) * blockDim.y + threadIdx.y;
    *column = (static_cast<int64_t>(blockIdx.x % rows->tiles) * blockDim.x + threadIdx.x) * V;
    return *row < rows->count && *column < rows->width;
}

/* 0 or 1 / (1 - p) for each of V elements; 1 when there is no dropout. V is 1 or a multiple of 4.
 */
template <int V>
static __device__ inline void sw_cuda_factors(float (&factor)[V], const struct sw_cuda_rows *rows,
                                              const struct sw_cuda_dropout *dropout, int64_t token,
                                              int64_t column)
{
    if (!dropout->on) {
#pragma unroll
        for (int i = 0; i < V; i++)
            factor[i] = 1.0f;
        return;
    }
    int32_t row = rows->row_of_token[token];
    uint32_t position = static_cast<uint32_t>(token - rows->starts[row]);
    uint32_t global_row = static_cast<uint32_t>(dropout->global_rows[row]);
    uint32_t words[4];
    if constexpr (V == 1) {
        sw_dropout_words(dropout, static_cast<uint32_t>(column / 4), position, global_row,
                         dropout->site, words);
        uint32_t lane = static_cast<uint32_t>(column % 4);
        uint32_t low = lane == 0 ? words[0] : words[1], high = lane == 2 ? words[2] : words[3];
        factor[0] = sw_dropout_factor(dropout, lane < 2 ? low : high);
    } else {
#pragma unroll
        for (int group = 0; group < V / 4; group++) {
            sw_dropout_words(dropout, static_cast<uint32_t>(column / 4 + group), position,
                             global_row, dropout->site, words);
#pragma unroll
            for (int i = 0; i < 4; i++)
                factor[group * 4 + i] = sw_dropout_factor(dropout, words[i]);
        }
    }
}

#endif

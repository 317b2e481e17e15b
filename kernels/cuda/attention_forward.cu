/* Attention forward in tiles on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691): a
 * block has 32 queries a warp of one head of one row, held in shared memory, and goes over the keys
 * 64 at a time with a running maximum; scores exist in registers only. bf16 operands and
 * probabilities, fp32 sums.
 *
 * The running maximum follows the greatest score only when that is more than 2^8 times above it
 * (in probability): it need only keep exponentials in range, and sums are rescaled seldom. */
#include "kernels/cuda/attention_tiles.cuh"

namespace
{

enum { KEYS = 64, QUERIES_PER_WARP = 32 };

const float SLACK_LOG2 = 8.0f;

template <int D, int WARPS> struct layout {
    static constexpr int QUERIES = QUERIES_PER_WARP * WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int Q = 0, K = Q + QUERIES * D * 2, V = K + KEYS * D * 2;
    static constexpr int BIAS = V + KEYS * D * 2;
    static constexpr int DIAGONALS = QUERIES + KEYS - 1;
    static constexpr int BYTES = BIAS + (DIAGONALS + 1) * 4;
};

template <int D> struct state {
    float o[2][D / 8][4];
    float greatest[4], sum[4]; /* of the lane's rows; sum: this lane's part */
};

/* s: scores, becomes probabilities times 2^greatest. */
template <int D> SW_TILE_INLINE void softmax(struct state<D> &x, float (&s)[2][KEYS / 8][4])
{
    float shrink[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[h / 2][n][2 * (h & 1)], s[h / 2][n][2 * (h & 1) + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
        const float before = x.greatest[h];
        if (top > before + SLACK_LOG2)
            x.greatest[h] = top;
        const float shift = x.greatest[h] == -INFINITY ? 0.0f : x.greatest[h];
        shrink[h] = exp2_fast(before - shift);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float *c = &s[h / 2][n][2 * (h & 1)];
            c[0] = exp2_fast(c[0] - shift);
            c[1] = exp2_fast(c[1] - shift);
            sum += c[0] + c[1];
        }
        x.sum[h] = x.sum[h] * shrink[h] + sum;
    }
    const bool same =
        shrink[0] == 1.0f && shrink[1] == 1.0f && shrink[2] == 1.0f && shrink[3] == 1.0f;
    if (__all_sync(0xFFFFFFFFu, same))
        return;
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            x.o[h / 2][n][2 * (h & 1)] *= shrink[h];
            x.o[h / 2][n][2 * (h & 1) + 1] *= shrink[h];
        }
}

SW_TILE_INLINE void drop(float (&s)[2][KEYS / 8][4], const uint32_t (&kept)[4])
{
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if ((kept[h] >> (4 * n + c) & 1) == 0)
                    s[h / 2][n][2 * (h & 1) + c] = 0.0f;
}

/* o and lse of the warp's queries, from `query` on. */
template <int D>
SW_TILE_INLINE void finish(const struct sw_tiled_attention &job, const struct sw_tile_row &at,
                           struct state<D> &x, int query, unsigned char *tile, int tile_row,
                           sw_bf16 *o, float *lse, int lane)
{
    const struct sw_attention &a = job.a;
    const float scale = job.dropout.on ? job.dropout.scale : 1.0f;
    float factor[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
        float sum = x.sum[h];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        const int row = query + 8 * h + (lane >> 2);
        const bool sees = sw_tile_visible(a, at, row) > 0;
        factor[h] = sees ? scale / sum : 0.0f;
        if ((lane & 3) == 0 && row < at.queries)
            lse[at.head * a.queries.tokens + at.first_query + row] =
                sees ? fmaf(x.greatest[h], SW_LN_2, logf(sum)) : 0.0f;
    }
    sw_tile_put<D, 2>(tile, x.o, factor, tile_row, lane);
    __syncwarp();
    sw_tile_store<D, QUERIES_PER_WARP>(o + (at.first_query + query) * a.o_stride +
                                           at.head * a.head_dim,
                                       a.o_stride, tile, tile_row, at.queries - query, lane);
}

/* Grid: blocks of queries of the longest row, fastest; heads; rows. */
template <int D, int WARPS, bool DROPOUT>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    forward_kernel(const __grid_constant__ struct sw_tiled_attention job, int blocks, sw_bf16 *o,
                   float *lse)
{
    using at_bytes = layout<D, WARPS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    const int heads = static_cast<int>(a.heads), index = static_cast<int>(blockIdx.x);
    const struct sw_tile_row at = sw_tile_row(a, index / blocks / heads, index / blocks % heads);
    /* under a causal mask the last block is the longest: it starts first */
    const int first = (blocks - 1 - index % blocks) * at_bytes::QUERIES;
    if (first >= at.queries)
        return;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * QUERIES_PER_WARP;
    const int g = lane >> 2, t = lane & 3;
    const int end = sw_tile_visible(a, at, min(first + at_bytes::QUERIES, at.queries) - 1);
    const int warp_sees = sw_tile_visible(a, at, first + warp_row);
    const uint32_t q = shared_address(shared + at_bytes::Q);
    const uint32_t k = shared_address(shared + at_bytes::K);
    const uint32_t v = shared_address(shared + at_bytes::V);
    float *bias = reinterpret_cast<float *>(shared + at_bytes::BIAS);
    const sw_bf16 *keys = sw_tile_at(a, a.k, at.first_key, a.kv_stride, at.head);
    const sw_bf16 *values = sw_tile_at(a, a.v, at.first_key, a.kv_stride, at.head);

    struct state<D> x = {
    };
#pragma unroll
    for (int h = 0; h < 4; h++)
        x.greatest[h] = -INFINITY;
    sw_tile_load<D, at_bytes::QUERIES, at_bytes::THREADS>(
        q, sw_tile_at(a, a.q, at.first_query + first, a.q_stride, at.head), a.q_stride,
        at.queries - first);
    if (end > 0)
        sw_tile_load<D, KEYS, at_bytes::THREADS>(k, keys, a.kv_stride, at.keys);
    for (int key = 0; key < end; key += KEYS) {
        copy_wait(); /* for keys; and everybody is done with the values before */
        __syncthreads();
        sw_tile_load<D, KEYS, at_bytes::THREADS>(v, values + key * a.kv_stride, a.kv_stride,
                                                 at.keys - key);
        sw_tile_load_bias<at_bytes::DIAGONALS, at_bytes::THREADS>(
            bias, a, at.head,
            key - (first + at.shift) - (at_bytes::QUERIES - 1) + a.bias_reach - 1);
        float s[2][KEYS / 8][4] = {};
        sw_tile_multiply_rows<D, 2, KEYS / 8>(s, sw_tile_lane_a<D>(q, warp_row, lane),
                                              sw_tile_lane_b<D>(k, 0, lane));
        uint32_t kept[4];
        if (DROPOUT)
            sw_tile_kept<KEYS / 8>(kept, job.dropout, key, first + warp_row + g + at.shift,
                                   static_cast<uint32_t>(job.dropout.global_rows[at.row]),
                                   job.dropout.site | static_cast<uint32_t>(at.head) << 16, lane);
        copy_wait(); /* for values; and everybody is done with the keys */
        __syncthreads();
        if (key + KEYS < end)
            sw_tile_load<D, KEYS, at_bytes::THREADS>(k, keys + (key + KEYS) * a.kv_stride,
                                                     a.kv_stride, at.keys - key - KEYS);
        sw_tile_add_bias<KEYS / 8>(s, job.scale_log2,
                                   bias + 2 * t - (warp_row + g) + at_bytes::QUERIES - 1);
        if (key + KEYS > warp_sees)
            sw_tile_mask<KEYS / 8>(s, a, at, first + warp_row + g, key, lane);
        softmax<D>(x, s);
        if (DROPOUT)
            drop(s, kept);
        sw_tile_multiply_columns<D, 2, KEYS / 8>(x.o, s, sw_tile_lane_a<D>(v, 0, lane));
    }
    copy_wait();
    __syncthreads();
    finish<D>(job, at, x, first + warp_row, shared + at_bytes::Q, warp_row, o, lse, lane);
}

template <int D, int WARPS, bool DROPOUT>
void launch(struct sw_stream *stream, const struct sw_attention *a, void *o, float *lse)
{
    constexpr int BYTES = layout<D, WARPS>::BYTES;
    const int64_t blocks = sw_cuda_ceil_div(a->queries.longest, layout<D, WARPS>::QUERIES);
    const auto kernel = forward_kernel<D, WARPS, DROPOUT>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    kernel<<<static_cast<unsigned>(blocks * a->heads * a->queries.count), 32 * WARPS, BYTES,
             sw_cuda_stream(stream)>>>(sw_tiled_attention(a), static_cast<int>(blocks),
                                       static_cast<sw_bf16 *>(o), lse);
}

template <int D, int WARPS>
void launch_dropout(struct sw_stream *stream, const struct sw_attention *a, void *o, float *lse)
{
    if (a->dropout.p > 0.0f)
        launch<D, WARPS, true>(stream, a, o, lse);
    else
        launch<D, WARPS, false>(stream, a, o, lse);
}

template <int D>
void launch_warps(struct sw_stream *stream, const struct sw_attention *a, void *o, float *lse)
{
    if (a->queries.longest > 2 * QUERIES_PER_WARP)
        launch_dropout<D, 4>(stream, a, o, lse);
    else
        launch_dropout<D, 2>(stream, a, o, lse);
}

} // namespace

void sw_cuda_attention_forward(struct sw_stream *stream, const struct sw_attention *attention,
                               void *o, float *lse, void *workspace)
{
    const struct sw_attention *a = attention;
    if (!sw_attention_is_tiled(a, {o})) {
        sw_cuda_attention_plain_forward(stream, a, o, lse, workspace);
        return;
    }
    if (a->queries.count <= 0 || a->queries.longest <= 0 || !sw_cuda_begin(stream))
        return;
    if (a->head_dim == 64)
        launch_warps<64>(stream, a, o, lse);
    else
        launch_warps<128>(stream, a, o, lse);
    sw_cuda_end(stream, "attention forward");
}

int64_t sw_cuda_attention_forward_workspace_bytes(const struct sw_attention *bound)
{
    return sw_cuda_attention_plain_forward_workspace_bytes(bound);
}

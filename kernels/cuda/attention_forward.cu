/* Attention forward in tiles on tensor cores, after FlashAttention-2 (Dao, arXiv 2307.08691): a
 * block has 32 queries a warp of one head of one row, held in shared memory, and goes over the keys
 * 64 at a time with a running maximum; scores exist in registers only. bf16 operands and
 * probabilities, fp32 sums. */
#include "kernels/cuda/attention_forward.cuh"

namespace
{

enum { KEYS = SW_FORWARD_KEYS, QUERIES_PER_WARP = 32 };

template <int D, int WARPS> struct layout {
    static constexpr int QUERIES = QUERIES_PER_WARP * WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int Q = 0, K = Q + QUERIES * D * 2, V = K + KEYS * D * 2;
    static constexpr int BIAS = V + KEYS * D * 2;
    static constexpr int DIAGONALS = QUERIES + KEYS - 1;
    static constexpr int BYTES = BIAS + (DIAGONALS + 1) * 4;
};

/* o and lse of the warp's queries, from `query` on. */
template <int D>
SW_TILE_INLINE void finish(const struct sw_tiled_attention &job, const struct sw_tile_row &at,
                           struct forward_state<D, 2> &x, int query, unsigned char *tile,
                           int tile_row, sw_bf16 *o, float *lse, int lane)
{
    const struct sw_attention &a = job.a;
    float factor[4];
    forward_factors<D, 2>(factor, x, job, at, query, lse, lane);
    sw_tile_put<D, 2>(tile, x.o, factor, tile_row, lane);
    __syncwarp();
    sw_tile_store<D, QUERIES_PER_WARP>(o + (at.first_query + query) * a.o_stride +
                                           at.head * a.head_dim,
                                       a.o_stride, tile, tile_row, at.queries - query, lane);
}

/* A block's queries: one head of one row, from `first` on. */
struct place {
    struct sw_tile_row at;
    int first, end; /* end: keys that its last query sees */
    int lane, warp_row;
};

template <int D, int WARPS>
SW_TILE_INLINE void load_keys(const struct sw_attention &a, const struct sw_tile_row &at,
                              const void *base, int key, unsigned char *to)
{
    sw_tile_load<D, KEYS, layout<D, WARPS>::THREADS>(
        shared_address(to), sw_tile_at(a, base, at.first_key + key, a.kv_stride, at.head),
        a.kv_stride, at.keys - key);
}

/* Goes over 64 keys from `key` on. Keys were asked for before, values and bias are here. */
template <int D, int WARPS, bool DROPOUT>
SW_TILE_INLINE void step(struct forward_state<D, 2> &x, const struct sw_tiled_attention &job,
                         const struct place &p, int key, unsigned char *shared)
{
    using L = layout<D, WARPS>;
    const struct sw_attention &a = job.a;
    const int query = p.first + p.warp_row, g = p.lane >> 2, t = p.lane & 3;
    float *bias = reinterpret_cast<float *>(shared + L::BIAS);
    copy_wait(); /* for keys; and everybody is done with the values before */
    __syncthreads();
    load_keys<D, WARPS>(a, p.at, a.v, key, shared + L::V);
    sw_tile_load_bias<L::DIAGONALS, L::THREADS>(
        bias, a, p.at.head, key - (p.first + p.at.shift) - (L::QUERIES - 1) + a.bias_reach - 1);
    float s[2][KEYS / 8][4] = {};
    sw_tile_multiply_rows<D, 2, KEYS / 8>(
        s, sw_tile_lane_a<D>(shared_address(shared + L::Q), p.warp_row, p.lane),
        sw_tile_lane_b<D>(shared_address(shared + L::K), 0, p.lane));
    uint32_t kept[4];
    if (DROPOUT)
        sw_tile_kept<KEYS / 8>(kept, job, p.at, key, query + g + p.at.shift, p.lane);
    copy_wait(); /* for values; and everybody is done with the keys */
    __syncthreads();
    if (key + KEYS < p.end)
        load_keys<D, WARPS>(a, p.at, a.k, key + KEYS, shared + L::K);
    sw_tile_add_bias<KEYS / 8>(s, job.scale_log2, bias + 2 * t - (p.warp_row + g) + L::QUERIES - 1);
    if (key + KEYS > sw_tile_visible(a, p.at, query))
        sw_tile_mask<KEYS / 8>(s, a, p.at, query + g, key, p.lane);
    float shrink[4];
    forward_softmax<D, 2>(x, s, shrink);
    forward_rescale<D, 2>(x, shrink);
    if (DROPOUT)
        forward_drop<2>(s, kept);
    sw_tile_multiply_columns<D, 2, KEYS / 8>(
        x.o, s, sw_tile_lane_a<D>(shared_address(shared + L::V), 0, p.lane));
}

/* Grid: blocks of queries of the longest row, fastest; heads; rows. */
template <int D, int WARPS, bool DROPOUT>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    forward_kernel(const __grid_constant__ struct sw_tiled_attention job, int blocks, sw_bf16 *o,
                   float *lse)
{
    using L = layout<D, WARPS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    const int heads = static_cast<int>(a.heads), index = static_cast<int>(blockIdx.x);
    struct place p;
    p.at = sw_tile_row(a, index / blocks / heads, index / blocks % heads);
    /* under a causal mask the last block is the longest: it starts first */
    p.first = (blocks - 1 - index % blocks) * L::QUERIES;
    if (p.first >= p.at.queries)
        return;
    p.end = sw_tile_visible(a, p.at, min(p.first + L::QUERIES, p.at.queries) - 1);
    p.lane = static_cast<int>(threadIdx.x) & 31;
    p.warp_row = static_cast<int>(threadIdx.x) / 32 * QUERIES_PER_WARP;
    struct forward_state<D, 2> x;
    forward_begin<D, 2>(x);
    sw_tile_load<D, L::QUERIES, L::THREADS>(
        shared_address(shared + L::Q),
        sw_tile_at(a, a.q, p.at.first_query + p.first, a.q_stride, p.at.head), a.q_stride,
        p.at.queries - p.first);
    if (p.end > 0)
        load_keys<D, WARPS>(a, p.at, a.k, 0, shared + L::K);
    for (int key = 0; key < p.end; key += KEYS)
        step<D, WARPS, DROPOUT>(x, job, p, key, shared);
    copy_wait();
    __syncthreads();
    finish<D>(job, p.at, x, p.first + p.warp_row, shared + L::Q, p.warp_row, o, lse, p.lane);
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
    if (a->queries.longest > 2 * QUERIES_PER_WARP && sw_cuda_has_wgmma(stream))
        sw_attention_forward_wgmma(stream, a, o, lse);
    else if (a->head_dim == 64)
        launch_warps<64>(stream, a, o, lse);
    else
        launch_warps<128>(stream, a, o, lse);
    sw_cuda_end(stream, "attention forward");
}

int64_t sw_cuda_attention_forward_workspace_bytes(const struct sw_attention *bound)
{
    return sw_cuda_attention_plain_forward_workspace_bytes(bound);
}

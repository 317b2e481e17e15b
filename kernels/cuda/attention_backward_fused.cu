/* Attention backward in one kernel, for calls with work for every multiprocessor: a block takes
 * rows of one head one after the other, holds 128 keys and goes over the queries, so that scores
 * are made once. dk and dv add up in registers; dq adds up over the blocks of keys in memory that
 * is the thread block's own and small enough to stay in the cache. Where that gives too few blocks,
 * or shared memory is small, attention_backward.cu has two kernels. */
#include "kernels/cuda/attention_backward.cuh"

namespace
{

enum { WARPS = SW_ATTENTION_FUSED_WARPS, KEYS = KEYS_PER_WARP * WARPS };

/* Thread blocks to aim for, one a multiprocessor of an H100 or H200. A constant, so that bits and
 * workspaces are the same on all GPUs that have the shared memory. */
enum { BLOCKS = 132 };

template <int D> struct fused_layout : kv_layout<D, WARPS> {
    using kv = kv_layout<D, WARPS>;
    static constexpr int DS = (kv::BYTES + 1023) / 1024 * 1024; /* d(scores), keys by queries */
    static constexpr int DQ = DS + KEYS * KV_QUERIES * 2;       /* a part of 16 rows a warp */
    static constexpr int DQ_WARP = 16 * (D / 2) * 2;
    static constexpr int RING = DQ + WARPS * DQ_WARP;
    static constexpr int BYTES = RING + WARPS * diagonals<16>::FLOATS * 4;
};

/* One block of keys: one head of one row, from `first` on. */
struct fused_place {
    struct sw_tile_row at;
    int first, lane, warp;
    float4 *sums; /* of the row's dq, this thread's of every 256 */
    struct entries e;
};

/* The tile that holds the first query which sees key `key`. */
SW_TILE_INLINE int first_tile(const struct sw_attention &a, const struct sw_tile_row &at, int key)
{
    return a.causal ? max(key - at.shift, 0) / KV_QUERIES * KV_QUERIES : 0;
}

/* dq += d(scores) k: warp w has queries 16 (w % 4) and up, half w / 4 of the head. */
template <int D>
SW_TILE_INLINE void fused_multiply(float (&dq)[1][D / 16][4], uint32_t ds, uint32_t k, int warp,
                                   int lane)
{
    const uint32_t a = sw_tile_lane_b<KV_QUERIES>(ds, 0, lane) ^ ((warp & 3) << 5);
    const uint32_t b = sw_tile_lane_a<D>(k, 0, lane) ^ ((warp >> 2) * (D / 16) << 4);
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        uint32_t fa[4];
        load_matrices_transposed(fa, a + i * 32 * KV_QUERIES);
#pragma unroll
        for (int n = 0; n < D / 16; n += 2) {
            uint32_t fb[4];
            load_matrices_transposed(fb, (b ^ (n << 4)) + i * 32 * D);
            multiply_add(dq[0][n], fa, fb[0], fb[1]);
            multiply_add(dq[0][n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* The warp's part of dq, complete. */
template <int D>
SW_TILE_INLINE void fused_store(const struct sw_attention &a, const struct fused_place &p,
                                const float (&dq)[1][D / 16][4], int query, sw_bf16 *to,
                                unsigned char *shared)
{
    unsigned char *part = shared + fused_layout<D>::DQ + p.warp * fused_layout<D>::DQ_WARP;
    const float factors[2] = {a.scale, a.scale};
    const int row = query + 16 * (p.warp & 3);
    sw_tile_put<D / 2, 1>(part, dq, factors, 0, p.lane);
    __syncwarp();
    sw_tile_store<D / 2, 16>(to + (p.at.first_query + row) * a.q_stride + p.at.head * a.head_dim +
                                 (p.warp >> 2) * (D / 2),
                             a.q_stride, part, 0, p.at.queries - row, p.lane);
    __syncwarp();
}

/* What the tile of queries from `query` on gives. */
template <int D, bool DROPOUT>
SW_TILE_INLINE void fused_step(float (&dk)[1][D / 8][4], float (&dv)[1][D / 8][4],
                               const struct sw_tiled_attention &job, const struct fused_place &p,
                               const struct sw_backward_operands &x, int query,
                               unsigned char *shared)
{
    using L = fused_layout<D>;
    const struct sw_attention &a = job.a;
    const struct diagonals<16> ring = {
        reinterpret_cast<float *>(shared + L::RING) + p.warp *diagonals<16>::FLOATS
    };
    const int key = p.first + p.warp * KEYS_PER_WARP;
    /* diagonals here are query - key, their entries' order is the other way round */
    const int64_t entry = key - p.at.shift + a.bias_reach - 1 - (query - 15 + p.lane);
    const float before[2] = {entries_get(p.e, entry), entries_get(p.e, entry - 32)};
    float s[1][8][4] = {};
    kv_scores<D, WARPS, DROPOUT>(s, dv, job, p.at, p.first, query, shared, p.lane);
    if (p.e.at != NULL) {
        ring.add(s, query / 8, p.lane);
        entries_put(p.e, entry, before[0] + ring.sum(query - 15, p.lane));
        entries_put(p.e, entry - 32, before[1] + ring.sum(query + 17, p.lane));
    }
    const float one[2] = {1.0f, 1.0f};
    sw_tile_put<KV_QUERIES, 1>(shared + L::DS, s, one, p.warp * KEYS_PER_WARP, p.lane);
    float dq[1][D / 16][4] = {};
    float4 *sums = p.sums + query / KV_QUERIES * (D / 16) * L::THREADS;
    if (p.first > 0) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            const float4 sum = sums[n * L::THREADS];
            dq[0][n][0] = sum.x;
            dq[0][n][1] = sum.y;
            dq[0][n][2] = sum.z;
            dq[0][n][3] = sum.w;
        }
    }
    const uint32_t q = shared_address(shared + L::Q + (query / KV_QUERIES & 1) * L::TILE_BYTES);
    sw_tile_multiply_columns<D, 1, 8>(dk, s, sw_tile_lane_a<D>(q, 0, p.lane));
    __syncthreads(); /* d(scores) are there */
    fused_multiply<D>(dq, shared_address(shared + L::DS), shared_address(shared + L::K), p.warp,
                      p.lane);
    if (p.first + KEYS >= p.at.keys || first_tile(a, p.at, p.first + KEYS) > query) {
        fused_store<D>(a, p, dq, query, x.dq, shared);
        return;
    }
#pragma unroll
    for (int n = 0; n < D / 16; n++)
        sums[n * L::THREADS] = make_float4(dq[0][n][0], dq[0][n][1], dq[0][n][2], dq[0][n][3]);
}

/* Goes over the row's queries. */
template <int D, bool DROPOUT>
SW_TILE_INLINE void fused_queries(float (&dk)[1][D / 8][4], float (&dv)[1][D / 8][4],
                                  const struct sw_tiled_attention &job, const struct fused_place &p,
                                  const struct sw_backward_operands &x, const float *delta,
                                  unsigned char *shared)
{
    using L = fused_layout<D>;
    const struct sw_attention &a = job.a;
    const struct diagonals<16> ring = {
        reinterpret_cast<float *>(shared + L::RING) + p.warp *diagonals<16>::FLOATS
    };
    const int thread = static_cast<int>(threadIdx.x);
    const int begin = first_tile(a, p.at, p.first);
    float *statistics = reinterpret_cast<float *>(shared + L::LSE);
    if (p.e.at != NULL)
        ring.clear(p.lane);
    int query = begin - KV_QUERIES;
    for (; query < p.at.queries; query += KV_QUERIES) {
        const int next = query + KV_QUERIES, stage = next / KV_QUERIES & 1;
        float statistic = 0.0f;
        if (query >= begin) {
            copy_wait(); /* for this stage; and everybody is done with the other */
            __syncthreads();
        }
        if (next < p.at.queries) {
            kv_load<D, WARPS>(a, p.at, x.d_o, p.first, next, shared);
            statistic = kv_statistic(a, p.at, x.lse, delta, next);
        }
        if (query >= begin)
            fused_step<D, DROPOUT>(dk, dv, job, p, x, query, shared);
        if (thread < 2 * KV_QUERIES)
            statistics[stage * 2 * KV_QUERIES + thread] = statistic;
    }
    if (p.e.at != NULL && query > begin) {
        const int key = p.first + p.warp * KEYS_PER_WARP;
        const int64_t entry = key - p.at.shift + a.bias_reach - 1 - (query - 15 + p.lane);
        const float before = entries_get(p.e, entry);
        ring.end(query / 8, p.lane);
        entries_put(p.e, entry, before + ring.sum(query - 15, p.lane));
    }
}

template <int D, bool DROPOUT>
SW_TILE_INLINE void fused_block(const struct sw_tiled_attention &job, const struct fused_place &p,
                                const struct sw_backward_operands &x, const float *delta,
                                unsigned char *shared)
{
    using L = fused_layout<D>;
    const struct sw_attention &a = job.a;
    const int64_t token = p.at.first_key + p.first;
    const int warp_row = p.warp * KEYS_PER_WARP;
    __syncthreads(); /* everybody is done with the block before */
    sw_tile_load<D, KEYS, L::THREADS>(shared_address(shared + L::K),
                                      sw_tile_at(a, a.k, token, a.kv_stride, p.at.head),
                                      a.kv_stride, p.at.keys - p.first);
    sw_tile_load<D, KEYS, L::THREADS>(shared_address(shared + L::V),
                                      sw_tile_at(a, a.v, token, a.kv_stride, p.at.head),
                                      a.kv_stride, p.at.keys - p.first);
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    fused_queries<D, DROPOUT>(dk, dv, job, p, x, delta, shared);
    copy_wait();
    __syncthreads();
    kv_finish<D>(a, p.at, p.first, warp_row, dk, a.scale, shared + L::K, x.dk, p.lane);
    kv_finish<D>(a, p.at, p.first, warp_row, dv, DROPOUT ? job.dropout.scale : 1.0f, shared + L::V,
                 x.dv, p.lane);
}

/* dq of the row's queries that see no key, which come first. */
template <int D>
SW_TILE_INLINE void fused_zero(const struct sw_attention &a, const struct sw_tile_row &at,
                               sw_bf16 *dq)
{
    const int thread = static_cast<int>(threadIdx.x);
    const int end = at.keys == 0 ? at.queries : min(first_tile(a, at, 0), at.queries);
    sw_bf16 *to = dq + at.first_query * a.q_stride + at.head * a.head_dim;
    for (int i = thread; i < end * (D / 8); i += 32 * WARPS)
        *reinterpret_cast<uint4 *>(to + i / (D / 8) * a.q_stride + i % (D / 8) * 8) =
            make_uint4(0, 0, 0, 0);
}

/* Grid: slots, fastest; heads. A slot's rows are every slots-th. `pieces`: float4 of dq's sums that
 * a thread block has. */
template <int D, bool DROPOUT>
__global__ void __launch_bounds__(32 * WARPS, 1)
    fused_kernel(const __grid_constant__ struct sw_tiled_attention job,
                 const __grid_constant__ struct sw_backward_operands x,
                 struct sw_backward_workspace work, int slots, int64_t pieces)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    const int thread = static_cast<int>(threadIdx.x);
    const int slot = static_cast<int>(blockIdx.x) % slots;
    const int head = static_cast<int>(blockIdx.x) / slots;
    const int64_t index = static_cast<int64_t>(slot) * a.heads + head;
    struct fused_place p;
    p.lane = thread & 31;
    p.warp = thread / 32;
    p.sums = reinterpret_cast<float4 *>(work.sums) + index * pieces + thread;
    p.e = {NULL, 2 * a.bias_reach - 1};
    if (work.entries != NULL) {
        p.e.at = work.entries + (index * WARPS + p.warp) * p.e.count;
        for (int64_t i = p.lane; i < p.e.count; i += 32)
            p.e.at[i] = 0.0f;
    }
    for (int row = slot; row < a.queries.count; row += slots) {
        p.at = sw_tile_row(a, row, head);
        fused_zero<D>(a, p.at, x.dq);
        for (p.first = 0; p.first < p.at.keys; p.first += KEYS)
            fused_block<D, DROPOUT>(job, p, x, work.delta, shared);
    }
}

/* delta[head][token] = d(o) . o, by D / 8 lanes. Grid: tokens, each with all heads, by 256 lanes.
 */
template <int D>
__global__ void __launch_bounds__(256)
    delta_kernel(float *delta, const sw_bf16 *d_o, const sw_bf16 *o, int64_t tokens, int64_t heads,
                 int64_t stride)
{
    constexpr int LANES = D / 8;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    const int64_t token = index / LANES / heads, head = index / LANES % heads;
    float sum = 0.0f;
    if (token < tokens) {
        float y[8], z[8];
        const int64_t from = token * stride + head * D + index % LANES * 8;
        sw_load(y, d_o + from);
        sw_load(z, o + from);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(y[i], z[i], sum);
    }
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
    if (token < tokens && index % LANES == 0)
        delta[head * tokens + token] = sum;
}

/* --- Host ----------------------------------------------------------------------------------------
 */

/* float4 of a thread block's sums of dq; none where one block of keys is all. */
int64_t pieces_of(const struct sw_attention *a)
{
    if (a->keys.longest <= KEYS)
        return 0;
    return sw_cuda_ceil_div(a->queries.longest, KV_QUERIES) * KV_QUERIES * a->head_dim / 4;
}

template <int D, bool DROPOUT>
void launch(struct sw_stream *stream, const struct sw_attention *a,
            const struct sw_backward_operands &x, const struct sw_backward_workspace &work)
{
    constexpr int BYTES = fused_layout<D>::BYTES;
    const int64_t slots = sw_attention_fused_slots(a);
    const int64_t lanes = a->queries.tokens * a->heads * (D / 8);
    const auto kernel = fused_kernel<D, DROPOUT>;
    delta_kernel<D>
        <<<static_cast<unsigned>(sw_cuda_ceil_div(lanes, 256)), 256, 0, sw_cuda_stream(stream)>>>(
            work.delta, x.d_o, x.o, a->queries.tokens, a->heads, a->o_stride);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    kernel<<<static_cast<unsigned>(slots * a->heads), 32 * WARPS, BYTES, sw_cuda_stream(stream)>>>(
        sw_tiled_attention(a), x, work, static_cast<int>(slots), pieces_of(a));
}

} // namespace

int64_t sw_attention_fused_slots(const struct sw_attention *a)
{
    return sw_cuda_min(a->queries.count, BLOCKS / a->heads > 1 ? BLOCKS / a->heads : 1);
}

bool sw_attention_is_fused(const struct sw_attention *a, int shared_bytes)
{
    const int bytes = a->head_dim == 64 ? fused_layout<64>::BYTES : fused_layout<128>::BYTES;
    if (shared_bytes < bytes || a->queries.longest <= 0 || a->keys.longest <= KEYS / 2)
        return false;
    /* rows, each at the longest, keep seven tenths of the multiprocessors busy; twice as many
     * products are the alternative's cost, less what it spares in waiting */
    const int64_t slots = sw_attention_fused_slots(a);
    const int64_t rounds =
        sw_cuda_ceil_div(a->queries.count, slots) * sw_cuda_ceil_div(slots * a->heads, BLOCKS);
    return 10 * a->queries.count * a->heads >= 7 * BLOCKS * rounds;
}

int64_t sw_attention_fused_sums_bytes(const struct sw_attention *bound)
{
    return sw_attention_fused_slots(bound) * bound->heads * pieces_of(bound) * 16;
}

void sw_attention_fused(struct sw_stream *stream, const struct sw_attention *a,
                        const struct sw_backward_operands &x,
                        const struct sw_backward_workspace &work)
{
    const bool dropout = a->dropout.p > 0.0f;
    if (a->head_dim == 64)
        dropout ? launch<64, true>(stream, a, x, work) : launch<64, false>(stream, a, x, work);
    else
        dropout ? launch<128, true>(stream, a, x, work) : launch<128, false>(stream, a, x, work);
}

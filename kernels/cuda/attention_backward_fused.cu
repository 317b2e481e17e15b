/* Attention backward in one kernel, for calls with work for every multiprocessor: a block takes
 * rows of one head one after the other, holds 128 keys and goes over the queries, so that scores
 * are made once. dk and dv add up in registers; dq adds up over the blocks of keys in memory that
 * is the thread block's own and small enough to stay in the cache. Where that gives too few blocks,
 * or shared memory is small, attention_backward.cu has two kernels. */
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/wgmma.cuh"

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
    static constexpr int RING = DQ + KV_QUERIES * D * 2;
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

/* A tile of dq as THREADS threads have it: a warp 16 rows, half of the head's columns or (4 warps)
 * all. */
template <int D, int THREADS> struct dq_part {
    static constexpr int N = 16 * D / THREADS, COLUMNS = 8 * N, BYTES = 16 * COLUMNS * 2;
};

/* The warp's part of dq, complete. */
template <int D, int THREADS>
SW_TILE_INLINE void fused_store(const struct sw_attention &a, const struct fused_place &p,
                                const float (&dq)[1][16 * D / THREADS][4], int query, sw_bf16 *to,
                                unsigned char *shared)
{
    using P = dq_part<D, THREADS>;
    const int warp = p.warp % (THREADS / 32), row = query + 16 * (warp & 3);
    unsigned char *part = shared + fused_layout<D>::DQ + warp * P::BYTES;
    const float factors[2] = {a.scale, a.scale};
    sw_tile_put<P::COLUMNS, 1>(part, dq, factors, 0, p.lane);
    __syncwarp();
    sw_tile_store<P::COLUMNS, 16>(to + (p.at.first_query + row) * a.q_stride +
                                      p.at.head * a.head_dim + (warp >> 2) * P::COLUMNS,
                                  a.q_stride, part, 0, p.at.queries - row, p.lane);
    __syncwarp();
}

/* This thread's sums of a tile of dq. */
template <int D, int THREADS>
SW_TILE_INLINE float4 *fused_sums(const struct fused_place &p, int query)
{
    const int thread = static_cast<int>(threadIdx.x);
    return p.sums + thread % THREADS - thread + query / KV_QUERIES * 16 * D;
}

/* Over the blocks of keys before. */
template <int D, int THREADS>
SW_TILE_INLINE void fused_get(float (&dq)[1][16 * D / THREADS][4], const struct fused_place &p,
                              int query)
{
    const float4 *sums = fused_sums<D, THREADS>(p, query);
#pragma unroll
    for (int n = 0; n < dq_part<D, THREADS>::N; n++) {
        const float4 sum = sums[n * THREADS];
        dq[0][n][0] = sum.x;
        dq[0][n][1] = sum.y;
        dq[0][n][2] = sum.z;
        dq[0][n][3] = sum.w;
    }
}

/* Where they go, the block's own added: to dq when no later block of keys adds to them. */
template <int D, int THREADS>
SW_TILE_INLINE void fused_put(const struct sw_attention &a, const struct fused_place &p,
                              const float (&dq)[1][16 * D / THREADS][4], int query, sw_bf16 *to,
                              unsigned char *shared)
{
    if (p.first + KEYS >= p.at.keys || first_tile(a, p.at, p.first + KEYS) > query) {
        fused_store<D, THREADS>(a, p, dq, query, to, shared);
        return;
    }
    float4 *sums = fused_sums<D, THREADS>(p, query);
#pragma unroll
    for (int n = 0; n < dq_part<D, THREADS>::N; n++)
        sums[n * THREADS] = make_float4(dq[0][n][0], dq[0][n][1], dq[0][n][2], dq[0][n][3]);
}

/* The lane's entries of the bias' gradient that a tile of queries completes, and their sums so far;
 * read well before they are added to. Diagonals here are query - key, their entries' order is the
 * other way round. */
struct fused_entries {
    int64_t first; /* and first - 32 */
    float before[2];
};

SW_TILE_INLINE struct fused_entries fused_get_entries(const struct sw_attention &a,
                                                      const struct fused_place &p, int query)
{
    const int key = p.first + p.warp * KEYS_PER_WARP;
    const int64_t first = key - p.at.shift + a.bias_reach - 1 - (query - 15 + p.lane);
    return {first, {entries_get(p.e, first), entries_get(p.e, first - 32)}};
}

template <int D>
SW_TILE_INLINE void fused_put_entries(const struct fused_place &p, const float (&ds)[1][8][4],
                                      int query, const struct fused_entries &at,
                                      unsigned char *shared)
{
    const struct diagonals<16> ring = {
        reinterpret_cast<float *>(shared + fused_layout<D>::RING) + p.warp *diagonals<16>::FLOATS
    };
    if (p.e.at == NULL)
        return;
    ring.add(ds, query / 8, p.lane);
    entries_put(p.e, at.first, at.before[0] + ring.sum(query - 15, p.lane));
    entries_put(p.e, at.first - 32, at.before[1] + ring.sum(query + 17, p.lane));
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
    const struct fused_entries at = fused_get_entries(a, p, query);
    float s[1][8][4] = {};
    kv_scores<D, WARPS, DROPOUT>(s, dv, job, p.at, p.first, query, shared, p.lane);
    fused_put_entries<D>(p, s, query, at, shared);
    const float one[2] = {1.0f, 1.0f};
    sw_tile_put<KV_QUERIES, 1>(shared + L::DS, s, one, p.warp * KEYS_PER_WARP, p.lane);
    float dq[1][D / 16][4] = {};
    if (p.first > 0)
        fused_get<D, 32 * WARPS>(dq, p, query);
    const uint32_t q = shared_address(shared + L::Q + (query / KV_QUERIES & 1) * L::TILE_BYTES);
    sw_tile_multiply_columns<D, 1, 8>(dk, s, sw_tile_lane_a<D>(q, 0, p.lane));
    __syncthreads(); /* d(scores) are there */
    fused_multiply<D>(dq, shared_address(shared + L::DS), shared_address(shared + L::K), p.warp,
                      p.lane);
    fused_put<D, 32 * WARPS>(a, p, dq, query, x.dq, shared);
}

#if SW_HAVE_WGMMA

/* The operands A of products with columns of 16 M rows, rounded to bf16. */
SW_TILE_INLINE void pack_columns(uint32_t (&p)[4][4], const float (&s)[1][8][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] =
                pack_bf16(s[0][2 * k + i / 2][2 * (i & 1)], s[0][2 * k + i / 2][2 * (i & 1) + 1]);
}

/* s = a b^T over the head: 64 rows of a tile of KEYS, 64 rows of a tile of KV_QUERIES. */
template <int D> SW_TILE_INLINE void ask_rows(float (&s)[8][4], uint32_t a, uint32_t b)
{
    multiply_async_new<0, 0>(s, async_operand(a, 16), async_operand(b, 16));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        multiply_async<0, 0>(s, async_operand(a + i / 4 * KEYS * 128 + i % 4 * 32, 16),
                             async_operand(b + i / 4 * KV_QUERIES * 128 + i % 4 * 32, 16));
    async_end();
}

/* sums += p b: a tile b of KV_QUERIES. */
template <int N>
SW_TILE_INLINE void ask_columns(float (&sums)[N][4], const uint32_t (&p)[4][4], uint32_t b)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        multiply_async(sums, p[i], async_operand(b + i * 16 * 128, KV_QUERIES * 128));
    async_end();
}

/* dq = d(scores) k: a panel of k. */
SW_TILE_INLINE void ask_dq(float (&dq)[8][4], uint32_t ds, uint32_t k)
{
    multiply_async_new<1, 1>(dq, async_operand(ds, 16), async_operand(k, 16));
#pragma unroll
    for (int i = 1; i < KEYS / 16; i++)
        multiply_async<1, 1>(dq, async_operand(ds + i * 16 * 128, 16),
                             async_operand(k + i * 16 * 128, 16));
    async_end();
}

/* s, the scores, become probabilities; p: what is left of them, as operands. */
template <int D, bool DROPOUT>
SW_TILE_INLINE void
wgmma_probabilities(float (&s)[1][8][4], uint32_t (&packed)[4][4], const uint32_t (&kept)[4],
                    const struct sw_tiled_attention &job, const struct fused_place &p, int query,
                    unsigned char *shared)
{
    using L = fused_layout<D>;
    const int stage = query / KV_QUERIES & 1, g = p.lane >> 2, t = p.lane & 3;
    const int warp_row = p.warp * KEYS_PER_WARP, key = p.first + warp_row + g;
    const float *lse = reinterpret_cast<const float *>(shared + L::LSE + stage * L::LSE_BYTES);
    const float *bias = reinterpret_cast<const float *>(shared + L::BIAS + stage * L::BIAS_BYTES);
    kv_probabilities(
        s, job.scale_log2, bias + warp_row + g - 2 * t + KV_QUERIES - 1, lse + 2 * t,
        (job.a.causal && p.first + KEYS > query + p.at.shift + 1) || p.first + KEYS > p.at.keys,
        job.a.causal ? query + 2 * t + p.at.shift + 1 - key : INT_MAX, p.at.keys - key);
    float left[1][8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[0][n][i] = DROPOUT && (kept[i] >> (4 * n) & 1) == 0 ? 0.0f : s[0][n][i];
    pack_columns(packed, left);
}

/* d(scores) of the warp's keys to their tile. */
SW_TILE_INLINE void put_gradient(unsigned char *tile, const uint32_t (&ds)[4][4], int first,
                                 int lane)
{
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<uint32_t *>(tile + sw_tile_piece<64>(first + 8 * h + g, n) + 4 * t) =
                ds[n / 2][2 * (n & 1) + h];
}

/* dq's part when all d(scores) of the tile are there. */
template <int D, int THREADS>
SW_TILE_INLINE void wgmma_dq(const struct sw_attention &a, const struct fused_place &p, sw_bf16 *to,
                             int query, unsigned char *shared)
{
    using L = fused_layout<D>;
    const int group = p.warp / 4, panel = D == 64 ? 0 : group;
    const bool wanted = D == 128 || group == (query / KV_QUERIES & 1);
    const uint32_t base = shared_address(shared);
    float dq[1][8][4], before[1][8][4];
    if (wanted && p.first > 0)
        fused_get<D, THREADS>(before, p, query);
    __syncthreads();
    if (!wanted)
        return;
    async_begin();
    ask_dq(dq[0], base + L::DS, base + L::K + panel * KEYS * 128);
    async_wait<0>();
    async_hold(dq[0]);
    if (p.first > 0)
#pragma unroll
        for (int i = 0; i < 32; i++)
            dq[0][i / 4][i % 4] += before[0][i / 4][i % 4];
    fused_put<D, THREADS>(a, p, dq, query, to, shared);
}

/* fused_step with a warpgroup's products, which go on while other things are done. A warpgroup has
 * 64 keys, and one panel of dq; where there is one panel only, they take turns. */
template <int D, bool DROPOUT>
SW_TILE_INLINE void wgmma_step(float (&dk)[1][D / 8][4], float (&dv)[1][D / 8][4],
                               const struct sw_tiled_attention &job, const struct fused_place &p,
                               const struct sw_backward_operands &x, int query,
                               unsigned char *shared)
{
    using L = fused_layout<D>;
    constexpr int DQ_THREADS = 2 * D; /* that have a part of dq, of 32 elements */
    const int stage = query / KV_QUERIES & 1, group = p.warp / 4, t = p.lane & 3;
    const uint32_t base = shared_address(shared);
    const uint32_t q = base + L::Q + stage * L::TILE_BYTES;
    const uint32_t d_o = base + L::DO + stage * L::TILE_BYTES;
    const int key = p.first + p.warp * KEYS_PER_WARP;
    const struct fused_entries at = fused_get_entries(job.a, p, query);
    uint32_t kept[4] = {}, packed[4][4];
    float s[1][8][4], dp[1][8][4];
    async_begin();
    ask_rows<D>(s[0], base + L::K + group * 64 * 128, q);
    ask_rows<D>(dp[0], base + L::V + group * 64 * 128, d_o);
    if (DROPOUT)
        sw_tile_kept_transposed<8>(kept, job, p.at, key, query + 2 * t + p.at.shift, p.lane);
    async_wait<1>();
    async_hold(s[0]);
    wgmma_probabilities<D, DROPOUT>(s, packed, kept, job, p, query, shared);
    async_begin();
    ask_columns(dv[0], packed, d_o);
    async_wait<1>();
    async_hold(dp[0]);
    const float *lse = reinterpret_cast<const float *>(shared + L::LSE + stage * L::LSE_BYTES);
    kv_gradient<DROPOUT>(s, dp, lse + KV_QUERIES + 2 * t, kept, job.dropout.scale);
    pack_columns(packed, s);
    put_gradient(shared + L::DS, packed, p.warp * KEYS_PER_WARP, p.lane);
    async_publish();
    async_begin();
    ask_columns(dk[0], packed, q);
    fused_put_entries<D>(p, s, query, at, shared);
    wgmma_dq<D, DQ_THREADS>(job.a, p, x.dq, query, shared);
    async_wait<0>();
    async_hold(dv[0]);
    async_hold(dk[0]);
}

#endif

/* Goes over the row's queries. */
template <int D, bool DROPOUT, bool WGMMA>
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
#if SW_HAVE_WGMMA
            if constexpr (WGMMA)
                async_publish();
#endif
            __syncthreads();
        }
        if (next < p.at.queries) {
            kv_load<D, WARPS, WGMMA ? 64 : D>(a, p.at, x.d_o, p.first, next, shared);
            statistic = kv_statistic(a, p.at, x.lse, delta, next);
        }
        if (query >= begin) {
#if SW_HAVE_WGMMA
            if constexpr (WGMMA)
                wgmma_step<D, DROPOUT>(dk, dv, job, p, x, query, shared);
            else
#endif
                fused_step<D, DROPOUT>(dk, dv, job, p, x, query, shared);
        }
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

template <int D, bool DROPOUT, bool WGMMA>
SW_TILE_INLINE void fused_block(const struct sw_tiled_attention &job, const struct fused_place &p,
                                const struct sw_backward_operands &x, const float *delta,
                                unsigned char *shared)
{
    using L = fused_layout<D>;
    const struct sw_attention &a = job.a;
    const int64_t token = p.at.first_key + p.first;
    const int warp_row = p.warp * KEYS_PER_WARP;
    __syncthreads(); /* everybody is done with the block before */
    sw_tile_load_panels<D, WGMMA ? 64 : D, KEYS, L::THREADS>(
        shared_address(shared + L::K), sw_tile_at(a, a.k, token, a.kv_stride, p.at.head),
        a.kv_stride, p.at.keys - p.first);
    sw_tile_load_panels<D, WGMMA ? 64 : D, KEYS, L::THREADS>(
        shared_address(shared + L::V), sw_tile_at(a, a.v, token, a.kv_stride, p.at.head),
        a.kv_stride, p.at.keys - p.first);
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    fused_queries<D, DROPOUT, WGMMA>(dk, dv, job, p, x, delta, shared);
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
template <int D, bool DROPOUT, bool WGMMA>
__global__ void __launch_bounds__(32 * WARPS, 1)
    fused_kernel(const __grid_constant__ struct sw_tiled_attention job,
                 const __grid_constant__ struct sw_backward_operands x,
                 struct sw_backward_workspace work, int slots, int64_t pieces)
{
    if constexpr (!WGMMA || SW_HAVE_WGMMA) {
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
                fused_block<D, DROPOUT, WGMMA>(job, p, x, work.delta, shared);
        }
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

template <int D, bool DROPOUT, bool WGMMA>
void launch(struct sw_stream *stream, const struct sw_attention *a,
            const struct sw_backward_operands &x, const struct sw_backward_workspace &work)
{
    constexpr int BYTES = fused_layout<D>::BYTES;
    const int64_t slots = sw_attention_fused_slots(a);
    const int64_t lanes = a->queries.tokens * a->heads * (D / 8);
    const auto kernel = fused_kernel<D, DROPOUT, WGMMA>;
    delta_kernel<D>
        <<<static_cast<unsigned>(sw_cuda_ceil_div(lanes, 256)), 256, 0, sw_cuda_stream(stream)>>>(
            work.delta, x.d_o, x.o, a->queries.tokens, a->heads, a->o_stride);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    kernel<<<static_cast<unsigned>(slots * a->heads), 32 * WARPS, BYTES, sw_cuda_stream(stream)>>>(
        sw_tiled_attention(a), x, work, static_cast<int>(slots), pieces_of(a));
}

template <bool WGMMA>
void launch_head(struct sw_stream *stream, const struct sw_attention *a,
                 const struct sw_backward_operands &x, const struct sw_backward_workspace &work)
{
    const bool dropout = a->dropout.p > 0.0f;
    if (a->head_dim == 64)
        dropout ? launch<64, true, WGMMA>(stream, a, x, work)
                : launch<64, false, WGMMA>(stream, a, x, work);
    else
        dropout ? launch<128, true, WGMMA>(stream, a, x, work)
                : launch<128, false, WGMMA>(stream, a, x, work);
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
    if (sw_cuda_has_wgmma(stream))
        launch_head<true>(stream, a, x, work);
    else
        launch_head<false>(stream, a, x, work);
}

/* Attention backward in tiles on tensor cores, where attention_backward_fused.cu does not fit.
 * Probabilities are made again from lse, twice: once
 * by blocks of queries that go over the keys and sum dq and the bias' gradient, once by blocks of
 * keys that go over the queries and sum dk and dv. So every sum has one owner and one order,
 * without atomics. bf16 operands, probabilities and d(scores), fp32 sums.
 *
 * The bias' gradient: a warp sums d(scores) of a tile along diagonals (struct diagonals) and adds
 * them to entries of its own in the workspace; a last kernel adds the warps' entries in order. */
#include "kernels/cuda/attention_backward.cuh"

#include <algorithm>

namespace
{

/* Blocks that dq's kernel is cut into, about: their warps' entries take up workspace. */
enum { BLOCKS_WANTED = 1024 };

/* --- dq and the bias' gradient -------------------------------------------------------------------
 */

enum { Q_KEYS = 32, QUERIES_PER_WARP = 32 };

template <int D, int WARPS> struct q_layout {
    static constexpr int QUERIES = QUERIES_PER_WARP * WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int KV_BYTES = Q_KEYS * D * 2;
    static constexpr int DIAGONALS = QUERIES + Q_KEYS - 1;
    static constexpr int Q = 0, DO = Q + QUERIES * D * 2;
    static constexpr int K = DO + QUERIES * D * 2, V = K + 2 * KV_BYTES; /* two stages each */
    static constexpr int BIAS = V + 2 * KV_BYTES, BIAS_BYTES = (DIAGONALS + 1) * 4;
    static constexpr int DELTA = BIAS + 2 * BIAS_BYTES;
    static constexpr int RING = DELTA + QUERIES * 4;
    static constexpr int BYTES = RING + WARPS * diagonals<8>::FLOATS * 4;
};

/* delta of the warp's 32 rows, to shared memory and the workspace; d(o) is in the tile `tile`. */
template <int D>
SW_TILE_INLINE void make_delta(const struct sw_attention &a, const struct sw_tile_row &at,
                               int query, const unsigned char *tile, int tile_row, const sw_bf16 *o,
                               float *delta, float *delta_out, int lane)
{
    constexpr int PIECES = D / 8, STEP = 32 / PIECES;
    const int row = lane / PIECES, piece = lane % PIECES;
    o = sw_tile_at(a, o, at.first_query + query, a.o_stride, at.head);
#pragma unroll 4
    for (int i = 0; i < QUERIES_PER_WARP; i += STEP) {
        float sum = 0.0f;
        if (query + row + i < at.queries) {
            float x[8], y[8];
            sw_load(x, o + (row + i) * a.o_stride + piece * 8);
            sw_load(y, reinterpret_cast<const sw_bf16 *>(
                           tile + sw_tile_piece<D>(tile_row + row + i, piece)));
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum = fmaf(x[j], y[j], sum);
        }
#pragma unroll
        for (int mask = PIECES / 2; mask > 0; mask /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
        if (piece != 0)
            continue;
        delta[tile_row + row + i] = sum;
        if (query + row + i < at.queries)
            delta_out[at.head * a.queries.tokens + at.first_query + query + row + i] = sum;
    }
    __syncwarp();
}

/* Scores become probabilities; `shift` is the lse of the lane's rows, in units of log 2. */
SW_TILE_INLINE void q_probabilities(float (&s)[2][4][4], const float (&shift)[4])
{
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                s[h / 2][n][2 * (h & 1) + c] = exp2_fast(s[h / 2][n][2 * (h & 1) + c] - shift[h]);
}

/* Probabilities become d(scores) before the scale. dp: d(probabilities) after dropout. */
template <bool DROPOUT>
SW_TILE_INLINE void q_gradient(float (&p)[2][4][4], const float (&dp)[2][4][4],
                               const float (&delta)[4], const uint32_t (&kept)[4], float keep_scale)
{
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float d = dp[h / 2][n][2 * (h & 1) + c];
                if (DROPOUT)
                    d = (kept[h] >> (4 * n + c) & 1) != 0 ? d * keep_scale : 0.0f;
                p[h / 2][n][2 * (h & 1) + c] *= d - delta[h];
            }
}

/* Keys from `key` on, their values and the diagonals' bias, to their stage. */
template <int D, int WARPS>
SW_TILE_INLINE void q_load(const struct sw_attention &a, const struct sw_tile_row &at, int first,
                           int key, unsigned char *shared)
{
    using L = q_layout<D, WARPS>;
    const int stage = key / Q_KEYS & 1;
    const int64_t token = at.first_key + key;
    sw_tile_load<D, Q_KEYS, L::THREADS>(shared_address(shared + L::K + stage * L::KV_BYTES),
                                        sw_tile_at(a, a.k, token, a.kv_stride, at.head),
                                        a.kv_stride, at.keys - key);
    sw_tile_load<D, Q_KEYS, L::THREADS>(shared_address(shared + L::V + stage * L::KV_BYTES),
                                        sw_tile_at(a, a.v, token, a.kv_stride, at.head),
                                        a.kv_stride, at.keys - key);
    sw_tile_load_bias<L::DIAGONALS, L::THREADS>(
        reinterpret_cast<float *>(shared + L::BIAS + stage * L::BIAS_BYTES), a, at.head,
        key - (first + at.shift) - (L::QUERIES - 1) + a.bias_reach - 1);
}

/* One block of queries: one head of one row, from `first` on. */
struct q_place {
    struct sw_tile_row at;
    int first, end; /* end: keys that its last query sees */
    int lane, warp_row;
    float shift[4], delta[4]; /* of the lane's rows; shift: lse in units of log 2 */
};

/* Brings q, d(o) and the first keys in; makes delta. */
template <int D, int WARPS>
SW_TILE_INLINE void q_begin(struct q_place &p, const struct sw_attention &a,
                            const struct sw_backward_operands &x, float *delta_out,
                            unsigned char *shared)
{
    using L = q_layout<D, WARPS>;
    const struct sw_tile_row &at = p.at;
    const int64_t token = at.first_query + p.first;
    float *delta_rows = reinterpret_cast<float *>(shared + L::DELTA);
    sw_tile_load<D, L::QUERIES, L::THREADS>(shared_address(shared + L::Q),
                                            sw_tile_at(a, a.q, token, a.q_stride, at.head),
                                            a.q_stride, at.queries - p.first);
    sw_tile_load<D, L::QUERIES, L::THREADS>(shared_address(shared + L::DO),
                                            sw_tile_at(a, x.d_o, token, a.o_stride, at.head),
                                            a.o_stride, at.queries - p.first);
    if (p.end > 0)
        q_load<D, WARPS>(a, at, p.first, 0, shared);
    copy_wait();
    __syncthreads();
    make_delta<D>(a, at, p.first + p.warp_row, shared + L::DO, p.warp_row, x.o, delta_rows,
                  delta_out, p.lane);
#pragma unroll
    for (int h = 0; h < 4; h++) {
        const int row = p.warp_row + 8 * h + (p.lane >> 2);
        const int64_t from = at.head * a.queries.tokens + token + row;
        /* a row that is not there gets probabilities of 0 */
        p.shift[h] = p.first + row < at.queries ? x.lse[from] * SW_LOG2_E : INFINITY;
        p.delta[h] = delta_rows[row];
    }
}

/* d(scores) of the warp's queries and the 32 keys of a stage, in s. */
template <int D, int WARPS, bool DROPOUT>
SW_TILE_INLINE void q_scores(float (&s)[2][4][4], const struct sw_tiled_attention &job,
                             const struct q_place &p, int key, unsigned char *shared)
{
    using L = q_layout<D, WARPS>;
    const int stage = key / Q_KEYS & 1, g = p.lane >> 2, t = p.lane & 3;
    const int query = p.first + p.warp_row;
    const float *bias = reinterpret_cast<const float *>(shared + L::BIAS + stage * L::BIAS_BYTES);
    sw_tile_multiply_rows<D, 2, 4>(
        s, sw_tile_lane_a<D>(shared_address(shared + L::Q), p.warp_row, p.lane),
        sw_tile_lane_b<D>(shared_address(shared + L::K + stage * L::KV_BYTES), 0, p.lane));
    sw_tile_add_bias<4>(s, job.scale_log2, bias + 2 * t - (p.warp_row + g) + L::QUERIES - 1);
    if (key + Q_KEYS > sw_tile_visible(job.a, p.at, query))
        sw_tile_mask<4>(s, job.a, p.at, query + g, key, p.lane);
    q_probabilities(s, p.shift);
    float dp[2][4][4] = {};
    sw_tile_multiply_rows<D, 2, 4>(
        dp, sw_tile_lane_a<D>(shared_address(shared + L::DO), p.warp_row, p.lane),
        sw_tile_lane_b<D>(shared_address(shared + L::V + stage * L::KV_BYTES), 0, p.lane));
    uint32_t kept[4] = {};
    if (DROPOUT)
        sw_tile_kept<4>(kept, job, p.at, key, query + g + p.at.shift, p.lane);
    q_gradient<DROPOUT>(s, dp, p.delta, kept, job.dropout.scale);
}

template <int D, int WARPS, bool DROPOUT>
SW_TILE_INLINE void q_block(struct q_place &p, const struct sw_tiled_attention &job,
                            const struct sw_backward_operands &x, float *delta_out,
                            struct entries e, unsigned char *shared)
{
    using L = q_layout<D, WARPS>;
    const struct sw_attention &a = job.a;
    const int query = p.first + p.warp_row;
    const struct diagonals<8> ring = {
        reinterpret_cast<float *>(shared + L::RING) + p.warp_row
                                                          / QUERIES_PER_WARP *diagonals<8>::FLOATS
    };
    const int64_t entry = a.bias_reach - 32 - (query + p.at.shift) + p.lane; /* of key 0 */
    float sums[2][D / 8][4] = {};
    q_begin<D, WARPS>(p, a, x, delta_out, shared);
    if (e.at != NULL)
        ring.clear(p.lane);
    for (int key = 0; key < p.end; key += Q_KEYS) {
        copy_wait(); /* for this stage; and everybody is done with the other */
        __syncthreads();
        if (key + Q_KEYS < p.end)
            q_load<D, WARPS>(a, p.at, p.first, key + Q_KEYS, shared);
        const float before = entries_get(e, entry + key);
        float s[2][4][4] = {};
        q_scores<D, WARPS, DROPOUT>(s, job, p, key, shared);
        if (e.at != NULL) {
            ring.add(s, key / 8, p.lane);
            entries_put(e, entry + key, before + ring.sum(key - 31, p.lane));
        }
        const unsigned char *k = shared + L::K + (key / Q_KEYS & 1) * L::KV_BYTES;
        sw_tile_multiply_columns<D, 2, 4>(sums, s, sw_tile_lane_a<D>(shared_address(k), 0, p.lane));
    }
    if (e.at != NULL && p.end > 0) {
        const int after = (p.end + Q_KEYS - 1) / Q_KEYS * Q_KEYS;
        ring.end(after / 8, p.lane);
        const float before = entries_get(e, entry + after);
        entries_put(e, entry + after, before + ring.sum(after - 31, p.lane));
    }
    const float factor[4] = {a.scale, a.scale, a.scale, a.scale};
    sw_tile_put<D, 2>(shared + L::Q, sums, factor, p.warp_row, p.lane);
    __syncwarp();
    sw_tile_store<D, QUERIES_PER_WARP>(
        x.dq + (p.at.first_query + query) * a.q_stride + p.at.head * a.head_dim, a.q_stride,
        shared + L::Q, p.warp_row, p.at.queries - query, p.lane);
}

/* Grid: slots, fastest; heads. A slot's blocks of queries are every slots-th of all rows' blocks,
 * `blocks` of them a row. */
template <int D, int WARPS, bool DROPOUT>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    q_kernel(const __grid_constant__ struct sw_tiled_attention job,
             const __grid_constant__ struct sw_backward_operands x,
             struct sw_backward_workspace work, int slots, int blocks)
{
    using L = q_layout<D, WARPS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    const int slot = static_cast<int>(blockIdx.x) % slots;
    const int head = static_cast<int>(blockIdx.x) / slots;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int rows = static_cast<int>(a.queries.count);
    struct entries e = {NULL, 2 * a.bias_reach - 1};
    if (work.entries != NULL) {
        const int64_t index = (static_cast<int64_t>(slot) * a.heads + head) * WARPS;
        e.at = work.entries + (index + threadIdx.x / 32) * e.count;
        for (int64_t i = lane; i < e.count; i += 32)
            e.at[i] = 0.0f;
    }
    for (int item = slot; item < rows * blocks; item += slots) {
        struct q_place p;
        p.at = sw_tile_row(a, item / blocks, head);
        p.first = item % blocks * L::QUERIES;
        if (p.first >= p.at.queries)
            continue;
        p.end = sw_tile_visible(a, p.at, min(p.first + L::QUERIES, p.at.queries) - 1);
        p.lane = lane;
        p.warp_row = static_cast<int>(threadIdx.x) / 32 * QUERIES_PER_WARP;
        __syncthreads(); /* everybody is done with the block before */
        q_block<D, WARPS, DROPOUT>(p, job, x, work.delta, e, shared);
    }
}

/* dbias += the warps' entries, in order. Grid: entries by 128; heads. */
__global__ void __launch_bounds__(128)
    bias_kernel(float *dbias, const float *entries, int64_t count, int slots, int heads, int warps)
{
    const int64_t entry = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
    const int head = static_cast<int>(blockIdx.y);
    if (entry >= count)
        return;
    float sum = 0.0f;
    for (int slot = 0; slot < slots; slot++)
        for (int warp = 0; warp < warps; warp++)
            sum += entries[((static_cast<int64_t>(slot) * heads + head) * warps + warp) * count +
                           entry];
    dbias[head * count + entry] += sum;
}

/* Goes over the row's queries with the block's keys, from `first` on. */
template <int D, int WARPS, bool DROPOUT>
SW_TILE_INLINE void kv_block(float (&dk)[1][D / 8][4], float (&dv)[1][D / 8][4],
                             const struct sw_tiled_attention &job, const struct sw_tile_row &at,
                             const struct sw_backward_operands &x, const float *delta, int first,
                             unsigned char *shared)
{
    using L = kv_layout<D, WARPS>;
    const struct sw_attention &a = job.a;
    const int thread = static_cast<int>(threadIdx.x);
    float *statistics = reinterpret_cast<float *>(shared + L::LSE);
    const int begin = a.causal ? max(first - at.shift, 0) / KV_QUERIES * KV_QUERIES : 0;
    for (int query = begin - KV_QUERIES; query < at.queries; query += KV_QUERIES) {
        const int next = query + KV_QUERIES, stage = next / KV_QUERIES & 1;
        float statistic = 0.0f;
        if (query >= begin) {
            copy_wait(); /* for this stage; and everybody is done with the other */
            __syncthreads();
        }
        if (next < at.queries) {
            kv_load<D, WARPS>(a, at, x.d_o, first, next, shared);
            statistic = kv_statistic(a, at, x.lse, delta, next);
        }
        if (query >= begin) {
            float s[1][8][4] = {};
            kv_scores<D, WARPS, DROPOUT>(s, dv, job, at, first, query, shared, thread & 31);
            const unsigned char *q = shared + L::Q + (query / KV_QUERIES & 1) * L::TILE_BYTES;
            sw_tile_multiply_columns<D, 1, 8>(dk, s,
                                              sw_tile_lane_a<D>(shared_address(q), 0, thread & 31));
        }
        if (thread < 2 * KV_QUERIES)
            statistics[stage * 2 * KV_QUERIES + thread] = statistic;
    }
}

/* Grid: blocks of keys of the longest row, fastest; heads; rows. */
template <int D, int WARPS, bool DROPOUT>
__global__ void __launch_bounds__(32 * WARPS, 8 / WARPS)
    kv_kernel(const __grid_constant__ struct sw_tiled_attention job,
              const __grid_constant__ struct sw_backward_operands x, const float *delta, int blocks)
{
    using L = kv_layout<D, WARPS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    const int heads = static_cast<int>(a.heads), index = static_cast<int>(blockIdx.x);
    const struct sw_tile_row at = sw_tile_row(a, index / blocks / heads, index / blocks % heads);
    const int first = index % blocks * L::KEYS;
    if (first >= at.keys)
        return;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * KEYS_PER_WARP;
    const int64_t token = at.first_key + first;
    sw_tile_load<D, L::KEYS, L::THREADS>(shared_address(shared + L::K),
                                         sw_tile_at(a, a.k, token, a.kv_stride, at.head),
                                         a.kv_stride, at.keys - first);
    sw_tile_load<D, L::KEYS, L::THREADS>(shared_address(shared + L::V),
                                         sw_tile_at(a, a.v, token, a.kv_stride, at.head),
                                         a.kv_stride, at.keys - first);
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    kv_block<D, WARPS, DROPOUT>(dk, dv, job, at, x, delta, first, shared);
    copy_wait();
    __syncthreads();
    kv_finish<D>(a, at, first, warp_row, dk, a.scale, shared + L::K, x.dk, lane);
    kv_finish<D>(a, at, first, warp_row, dv, DROPOUT ? job.dropout.scale : 1.0f, shared + L::V,
                 x.dv, lane);
}

/* --- Host ----------------------------------------------------------------------------------------
 */

int64_t q_blocks(const struct sw_attention *a, int warps)
{
    return sw_cuda_ceil_div(a->queries.longest, QUERIES_PER_WARP * warps);
}

/* Blocks a head that dq's kernel is started with: one for every block of queries, or, when each has
 * entries of its own, a bounded number. */
int64_t q_slots(const struct sw_attention *a, int warps, bool entries)
{
    const int64_t items = a->queries.count * q_blocks(a, warps);
    return entries ? sw_cuda_min(items, sw_cuda_ceil_div(BLOCKS_WANTED, a->heads)) : items;
}

int64_t delta_bytes(const struct sw_attention *a)
{
    return sw_cuda_align_up(a->heads * a->queries.tokens * 4);
}

/* Of the bias' gradient, whichever kernels make it. */
int64_t entries_bytes(const struct sw_attention *a)
{
    if (a->bias_reach <= 0)
        return 0;
    const int64_t warps = std::max({q_slots(a, 2, true) * 2, q_slots(a, 4, true) * 4,
                                    sw_attention_fused_slots(a) * SW_ATTENTION_FUSED_WARPS});
    return sw_cuda_align_up(warps * a->heads * (2 * a->bias_reach - 1) * 4);
}

struct call {
    struct sw_stream *stream;
    const struct sw_attention *a;
    struct sw_backward_operands x;
    struct sw_backward_workspace work;
    float *dbias;
};

void add_entries(const struct call &call, int64_t slots, int warps)
{
    const struct sw_attention *a = call.a;
    if (call.dbias == NULL)
        return;
    const int64_t count = 2 * a->bias_reach - 1;
    const dim3 grid(static_cast<unsigned>(sw_cuda_ceil_div(count, 128)),
                    static_cast<unsigned>(a->heads));
    bias_kernel<<<grid, 128, 0, sw_cuda_stream(call.stream)>>>(call.dbias, call.work.entries, count,
                                                               static_cast<int>(slots),
                                                               static_cast<int>(a->heads), warps);
}

template <int D, int WARPS, bool DROPOUT> void launch_q(const struct call &call)
{
    constexpr int BYTES = q_layout<D, WARPS>::BYTES;
    const struct sw_attention *a = call.a;
    const int64_t slots = q_slots(a, WARPS, call.dbias != NULL);
    const auto kernel = q_kernel<D, WARPS, DROPOUT>;
    if (slots <= 0)
        return;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    kernel<<<static_cast<unsigned>(slots * a->heads), 32 * WARPS, BYTES,
             sw_cuda_stream(call.stream)>>>(sw_tiled_attention(a), call.x, call.work,
                                            static_cast<int>(slots),
                                            static_cast<int>(q_blocks(a, WARPS)));
    add_entries(call, slots, WARPS);
}

template <int D, int WARPS, bool DROPOUT> void launch_kv(const struct call &call)
{
    constexpr int BYTES = kv_layout<D, WARPS>::BYTES;
    const struct sw_attention *a = call.a;
    const int64_t blocks = sw_cuda_ceil_div(a->keys.longest, kv_layout<D, WARPS>::KEYS);
    const auto kernel = kv_kernel<D, WARPS, DROPOUT>;
    if (blocks <= 0)
        return;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    kernel<<<static_cast<unsigned>(blocks * a->heads * a->keys.count), 32 * WARPS, BYTES,
             sw_cuda_stream(call.stream)>>>(sw_tiled_attention(a), call.x, call.work.delta,
                                            static_cast<int>(blocks));
}

/* The larger blocks where rows fill them and the GPU has shared memory for them. */
template <int D, bool DROPOUT> void launch(const struct call &call)
{
    const int shared_bytes = sw_cuda_shared_bytes(call.stream);
    if (sw_attention_is_fused(call.a, shared_bytes)) {
        sw_attention_fused(call.stream, call.a, call.x, call.work);
        add_entries(call, sw_attention_fused_slots(call.a), SW_ATTENTION_FUSED_WARPS);
        return;
    }
    if (call.a->queries.longest > 2 * QUERIES_PER_WARP && shared_bytes >= q_layout<D, 4>::BYTES)
        launch_q<D, 4, DROPOUT>(call);
    else
        launch_q<D, 2, DROPOUT>(call);
    if (call.a->keys.longest > 4 * KEYS_PER_WARP && shared_bytes >= kv_layout<D, 8>::BYTES)
        launch_kv<D, 8, DROPOUT>(call);
    else
        launch_kv<D, 4, DROPOUT>(call);
}

} // namespace

void sw_cuda_attention_backward(struct sw_stream *stream, const struct sw_attention *attention,
                                void *dq, void *dk, void *dv, float *dbias, const void *d_o,
                                const void *o, const float *lse, void *workspace)
{
    const struct sw_attention *a = attention;
    if (!sw_attention_is_tiled(a, {dq, dk, dv, d_o, o})) {
        sw_cuda_attention_plain_backward(stream, a, dq, dk, dv, dbias, d_o, o, lse, workspace);
        return;
    }
    if (a->queries.count <= 0 || !sw_cuda_begin(stream))
        return;
    struct call call = {stream, a, {}, {}, dbias};
    call.x = {static_cast<const sw_bf16 *>(d_o),
              static_cast<const sw_bf16 *>(o),
              lse,
              static_cast<sw_bf16 *>(dq),
              static_cast<sw_bf16 *>(dk),
              static_cast<sw_bf16 *>(dv)};
    call.work.delta = static_cast<float *>(workspace);
    if (dbias != NULL)
        call.work.entries = call.work.delta + delta_bytes(a) / 4;
    call.work.sums = call.work.delta + (delta_bytes(a) + entries_bytes(a)) / 4;
    const bool dropout = a->dropout.p > 0.0f;
    if (a->head_dim == 64)
        dropout ? launch<64, true>(call) : launch<64, false>(call);
    else
        dropout ? launch<128, true>(call) : launch<128, false>(call);
    sw_cuda_end(stream, "attention backward");
}

int64_t sw_cuda_attention_backward_workspace_bytes(const struct sw_attention *bound)
{
    const int64_t plain = sw_cuda_attention_plain_backward_workspace_bytes(bound);
    return std::max(plain, delta_bytes(bound) + entries_bytes(bound) +
                               sw_attention_fused_sums_bytes(bound));
}

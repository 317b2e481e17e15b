/* What the kernels of attention's backward share: sums along diagonals for the bias' gradient, and
 * the products of a block of keys with a tile of queries. */
#ifndef SPILLWAY_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define SPILLWAY_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention_tiles.cuh"

#include <limits.h>

#define SW_TILE_METHOD __device__ __forceinline__

struct sw_backward_workspace {
    float *delta;   /* [heads][queries.tokens]: d(o) . o */
    float *entries; /* [slots][heads][warps][2 * bias_reach - 1]; NULL: no bias' gradient */
    float *sums;    /* of dq, fused: [slots][heads] pieces */
};

/* Operands of backward. */
struct sw_backward_operands {
    const sw_bf16 *d_o, *o;
    const float *lse;
    sw_bf16 *dq, *dk, *dv;
};

/* --- All gradients in one kernel (attention_backward_fused.cu)
 * -------------------------------------
 */

/* Whether it is used where a block may have so much shared memory. */
bool sw_attention_is_fused(const struct sw_attention *a, int shared_bytes);
int64_t sw_attention_fused_slots(const struct sw_attention *a);
enum { SW_ATTENTION_FUSED_WARPS = 8 };
int64_t sw_attention_fused_sums_bytes(const struct sw_attention *bound);
/* Fills work's entries, for sw_attention_fused_slots slots and SW_ATTENTION_FUSED_WARPS warps. */
void sw_attention_fused(struct sw_stream *stream, const struct sw_attention *a,
                        const struct sw_backward_operands &x,
                        const struct sw_backward_workspace &work);

namespace
{

/* --- The bias' gradient --------------------------------------------------------------------------
 */

/* Sums along the diagonals of d(scores), for a warp whose rows (queries, or keys) are fixed and
 * that goes over columns. Elements of 8 x 8 blocks on one block diagonal are added up in registers,
 * then, element by element, in 8 rows of a ring in shared memory whose column 8 d + j belongs to
 * column j of block diagonal d (modulo BLOCKS). There the diagonal of row 0's column x is row g's
 * column x + g. */
template <int BLOCKS> struct diagonals {
    static constexpr int COLUMNS = 8 * BLOCKS, STRIDE = COLUMNS + 8, FLOATS = 8 * STRIDE;
    float *ring;

    SW_TILE_METHOD void clear(int lane) const
    {
        for (int i = lane; i < FLOATS; i += 32)
            ring[i] = 0.0f;
        __syncwarp();
    }

    /* Adds 16 M rows and 8 N columns, from column 8 * `block` on. */
    template <int M, int N>
    SW_TILE_METHOD void add(const float (&ds)[M][N][4], int block, int lane) const
    {
        float *row = ring + (lane >> 2) * STRIDE + 2 * (lane & 3);
#pragma unroll
        for (int d = 1 - 2 * M; d < N; d++) {
            float2 *place = reinterpret_cast<float2 *>(row + ((block + d) & (BLOCKS - 1)) * 8);
            float2 sum = d < 0 ? *place : make_float2(0.0f, 0.0f); /* from 0 on they are new */
#pragma unroll
            for (int h = 0; h < 2 * M; h++) {
                if (d + h < 0 || d + h >= N)
                    continue;
                sum.x += ds[h / 2][d + h][2 * (h & 1)];
                sum.y += ds[h / 2][d + h][2 * (h & 1) + 1];
            }
            *place = sum;
        }
        __syncwarp();
    }

    /* The sum of diagonal column - row = `diagonal` + lane, when later columns add nothing to it.
     */
    SW_TILE_METHOD float sum(int diagonal, int lane) const
    {
        float sum = 0.0f;
#pragma unroll
        for (int g = 0; g < 8; g++)
            sum += ring[g * STRIDE + ((diagonal + lane + g) & (COLUMNS - 1))];
        __syncwarp();
        return sum;
    }

    /* After the last column: four block diagonals from `block` on, which none reached, are zero. */
    SW_TILE_METHOD void end(int block, int lane) const
    {
        float *row = ring + (lane >> 2) * STRIDE + 2 * (lane & 3);
#pragma unroll
        for (int d = 0; d < 4; d++)
            *reinterpret_cast<float2 *>(row + ((block + d) & (BLOCKS - 1)) * 8) =
                make_float2(0.0f, 0.0f);
        __syncwarp();
    }
};

/* A warp's entries of the bias' gradient; NULL when there are none to make. */
struct entries {
    float *at;
    int64_t count;
};

/* The lane's entry so far; read well before it is added to. */
SW_TILE_INLINE float entries_get(struct entries e, int64_t entry)
{
    return e.at != NULL && entry >= 0 && entry < e.count ? e.at[entry] : 0.0f;
}

SW_TILE_INLINE void entries_put(struct entries e, int64_t entry, float sum)
{
    if (entry >= 0 && entry < e.count)
        e.at[entry] = sum;
}

/* --- dk and dv -----------------------------------------------------------------------------------
 * Scores are transposed, rows are keys: as operands A they go from the sums' registers right into
 * the products with d(o) and q. */

enum { KV_QUERIES = 64, KEYS_PER_WARP = 16 };

template <int D, int WARPS> struct kv_layout {
    static constexpr int KEYS = KEYS_PER_WARP * WARPS, THREADS = 32 * WARPS;
    static constexpr int TILE_BYTES = KV_QUERIES * D * 2;
    static constexpr int DIAGONALS = KEYS + KV_QUERIES - 1;
    static constexpr int K = 0, V = K + KEYS * D * 2;
    static constexpr int Q = V + KEYS * D * 2, DO = Q + 2 * TILE_BYTES; /* two stages each */
    static constexpr int LSE = DO + 2 * TILE_BYTES;                     /* and delta behind it */
    static constexpr int LSE_BYTES = 2 * KV_QUERIES * 4;
    static constexpr int BIAS = LSE + 2 * LSE_BYTES, BIAS_BYTES = (DIAGONALS + 1) * 4;
    static constexpr int BYTES = BIAS + 2 * BIAS_BYTES;
};

/* Queries from `query` on, their d(o) and the diagonals' bias, to their stage. */
template <int D, int WARPS, int PANEL = D>
SW_TILE_INLINE void kv_load(const struct sw_attention &a, const struct sw_tile_row &at,
                            const sw_bf16 *d_o, int first, int query, unsigned char *shared)
{
    using L = kv_layout<D, WARPS>;
    const int stage = query / KV_QUERIES & 1;
    const int64_t token = at.first_query + query;
    sw_tile_load_panels<D, PANEL, KV_QUERIES, L::THREADS>(
        shared_address(shared + L::Q + stage * L::TILE_BYTES),
        sw_tile_at(a, a.q, token, a.q_stride, at.head), a.q_stride, at.queries - query);
    sw_tile_load_panels<D, PANEL, KV_QUERIES, L::THREADS>(
        shared_address(shared + L::DO + stage * L::TILE_BYTES),
        sw_tile_at(a, d_o, token, a.o_stride, at.head), a.o_stride, at.queries - query);
    sw_tile_load_bias<L::DIAGONALS, L::THREADS>(
        reinterpret_cast<float *>(shared + L::BIAS + stage * L::BIAS_BYTES), a, at.head,
        first - (query + at.shift) - (KV_QUERIES - 1) + a.bias_reach - 1);
}

/* What thread i < 64 keeps of query i, its lse in units of log 2, and thread 64 + i, its delta. A
 * query that is not there gets probabilities of 0. */
SW_TILE_INLINE float kv_statistic(const struct sw_attention &a, const struct sw_tile_row &at,
                                  const float *lse, const float *delta, int query)
{
    const int i = static_cast<int>(threadIdx.x);
    const int row = query + i % KV_QUERIES;
    const int64_t from = at.head * a.queries.tokens + at.first_query + row;
    if (i < KV_QUERIES)
        return row < at.queries ? lse[from] * SW_LOG2_E : INFINITY;
    return i < 2 * KV_QUERIES && row < at.queries ? delta[from] : 0.0f;
}

/* s = s scale + bias, to units of log 2; `window` points at the entry of the lane's first element:
 * of row (key) g and column (query) 2t. -infinity where `visible`, the number of keys that query
 * 2t sees less the lane's first key, says that one is not seen, and from `keys` on, the row's keys
 * less that. Then probabilities. */
SW_TILE_INLINE void kv_probabilities(float (&s)[1][8][4], float scale_log2, const float *window,
                                     const float *lse, bool masked, int visible, int keys)
{
#pragma unroll
    for (int d = -7; d < 2; d++) { /* row block less column block */
        const float low = window[8 * d] * SW_LOG2_E, high = window[8 * d - 1] * SW_LOG2_E;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h - d < 0 || h - d > 7)
                continue;
            float *c = &s[0][h - d][2 * h];
            c[0] = fmaf(c[0], scale_log2, low);
            c[1] = fmaf(c[1], scale_log2, high);
            if (masked && (8 * d >= visible || 8 * h >= keys))
                c[0] = -INFINITY;
            if (masked && (8 * d - 1 >= visible || 8 * h >= keys))
                c[1] = -INFINITY;
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 shift = *reinterpret_cast<const float2 *>(lse + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = exp2_fast(s[0][n][i] - (i & 1 ? shift.y : shift.x));
    }
}

/* Probabilities become d(scores) before the scale. */
template <bool DROPOUT>
SW_TILE_INLINE void kv_gradient(float (&p)[1][8][4], const float (&dp)[1][8][4], const float *delta,
                                const uint32_t (&kept)[4], float keep_scale)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 less = *reinterpret_cast<const float2 *>(delta + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float d = dp[0][n][i];
            if (DROPOUT)
                d = (kept[i] >> (4 * n) & 1) != 0 ? d * keep_scale : 0.0f;
            p[0][n][i] *= d - (i & 1 ? less.y : less.x);
        }
    }
}

/* d(scores) of the warp's 16 keys and 64 queries of a stage, in s; dv += what they give. */
template <int D, int WARPS, bool DROPOUT>
SW_TILE_INLINE void kv_scores(float (&s)[1][8][4], float (&dv)[1][D / 8][4],
                              const struct sw_tiled_attention &job, const struct sw_tile_row &at,
                              int first, int query, unsigned char *shared, int lane)
{
    using L = kv_layout<D, WARPS>;
    const int stage = query / KV_QUERIES & 1, g = lane >> 2, t = lane & 3;
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * KEYS_PER_WARP;
    const uint32_t q = shared_address(shared + L::Q + stage * L::TILE_BYTES);
    const uint32_t d_o = shared_address(shared + L::DO + stage * L::TILE_BYTES);
    const float *lse = reinterpret_cast<const float *>(shared + L::LSE + stage * L::LSE_BYTES);
    const float *bias = reinterpret_cast<const float *>(shared + L::BIAS + stage * L::BIAS_BYTES);
    float dp[1][8][4] = {};
    sw_tile_multiply_rows<D, 1, 8>(s,
                                   sw_tile_lane_a<D>(shared_address(shared + L::K), warp_row, lane),
                                   sw_tile_lane_b<D>(q, 0, lane));
    const int key = first + warp_row + g, position = query + 2 * t + at.shift;
    kv_probabilities(s, job.scale_log2, bias + warp_row + g - 2 * t + KV_QUERIES - 1, lse + 2 * t,
                     (job.a.causal && first + L::KEYS > query + at.shift + 1) ||
                         first + L::KEYS > at.keys,
                     job.a.causal ? position + 1 - key : INT_MAX, at.keys - key);
    uint32_t kept[4] = {};
    float p[1][8][4];
    if (DROPOUT)
        sw_tile_kept_transposed<8>(kept, job, at, first + warp_row, position, lane);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[0][n][i] = DROPOUT && (kept[i] >> (4 * n) & 1) == 0 ? 0.0f : s[0][n][i];
    sw_tile_multiply_columns<D, 1, 8>(dv, p, sw_tile_lane_a<D>(d_o, 0, lane));
    sw_tile_multiply_rows<D, 1, 8>(dp,
                                   sw_tile_lane_a<D>(shared_address(shared + L::V), warp_row, lane),
                                   sw_tile_lane_b<D>(d_o, 0, lane));
    kv_gradient<DROPOUT>(s, dp, lse + KV_QUERIES + 2 * t, kept, job.dropout.scale);
}

/* dk and dv of the warp's 16 keys, by way of the tiles of its keys and values. */
template <int D>
SW_TILE_INLINE void kv_finish(const struct sw_attention &a, const struct sw_tile_row &at, int key,
                              int warp_row, const float (&sums)[1][D / 8][4], float factor,
                              unsigned char *tile, sw_bf16 *to, int lane)
{
    const float factors[2] = {factor, factor};
    sw_tile_put<D, 1>(tile, sums, factors, warp_row, lane);
    __syncwarp();
    sw_tile_store<D, KEYS_PER_WARP>(to + (at.first_key + key + warp_row) * a.kv_stride +
                                        at.head * a.head_dim,
                                    a.kv_stride, tile, warp_row, at.keys - key - warp_row, lane);
}

} // namespace

#endif

/* What the tiled attention kernels share (attention_forward.cu, attention_backward.cu): where rows
 * lie, tiles in shared memory, products of tiles, the bias and dropout of a tile of scores.
 *
 * A tile is rows of D bf16 elements. Its 16-byte pieces are swizzled, piece c of row r lies at
 * c ^ (r % 8), so that eight rows' pieces of one column are in different banks. Tiles start at
 * multiples of their row's bytes.
 *
 * Scores are kept in units of log 2: s = (q . k scale + bias) log2(e). Indices of a fragment are
 * mma.cuh's: g = lane / 4, t = lane % 4. Along a diagonal of scores, key - query is the same: so
 * is the bias, and the bias' gradient is a sum over it. */
#ifndef SPILLWAY_KERNELS_CUDA_ATTENTION_TILES_CUH
#define SPILLWAY_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#include <initializer_list>

#define SW_TILE_INLINE static __device__ __forceinline__

static const float SW_LOG2_E = 1.4426950408889634f;
static const float SW_LN_2 = 0.6931471805599453f;

/* A call as kernels take it. */
struct sw_tiled_attention {
    struct sw_attention a;
    struct sw_cuda_dropout dropout;
    float scale_log2;     /* a.scale * log2(e) */
    uint32_t keys[10][2]; /* Philox's, of every round: constant memory is an operand for free */
    uint32_t drop_below;  /* words below this are dropped */
};

/* Whether the tiled kernels serve a call, whose other operands are `others`. */
static inline bool sw_attention_is_tiled(const struct sw_attention *a,
                                         std::initializer_list<const void *> others)
{
    bool aligned = sw_cuda_aligned(a->q, 2 * a->q_stride) &&
                   sw_cuda_aligned(a->k, 2 * a->kv_stride) && sw_cuda_aligned(a->v, 0);
    for (const void *operand : others)
        aligned = aligned && sw_cuda_aligned(operand, 2 * a->o_stride);
    return aligned && a->dtype == SW_BF16 && (a->head_dim == 64 || a->head_dim == 128);
}

static inline struct sw_tiled_attention sw_tiled_attention(const struct sw_attention *a)
{
    struct sw_tiled_attention job = {*a, sw_cuda_dropout(&a->dropout), a->scale * SW_LOG2_E, {}, 0};
    for (uint32_t i = 0; i < 10; i++) {
        job.keys[i][0] = job.dropout.key[0] + i * 0x9E3779B9u;
        job.keys[i][1] = job.dropout.key[1] + i * 0xBB67AE85u;
    }
    job.drop_below = job.dropout.threshold << 8; /* word >> 8 is compared, p is below 1 */
    return job;
}

/* --- Rows --------------------------------------------------------------------------------------*/

/* One head of one row. */
struct sw_tile_row {
    int row, head;
    int64_t first_query, first_key; /* tokens */
    int queries, keys;
    int shift; /* position of query 0 */
};

SW_TILE_INLINE struct sw_tile_row sw_tile_row(const struct sw_attention &a, int row, int head)
{
    struct sw_tile_row at;
    at.row = row;
    at.head = head;
    at.first_query = a.queries.starts[row];
    at.first_key = a.keys.starts[row];
    at.queries = a.queries.lengths[row];
    at.keys = a.keys.lengths[row];
    at.shift = a.causal ? at.keys - at.queries : 0;
    return at;
}

/* Keys that query `query` sees: the first so many. */
SW_TILE_INLINE int sw_tile_visible(const struct sw_attention &a, const struct sw_tile_row &at,
                                   int query)
{
    return a.causal ? min(max(query + at.shift + 1, 0), at.keys) : at.keys;
}

/* Element 0 of `head` of token `token` of an operand with `stride` elements between tokens. */
SW_TILE_INLINE const sw_bf16 *sw_tile_at(const struct sw_attention &a, const void *base,
                                         int64_t token, int64_t stride, int head)
{
    return static_cast<const sw_bf16 *>(base) + token * stride + head * a.head_dim;
}

/* --- Tiles -------------------------------------------------------------------------------------*/

template <int D> SW_TILE_INLINE uint32_t sw_tile_piece(int row, int piece)
{
    return static_cast<uint32_t>(row * D * 2 + ((piece ^ (row & 7 & (D / 8 - 1))) << 4));
}

/* Copies `rows` rows of ROWS to a tile, asynchronously; the rest becomes zeros. */
template <int D, int ROWS, int THREADS>
SW_TILE_INLINE void sw_tile_load(uint32_t tile, const sw_bf16 *from, int64_t stride, int rows)
{
    constexpr int PIECES = D / 8, STEP = THREADS / PIECES;
    const int row = static_cast<int>(threadIdx.x) / PIECES;
    const int piece = static_cast<int>(threadIdx.x) % PIECES;
    const sw_bf16 *source = from + row * stride + piece * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        const bool there = row + i < rows;
        copy_async_16(tile + sw_tile_piece<D>(row + i, piece), there ? source + i * stride : from,
                      there);
    }
}

/* The same to tiles of PANEL columns, one behind the other. */
template <int D, int PANEL, int ROWS, int THREADS>
SW_TILE_INLINE void sw_tile_load_panels(uint32_t tile, const sw_bf16 *from, int64_t stride,
                                        int rows)
{
#pragma unroll
    for (int i = 0; i < D / PANEL; i++)
        sw_tile_load<PANEL, ROWS, THREADS>(tile + i * ROWS * PANEL * 2, from + i * PANEL, stride,
                                           rows);
}

/* The entries of a tile's diagonals, `first` the bias' entry of the lowest; zeros where there is no
 * bias and outside of it. */
template <int COUNT, int THREADS>
SW_TILE_INLINE void sw_tile_load_bias(float *window, const struct sw_attention &a, int head,
                                      int64_t first)
{
    const int64_t entries = 2 * a.bias_reach - 1;
    for (int i = static_cast<int>(threadIdx.x); i < COUNT; i += THREADS) {
        if (a.bias == NULL) {
            window[i] = 0.0f;
            continue;
        }
        const bool there = first + i >= 0 && first + i < entries;
        copy_async_4(shared_address(window + i), a.bias + (there ? head * entries + first + i : 0),
                     there);
    }
}

/* Writes COUNT rows that lie in a tile from row `first` on, by one warp; `rows` of them exist. */
template <int D, int COUNT>
SW_TILE_INLINE void sw_tile_store(sw_bf16 *to, int64_t stride, const unsigned char *tile, int first,
                                  int rows, int lane)
{
    constexpr int PIECES = D / 8, STEP = 32 / PIECES;
    const int row = lane / PIECES, piece = lane % PIECES;
#pragma unroll
    for (int i = 0; i < COUNT; i += STEP)
        if (row + i < rows)
            *reinterpret_cast<uint4 *>(to + (row + i) * stride + piece * 8) =
                *reinterpret_cast<const uint4 *>(tile + sw_tile_piece<D>(first + row + i, piece));
}

/* Sums of 16 M rows times `factor` (one for each of a lane's rows) to a tile, from row `first` on.
 */
template <int D, int M>
SW_TILE_INLINE void sw_tile_put(unsigned char *tile, const float (&sums)[M][D / 8][4],
                                const float (&factor)[2 * M], int first, int lane)
{
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2 * M; h++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float *c = &sums[h / 2][n][2 * (h & 1)];
            *reinterpret_cast<uint32_t *>(tile + sw_tile_piece<D>(first + 8 * h + g, n) + 4 * t) =
                pack_bf16(c[0] * factor[h], c[1] * factor[h]);
        }
}

/* --- Products of tiles -------------------------------------------------------------------------*/

/* A lane's address for load_matrices of 16 x 16 elements from row `first` on as an operand A, or
 * transposed as two operands B whose rows are the tile's; ^ 32 k for elements 16 k and up. */
template <int D> SW_TILE_INLINE uint32_t sw_tile_lane_a(uint32_t tile, int first, int lane)
{
    return tile + sw_tile_piece<D>(first + (lane & 15), lane >> 4);
}

/* Likewise as two operands B whose columns are the tile's rows. */
template <int D> SW_TILE_INLINE uint32_t sw_tile_lane_b(uint32_t tile, int first, int lane)
{
    return tile + sw_tile_piece<D>(first + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
}

/* s += a b^T over D: 16 M rows at `a` (sw_tile_lane_a), 8 N rows at `b` (sw_tile_lane_b). */
template <int D, int M, int N>
SW_TILE_INLINE void sw_tile_multiply_rows(float (&s)[M][N][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(fa[m], (a ^ (k << 5)) + m * 32 * D);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            load_matrices(fb, (b ^ (k << 5)) + n * 16 * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(s[m][n], fa[m], fb[0], fb[1]);
                multiply_add(s[m][n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

/* sums += p b: p has 16 M rows and 8 N columns, in registers, rounded to bf16 here; 8 N rows of D
 * at `b` (sw_tile_lane_a). */
template <int D, int M, int N>
SW_TILE_INLINE void sw_tile_multiply_columns(float (&sums)[M][D / 8][4], const float (&p)[M][N][4],
                                             uint32_t b)
{
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fa[m][i] = pack_bf16(p[m][2 * k + i / 2][2 * (i & 1)],
                                     p[m][2 * k + i / 2][2 * (i & 1) + 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t fb[4];
            load_matrices_transposed(fb, (b ^ (n << 4)) + k * 32 * D);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sums[m][n], fa[m], fb[0], fb[1]);
                multiply_add(sums[m][n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

/* --- Scores, rows of which are queries -----------------------------------------------------------
 */

/* s = s scale + bias, to units of log 2. `window` points at the entry of the lane's first element:
 * of column 2t and row g. */
template <int N, int M>
SW_TILE_INLINE void sw_tile_add_bias(float (&s)[M][N][4], float scale_log2, const float *window)
{
#pragma unroll
    for (int d = 1 - 2 * M; d < N; d++) { /* column block less row block */
        const float low = window[8 * d] * SW_LOG2_E, high = window[8 * d + 1] * SW_LOG2_E;
#pragma unroll
        for (int h = 0; h < 2 * M; h++) {
            if (d + h < 0 || d + h >= N)
                continue;
            float *c = &s[h / 2][d + h][2 * (h & 1)];
            c[0] = fmaf(c[0], scale_log2, low);
            c[1] = fmaf(c[1], scale_log2, high);
        }
    }
}

/* -infinity where a query does not see a key; `query`: the lane's first, `key`: the tile's first.
 */
template <int N, int M>
SW_TILE_INLINE void sw_tile_mask(float (&s)[M][N][4], const struct sw_attention &a,
                                 const struct sw_tile_row &at, int query, int key, int lane)
{
#pragma unroll
    for (int h = 0; h < 2 * M; h++) {
        const int visible = sw_tile_visible(a, at, query + 8 * h) - key - 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float *c = &s[h / 2][n][2 * (h & 1)];
            if (8 * n >= visible)
                c[0] = -INFINITY;
            if (8 * n + 1 >= visible)
                c[1] = -INFINITY;
        }
    }
}

/* --- Dropout -----------------------------------------------------------------------------------*/

/* The site's word of counters. */
SW_TILE_INLINE uint32_t sw_tile_site(const struct sw_tiled_attention &job, int head)
{
    return job.dropout.site | static_cast<uint32_t>(head) << 16;
}

/* Bit i: whether element i of a counter's four is kept; sw_philox with the rounds' keys at hand. */
SW_TILE_INLINE uint32_t sw_tile_kept_of_four(const struct sw_tiled_attention &job, uint32_t group,
                                             uint32_t position, uint32_t global_row, uint32_t c3)
{
    uint32_t c[4] = {group, position, global_row, c3}, kept = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0];
        const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ job.keys[round][0];
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ job.keys[round][1];
        c[3] = static_cast<uint32_t>(p0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        kept |= c[i] >= job.drop_below ? 1u << i : 0u;
    return kept;
}

/* Rows are queries: kept[h], bit 4 n + c: whether the lane's row h (g + 8 h), column 8 n + 2 t + c
 * is kept. Two neighbouring lanes share a counter's four keys: each draws for one of two rows. */
template <int N, int ROWS>
SW_TILE_INLINE void sw_tile_kept(uint32_t (&kept)[ROWS], const struct sw_tiled_attention &job,
                                 const struct sw_tile_row &at, int key, int position, int lane)
{
    const uint32_t global_row = static_cast<uint32_t>(job.dropout.global_rows[at.row]);
    const uint32_t site = sw_tile_site(job, at.head);
    const int odd = lane & 1;
#pragma unroll
    for (int m = 0; m < ROWS / 2; m++) {
        uint32_t own = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
            own |= sw_tile_kept_of_four(
                       job, static_cast<uint32_t>(key / 4 + 2 * n + (lane >> 1 & 1)),
                       static_cast<uint32_t>(position + 16 * m + 8 * odd), global_row, site)
                   << (4 * n);
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
        kept[2 * m] = (odd ? other : own) >> (2 * odd);
        kept[2 * m + 1] = (odd ? own : other) >> (2 * odd);
    }
}

/* Rows are keys: kept[2 h + c], bit 4 n: whether the lane's row g + 8 h, column (a query) 8 n +
 * 2 t + c is kept. Four lanes with one t share a counter's four keys: each draws for one of the
 * four (h, c). `position` is column 2 t's. */
template <int N>
SW_TILE_INLINE void
sw_tile_kept_transposed(uint32_t (&kept)[4], const struct sw_tiled_attention &job,
                        const struct sw_tile_row &at, int key, int position, int lane)
{
    const uint32_t global_row = static_cast<uint32_t>(job.dropout.global_rows[at.row]);
    const uint32_t site = sw_tile_site(job, at.head);
    const int own_index = lane >> 2 & 3;
    const int group = key / 4 + 2 * (own_index >> 1) + (lane >> 4);
    uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
        own |= sw_tile_kept_of_four(job, static_cast<uint32_t>(group),
                                    static_cast<uint32_t>(position + 8 * n + (own_index & 1)),
                                    global_row, site)
               << (4 * n);
#pragma unroll
    for (int i = 0; i < 4; i++)
        kept[i] = __shfl_sync(0xFFFFFFFFu, own, (lane & ~12) | i << 2) >> own_index;
}

#endif

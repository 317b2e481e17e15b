/* Attention forward on Hopper, after FlashAttention-3 (Shah et al., arXiv 2407.08608): a block has
 * two warpgroups with 64 queries each of one head of one row and goes over the keys 64 at a time,
 * scores of a tile made while the values of the tile before are multiplied. Blocks stay and take
 * one piece of work after the other; a piece's first operands are asked for while the one before
 * ends. bf16 operands and probabilities, fp32 sums, in an order that no number of blocks changes.
 */
#include "kernels/cuda/attention_forward.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

enum { KEYS = SW_FORWARD_KEYS, QUERIES = 128, THREADS = 256 };
enum { Q_PANEL = QUERIES * 128, KV_PANEL = KEYS * 128 }; /* bytes */

/* Shared memory: two stages of everything. Tiles are panels (wgmma.cuh). */
template <int D> struct layout {
    static constexpr int BLOCKS = D == 64 ? 2 : 1; /* a multiprocessor */
    static constexpr int Q_BYTES = QUERIES * D * 2, KV_BYTES = KEYS * D * 2;
    static constexpr int DIAGONALS = QUERIES + KEYS;
    static constexpr int Q = 0, K = Q + 2 * Q_BYTES, V = K + 2 * KV_BYTES;
    static constexpr int BIAS = V + 2 * KV_BYTES, BYTES = BIAS + 2 * DIAGONALS * 4;
};

/* Queries of one head of one row, from `first` on; `end`: keys that the last of them sees. */
struct item {
    struct sw_tile_row at;
    int first, end;
    bool there;
};

/* Where a block is in its work. */
struct walk {
    struct item now, next;
    int index;          /* of the item behind `next` */
    int stage, q_stage; /* buffers that are in use */
    int lane, warp;
};

#if SW_HAVE_WGMMA

/* o and lse of queries that see no key. */
template <int D>
SW_TILE_INLINE void write_zeros(const struct sw_attention &a, const struct item &x, sw_bf16 *o,
                                float *lse)
{
    const int rows = min(QUERIES, x.at.queries - x.first), thread = static_cast<int>(threadIdx.x);
    const int64_t token = x.at.first_query + x.first;
    for (int i = thread; i < rows * (D / 8); i += THREADS)
        *reinterpret_cast<uint4 *>(o + (token + i / (D / 8)) * a.o_stride + x.at.head * a.head_dim +
                                   i % (D / 8) * 8) = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < rows; i += THREADS)
        lse[x.at.head * a.queries.tokens + token + i] = 0.0f;
}

/* The block's next item, `blocks` of them a row and head. Under a causal mask the places of a row
 * differ in length: blocks get them in turns. */
template <int D>
SW_TILE_INLINE struct item find(const struct sw_attention &a, int blocks, int &index, sw_bf16 *o,
                                float *lse)
{
    const int heads = static_cast<int>(a.heads);
    const int total = blocks * heads * static_cast<int>(a.queries.count);
    struct item x = {};
    while (index < total && !x.there) {
        const int part = index / blocks;
        x.at = sw_tile_row(a, part / heads, part % heads);
        x.first = (index % blocks + part + part / blocks) % blocks * QUERIES;
        index += static_cast<int>(gridDim.x);
        if (x.first >= x.at.queries)
            continue;
        x.end = sw_tile_visible(a, x.at, min(x.first + QUERIES, x.at.queries) - 1);
        x.there = x.end > 0;
        if (!x.there)
            write_zeros<D>(a, x, o, lse);
    }
    return x;
}

template <int D>
SW_TILE_INLINE void load_queries(const struct sw_attention &a, const struct item &x, uint32_t tile)
{
    sw_tile_load_panels<D, 64, QUERIES, THREADS>(
        tile, sw_tile_at(a, a.q, x.at.first_query + x.first, a.q_stride, x.at.head), a.q_stride,
        x.at.queries - x.first);
}

template <int D>
SW_TILE_INLINE void load_keys(const struct sw_attention &a, const struct item &x, const void *base,
                              int key, uint32_t tile)
{
    sw_tile_load_panels<D, 64, KEYS, THREADS>(
        tile, sw_tile_at(a, base, x.at.first_key + key, a.kv_stride, x.at.head), a.kv_stride,
        x.at.keys - key);
}

/* This thread's entry of the bias of a tile's diagonals; 0 where there is none. */
template <int D>
SW_TILE_INLINE float bias_entry(const struct sw_attention &a, const struct item &x, int key)
{
    const int64_t entries = 2 * a.bias_reach - 1;
    const int64_t entry = key - (x.first + x.at.shift) - (QUERIES - 1) + a.bias_reach - 1 +
                          static_cast<int64_t>(threadIdx.x);
    const bool there = a.bias != NULL && x.there && threadIdx.x < layout<D>::DIAGONALS &&
                       entry >= 0 && entry < entries;
    return there ? a.bias[x.at.head * entries + entry] : 0.0f;
}

template <int D> SW_TILE_INLINE void put_bias(unsigned char *shared, int stage, float entry)
{
    float *window = reinterpret_cast<float *>(shared + layout<D>::BIAS);
    if (threadIdx.x < layout<D>::DIAGONALS)
        window[stage * layout<D>::DIAGONALS + threadIdx.x] = entry;
}

/* s = q k^T of the warpgroup's queries. */
template <int D> SW_TILE_INLINE void ask_scores(float (&s)[8][4], uint32_t q, uint32_t k)
{
    multiply_async_new<0, 0>(s, async_operand(q, 16), async_operand(k, 16));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        multiply_async<0, 0>(s, async_operand(q + i / 4 * Q_PANEL + i % 4 * 32, 16),
                             async_operand(k + i / 4 * KV_PANEL + i % 4 * 32, 16));
    async_end();
}

/* o += p v */
template <int D>
SW_TILE_INLINE void ask_values(float (&o)[D / 8][4], const uint32_t (&p)[KEYS / 16][4], uint32_t v)
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        multiply_async(o, p[i], async_operand(v + i * 16 * 128, KV_PANEL));
    async_end();
}

SW_TILE_INLINE void pack_probabilities(uint32_t (&p)[KEYS / 16][4], const float (&s)[8][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack_bf16(s[2 * k + i / 2][2 * (i & 1)], s[2 * k + i / 2][2 * (i & 1) + 1]);
}

/* Asks for the values of this tile, then for the next tile's keys, or the next item's first
 * operands. */
template <int D>
SW_TILE_INLINE void load_ahead(const struct sw_attention &a, const struct walk &w, int key,
                               bool last, uint32_t shared)
{
    using L = layout<D>;
    const int next = w.stage ^ 1;
    load_keys<D>(a, w.now, a.v, key, shared + L::V + w.stage * L::KV_BYTES);
    copy_end();
    if (!last) {
        load_keys<D>(a, w.now, a.k, key + KEYS, shared + L::K + next * L::KV_BYTES);
    } else if (w.next.there) {
        load_queries<D>(a, w.next, shared + L::Q + (w.q_stage ^ 1) * L::Q_BYTES);
        load_keys<D>(a, w.next, a.k, 0, shared + L::K + next * L::KV_BYTES);
    }
    copy_end();
}

/* 64 keys from `key` on: makes their probabilities p, and adds those of the tile before to o. */
template <int D, bool DROPOUT, bool FIRST>
SW_TILE_INLINE void step(struct forward_state<D, 1> &x, uint32_t (&p)[KEYS / 16][4],
                         const struct sw_tiled_attention &job, struct walk &w, int key,
                         unsigned char *shared)
{
    using L = layout<D>;
    const struct sw_attention &a = job.a;
    const struct item &now = w.now;
    const bool last = key + KEYS >= now.end;
    const int query = now.first + w.warp * 16, g = w.lane >> 2, t = w.lane & 3;
    const uint32_t base = shared_address(shared);
    copy_wait(); /* for keys; and everybody is done with the tile before, but for its values */
    async_publish();
    __syncthreads();
    load_ahead<D>(a, w, key, last, base);
    const float entry = last ? bias_entry<D>(a, w.next, 0) : bias_entry<D>(a, now, key + KEYS);
    float s[1][8][4];
    async_begin();
    ask_scores<D>(s[0], base + L::Q + w.q_stage * L::Q_BYTES + w.warp / 4 * 64 * 128,
                  base + L::K + w.stage * L::KV_BYTES);
    if (!FIRST)
        ask_values<D>(x.o[0], p, base + L::V + (w.stage ^ 1) * L::KV_BYTES);
    uint32_t kept[2];
    if (DROPOUT)
        sw_tile_kept<KEYS / 8>(kept, job, now.at, key, query + g + now.at.shift, w.lane);
    async_wait<FIRST ? 0 : 1>();
    async_hold(s[0]);
    const float *window = reinterpret_cast<const float *>(shared + L::BIAS);
    sw_tile_add_bias<KEYS / 8>(s, job.scale_log2,
                               window + w.stage * L::DIAGONALS + 2 * t - (w.warp * 16 + g) +
                                   QUERIES - 1);
    if (key + KEYS > sw_tile_visible(a, now.at, query))
        sw_tile_mask<KEYS / 8>(s, a, now.at, query + g, key, w.lane);
    float shrink[2];
    forward_softmax<D, 1>(x, s, shrink);
    put_bias<D>(shared, w.stage ^ 1, entry);
    if (DROPOUT)
        forward_drop<1>(s, kept);
    if (!FIRST) {
        async_wait<0>();
        async_hold(x.o[0]);
        forward_rescale<D, 1>(x, shrink);
    }
    pack_probabilities(p, s[0]);
    w.stage ^= 1;
}

/* The last tile's values; then o and lse of the warp's queries, by way of their tile. */
template <int D>
SW_TILE_INLINE void finish(struct forward_state<D, 1> &x, const uint32_t (&p)[KEYS / 16][4],
                           const struct sw_tiled_attention &job, const struct walk &w, sw_bf16 *o,
                           float *lse, unsigned char *shared)
{
    using L = layout<D>;
    const struct sw_attention &a = job.a;
    const struct sw_tile_row &at = w.now.at;
    const int query = w.now.first + w.warp * 16;
    float factor[2];
    copy_wait_but_one();
    async_publish();
    __syncthreads();
    async_begin();
    ask_values<D>(x.o[0], p, shared_address(shared) + L::V + (w.stage ^ 1) * L::KV_BYTES);
    forward_factors<D, 1>(factor, x, job, at, query, lse, w.lane);
    async_wait<0>();
    async_hold(x.o[0]);
    o += (at.first_query + query) * a.o_stride + at.head * a.head_dim;
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++) {
        unsigned char *tile = shared + L::Q + w.q_stage * L::Q_BYTES + panel * Q_PANEL;
        float part[1][8][4];
#pragma unroll
        for (int i = 0; i < 32; i++)
            part[0][i / 4][i % 4] = x.o[0][panel * 8 + i / 4][i % 4];
        sw_tile_put<64, 1>(tile, part, factor, w.warp * 16, w.lane);
        __syncwarp();
        sw_tile_store<64, 16>(o + panel * 64, a.o_stride, tile, w.warp * 16, at.queries - query,
                              w.lane);
    }
}

#endif

/* Grid: as many blocks as there are places for. */
template <int D, bool DROPOUT>
__global__ void __launch_bounds__(THREADS, layout<D>::BLOCKS)
    wgmma_kernel(const __grid_constant__ struct sw_tiled_attention job, int blocks, sw_bf16 *o,
                 float *lse)
{
#if SW_HAVE_WGMMA
    using L = layout<D>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct sw_attention &a = job.a;
    struct walk w = {};
    w.index = static_cast<int>(blockIdx.x);
    w.lane = static_cast<int>(threadIdx.x) & 31;
    w.warp = static_cast<int>(threadIdx.x) / 32;
    w.now = find<D>(a, blocks, w.index, o, lse);
    if (w.now.there) {
        load_queries<D>(a, w.now, shared_address(shared + L::Q));
        load_keys<D>(a, w.now, a.k, 0, shared_address(shared + L::K));
        put_bias<D>(shared, 0, bias_entry<D>(a, w.now, 0));
    }
    for (; w.now.there; w.now = w.next, w.q_stage ^= 1) {
        struct forward_state<D, 1> x;
        uint32_t p[KEYS / 16][4];
        w.next = find<D>(a, blocks, w.index, o, lse);
        forward_begin<D, 1>(x);
        step<D, DROPOUT, true>(x, p, job, w, 0, shared);
        for (int key = KEYS; key < w.now.end; key += KEYS)
            step<D, DROPOUT, false>(x, p, job, w, key, shared);
        finish<D>(x, p, job, w, o, lse, shared);
    }
    copy_wait();
#endif
}

template <int D, bool DROPOUT>
void launch(struct sw_stream *stream, const struct sw_attention *a, void *o, float *lse)
{
    using L = layout<D>;
    const int64_t blocks = sw_cuda_ceil_div(a->queries.longest, QUERIES);
    const int64_t items = blocks * a->heads * a->queries.count;
    const int64_t places = static_cast<int64_t>(sw_cuda_processors(stream)) * L::BLOCKS;
    const auto kernel = wgmma_kernel<D, DROPOUT>;
    sw_assert(items <= INT32_MAX - places);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::BYTES);
    kernel<<<static_cast<unsigned>(sw_cuda_min(items, places)), THREADS, L::BYTES,
             sw_cuda_stream(stream)>>>(sw_tiled_attention(a), static_cast<int>(blocks),
                                       static_cast<sw_bf16 *>(o), lse);
}

} // namespace

void sw_attention_forward_wgmma(struct sw_stream *stream, const struct sw_attention *a, void *o,
                                float *lse)
{
    const bool dropout = a->dropout.p > 0.0f;
    if (a->head_dim == 64)
        dropout ? launch<64, true>(stream, a, o, lse) : launch<64, false>(stream, a, o, lse);
    else
        dropout ? launch<128, true>(stream, a, o, lse) : launch<128, false>(stream, a, o, lse);
}

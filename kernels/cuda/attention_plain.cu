/* Plain attention: a warp a query (or a key), 32 keys (or queries) at a time, a lane each for the
 * scores and lanes over the head's elements for what is summed; fp32 throughout, no score matrix,
 * no atomics, no order that depends on anything but the shape. */
#include "kernels/cuda/attention.cuh"

#include <cmath>

enum { WARPS = 4, MOST_CHUNKS = 32, HEAD_DIM_MOST = MOST_CHUNKS * SW_WARP };

/* What a kernel needs, by value. */
struct call {
    struct sw_attention a;
    struct sw_cuda_dropout dropout;
    void *o, *dq, *dk, *dv;
    float *lse_out, *dbias, *delta; /* delta [heads][queries.tokens] */
    const void *d_o, *o_in;
    const float *lse;
};

/* One head of one row. */
struct place {
    int64_t row, head;
    int64_t first_query, queries, first_key, keys;
    int64_t shift;       /* position of query 0 */
    const float *bias;   /* bias[key - position]; nullptr: none */
    uint32_t global_row; /* for dropout */
};

static __device__ inline struct place place_of(const struct call *c)
{
    struct place p;
    p.row = blockIdx.z;
    p.head = blockIdx.y;
    p.first_query = c->a.queries.starts[p.row];
    p.queries = c->a.queries.lengths[p.row];
    p.first_key = c->a.keys.starts[p.row];
    p.keys = c->a.keys.lengths[p.row];
    p.shift = c->a.causal ? p.keys - p.queries : 0;
    p.bias = c->a.bias != nullptr
                 ? c->a.bias + p.head * (2 * c->a.bias_reach - 1) + c->a.bias_reach - 1
                 : nullptr;
    p.global_row = c->dropout.on ? static_cast<uint32_t>(c->dropout.global_rows[p.row]) : 0;
    return p;
}

template <typename T>
static __device__ inline const T *head_of(const void *base, int64_t token, int64_t stride,
                                          const struct place *p, int64_t head_dim)
{
    return static_cast<const T *>(base) + token * stride + p->head * head_dim;
}

template <typename T> static __device__ inline float dot(const T *a, const T *b, int64_t count)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++)
        sum += sw_to_float(a[i]) * sw_to_float(b[i]);
    return sum;
}

static __device__ inline float factor_of(const struct call *c, const struct place *p,
                                         int64_t position, int64_t key)
{
    uint32_t words[4];
    if (!c->dropout.on)
        return 1.0f;
    sw_dropout_words(&c->dropout, static_cast<uint32_t>(key / 4), static_cast<uint32_t>(position),
                     p->global_row, c->dropout.site | static_cast<uint32_t>(p->head) << 16, words);
    uint32_t lane = static_cast<uint32_t>(key % 4);
    uint32_t low = lane == 0 ? words[0] : words[1], high = lane == 2 ? words[2] : words[3];
    return sw_dropout_factor(&c->dropout, lane < 2 ? low : high);
}

/* --- Forward -----------------------------------------------------------------------------------*/

/* A warp's query while it goes over the keys. */
template <int CHUNKS> struct running {
    float max, sum;
    float o[CHUNKS]; /* elements lane, lane + 32, ... */
};

/* 32 keys from first_key on, of which the warp's query sees those below `visible`. */
template <typename T, int CHUNKS>
static __device__ inline void forward_keys(const struct call *c, const struct place *p, const T *q,
                                           int64_t position, int64_t first_key, int64_t visible,
                                           struct running<CHUNKS> *r)
{
    int64_t d = c->a.head_dim, key = first_key + threadIdx.x;
    bool sees = key < visible;
    float score = -INFINITY;
    if (sees) {
        const T *k = head_of<T>(c->a.k, p->first_key + key, c->a.kv_stride, p, d);
        score = dot(q, k, d) * c->a.scale + (p->bias != nullptr ? p->bias[key - position] : 0.0f);
    }
    float most = fmaxf(r->max, sw_warp_max(score));
    float shrink = first_key > 0 ? expf(r->max - most) : 0.0f;
    float part = sees ? expf(score - most) : 0.0f;
    r->sum = r->sum * shrink + sw_warp_sum(part);
    r->max = most;
    if (sees)
        part *= factor_of(c, p, position, key);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        r->o[i] *= shrink;
    int64_t left = visible - first_key;
    int count = static_cast<int>(left < SW_WARP ? left : SW_WARP);
    for (int j = 0; j < count; j++) {
        float weight = __shfl_sync(0xFFFFFFFFu, part, j);
        const T *v = head_of<T>(c->a.v, p->first_key + first_key + j, c->a.kv_stride, p, d);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int64_t at = i * SW_WARP + static_cast<int64_t>(threadIdx.x);
            if (at < d)
                r->o[i] += weight * sw_to_float(v[at]);
        }
    }
}

template <typename T, int CHUNKS>
static __global__ void __launch_bounds__(WARPS *SW_WARP) forward(struct call c)
{
    struct place p = place_of(&c);
    int64_t query = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, d = c.a.head_dim;
    if (query >= p.queries)
        return;
    int64_t token = p.first_query + query;
    int64_t visible = sw_cuda_visible_keys(c.a.causal, query, p.queries, p.keys);
    const T *q = head_of<T>(c.a.q, token, c.a.q_stride, &p, d);
    struct running<CHUNKS> r = {
        - INFINITY, 0.0f,
        {
        }
    };
    for (int64_t key = 0; key < visible; key += SW_WARP)
        forward_keys<T, CHUNKS>(&c, &p, q, query + p.shift, key, visible, &r);
    float over_sum = visible > 0 ? 1.0f / r.sum : 0.0f;
    T *o = static_cast<T *>(c.o) + token * c.a.o_stride + p.head * d;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int64_t at = i * SW_WARP + static_cast<int64_t>(threadIdx.x);
        if (at < d)
            sw_from_float(o + at, r.o[i] * over_sum);
    }
    if (threadIdx.x == 0)
        c.lse_out[p.head * c.a.queries.tokens + token] = visible > 0 ? r.max + logf(r.sum) : 0.0f;
}

/* --- Backward ------------------------------------------------------------------------------------
 */

/* One query and key: p without and with dropout, and the score's gradient. */
struct pair {
    float dropped, d_score;
};

template <typename T>
static __device__ inline struct pair pair_of(const struct call *c, const struct place *p,
                                             int64_t query, int64_t key)
{
    int64_t d = c->a.head_dim, token = p->first_query + query, position = query + p->shift;
    int64_t at = p->head * c->a.queries.tokens + token;
    const T *q = head_of<T>(c->a.q, token, c->a.q_stride, p, d);
    const T *k = head_of<T>(c->a.k, p->first_key + key, c->a.kv_stride, p, d);
    const T *v = head_of<T>(c->a.v, p->first_key + key, c->a.kv_stride, p, d);
    const T *d_o = head_of<T>(c->d_o, token, c->a.o_stride, p, d);
    float score = dot(q, k, d) * c->a.scale + (p->bias != nullptr ? p->bias[key - position] : 0.0f);
    float probability = expf(score - c->lse[at]), factor = factor_of(c, p, position, key);
    return {probability * factor, probability * (factor * dot(d_o, v, d) - c->delta[at])};
}

/* delta = d(o) . o of every query; a thread each. */
template <typename T>
static __global__ void __launch_bounds__(WARPS *SW_WARP) make_delta(struct call c)
{
    struct place p = place_of(&c);
    int64_t query = (static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y) * SW_WARP +
                    static_cast<int64_t>(threadIdx.x);
    if (query >= p.queries)
        return;
    int64_t token = p.first_query + query, d = c.a.head_dim;
    c.delta[p.head * c.a.queries.tokens + token] =
        dot(head_of<T>(c.d_o, token, c.a.o_stride, &p, d),
            head_of<T>(c.o_in, token, c.a.o_stride, &p, d), d);
}

template <typename T, int CHUNKS>
static __device__ inline void write_head(void *base, int64_t token, int64_t stride,
                                         const struct call *c, const struct place *p,
                                         const float (&values)[CHUNKS])
{
    T *out = static_cast<T *>(base) + token * stride + p->head * c->a.head_dim;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int64_t at = i * SW_WARP + static_cast<int64_t>(threadIdx.x);
        if (at < c->a.head_dim)
            sw_from_float(out + at, values[i]);
    }
}

template <typename T, int CHUNKS>
static __device__ inline void add_head(float (&sum)[CHUNKS], float weight, const T *head, int64_t d)
{
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int64_t at = i * SW_WARP + static_cast<int64_t>(threadIdx.x);
        if (at < d)
            sum[i] += weight * sw_to_float(head[at]);
    }
}

/* dq of a query: over its keys in order. */
template <typename T, int CHUNKS>
static __global__ void __launch_bounds__(WARPS *SW_WARP) query_gradient(struct call c)
{
    struct place p = place_of(&c);
    int64_t query = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, d = c.a.head_dim;
    if (query >= p.queries)
        return;
    int64_t visible = sw_cuda_visible_keys(c.a.causal, query, p.queries, p.keys);
    float sum[CHUNKS] = {};
    for (int64_t first = 0; first < visible; first += SW_WARP) {
        int64_t key = first + threadIdx.x;
        float weight = key < visible ? pair_of<T>(&c, &p, query, key).d_score * c.a.scale : 0.0f;
        int64_t left = visible - first;
        int count = static_cast<int>(left < SW_WARP ? left : SW_WARP);
        for (int j = 0; j < count; j++)
            add_head<T, CHUNKS>(sum, __shfl_sync(0xFFFFFFFFu, weight, j),
                                head_of<T>(c.a.k, p.first_key + first + j, c.a.kv_stride, &p, d),
                                d);
    }
    write_head<T, CHUNKS>(c.dq, p.first_query + query, c.a.q_stride, &c, &p, sum);
}

/* dk and dv of a key: over the queries that see it, in order. */
template <typename T, int CHUNKS>
static __global__ void __launch_bounds__(WARPS *SW_WARP) key_gradient(struct call c)
{
    struct place p = place_of(&c);
    int64_t key = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, d = c.a.head_dim;
    if (key >= p.keys)
        return;
    int64_t begin = c.a.causal && key > p.shift ? key - p.shift : 0;
    float dk[CHUNKS] = {}, dv[CHUNKS] = {};
    for (int64_t first = begin; first < p.queries; first += SW_WARP) {
        int64_t query = first + threadIdx.x;
        struct pair own = {0.0f, 0.0f};
        if (query < p.queries)
            own = pair_of<T>(&c, &p, query, key);
        int64_t left = p.queries - first;
        int count = static_cast<int>(left < SW_WARP ? left : SW_WARP);
        for (int j = 0; j < count; j++) {
            int64_t token = p.first_query + first + j;
            add_head<T, CHUNKS>(dk, __shfl_sync(0xFFFFFFFFu, own.d_score, j) * c.a.scale,
                                head_of<T>(c.a.q, token, c.a.q_stride, &p, d), d);
            add_head<T, CHUNKS>(dv, __shfl_sync(0xFFFFFFFFu, own.dropped, j),
                                head_of<T>(c.d_o, token, c.a.o_stride, &p, d), d);
        }
    }
    write_head<T, CHUNKS>(c.dk, p.first_key + key, c.a.kv_stride, &c, &p, dk);
    write_head<T, CHUNKS>(c.dv, p.first_key + key, c.a.kv_stride, &c, &p, dv);
}

/* The bias's gradient: a warp an entry of a head (blockIdx.y), over rows and their queries; lane l
 * takes queries first + l, first + l + 32, ... of each row. */
template <typename T>
static __global__ void __launch_bounds__(WARPS *SW_WARP) bias_gradient(struct call c)
{
    int64_t entries = 2 * c.a.bias_reach - 1;
    int64_t entry = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y;
    int64_t distance = entry - (c.a.bias_reach - 1); /* key - position */
    if (entry >= entries || (c.a.causal && distance > 0))
        return;
    float sum = 0.0f;
    struct place p = place_of(&c);
    for (int64_t row = 0; row < c.a.queries.count; row++) {
        p.row = row;
        p.first_query = c.a.queries.starts[row];
        p.queries = c.a.queries.lengths[row];
        p.first_key = c.a.keys.starts[row];
        p.keys = c.a.keys.lengths[row];
        p.shift = c.a.causal ? p.keys - p.queries : 0;
        p.global_row = c.dropout.on ? static_cast<uint32_t>(c.dropout.global_rows[row]) : 0;
        /* key = query + shift + distance must be in 0 .. keys - 1 */
        int64_t offset = p.shift + distance;
        int64_t first = offset < 0 ? -offset : 0;
        int64_t end = p.keys - offset < p.queries ? p.keys - offset : p.queries;
        for (int64_t query = first + threadIdx.x; query < end; query += SW_WARP)
            sum += pair_of<T>(&c, &p, query, query + offset).d_score;
    }
    sum = sw_warp_sum(sum);
    if (threadIdx.x == 0)
        c.dbias[p.head * entries + entry] += sum;
}

/* --- Launches ----------------------------------------------------------------------------------*/

/* (pieces of a row, heads, rows) */
static dim3 grid_of(const struct sw_attention *a, int64_t longest, int64_t per_block, int64_t rows)
{
    int64_t across = sw_cuda_ceil_div(longest, per_block);
    sw_assert(across <= INT32_MAX && a->heads <= UINT16_MAX && rows <= UINT16_MAX);
    return dim3(static_cast<unsigned int>(across), static_cast<unsigned int>(a->heads),
                static_cast<unsigned int>(rows));
}

static const dim3 block_of_warps(SW_WARP, WARPS);

template <typename T, int CHUNKS>
static void launch_forward(struct sw_stream *stream, const struct call *c)
{
    forward<T, CHUNKS><<<grid_of(&c->a, c->a.queries.longest, WARPS, c->a.queries.count),
                         block_of_warps, 0, sw_cuda_stream(stream)>>>(*c);
}

template <typename T, int CHUNKS>
static void launch_backward(struct sw_stream *stream, const struct call *c)
{
    const struct sw_attention *a = &c->a;
    int64_t rows = a->queries.count, queries = a->queries.longest, keys = a->keys.longest;
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (queries > 0) {
        make_delta<T><<<grid_of(a, queries, WARPS * SW_WARP, rows), block_of_warps, 0, cuda>>>(*c);
        query_gradient<T, CHUNKS>
            <<<grid_of(a, queries, WARPS, rows), block_of_warps, 0, cuda>>>(*c);
    }
    if (keys > 0)
        key_gradient<T, CHUNKS><<<grid_of(a, keys, WARPS, rows), block_of_warps, 0, cuda>>>(*c);
    if (c->dbias != nullptr && queries > 0 && keys > 0)
        bias_gradient<T>
            <<<grid_of(a, 2 * a->bias_reach - 1, WARPS, 1), block_of_warps, 0, cuda>>>(*c);
}

template <typename T, int CHUNKS>
static void launch(struct sw_stream *stream, const struct call *c, bool backward)
{
    if (backward)
        launch_backward<T, CHUNKS>(stream, c);
    else
        launch_forward<T, CHUNKS>(stream, c);
}

template <typename T>
static void by_size(struct sw_stream *stream, const struct call *c, bool backward)
{
    int64_t chunks = sw_cuda_ceil_div(c->a.head_dim, SW_WARP);
    if (chunks <= 2)
        launch<T, 2>(stream, c, backward);
    else if (chunks <= 4)
        launch<T, 4>(stream, c, backward);
    else
        launch<T, MOST_CHUNKS>(stream, c, backward);
}

static void run(struct sw_stream *stream, const struct call *c, bool backward)
{
    sw_assert(c->a.head_dim > 0 && c->a.head_dim <= HEAD_DIM_MOST);
    if (c->a.queries.count <= 0 || c->a.heads <= 0 || !sw_cuda_begin(stream))
        return;
    if (!backward && c->a.queries.longest <= 0)
        return;
    if (c->a.dtype == SW_F32)
        by_size<float>(stream, c, backward);
    else
        by_size<sw_bf16>(stream, c, backward);
    sw_cuda_end(stream, backward ? "attention's gradient" : "attention");
}

void sw_cuda_attention_plain_forward(struct sw_stream *stream, const struct sw_attention *attention,
                                     void *o, float *lse, void *workspace)
{
    struct call c = {};
    (void)workspace;
    c.a = *attention;
    c.dropout = sw_cuda_dropout(&attention->dropout);
    c.o = o;
    c.lse_out = lse;
    run(stream, &c, false);
}

int64_t sw_cuda_attention_plain_forward_workspace_bytes(const struct sw_attention *bound)
{
    (void)bound;
    return 0;
}

/* Rows of keys must not overlap. */
void sw_cuda_attention_plain_backward(struct sw_stream *stream,
                                      const struct sw_attention *attention, void *dq, void *dk,
                                      void *dv, float *dbias, const void *d_o, const void *o,
                                      const float *lse, void *workspace)
{
    struct call c = {};
    c.a = *attention;
    c.dropout = sw_cuda_dropout(&attention->dropout);
    c.dq = dq;
    c.dk = dk;
    c.dv = dv;
    c.dbias = dbias;
    c.d_o = d_o;
    c.o_in = o;
    c.lse = lse;
    c.delta = static_cast<float *>(workspace);
    sw_assert(dbias == nullptr || attention->bias_reach > 0);
    run(stream, &c, true);
}

int64_t sw_cuda_attention_plain_backward_workspace_bytes(const struct sw_attention *bound)
{
    return sw_cuda_align_up(bound->heads * bound->queries.tokens *
                            static_cast<int64_t>(sizeof(float)));
}

/* Embedding rows and the relative position bias. The table's gradient is summed in token order,
 * without atomics. */
#include "kernels/cuda/cuda.cuh"

enum { THREADS = 256, COLUMNS = 4, TILE = THREADS, ENTRIES = 1024 };

/* x [tokens, width] = table[ids[t]]: a gather of rows. */
void sw_cuda_embedding_forward(struct sw_stream *stream, void *x, const void *table,
                               const int32_t *ids, int64_t tokens, int64_t width,
                               enum sw_dtype dtype)
{
    sw_cuda_gather_rows(stream, x, table, ids, tokens, width * sw_dtype_bytes(dtype));
}

/* --- The table's gradient ------------------------------------------------------------------------
 */

/* Which of the tokens [first, first + TILE) have the block's id, in order, into list; returns how
 * many. All threads call it. */
static __device__ int find_matches(int32_t *list, const int32_t *ids, int32_t id, int64_t first,
                                   int64_t tokens)
{
    __shared__ int counts[THREADS / SW_WARP];
    int64_t t = first + threadIdx.x;
    int warp = static_cast<int>(threadIdx.x) / SW_WARP,
        lane = static_cast<int>(threadIdx.x) % SW_WARP;
    bool match = t < tokens && ids[t] == id;
    unsigned int ballot = __ballot_sync(0xFFFFFFFFu, match);
    if (lane == 0)
        counts[warp] = __popc(ballot);
    __syncthreads();
    int before = 0, total = 0;
    for (int i = 0; i < THREADS / SW_WARP; i++) {
        before += i < warp ? counts[i] : 0;
        total += counts[i];
    }
    if (match)
        list[before + __popc(ballot & ((1u << lane) - 1u))] = static_cast<int32_t>(t - first);
    __syncthreads();
    return total;
}

/* Whether a token before `token` has its id: then that one's block does the work. */
static __device__ bool seen_before(const int32_t *ids, int32_t id, int64_t token)
{
    for (int64_t first = 0; first < token; first += THREADS) {
        int64_t t = first + threadIdx.x;
        if (__syncthreads_or(t < token && ids[t] == id))
            return true;
    }
    return false;
}

/* A block a token and COLUMNS * THREADS columns. The first token of each id adds up all of them, in
 * order, so that no two blocks write one element. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    table_gradient(float *dtable, const T *dx, const int32_t *ids, int64_t tokens, int64_t width)
{
    __shared__ int32_t list[TILE];
    int64_t token = blockIdx.x;
    int64_t column = static_cast<int64_t>(blockIdx.y) * THREADS * COLUMNS + threadIdx.x;
    int32_t id = ids[token];
    if (seen_before(ids, id, token))
        return;
    float *row = dtable + id * width;
    float sum[COLUMNS];
#pragma unroll
    for (int k = 0; k < COLUMNS; k++)
        sum[k] = column + k * THREADS < width ? row[column + k * THREADS] : 0.0f;
    for (int64_t first = token; first < tokens; first += TILE) {
        int matches = find_matches(list, ids, id, first, tokens);
#pragma unroll 4
        for (int i = 0; i < matches; i++) {
            const T *from = dx + (first + list[i]) * width + column;
#pragma unroll
            for (int k = 0; k < COLUMNS; k++)
                if (column + k * THREADS < width)
                    sum[k] += sw_to_float(from[k * THREADS]);
        }
        __syncthreads(); /* the list is free again */
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++)
        if (column + k * THREADS < width)
            row[column + k * THREADS] = sum[k];
}

/* dtable [vocabulary, width] += dx [tokens, width] in token order: the CPU's order. Compares
 * tokens^2 / 2 ids at most; moves tokens * width elements, and twice the rows that are met. */
void sw_cuda_embedding_backward(struct sw_stream *stream, float *dtable, const void *dx,
                                const int32_t *ids, int64_t tokens, int64_t width,
                                int64_t vocabulary, enum sw_dtype dtype, void *workspace)
{
    (void)vocabulary;
    (void)workspace;
    if (tokens <= 0 || width <= 0 || !sw_cuda_begin(stream))
        return;
    sw_assert(tokens <= INT32_MAX);
    dim3 grid(static_cast<unsigned int>(tokens),
              static_cast<unsigned int>(sw_cuda_ceil_div(width, THREADS * COLUMNS)));
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (dtype == SW_F32)
        table_gradient<<<grid, THREADS, 0, cuda>>>(dtable, static_cast<const float *>(dx), ids,
                                                   tokens, width);
    else
        table_gradient<<<grid, THREADS, 0, cuda>>>(dtable, static_cast<const sw_bf16 *>(dx), ids,
                                                   tokens, width);
    sw_cuda_end(stream, "the embedding's gradient");
}

int64_t sw_cuda_embedding_backward_workspace_bytes(int64_t tokens, int64_t width,
                                                   int64_t vocabulary)
{
    (void)tokens;
    (void)width;
    (void)vocabulary;
    return 0;
}

/* --- The relative bias ---------------------------------------------------------------------------
 */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    expand(float *bias, const T *table, const int32_t *bucket_of, int64_t heads, int64_t entries)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < heads * entries)
        bias[i] = sw_to_float(table[bucket_of[i % entries] * heads + i / entries]);
}

void sw_cuda_bias_expand(struct sw_stream *stream, float *bias, const void *table,
                         enum sw_dtype dtype, const int32_t *bucket_of, int64_t buckets,
                         int64_t heads, int64_t reach)
{
    int64_t entries = 2 * reach - 1;
    (void)buckets;
    if (heads <= 0 || reach <= 0 || !sw_cuda_begin(stream))
        return;
    unsigned int grid = static_cast<unsigned int>(sw_cuda_ceil_div(heads * entries, THREADS));
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (dtype == SW_F32)
        expand<<<grid, THREADS, 0, cuda>>>(bias, static_cast<const float *>(table), bucket_of,
                                           heads, entries);
    else
        expand<<<grid, THREADS, 0, cuda>>>(bias, static_cast<const sw_bf16 *>(table), bucket_of,
                                           heads, entries);
    sw_cuda_end(stream, "the relative bias");
}

/* A block a head, a thread a bucket: the bucket's entries in ascending order, added to the table.
 */
static __global__ void __launch_bounds__(THREADS)
    reduce(float *dtable, const float *dbias, const int32_t *bucket_of, int64_t buckets,
           int64_t heads, int64_t entries)
{
    __shared__ float values[ENTRIES];
    __shared__ int32_t owners[ENTRIES];
    int64_t head = blockIdx.x, bucket = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    const float *from = dbias + head * entries;
    float sum = bucket < buckets ? dtable[bucket * heads + head] : 0.0f;
    for (int64_t first = 0; first < entries; first += ENTRIES) {
        int count = static_cast<int>(entries - first < ENTRIES ? entries - first : ENTRIES);
        for (int i = static_cast<int>(threadIdx.x); i < count; i += THREADS) {
            values[i] = from[first + i];
            owners[i] = bucket_of[first + i];
        }
        __syncthreads();
        if (bucket < buckets)
#pragma unroll 8
            for (int i = 0; i < count; i++)
                if (owners[i] == bucket)
                    sum += values[i];
        __syncthreads();
    }
    if (bucket < buckets)
        dtable[bucket * heads + head] = sum;
}

void sw_cuda_bias_reduce(struct sw_stream *stream, float *dtable, const float *dbias,
                         const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach)
{
    if (heads <= 0 || reach <= 0 || buckets <= 0 || !sw_cuda_begin(stream))
        return;
    dim3 grid(static_cast<unsigned int>(heads),
              static_cast<unsigned int>(sw_cuda_ceil_div(buckets, THREADS)));
    reduce<<<grid, THREADS, 0, sw_cuda_stream(stream)>>>(dtable, dbias, bucket_of, buckets, heads,
                                                         2 * reach - 1);
    sw_cuda_end(stream, "the relative bias's gradient");
}

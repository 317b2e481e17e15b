/* Cross-entropy, log-probabilities, and the sum of losses. One row of logits a block of threads. */
#include "kernels/cuda/cuda.cuh"

#include <cfloat>

enum { THREADS = 512, WARPS = THREADS / SW_WARP, SUM_THREADS = 256 };

/* --- A row's softmax -----------------------------------------------------------------------------
 */

/* max: the greatest logit, NaN left out; sum: of exp(x - max), which NaN and infinity reach; total:
 * of x. */
struct softmax {
    float max, sum, total;
};

static __device__ inline void add_logit(struct softmax *s, float x)
{
    if (x > s->max) {
        s->sum *= expf(s->max - x);
        s->max = x;
    }
    s->sum += expf(x - s->max);
    s->total += x;
}

static __device__ inline struct softmax both(struct softmax a, struct softmax b)
{
    float max = fmaxf(a.max, b.max);
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max), a.total + b.total};
}

static __device__ inline struct softmax over_warp(struct softmax s)
{
#pragma unroll
    for (int mask = SW_WARP / 2; mask > 0; mask /= 2)
        s = both(s, {__shfl_xor_sync(0xFFFFFFFFu, s.max, mask),
                     __shfl_xor_sync(0xFFFFFFFFu, s.sum, mask),
                     __shfl_xor_sync(0xFFFFFFFFu, s.total, mask)});
    return s;
}

/* The same for all threads. V logits a load. */
template <int V> static __device__ struct softmax softmax_of(const float *logits, int64_t count)
{
    __shared__ struct softmax warps[WARPS];
    struct softmax s = {-FLT_MAX, 0.0f, 0.0f};
    for (int64_t i = threadIdx.x * V; i < count; i += THREADS * V) {
        float x[V];
        sw_load<float, V>(x, logits + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            add_logit(&s, x[k]);
    }
    s = over_warp(s);
    if (threadIdx.x % SW_WARP == 0)
        warps[threadIdx.x / SW_WARP] = s;
    __syncthreads();
    s = threadIdx.x % SW_WARP < WARPS ? warps[threadIdx.x % SW_WARP]
                                      : softmax{-FLT_MAX, 0.0f, 0.0f};
    return over_warp(s);
}

/* --- Cross-entropy -------------------------------------------------------------------------------
 */

/* dlogits may be logits. The label's logit is read before anything is written. */
template <typename D, int V>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy(struct sw_cross_entropy entropy, float *loss, D *dlogits, const float *logits,
                  const int32_t *labels)
{
    int64_t row = blockIdx.x, vocabulary = entropy.vocabulary;
    const float *x = logits + row * vocabulary;
    int32_t label = labels[row];
    float at_label = x[label], smoothing = entropy.smoothing;
    float scale = entropy.gradient_scale, count = static_cast<float>(vocabulary);
    struct softmax s = softmax_of<V>(x, vocabulary); /* all threads have read at_label behind it */
    if (threadIdx.x == 0) {
        float own = (s.max - at_label) + logf(s.sum);
        if (smoothing > 0.0f)
            own = (1.0f - smoothing) * own + smoothing * ((s.max - s.total / count) + logf(s.sum));
        loss[row] = own;
    }
    if (dlogits == nullptr)
        return;
    D *d = dlogits + row * vocabulary;
    float over_sum = scale / s.sum, rest = scale * smoothing / count;
    for (int64_t i = threadIdx.x * V; i < vocabulary; i += THREADS * V) {
        float v[V];
        sw_load<float, V>(v, x + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            v[k] = expf(v[k] - s.max) * over_sum - rest;
            if (i + k == label)
                v[k] -= scale * (1.0f - smoothing);
        }
        sw_store<D, V>(d + i, v);
    }
}

template <typename D>
static void choose(struct sw_stream *stream, const struct sw_cross_entropy *entropy, float *loss,
                   void *dlogits, const float *logits, const int32_t *labels)
{
    bool wide =
        entropy->vocabulary % 4 == 0 && sw_cuda_aligned(logits, 0) && sw_cuda_aligned(dlogits, 0);
    unsigned int grid = static_cast<unsigned int>(entropy->rows);
    cudaStream_t cuda = sw_cuda_stream(stream);
    D *d = static_cast<D *>(dlogits);
    if (wide)
        cross_entropy<D, 4><<<grid, THREADS, 0, cuda>>>(*entropy, loss, d, logits, labels);
    else
        cross_entropy<D, 1><<<grid, THREADS, 0, cuda>>>(*entropy, loss, d, logits, labels);
}

/* Moves rows * vocabulary * (read 2, write 1) elements; the second read may come from a cache. */
void sw_cuda_cross_entropy(struct sw_stream *stream, const struct sw_cross_entropy *entropy,
                           float *loss, void *dlogits, enum sw_dtype dlogits_dtype,
                           const float *logits, const int32_t *labels)
{
    sw_assert(entropy->rows <= INT32_MAX);
    if (entropy->rows <= 0 || entropy->vocabulary <= 0 || !sw_cuda_begin(stream))
        return;
    if (dlogits_dtype == SW_F32)
        choose<float>(stream, entropy, loss, dlogits, logits, labels);
    else
        choose<sw_bf16>(stream, entropy, loss, dlogits, logits, labels);
    sw_cuda_end(stream, "cross-entropy");
}

/* --- Log-probabilities ---------------------------------------------------------------------------
 */

template <int V>
static __global__ void __launch_bounds__(THREADS)
    log_softmax(float *out, const float *logits, int64_t vocabulary)
{
    const float *x = logits + blockIdx.x * vocabulary;
    float *y = out + blockIdx.x * vocabulary;
    struct softmax s = softmax_of<V>(x, vocabulary);
    float log_sum = logf(s.sum);
    for (int64_t i = threadIdx.x * V; i < vocabulary; i += THREADS * V) {
        float v[V];
        sw_load<float, V>(v, x + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = (v[k] - s.max) - log_sum;
        sw_store<float, V>(y + i, v);
    }
}

void sw_cuda_log_softmax(struct sw_stream *stream, float *log_probabilities, const float *logits,
                         int64_t rows, int64_t vocabulary)
{
    sw_assert(rows <= INT32_MAX);
    if (rows <= 0 || vocabulary <= 0 || !sw_cuda_begin(stream))
        return;
    unsigned int grid = static_cast<unsigned int>(rows);
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (vocabulary % 4 == 0 && sw_cuda_aligned(logits, 0) && sw_cuda_aligned(log_probabilities, 0))
        log_softmax<4><<<grid, THREADS, 0, cuda>>>(log_probabilities, logits, vocabulary);
    else
        log_softmax<1><<<grid, THREADS, 0, cuda>>>(log_probabilities, logits, vocabulary);
    sw_cuda_end(stream, "log-probabilities");
}

/* --- The sum of losses ---------------------------------------------------------------------------
 */

/* One thread adds, in order and in double, what all of them have fetched. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_in_order(double *sum, const float *values, int64_t count)
{
    __shared__ float tile[SUM_THREADS];
    double total = threadIdx.x == 0 ? *sum : 0.0;
    for (int64_t first = 0; first < count; first += SUM_THREADS) {
        int64_t i = first + threadIdx.x;
        __syncthreads(); /* the tile has been added */
        tile[threadIdx.x] = i < count ? values[i] : 0.0f;
        __syncthreads();
        int64_t left = count - first;
        int here = static_cast<int>(left < SUM_THREADS ? left : SUM_THREADS);
        for (int k = 0; threadIdx.x == 0 && k < here; k++)
            total += static_cast<double>(tile[k]);
    }
    if (threadIdx.x == 0)
        *sum = total;
}

void sw_cuda_sum_in_order(struct sw_stream *stream, double *sum, const float *values, int64_t count)
{
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    sum_in_order<<<1, SUM_THREADS, 0, sw_cuda_stream(stream)>>>(sum, values, count);
    sw_cuda_end(stream, "a sum");
}

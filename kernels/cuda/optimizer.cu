/* AdamW's step and sums of squares, with the host's bits: every operation is one IEEE operation
 * that the compiler may not fuse with another (the _rn functions), in the host's order. */
#include "kernels/cuda/cuda.cuh"

enum { THREADS = 256, GROUP = 64, LANES = 16 };

/* --- Weights -----------------------------------------------------------------------------------*/

static __device__ inline uint16_t rounded_half(float x)
{
    return static_cast<uint16_t>((__float_as_uint(x) + 0x8000u) >> 16);
}

static __device__ inline float widened(uint16_t half)
{
    return __uint_as_float(static_cast<uint32_t>(half) << 16);
}

static __device__ inline float weight_at(const struct sw_run_weights *w, int64_t i)
{
    if (w->master != nullptr)
        return w->master[i];
    uint32_t low = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(w->low[i])));
    return __uint_as_float((static_cast<uint32_t>(w->high[i]) << 16) + low);
}

static __device__ inline void put_weight(const struct sw_run_weights *w, int64_t i, float x)
{
    if (w->master != nullptr) {
        w->master[i] = x;
        return;
    }
    w->high[i] = rounded_half(x);
    w->low[i] = static_cast<uint16_t>(__float_as_uint(x));
}

static __device__ inline void put_copy(const struct sw_run_weights *w, int64_t i, float x)
{
    if (w->copy == nullptr)
        return;
    if (w->copy_dtype == SW_F32)
        static_cast<float *>(w->copy)[i] = x;
    else
        static_cast<uint16_t *>(w->copy)[i] = rounded_half(x);
}

static unsigned int grid_of(int64_t threads)
{
    int64_t blocks = sw_cuda_ceil_div(threads, THREADS);
    sw_assert(blocks <= INT32_MAX);
    return static_cast<unsigned int>(blocks);
}

static __global__ void __launch_bounds__(THREADS) copy(struct sw_run_weights w, int64_t count)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < count)
        put_copy(&w, i, weight_at(&w, i));
}

void sw_cuda_weights_copy(struct sw_stream *stream, const struct sw_run_weights *weights,
                          int64_t count)
{
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    copy<<<grid_of(count), THREADS, 0, sw_cuda_stream(stream)>>>(*weights, count);
    sw_cuda_end(stream, "copying weights");
}

/* --- AdamW -------------------------------------------------------------------------------------*/

static __device__ inline float input_at(const void *x, enum sw_dtype dtype, int64_t i)
{
    return dtype == SW_F32 ? static_cast<const float *>(x)[i]
                           : widened(static_cast<const uint16_t *>(x)[i]);
}

/* The first moment, the second, the weight, of gradient g. */
struct element {
    float m, v, w;
};

static __device__ inline void update(const struct sw_adamw_run *run, float g, struct element *e)
{
    const struct sw_adamw_scalars *s = &run->scalars;
    g = __fmul_rn(g, s->clip_scale);
    e->m = __fadd_rn(e->m, __fmul_rn(s->beta1_rest, __fsub_rn(g, e->m)));
    e->v = __fadd_rn(__fmul_rn(s->beta2, e->v), __fmul_rn(__fmul_rn(s->beta2_rest, g), g));
    float root = __fadd_rn(__fmul_rn(__fsqrt_rn(e->v), s->root_scale), s->eps);
    e->w = __fsub_rn(__fmul_rn(run->keep, e->w), __fmul_rn(s->step_size, __fdiv_rn(e->m, root)));
}

/* Element i of the run; `random` is its word: the low half rounds m, the high half v. */
template <bool ROUNDED>
static __device__ inline void step(const struct sw_adamw_run *run, int64_t i, uint32_t random)
{
    enum sw_dtype dtype = ROUNDED ? SW_BF16 : SW_F32;
    struct element e = {input_at(run->exp_avg, dtype, i), input_at(run->exp_avg_sq, dtype, i),
                        weight_at(&run->weights, i)};
    update(run, input_at(run->gradient, run->gradient_dtype, i), &e);
    put_weight(&run->weights, i, e.w);
    put_copy(&run->weights, i, e.w);
    if constexpr (ROUNDED) {
        uint32_t m = __float_as_uint(e.m) + (random & 0xFFFFu);
        uint32_t v = __float_as_uint(e.v) + (random >> 16);
        static_cast<uint16_t *>(run->exp_avg)[i] = static_cast<uint16_t>(m >> 16);
        static_cast<uint16_t *>(run->exp_avg_sq)[i] = static_cast<uint16_t>(v >> 16);
    } else {
        static_cast<float *>(run->exp_avg)[i] = e.m;
        static_cast<float *>(run->exp_avg_sq)[i] = e.v;
    }
}

/* A thread takes elements 64 G + l, + 16, + 32, + 48 of the unit, whose random words are the four
 * of one counter; 16 threads read 16 elements that adjoin. */
template <bool ROUNDED>
static __global__ void __launch_bounds__(THREADS) adamw(struct sw_adamw_run run)
{
    int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    int64_t group = run.first / GROUP + thread / LANES, lane = thread % LANES;
    uint32_t words[4] = {};
    if constexpr (ROUNDED) {
        uint64_t low = static_cast<uint64_t>(group * LANES + lane);
        const uint32_t counter[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                                     run.unit, run.scalars.number};
        sw_philox(run.scalars.rounding_key, counter, words);
    }
#pragma unroll
    for (int w = 0; w < GROUP / LANES; w++) {
        int64_t i = group * GROUP + w * LANES + lane - run.first;
        if (i >= 0 && i < run.count)
            step<ROUNDED>(&run, i, words[w]);
    }
}

/* Moves 28 bytes an element with fp32 states and gradients, and those of the copy. */
void sw_cuda_adamw(struct sw_stream *stream, const struct sw_adamw_run *run)
{
    if (run->count <= 0 || !sw_cuda_begin(stream))
        return;
    int64_t groups = (run->first + run->count - 1) / GROUP - run->first / GROUP + 1;
    unsigned int grid = grid_of(groups * LANES);
    if (run->moments_dtype == SW_F32)
        adamw<false><<<grid, THREADS, 0, sw_cuda_stream(stream)>>>(*run);
    else
        adamw<true><<<grid, THREADS, 0, sw_cuda_stream(stream)>>>(*run);
    sw_cuda_end(stream, "AdamW");
}

/* --- Sums of squares -----------------------------------------------------------------------------
 */

/* 16 threads a block of elements: thread l adds elements l, l + 16, ... of what the range has in
 * the block, in order; then lanes are added by halves. A square of fp32 is exact in double. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    square_sums(double *partials, const T *x, int64_t first, int64_t count, int64_t blocks)
{
    int64_t index = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) / LANES;
    int lane = static_cast<int>(threadIdx.x) % LANES;
    double sum = 0.0;
    if (index < blocks) {
        int64_t block = first / SW_OPTIM_BLOCK + index, begin = block * SW_OPTIM_BLOCK;
        int64_t end = begin + SW_OPTIM_BLOCK;
        begin = begin > first ? begin : first;
        end = end < first + count ? end : first + count;
#pragma unroll 16
        for (int64_t i = begin - first + lane; i < end - first; i += LANES) {
            double value = static_cast<double>(sw_to_float(x[i]));
            sum = __dadd_rn(sum, __dmul_rn(value, value));
        }
    }
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, half, LANES));
    if (index < blocks && lane == 0)
        partials[index] = __dadd_rn(partials[index], sum);
}

void sw_cuda_square_sums(struct sw_stream *stream, double *partials, const void *x,
                         enum sw_dtype dtype, int64_t first, int64_t count)
{
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    int64_t blocks = (first + count - 1) / SW_OPTIM_BLOCK - first / SW_OPTIM_BLOCK + 1;
    unsigned int grid = grid_of(blocks * LANES);
    cudaStream_t cuda = sw_cuda_stream(stream);
    if (dtype == SW_F32)
        square_sums<<<grid, THREADS, 0, cuda>>>(partials, static_cast<const float *>(x), first,
                                                count, blocks);
    else
        square_sums<<<grid, THREADS, 0, cuda>>>(partials, static_cast<const sw_bf16 *>(x), first,
                                                count, blocks);
    sw_cuda_end(stream, "sums of squares");
}

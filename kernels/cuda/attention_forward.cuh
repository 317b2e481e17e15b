/* What the kernels of attention's forward share: the softmax of a warp's 16 M queries over tiles of
 * 64 keys.
 *
 * The running maximum follows the greatest score only when that is more than 2^8 times above it (in
 * probability): it need only keep exponentials in range, and sums are rescaled seldom. */
#ifndef SPILLWAY_KERNELS_CUDA_ATTENTION_FORWARD_CUH
#define SPILLWAY_KERNELS_CUDA_ATTENTION_FORWARD_CUH

#include "kernels/cuda/attention_tiles.cuh"

enum { SW_FORWARD_KEYS = 64 };

/* For GPUs that have wgmma (attention_forward_wgmma.cu), rows as attention_forward.cu's. */
void sw_attention_forward_wgmma(struct sw_stream *stream, const struct sw_attention *a, void *o,
                                float *lse);

namespace
{

const float SLACK_LOG2 = 8.0f;

template <int D, int M> struct forward_state {
    float o[M][D / 8][4];
    float greatest[2 * M], sum[2 * M]; /* of the lane's rows; sum: this lane's part */
};

template <int D, int M> SW_TILE_INLINE void forward_begin(struct forward_state<D, M> &x)
{
#pragma unroll
    for (int h = 0; h < 2 * M; h++) {
        x.greatest[h] = -INFINITY;
        x.sum[h] = 0.0f;
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.o[m][n][i] = 0.0f;
}

/* s: scores, becomes probabilities times 2^greatest. shrink: what sums of earlier tiles are to be
 * multiplied with. */
template <int D, int M>
SW_TILE_INLINE void forward_softmax(struct forward_state<D, M> &x,
                                    float (&s)[M][SW_FORWARD_KEYS / 8][4], float (&shrink)[2 * M])
{
#pragma unroll
    for (int h = 0; h < 2 * M; h++) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < SW_FORWARD_KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[h / 2][n][2 * (h & 1)], s[h / 2][n][2 * (h & 1) + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
        const float before = x.greatest[h];
        if (top > before + SLACK_LOG2)
            x.greatest[h] = top;
        const float shift = x.greatest[h] == -INFINITY ? 0.0f : x.greatest[h];
        shrink[h] = exp2_fast(before - shift);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < SW_FORWARD_KEYS / 8; n++) {
            float *c = &s[h / 2][n][2 * (h & 1)];
            c[0] = exp2_fast(c[0] - shift);
            c[1] = exp2_fast(c[1] - shift);
            sum += c[0] + c[1];
        }
        x.sum[h] = x.sum[h] * shrink[h] + sum;
    }
}

template <int D, int M>
SW_TILE_INLINE void forward_rescale(struct forward_state<D, M> &x, const float (&shrink)[2 * M])
{
    bool same = true;
#pragma unroll
    for (int h = 0; h < 2 * M; h++)
        same = same && shrink[h] == 1.0f;
    if (__all_sync(0xFFFFFFFFu, same))
        return;
#pragma unroll
    for (int h = 0; h < 2 * M; h++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            x.o[h / 2][n][2 * (h & 1)] *= shrink[h];
            x.o[h / 2][n][2 * (h & 1) + 1] *= shrink[h];
        }
}

template <int M>
SW_TILE_INLINE void forward_drop(float (&s)[M][SW_FORWARD_KEYS / 8][4],
                                 const uint32_t (&kept)[2 * M])
{
#pragma unroll
    for (int h = 0; h < 2 * M; h++)
#pragma unroll
        for (int n = 0; n < SW_FORWARD_KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if ((kept[h] >> (4 * n + c) & 1) == 0)
                    s[h / 2][n][2 * (h & 1) + c] = 0.0f;
}

/* Writes lse of the warp's queries, from `query` on; factor: what o of the lane's rows is yet to be
 * multiplied with. */
template <int D, int M>
SW_TILE_INLINE void forward_factors(float (&factor)[2 * M], const struct forward_state<D, M> &x,
                                    const struct sw_tiled_attention &job,
                                    const struct sw_tile_row &at, int query, float *lse, int lane)
{
    const struct sw_attention &a = job.a;
    const float scale = job.dropout.on ? job.dropout.scale : 1.0f;
#pragma unroll
    for (int h = 0; h < 2 * M; h++) {
        float sum = x.sum[h];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        const int row = query + 8 * h + (lane >> 2);
        const bool sees = sw_tile_visible(a, at, row) > 0;
        factor[h] = sees ? scale / sum : 0.0f;
        if ((lane & 3) == 0 && row < at.queries)
            lse[at.head * a.queries.tokens + at.first_query + row] =
                sees ? fmaf(x.greatest[h], SW_LN_2, logf(sum)) : 0.0f;
    }
}

} // namespace

#endif

#include "kernels/cuda/cuda.cuh"

#include <cmath>

/* p 2^24 is exact, so the comparison of whole numbers is that of struct sw_dropout. */
struct sw_cuda_dropout sw_cuda_dropout(const struct sw_dropout *dropout)
{
    struct sw_cuda_dropout out = {};
    out.on = dropout->p > 0.0f;
    if (!out.on)
        return out;
    out.threshold = static_cast<uint32_t>(ceilf(dropout->p * 0x1p24f));
    out.scale = 1.0f / (1.0f - dropout->p);
    out.key[0] = dropout->key[0];
    out.key[1] = dropout->key[1];
    out.site = dropout->site;
    out.global_rows = dropout->global_rows;
    return out;
}

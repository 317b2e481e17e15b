/* Attention on CUDA. Plain (attention_plain.cu): any dtype and head size, one warp a query or key.
 * What runs on tensor cores (attention_forward.cu, attention_backward.cu) has the names and
 * signatures of the table's members, sw_cuda_attention_forward and so on, and hands over to the
 * plain functions what it does not serve: by what a call, or a bound, describes, so that both
 * agree. */
#ifndef SPILLWAY_KERNELS_CUDA_ATTENTION_CUH
#define SPILLWAY_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.cuh"

/* One warp a query, or a key; fp32 throughout; any dtype, head_dim up to 1024. */
void sw_cuda_attention_plain_forward(struct sw_stream *stream, const struct sw_attention *attention,
                                     void *o, float *lse, void *workspace);
int64_t sw_cuda_attention_plain_forward_workspace_bytes(const struct sw_attention *bound);
void sw_cuda_attention_plain_backward(struct sw_stream *stream,
                                      const struct sw_attention *attention, void *dq, void *dk,
                                      void *dv, float *dbias, const void *d_o, const void *o,
                                      const float *lse, void *workspace);
int64_t sw_cuda_attention_plain_backward_workspace_bytes(const struct sw_attention *bound);

/* Keys that query `query` of a row sees: the first so many. */
static __host__ __device__ inline int64_t sw_cuda_visible_keys(bool causal, int64_t query,
                                                               int64_t queries, int64_t keys)
{
    int64_t position = query + keys - queries;
    if (!causal || position >= keys)
        return keys;
    return position < 0 ? 0 : position + 1;
}

#endif

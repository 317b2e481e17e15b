/* Attention on CUDA. On tensor cores (attention_forward.cu, attention_backward.cu): bf16, heads of
 * 64 and 128, rows aligned to 16 bytes. The rest goes to the plain kernels (attention_plain.cu). */
#ifndef SPILLWAY_KERNELS_CUDA_ATTENTION_CUH
#define SPILLWAY_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.cuh"

/* The table's members. */
void sw_cuda_attention_forward(struct sw_stream *stream, const struct sw_attention *attention,
                               void *o, float *lse, void *workspace);
int64_t sw_cuda_attention_forward_workspace_bytes(const struct sw_attention *bound);
void sw_cuda_attention_backward(struct sw_stream *stream, const struct sw_attention *attention,
                                void *dq, void *dk, void *dv, float *dbias, const void *d_o,
                                const void *o, const float *lse, void *workspace);
int64_t sw_cuda_attention_backward_workspace_bytes(const struct sw_attention *bound);

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

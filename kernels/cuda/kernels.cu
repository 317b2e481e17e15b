/* CUDA's table of kernels. */
#include "kernels/cuda/attention.cuh"

const struct sw_kernels sw_cuda_kernels = {
    .name = "cuda",
    .gemm = sw_cuda_gemm,
    .rmsnorm_forward = sw_cuda_rmsnorm_forward,
    .rmsnorm_backward = sw_cuda_rmsnorm_backward,
    .rmsnorm_backward_workspace_bytes = sw_cuda_rmsnorm_backward_workspace_bytes,
    .ffn_forward = sw_cuda_ffn_forward,
    .ffn_backward = sw_cuda_ffn_backward,
    .residual_forward = sw_cuda_residual_forward,
    .residual_backward = sw_cuda_residual_backward,
    .add = sw_cuda_add,
    .attention_forward = sw_cuda_attention_forward,
    .attention_forward_workspace_bytes = sw_cuda_attention_forward_workspace_bytes,
    .attention_backward = sw_cuda_attention_backward,
    .attention_backward_workspace_bytes = sw_cuda_attention_backward_workspace_bytes,
    .bias_expand = sw_cuda_bias_expand,
    .bias_reduce = sw_cuda_bias_reduce,
    .embedding_forward = sw_cuda_embedding_forward,
    .embedding_backward = sw_cuda_embedding_backward,
    .embedding_backward_workspace_bytes = sw_cuda_embedding_backward_workspace_bytes,
    .cross_entropy = sw_cuda_cross_entropy,
    .sum_in_order = sw_cuda_sum_in_order,
    .log_softmax = sw_cuda_log_softmax,
    .gather_rows = sw_cuda_gather_rows,
    .convert = sw_cuda_convert,
};

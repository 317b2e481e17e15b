/* The CPU's table of kernels. */
#include "kernels/cpu/cpu.h"

const struct sw_kernels sw_cpu_kernels = {
    .name = "cpu",
    .gemm = sw_cpu_gemm,
    .rmsnorm_forward = sw_cpu_rmsnorm_forward,
    .rmsnorm_backward = sw_cpu_rmsnorm_backward,
    .rmsnorm_backward_workspace_bytes = sw_cpu_rmsnorm_backward_workspace_bytes,
    .ffn_forward = sw_cpu_ffn_forward,
    .ffn_backward = sw_cpu_ffn_backward,
    .residual_forward = sw_cpu_residual_forward,
    .residual_backward = sw_cpu_residual_backward,
    .add = sw_cpu_add,
    .attention_forward = sw_cpu_attention_forward,
    .attention_forward_workspace_bytes = sw_cpu_attention_forward_workspace_bytes,
    .attention_backward = sw_cpu_attention_backward,
    .attention_backward_workspace_bytes = sw_cpu_attention_backward_workspace_bytes,
    .bias_expand = sw_cpu_bias_expand,
    .bias_reduce = sw_cpu_bias_reduce,
    .embedding_forward = sw_cpu_embedding_forward,
    .embedding_backward = sw_cpu_embedding_backward,
    .embedding_backward_workspace_bytes = sw_cpu_embedding_backward_workspace_bytes,
    .cross_entropy = sw_cpu_cross_entropy,
    .sum_in_order = sw_cpu_sum_in_order,
    .log_softmax = sw_cpu_log_softmax,
    .gather_rows = sw_cpu_gather_rows,
    .convert = sw_cpu_convert,
};

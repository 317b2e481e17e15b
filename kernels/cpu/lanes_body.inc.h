/* One lane variant: include a simd_*.h and define SW_LANES_TABLE and SW_LANES_NAME before. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/lanes_math.inc.h"
#include "kernels/cpu/lanes_rows.inc.h"
#include "kernels/cpu/lanes_softmax.inc.h"

const struct sw_cpu_lanes SW_LANES_TABLE = {
    .name = SW_LANES_NAME,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .add_partials = add_partials,
    .ffn_forward = ffn_forward,
    .ffn_backward = ffn_backward,
    .residual = residual,
    .convert = convert,
    .accumulate = accumulate,
    .cross_entropy = cross_entropy,
    .log_softmax = log_softmax,
    .scores = scores,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .dot = dot,
    .multiply = multiply,
};

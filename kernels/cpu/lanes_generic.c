/* The lane functions in plain C. */
#include "kernels/cpu/simd_generic.h"

#define SW_LANES_TABLE sw_cpu_lanes_generic
#define SW_LANES_NAME "generic"
#include "kernels/cpu/lanes_body.inc.h"

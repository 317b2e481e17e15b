/* The lane functions in AVX2, whatever the compiler's flags are. */
#include "kernels/cpu/cpu.h"

#ifdef SW_X86_64
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Headers of others are above: what follows is compiled for AVX2 alone. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#include "kernels/cpu/simd_avx2.h"

#define SW_LANES_TABLE sw_cpu_lanes_avx2
#define SW_LANES_NAME "avx2"
#include "kernels/cpu/lanes_body.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

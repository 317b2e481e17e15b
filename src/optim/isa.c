#include "optim/lanes.h"

#include <stdatomic.h>

static bool has(enum sw_optim_isa isa)
{
#if defined(__x86_64__)
    switch (isa) {
    case SW_ISA_SCALAR:
        return true;
    case SW_ISA_AVX2:
        return __builtin_cpu_supports("avx2");
    case SW_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
    return false;
#else
    return isa == SW_ISA_SCALAR;
#endif
}

static _Atomic int chosen = -1;

enum sw_optim_isa sw_optim_isa(void)
{
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = has(SW_ISA_AVX512) ? SW_ISA_AVX512 : has(SW_ISA_AVX2) ? SW_ISA_AVX2 : SW_ISA_SCALAR;
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (enum sw_optim_isa)isa;
}

bool sw_optim_isa_choose(enum sw_optim_isa isa)
{
    if (!has(isa))
        return false;
    atomic_store_explicit(&chosen, (int)isa, memory_order_relaxed);
    return true;
}

const char *sw_optim_isa_text(enum sw_optim_isa isa)
{
    static const char *const texts[] = {"scalar", "AVX2", "AVX-512"};
    return texts[isa];
}

const struct sw_lanes *sw_lanes(void)
{
#if defined(__x86_64__)
    switch (sw_optim_isa()) {
    case SW_ISA_AVX512:
        return &sw_lanes_avx512;
    case SW_ISA_AVX2:
        return &sw_lanes_avx2;
    case SW_ISA_SCALAR:
        break;
    }
#endif
    return &sw_lanes_scalar;
}

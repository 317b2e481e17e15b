/* Which lane variant runs. */
#include "kernels/cpu/lanes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const struct sw_cpu_lanes *) chosen;

/* NULL when this CPU lacks it or there is no such variant. */
static const struct sw_cpu_lanes *find(const char *name)
{
    if (strcmp(name, "generic") == 0)
        return &sw_cpu_lanes_generic;
#ifdef SW_X86_64
    if (strcmp(name, "avx2") == 0 && __builtin_cpu_supports("avx2"))
        return &sw_cpu_lanes_avx2;
    if (strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &sw_cpu_lanes_avx512;
#endif
    return NULL;
}

static const struct sw_cpu_lanes *choose(void)
{
    static const char *const best_first[] = {"avx512", "avx2", "generic"};
    const char *wanted = getenv("SPILLWAY_CPU");
    const struct sw_cpu_lanes *lanes = wanted != NULL ? find(wanted) : NULL;
    for (int i = 0; lanes == NULL; i++)
        lanes = find(best_first[i]);
    return lanes;
}

const struct sw_cpu_lanes *sw_cpu_lanes(void)
{
    const struct sw_cpu_lanes *lanes = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (lanes == NULL) {
        lanes = choose(); /* two threads that both choose, choose the same */
        atomic_store_explicit(&chosen, lanes, memory_order_relaxed);
    }
    return lanes;
}

bool sw_cpu_lanes_select(const char *name)
{
    const struct sw_cpu_lanes *lanes = find(name);
    if (lanes != NULL)
        atomic_store_explicit(&chosen, lanes, memory_order_relaxed);
    return lanes != NULL;
}

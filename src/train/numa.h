/* Where threads run and host memory lies on a machine of several NUMA nodes: the decisions of
 * topo/topo.h, kept for a session and applied. On a machine of one node there is nothing to do, and
 * hwloc is not loaded. */
#ifndef SPILLWAY_TRAIN_NUMA_H
#define SPILLWAY_TRAIN_NUMA_H

#include "io/spill.h"
#include "topo/topo.h"

struct sw_numa {
    struct sw_topo *topo;                      /* NULL: one node */
    int64_t worker_count;                      /* of the pool, its caller not counted */
    char **worker_cpus;                        /* owned [worker_count]: lists of CPUs */
    char *ring_cpus[SW_SPILL_MAX_DIRECTORIES]; /* NULL: anywhere */
    int slab_node;                             /* -1: anywhere */
};

/* Decide for `workers` threads (the pool's caller counted in) and the spill directories, and for
 * host memory near the GPU `bus_id` ("0000:3b:00.0"; NULL: not known, or the host is the device,
 * whose workers sit on all nodes). `machine`: a synthetic one, for tests; NULL: this one. */
sw_code sw_numa_open(struct sw_numa *out, const struct sw_topo_config *machine, int64_t workers,
                     const char *const *directories, int64_t directory_count, const char *bus_id,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_numa_close(struct sw_numa *numa);

/* For sw_pool_open_with(): bind thread `index` (from 1) of the pool. */
void sw_numa_bind_worker(void *numa, int64_t index);
/* Memory that this thread touches first, from now on: near the GPU `bus_id`, or where that is not
 * known near the one that sw_numa_open() was given; or again from anywhere. */
void sw_numa_bind_slabs(const struct sw_numa *numa, const char *bus_id);
void sw_numa_unbind_slabs(const struct sw_numa *numa);

#endif

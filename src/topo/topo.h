/* Where things are: CPUs, NUMA nodes, GPUs and drives of this machine (or of a synthetic one), and
 * the decisions that follow. hwloc stands behind it. A node or CPU that the cpuset forbids is left
 * out of every answer. */
#ifndef SPILLWAY_TOPO_TOPO_H
#define SPILLWAY_TOPO_TOPO_H

#include "base/err.h"
#include "topo/machine.h"

#include <stdint.h>

struct sw_topo;

struct sw_topo_config {
    const char *synthetic; /* hwloc's syntax ("package:2 numa:1 core:4 pu:1"); NULL: this machine */
    const char *xml;       /* or a file that lstopo wrote; NULL: none */
    const char *cpuset;    /* CPUs that may be used, "0-3,8"; NULL: as the process is allowed */
    const char *nodeset; /* NUMA nodes that may be used, by the system's numbers; NULL: likewise */
    int cpu_quota;       /* CPUs' worth of time a synthetic machine gives; 0: no quota */
};

sw_code sw_topo_open(struct sw_topo **out, const struct sw_topo_config *config,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_topo_close(struct sw_topo *topo);

/* NUMA nodes with memory that may be used, by position 0 .. count-1; >= 1. Node numbers below are
 * these positions, and -1 means "not known" or "anywhere". */
int sw_topo_node_count(const struct sw_topo *topo);
int64_t sw_topo_node_memory_bytes(const struct sw_topo *topo, int node);
int sw_topo_node_os_index(const struct sw_topo *topo, int node);
/* CPUs of a node, or of all nodes for -1, that may be used. */
int sw_topo_node_cpu_count(const struct sw_topo *topo, int node);
/* CPUs worth of time: usable CPUs, cut by the cgroup's quota. >= 1. */
int sw_topo_cpu_count(const struct sw_topo *topo);
/* Of the whole machine, allowed or not. */
int sw_topo_cpu_total(const struct sw_topo *topo);

/* Nearest node of a PCI device "0000:3b:00.0" or of a block device "nvme0n1"; -1 when unknown,
 * forbidden, or when there is but one. */
int sw_topo_node_of_pci(const struct sw_topo *topo, const char *bus_id);
int sw_topo_node_of_block_device(const struct sw_topo *topo, const char *name);

/* --- Decisions
 * ----------------------------------------------------------------------------------*/
/* Node for the host slabs of rank `rank` of `rank_count`, given its GPU's node (or -1: ranks are
 * dealt evenly over the nodes, neighbours together). */
int sw_topo_slab_node(const struct sw_topo *topo, int gpu_node, int rank, int rank_count);
/* CPUs, as a list "0-3,8", for the thread that drives a drive on `drive_node`: that node's, or any.
 * Free with free(). */
sw_code sw_topo_ring_cpus(const struct sw_topo *topo, int drive_node, char **out,
                          struct sw_err *err) SW_WARN_UNUSED;
/* CPUs for optimizer worker `worker` of `worker_count`, that works on slabs of `node` (-1: any):
 * cores before their second threads, and nodes in proportion to their CPUs. */
sw_code sw_topo_worker_cpus(const struct sw_topo *topo, int node, int worker, int worker_count,
                            char **out, struct sw_err *err) SW_WARN_UNUSED;
/* A worker's share: how many of `worker_count` workers belong to `node`, by its share of CPUs;
 * together they are worker_count. */
int sw_topo_node_workers(const struct sw_topo *topo, int node, int worker_count);
/* Order of GPUs over stages, so that neighbours sit under different root complexes where there is
 * a choice: `gpu_nodes[i]` is GPU i's node; out_order[s] is the GPU of stage s. */
void sw_topo_stage_order(const int *gpu_nodes, int count, int *out_order);

/* Bind memory to a node (its pages, before they are touched). A system that refuses is not an
 * error: false, and the work goes on unbound. */
bool sw_topo_bind_memory(const struct sw_topo *topo, void *memory, int64_t bytes, int node);
/* Memory that the calling thread touches first comes from `node` as long as it has some; -1: from
 * where the system thinks best, again. */
bool sw_topo_bind_allocations(const struct sw_topo *topo, int node);
/* Bind the calling thread to a list of CPUs, "0-3,8"; false when that is refused or no list. */
bool sw_topo_bind_thread(const char *cpus);

/* --- This machine's limits, without hwloc
 * ----------------------------------------------------------*/
/* NUMA nodes that are online, allowed or not; 1 where the system does not tell. */
int sw_topo_nodes_online(void);
/* Of the cgroup, the least of it and those above; -1: none. */
int64_t sw_topo_memory_limit_bytes(void);
/* The system's available memory, or less where the cgroup's limit leaves less. */
int64_t sw_topo_memory_available_bytes(void);
int64_t sw_topo_memory_total_bytes(void);
int64_t sw_topo_memlock_bytes(void); /* `ulimit -l`; -1: no limit, or privileged */
/* For tests: the limit, and what it leaves, as the files below `root`/proc and `root`/sys say. */
void sw_topo_memory_limit_under(const char *root, int64_t *limit_bytes, int64_t *left_bytes);
/* Fill a drive's directory, device, file system, rotational, memory_backed, free bytes and node;
 * rates are left 0. `topo` may be NULL. */
sw_code sw_topo_describe_drive(const struct sw_topo *topo, const char *directory,
                               struct sw_machine_drive *out, struct sw_err *err) SW_WARN_UNUSED;
/* Fill CPUs, nodes, memory and limits of `machine`; GPUs, drives and rates are left alone. */
void sw_topo_describe(const struct sw_topo *topo, struct sw_machine *machine);

#endif

/* hwloc: the only file that knows its header. */
#include "topo/topo.h"

#include "base/mem.h"
#include "base/pool.h"

#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 64 };

struct sw_topo {
    hwloc_topology_t topology;
    hwloc_bitmap_t cpus;  /* that may be used */
    hwloc_bitmap_t nodes; /* likewise */
    hwloc_obj_t node_objects[MAX_NODES];
    int node_count;
    int quota_cpus; /* 0: none */
};

static sw_code load(struct sw_topo *topo, const struct sw_topo_config *config, struct sw_err *err)
{
    if (hwloc_topology_init(&topo->topology) != 0)
        return SW_FAIL(err, SW_E_MEMORY, "hwloc has no memory for a topology");
    hwloc_topology_set_io_types_filter(topo->topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_flags(topo->topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (config->synthetic != NULL &&
        hwloc_topology_set_synthetic(topo->topology, config->synthetic) != 0)
        return SW_FAIL(err, SW_E_USAGE, "\"%s\" does not describe a topology", config->synthetic);
    if (config->xml != NULL && hwloc_topology_set_xml(topo->topology, config->xml) != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno, "cannot read the topology %s", config->xml);
    if (hwloc_topology_load(topo->topology) != 0)
        return SW_FAIL_OS(err, SW_E_FAILED, errno, "hwloc cannot tell this machine's topology");
    return SW_OK;
}

/* Cut `set` to a list of the configuration. */
static sw_code restrict_set(hwloc_bitmap_t set, const char *list, const char *what,
                            struct sw_err *err)
{
    if (list == NULL)
        return SW_OK;
    hwloc_bitmap_t wanted = hwloc_bitmap_alloc();
    sw_code code = SW_OK;
    if (wanted == NULL || hwloc_bitmap_list_sscanf(wanted, list) != 0)
        code = SW_FAIL(err, SW_E_USAGE, "\"%s\" is not a list of %s such as \"0-3,8\"", list, what);
    else
        hwloc_bitmap_and(set, set, wanted);
    hwloc_bitmap_free(wanted);
    return code;
}

/* What may be used: the cgroup's sets, the process's affinity, the configuration's lists. */
static sw_code find_usable(struct sw_topo *topo, const struct sw_topo_config *config,
                           struct sw_err *err)
{
    topo->cpus = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topo->topology));
    topo->nodes = hwloc_bitmap_dup(hwloc_topology_get_allowed_nodeset(topo->topology));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (topo->cpus == NULL || topo->nodes == NULL || bound == NULL) {
        hwloc_bitmap_free(bound);
        return SW_FAIL(err, SW_E_MEMORY, "hwloc has no memory for a set of CPUs");
    }
    if (hwloc_topology_is_thissystem(topo->topology) &&
        hwloc_get_cpubind(topo->topology, bound, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(bound, topo->cpus))
        hwloc_bitmap_and(topo->cpus, topo->cpus, bound);
    hwloc_bitmap_free(bound);
    sw_code code = restrict_set(topo->cpus, config->cpuset, "CPUs", err);
    if (code == SW_OK)
        code = restrict_set(topo->nodes, config->nodeset, "NUMA nodes", err);
    if (code == SW_OK && hwloc_bitmap_iszero(topo->cpus))
        code = SW_FAIL(err, SW_E_USAGE, "no CPU may be used");
    return code;
}

static sw_code find_nodes(struct sw_topo *topo, struct sw_err *err)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topo->topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (!hwloc_bitmap_isset(topo->nodes, node->os_index) || topo->node_count == MAX_NODES)
            continue;
        /* memory of GPUs and of expanders may show as nodes without CPUs: not for slabs */
        if (node->cpuset == NULL || hwloc_bitmap_iszero(node->cpuset))
            continue;
        topo->node_objects[topo->node_count++] = node;
    }
    if (topo->node_count == 0)
        return SW_FAIL(err, SW_E_USAGE, "no NUMA node may be used");
    return SW_OK;
}

sw_code sw_topo_open(struct sw_topo **out, const struct sw_topo_config *config, struct sw_err *err)
{
    static const struct sw_topo_config this_machine;
    if (config == NULL)
        config = &this_machine;
    struct sw_topo *topo = sw_calloc(1, sizeof *topo);
    if (topo == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a topology");
    sw_code code = load(topo, config, err);
    if (code == SW_OK)
        code = find_usable(topo, config, err);
    if (code == SW_OK)
        code = find_nodes(topo, err);
    if (code != SW_OK) {
        sw_topo_close(topo);
        return code;
    }
    topo->quota_cpus = config->cpu_quota;
    if (hwloc_topology_is_thissystem(topo->topology) && config->cpu_quota == 0)
        topo->quota_cpus = sw_cpus_available();
    *out = topo;
    return SW_OK;
}

void sw_topo_close(struct sw_topo *topo)
{
    if (topo == NULL)
        return;
    hwloc_bitmap_free(topo->cpus);
    hwloc_bitmap_free(topo->nodes);
    if (topo->topology != NULL)
        hwloc_topology_destroy(topo->topology);
    free(topo);
}

/* --- What there is
 * ---------------------------------------------------------------------------------*/

int sw_topo_node_count(const struct sw_topo *topo)
{
    return topo->node_count;
}

static hwloc_obj_t node_object(const struct sw_topo *topo, int node)
{
    sw_assert(node >= 0 && node < topo->node_count);
    return topo->node_objects[node];
}

int64_t sw_topo_node_memory_bytes(const struct sw_topo *topo, int node)
{
    return (int64_t)node_object(topo, node)->attr->numanode.local_memory;
}

int sw_topo_node_os_index(const struct sw_topo *topo, int node)
{
    return (int)node_object(topo, node)->os_index;
}

/* The usable CPUs of a node, or of all for -1. Free with hwloc_bitmap_free(). NULL: no memory. */
static hwloc_bitmap_t cpus_of(const struct sw_topo *topo, int node)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(topo->cpus);
    if (set != NULL && node >= 0)
        hwloc_bitmap_and(set, set, node_object(topo, node)->cpuset);
    return set;
}

int sw_topo_node_cpu_count(const struct sw_topo *topo, int node)
{
    hwloc_bitmap_t set = cpus_of(topo, node);
    int count = set != NULL ? hwloc_bitmap_weight(set) : 0;
    hwloc_bitmap_free(set);
    return count > 0 ? count : 0;
}

int sw_topo_cpu_count(const struct sw_topo *topo)
{
    int count = sw_topo_node_cpu_count(topo, -1);
    if (topo->quota_cpus > 0 && topo->quota_cpus < count)
        count = topo->quota_cpus;
    return count > 0 ? count : 1;
}

int sw_topo_cpu_total(const struct sw_topo *topo)
{
    return hwloc_get_nbobjs_by_type(topo->topology, HWLOC_OBJ_PU);
}

/* The usable node nearest to an I/O object: that whose CPUs the object is attached to, if that is
 * one and not all. */
static int node_near(const struct sw_topo *topo, hwloc_obj_t io)
{
    if (io == NULL || topo->node_count < 2)
        return -1;
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topo->topology, io);
    int found = -1;
    for (int i = 0; i < topo->node_count && place != NULL; i++) {
        if (!hwloc_bitmap_isset(place->nodeset, topo->node_objects[i]->os_index))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

int sw_topo_node_of_pci(const struct sw_topo *topo, const char *bus_id)
{
    return node_near(topo, hwloc_get_pcidev_by_busidstring(topo->topology, bus_id));
}

int sw_topo_node_of_block_device(const struct sw_topo *topo, const char *name)
{
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_osdev(topo->topology, device)) != NULL)
        if (device->name != NULL && strcmp(device->name, name) == 0)
            return node_near(topo, device);
    return -1;
}

/* --- Decisions
 * -------------------------------------------------------------------------------------*/

int sw_topo_slab_node(const struct sw_topo *topo, int gpu_node, int rank, int rank_count)
{
    sw_assert(rank >= 0 && rank < rank_count);
    if (gpu_node >= 0 && gpu_node < topo->node_count)
        return gpu_node;
    return (int)((int64_t)rank * topo->node_count / rank_count);
}

static sw_code list_text(hwloc_bitmap_t set, char **out, struct sw_err *err)
{
    char *text = NULL;
    if (set == NULL || hwloc_bitmap_list_asprintf(&text, set) < 0)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a list of CPUs");
    *out = text;
    return SW_OK;
}

sw_code sw_topo_ring_cpus(const struct sw_topo *topo, int drive_node, char **out,
                          struct sw_err *err)
{
    bool near = drive_node >= 0 && drive_node < topo->node_count &&
                sw_topo_node_cpu_count(topo, drive_node) > 0;
    hwloc_bitmap_t set = cpus_of(topo, near ? drive_node : -1);
    sw_code code = list_text(set, out, err);
    hwloc_bitmap_free(set);
    return code;
}

int sw_topo_node_workers(const struct sw_topo *topo, int node, int worker_count)
{
    /* Worker w stands at (w + 1/2) / worker_count of all CPUs; it belongs to the node there. */
    int64_t before = 0, mine = 0, all = 0;
    for (int i = 0; i < topo->node_count; i++) {
        int cpus = sw_topo_node_cpu_count(topo, i);
        all += cpus;
        if (i < node)
            before += cpus;
        else if (i == node)
            mine = cpus;
    }
    if (all == 0)
        return node == 0 ? worker_count : 0;
    int count = 0;
    for (int64_t w = 0; w < worker_count; w++) {
        int64_t at = (2 * w + 1) * all;
        count += at >= 2 * worker_count * before && at < 2 * worker_count * (before + mine);
    }
    return count;
}

/* The `index`-th usable CPU of a set: every core's first, then every core's second, ... -1: none.
 */
static int cpu_in_order(const struct sw_topo *topo, hwloc_bitmap_t set, int index)
{
    int depth_of_threads = 0, seen = 0;
    for (bool any = true; any; depth_of_threads++) {
        any = false;
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_covering_cpuset_by_type(topo->topology, set,
                                                                  HWLOC_OBJ_CORE, core)) != NULL) {
            int thread = 0;
            int cpu;
            hwloc_bitmap_foreach_begin(cpu, core->cpuset)
            {
                if (!hwloc_bitmap_isset(set, (unsigned)cpu) || thread++ != depth_of_threads)
                    continue;
                any = true;
                if (seen++ == index)
                    return cpu;
            }
            hwloc_bitmap_foreach_end();
        }
    }
    return -1;
}

sw_code sw_topo_worker_cpus(const struct sw_topo *topo, int node, int worker, int worker_count,
                            char **out, struct sw_err *err)
{
    sw_assert(worker >= 0 && worker < worker_count);
    for (int i = 0; node < 0 && i < topo->node_count; i++) {
        int here = sw_topo_node_workers(topo, i, worker_count);
        if (worker < here) {
            node = i;
            worker_count = here;
        } else {
            worker -= here;
        }
    }
    int cpus = node >= 0 ? sw_topo_node_cpu_count(topo, node) : 0;
    hwloc_bitmap_t set = cpus_of(topo, cpus > 0 ? node : -1);
    /* More workers than CPUs: they share all of the node's. */
    if (set != NULL && cpus > 0 && worker_count <= cpus) {
        int cpu = cpu_in_order(topo, set, worker);
        if (cpu >= 0)
            hwloc_bitmap_only(set, (unsigned)cpu);
    }
    sw_code code = list_text(set, out, err);
    hwloc_bitmap_free(set);
    return code;
}

void sw_topo_stage_order(const int *gpu_nodes, int count, int *out_order)
{
    bool taken[SW_MACHINE_MAX_GPUS] = {false};
    sw_assert(count <= SW_MACHINE_MAX_GPUS);
    int last = -2;
    for (int stage = 0; stage < count; stage++) {
        /* The node with most GPUs left, but not the last stage's: so that none is left over. */
        int best = -1, best_left = -1;
        for (int gpu = 0; gpu < count; gpu++) {
            int left = 0;
            if (taken[gpu])
                continue;
            for (int other = 0; other < count; other++)
                left += !taken[other] && gpu_nodes[other] == gpu_nodes[gpu];
            if (gpu_nodes[gpu] == last)
                left = 0;
            if (left > best_left) {
                best = gpu;
                best_left = left;
            }
        }
        sw_assert(best >= 0); /* fewer than `count` are taken */
        taken[best] = true;
        last = gpu_nodes[best];
        out_order[stage] = best;
    }
}

bool sw_topo_bind_memory(const struct sw_topo *topo, void *memory, int64_t bytes, int node)
{
    if (node < 0 || bytes <= 0 || !hwloc_topology_is_thissystem(topo->topology))
        return false;
    return hwloc_set_area_membind(topo->topology, memory, (size_t)bytes,
                                  node_object(topo, node)->nodeset, HWLOC_MEMBIND_BIND,
                                  HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_NOCPUBIND) == 0;
}

bool sw_topo_bind_allocations(const struct sw_topo *topo, int node)
{
    if (!hwloc_topology_is_thissystem(topo->topology))
        return false;
    if (node < 0)
        return hwloc_set_membind(topo->topology, topo->nodes, HWLOC_MEMBIND_DEFAULT,
                                 HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0;
    return hwloc_set_membind(topo->topology, node_object(topo, node)->nodeset, HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET |
                                 HWLOC_MEMBIND_NOCPUBIND) == 0;
}

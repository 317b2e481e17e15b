#include "train/numa.h"

#include "base/mem.h"

#include <stdlib.h>

/* The node of worker `worker`: nodes have workers in proportion to their CPUs. */
static int node_of(const struct sw_topo *topo, int64_t worker, int64_t workers)
{
    int node = 0;
    for (int64_t left = worker; node + 1 < sw_topo_node_count(topo); node++) {
        int here = sw_topo_node_workers(topo, node, (int)workers);
        if (left < here)
            break;
        left -= here;
    }
    return node;
}

/* A pool that has all the CPUs takes one a worker. A smaller one leaves the choice within a node to
 * the system: another process may have the first ones. */
static sw_code cpus_of_worker(const struct sw_topo *topo, int64_t worker, int64_t workers,
                              char **out, struct sw_err *err)
{
    if (workers >= sw_topo_node_cpu_count(topo, -1))
        return sw_topo_worker_cpus(topo, -1, (int)worker, (int)workers, out, err);
    return sw_topo_ring_cpus(topo, node_of(topo, worker, workers), out, err);
}

static sw_code place_workers(struct sw_numa *numa, int64_t workers, struct sw_err *err)
{
    sw_code code = SW_OK;
    /* The caller of a job works, too, on whatever CPU it is: worker 0 of the decision. */
    numa->worker_count = workers - 1;
    numa->worker_cpus = sw_calloc(workers, sizeof *numa->worker_cpus);
    if (numa->worker_cpus == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %lld lists of CPUs", (long long)workers);
    for (int64_t i = 0; i < numa->worker_count && code == SW_OK; i++)
        code = cpus_of_worker(numa->topo, i + 1, workers, &numa->worker_cpus[i], err);
    return code;
}

/* What is wrong with a directory is said where it is used. */
static sw_code place_rings(struct sw_numa *numa, const char *const *directories, int64_t count,
                           struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int64_t i = 0; i < count && i < SW_SPILL_MAX_DIRECTORIES && code == SW_OK; i++) {
        struct sw_machine_drive drive;
        struct sw_err ignored;
        sw_err_init(&ignored);
        if (sw_topo_describe_drive(numa->topo, directories[i], &drive, &ignored) == SW_OK &&
            drive.numa_node >= 0)
            code = sw_topo_ring_cpus(numa->topo, drive.numa_node, &numa->ring_cpus[i], err);
    }
    return code;
}

sw_code sw_numa_open(struct sw_numa *out, const struct sw_topo_config *machine, int64_t workers,
                     const char *const *directories, int64_t directory_count, const char *bus_id,
                     struct sw_err *err)
{
    *out = (struct sw_numa){.slab_node = -1};
    sw_assert(workers >= 1);
    if (machine == NULL && sw_topo_nodes_online() < 2)
        return SW_OK;
    sw_code code = sw_topo_open(&out->topo, machine, err);
    if (code == SW_OK && sw_topo_node_count(out->topo) < 2) {
        sw_numa_close(out); /* the others are forbidden */
        return SW_OK;
    }
    if (code == SW_OK)
        code = place_workers(out, workers, err);
    if (code == SW_OK)
        code = place_rings(out, directories, directory_count, err);
    if (code == SW_OK && bus_id != NULL)
        out->slab_node = sw_topo_node_of_pci(out->topo, bus_id);
    if (code != SW_OK)
        sw_numa_close(out);
    return code;
}

void sw_numa_close(struct sw_numa *numa)
{
    for (int64_t i = 0; numa->worker_cpus != NULL && i < numa->worker_count; i++)
        free(numa->worker_cpus[i]);
    free(numa->worker_cpus);
    for (int i = 0; i < SW_SPILL_MAX_DIRECTORIES; i++)
        free(numa->ring_cpus[i]);
    sw_topo_close(numa->topo);
    *numa = (struct sw_numa){.slab_node = -1};
}

void sw_numa_bind_worker(void *context, int64_t index)
{
    const struct sw_numa *numa = context;
    if (numa->topo != NULL && index >= 1 && index <= numa->worker_count)
        (void)sw_topo_bind_thread(numa->worker_cpus[index - 1]);
}

void sw_numa_bind_slabs(const struct sw_numa *numa, const char *bus_id)
{
    int node = numa->topo != NULL && bus_id != NULL ? sw_topo_node_of_pci(numa->topo, bus_id) : -1;
    if (node < 0)
        node = numa->slab_node;
    if (numa->topo != NULL && node >= 0)
        (void)sw_topo_bind_allocations(numa->topo, node);
}

void sw_numa_unbind_slabs(const struct sw_numa *numa)
{
    if (numa->topo != NULL)
        (void)sw_topo_bind_allocations(numa->topo, -1);
}

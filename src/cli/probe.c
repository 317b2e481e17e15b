#include "cli/probe.h"

#include "base/mem.h"
#include "base/pool.h"
#include "cli/rates.h"
#include "io/aio.h"
#include "io/measure.h"

#include <stdio.h>
#include <stdlib.h>

/* --- Finding out
 * -----------------------------------------------------------------------------------*/

struct progress {
    const struct sw_probe_options *options;
    const char *what;
};

static void report(void *context, double fraction)
{
    const struct progress *progress = context;
    if (progress->options->progress != NULL)
        progress->options->progress(progress->options->progress_context, progress->what, fraction);
}

static sw_code probe_drives(const struct sw_probe_options *options, const struct sw_topo *topo,
                            struct sw_machine *machine, struct sw_err *err)
{
    if (options->directory_count > SW_MACHINE_MAX_DRIVES)
        return SW_FAIL(err, SW_E_USAGE, "at most %d directories can be probed",
                       (int)SW_MACHINE_MAX_DRIVES);
    for (int i = 0; i < options->directory_count; i++) {
        struct sw_machine_drive *drive = &machine->drives[i];
        sw_code code = sw_topo_describe_drive(topo, options->directories[i], drive, err);
        if (code != SW_OK)
            return code;
        machine->drive_count = i + 1;
        if (options->file_bytes == 0)
            continue;
        struct progress progress = {options, drive->directory};
        struct sw_measure_config config = {.directory = drive->directory,
                                           .file_bytes = options->file_bytes,
                                           .max_seconds = 4,
                                           .progress = report,
                                           .progress_context = &progress};
        code = sw_measure_drive_best(&config, drive, err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

static sw_code probe_host(const struct sw_probe_options *options, struct sw_machine *machine,
                          struct sw_err *err)
{
    struct progress progress = {options, "CPUs and memory"};
    struct sw_pool *pool;
    sw_code code = sw_pool_open(&pool, machine->cpus, err);
    if (code != SW_OK)
        return code;
    report(&progress, 0);
    int64_t elements = options->host_elements;
    if (elements <= 0)
        elements = sw_rates_elements(pool, 256 << 20, machine->memory_available_bytes);
    code = sw_rates_measure(pool, elements, machine, err);
    if (code == SW_OK && options->gpus != NULL && machine->gpu_count > 0)
        code = sw_probe_shared_memory(options->gpus, pool, machine, err);
    sw_pool_close(pool);
    if (code == SW_OK)
        report(&progress, 1);
    return code;
}

sw_code sw_probe_machine(const struct sw_probe_options *options, struct sw_machine *out,
                         struct sw_err *err)
{
    struct sw_topo *topo;
    sw_machine_init(out);
    sw_code code = sw_topo_open(&topo, NULL, err);
    if (code != SW_OK)
        return code;
    sw_topo_describe(topo, out);
    out->io_uring = sw_aio_uring_check() == 0;
    code = probe_drives(options, topo, out, err);
    struct progress progress = {options, "GPUs"};
    if (code == SW_OK && options->gpus != NULL) {
        report(&progress, 0);
        code = sw_probe_gpus(options->gpus, topo, options->file_bytes > 0, out, err);
    } else if (options->why_no_gpus != NULL) {
        snprintf(out->gpu_versions, sizeof out->gpu_versions, "%s", options->why_no_gpus);
    }
    sw_topo_close(topo);
    if (code == SW_OK && options->file_bytes > 0)
        code = probe_host(options, out, err);
    return code;
}

/* --- Saying it
 * -------------------------------------------------------------------------------------*/

static double gib(int64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static void add_limit(struct sw_text *out, const char *name, int64_t bytes)
{
    if (bytes < 0)
        sw_text_add(out, ", %s none", name);
    else if (bytes < 1 << 30)
        sw_text_add(out, ", %s %.1f MiB", name, (double)bytes / (double)(1 << 20));
    else
        sw_text_add(out, ", %s %.1f GiB", name, gib(bytes));
}

static void print_gpus(const struct sw_machine *machine, struct sw_text *out)
{
    if (machine->gpu_count == 0)
        sw_text_add(out, "GPUs      none%s%s\n", machine->gpu_versions[0] != '\0' ? ": " : "",
                    machine->gpu_versions);
    for (int i = 0; i < machine->gpu_count; i++) {
        const struct sw_machine_gpu *gpu = &machine->gpus[i];
        sw_text_add(out, "%-9s %d %s, %.1f GiB", i == 0 ? "GPUs" : "", i, gpu->name,
                    gib(gpu->memory_bytes));
        if (gpu->free_bytes > 0)
            sw_text_add(out, ", %.1f GiB free for ranks", gib(gpu->free_bytes));
        if (gpu->numa_node >= 0)
            sw_text_add(out, ", node %d", gpu->numa_node);
        if (gpu->h2d_bytes_per_second > 0)
            sw_text_add(out, ", to it %.1f GB/s, from it %.1f GB/s",
                        gpu->h2d_bytes_per_second / 1e9, gpu->d2h_bytes_per_second / 1e9);
        if (gpu->both_bytes_per_second > 0)
            sw_text_add(out, ", both ways at once %.1f", gpu->both_bytes_per_second / 1e9);
        if (gpu->gemm_flops_per_second > 0)
            sw_text_add(out, ", memory %.0f GB/s, bf16 %.0f TFLOP/s",
                        gpu->memory_bytes_per_second / 1e9, gpu->gemm_flops_per_second / 1e12);
        if (machine->gpu_count > 1)
            sw_text_add(out, ", reaches %d other%s", gpu->peers, gpu->peers == 1 ? "" : "s");
        if (gpu->peer_bytes_per_second > 0)
            sw_text_add(out, " at %.1f GB/s", gpu->peer_bytes_per_second / 1e9);
        sw_text_add(out, "\n");
    }
    if (machine->gpu_count > 0 && machine->gpu_versions[0] != '\0')
        sw_text_add(out, "          %s\n", machine->gpu_versions);
}

static void print_drives(const struct sw_machine *machine, struct sw_text *out)
{
    if (machine->drive_count == 0)
        return;
    sw_text_add(out, "\n%-28s %-12s %-8s %5s %10s %9s %9s %9s %9s %5s\n", "directory", "device",
                "system", "node", "free GiB", "read MB/s", "write", "both", "request", "depth");
    for (int i = 0; i < machine->drive_count; i++) {
        const struct sw_machine_drive *drive = &machine->drives[i];
        char node[16];
        snprintf(node, sizeof node, drive->numa_node >= 0 ? "%d" : "-", drive->numa_node);
        sw_text_add(out, "%-28s %-12s %-8s %5s %10.1f", drive->directory, drive->device,
                    drive->file_system, node, gib(drive->free_bytes));
        if (drive->read_bytes_per_second > 0)
            sw_text_add(out, " %9.0f %9.0f %9.0f %6lld KiB %4d", drive->read_bytes_per_second / 1e6,
                        drive->write_bytes_per_second / 1e6, drive->both_bytes_per_second / 1e6,
                        (long long)(drive->request_bytes >> 10), drive->queue_depth);
        sw_text_add(out, "\n");
    }
}

void sw_probe_print(const struct sw_machine *machine, struct sw_text *out)
{
    struct sw_text warnings = {0};
    sw_text_add(out, "Machine   %s\n", machine->host_name);
    sw_text_add(out, "CPUs      %d of %d may be used, %d NUMA node%s\n", machine->cpus,
                machine->cpus_total, machine->numa_nodes, machine->numa_nodes == 1 ? "" : "s");
    sw_text_add(out, "Memory    %.1f GiB, %.1f available", gib(machine->memory_total_bytes),
                gib(machine->memory_available_bytes));
    add_limit(out, "cgroup limit", machine->memory_limit_bytes);
    add_limit(out, "pinning limit", machine->memlock_bytes);
    sw_text_add(out, "\nio_uring  %s\n", machine->io_uring ? "allowed" : "not allowed");
    print_gpus(machine, out);
    if (machine->triad_bytes_per_second > 0)
        sw_text_add(out,
                    "Rates     triad %.1f GB/s, memcpy %.1f GB/s, AdamW %.1f GB/s, "
                    "fp32 products %.1f GFLOP/s\n",
                    machine->triad_bytes_per_second / 1e9, machine->memcpy_bytes_per_second / 1e9,
                    machine->optimizer_bytes_per_second / 1e9,
                    machine->gemm_flops_per_second / 1e9);
    if (machine->memory_bytes_per_second > 0)
        sw_text_add(out, "          CPUs and GPUs' links at once: %.1f GB/s of host memory\n",
                    machine->memory_bytes_per_second / 1e9);
    print_drives(machine, out);
    sw_probe_warnings(machine, &warnings);
    if (warnings.used_bytes > 0) {
        sw_text_add(out, "\nWhat will hurt\n");
        sw_text_add_bytes(out, warnings.bytes, warnings.used_bytes);
    }
    out->failed = out->failed || warnings.failed;
    free(warnings.bytes);
}

void sw_probe_print_map(const struct sw_topo *topo, const struct sw_machine *machine,
                        struct sw_text *out)
{
    for (int node = 0; node < sw_topo_node_count(topo); node++) {
        char *cpus = NULL;
        if (sw_topo_node_cpu_count(topo, node) > 0 &&
            sw_topo_ring_cpus(topo, node, &cpus, NULL) != SW_OK)
            out->failed = true;
        sw_text_add(out, "Node %-4d CPUs %s, %.1f GiB", node, cpus != NULL ? cpus : "none",
                    gib(sw_topo_node_memory_bytes(topo, node)));
        free(cpus);
        for (int i = 0; i < machine->gpu_count; i++)
            if (machine->gpus[i].numa_node == node)
                sw_text_add(out, ", GPU %d", i);
        for (int i = 0; i < machine->drive_count; i++)
            if (machine->drives[i].numa_node == node)
                sw_text_add(out, ", %s", machine->drives[i].device);
        sw_text_add(out, "\n");
    }
}

static void warn_of_drive(const struct sw_machine_drive *drive, struct sw_text *out)
{
    const char *name = drive->directory;
    if (drive->memory_backed)
        sw_text_add(out,
                    "- %s is %s: what spills there stays in memory. Name a directory on a drive\n",
                    name, drive->file_system);
    double rate = drive->read_bytes_per_second;
    /* virtual disks call themselves rotational, too: one that is fast is none */
    bool spinning = drive->rotational && rate < 400e6;
    if (spinning)
        sw_text_add(out,
                    "- %s is on what the system calls a spinning disk: expect a tenth of an NVMe "
                    "drive's rate\n",
                    name);
    if (rate > 0 && !drive->direct && !drive->memory_backed)
        sw_text_add(out,
                    "- %s has no O_DIRECT: spilled data goes through the page cache, at the cost "
                    "of memory and CPU time\n",
                    name);
    if (rate > 0 && rate < 500e6 && !spinning)
        sw_text_add(out, "- %s reads %.0f MB/s: a step waits for it as soon as much is spilled\n",
                    name, rate / 1e6);
    if (drive->free_bytes < (int64_t)16 << 30)
        sw_text_add(out, "- %s has %.1f GiB free: optimizer states take 12 bytes a parameter\n",
                    name, gib(drive->free_bytes));
}

static void warn_of_gpus(const struct sw_machine *machine, struct sw_text *out)
{
    for (int i = 0; i < machine->gpu_count; i++) {
        const struct sw_machine_gpu *gpu = &machine->gpus[i];
        /* a context and its spare take about a gigabyte */
        if (gpu->free_bytes > 0 && gpu->free_bytes < gpu->memory_bytes - ((int64_t)2 << 30))
            sw_text_add(out, "- GPU %d is in use: %.1f of %.1f GiB are free for ranks\n", i,
                        gib(gpu->free_bytes), gib(gpu->memory_bytes));
        if (gpu->h2d_bytes_per_second > 0 && gpu->h2d_bytes_per_second < 10e9)
            sw_text_add(out,
                        "- GPU %d's link takes %.1f GB/s: what is in host memory comes slowly\n", i,
                        gpu->h2d_bytes_per_second / 1e9);
        if (gpu->name[0] != '\0' && gpu->free_bytes > 0 && gpu->peers + 1 < machine->gpu_count)
            sw_text_add(
                out,
                "- GPU %d reaches %d of %d other GPUs: what goes to the rest passes through "
                "host memory\n",
                i, gpu->peers, machine->gpu_count - 1);
    }
}

void sw_probe_warnings(const struct sw_machine *machine, struct sw_text *out)
{
    warn_of_gpus(machine, out);
    if (machine->gpu_count == 0)
        sw_text_add(out, "- no GPU that can be used: everything runs on the CPUs\n");
    if (machine->cpus < machine->cpus_total)
        sw_text_add(out,
                    "- %d of %d CPUs may be used (cgroup quota or affinity): the optimizer on the "
                    "host is slower by as much\n",
                    machine->cpus, machine->cpus_total);
    if (machine->memory_limit_bytes >= 0 &&
        machine->memory_limit_bytes < machine->memory_total_bytes)
        sw_text_add(out, "- the cgroup allows %.1f GiB of %.1f GiB of memory\n",
                    gib(machine->memory_limit_bytes), gib(machine->memory_total_bytes));
    if (sw_machine_host_bytes(machine) < (int64_t)8 << 30)
        sw_text_add(out, "- %.1f GiB of memory can be had: little stays off the drives\n",
                    gib(sw_machine_host_bytes(machine)));
    if (machine->memlock_bytes >= 0 && machine->memlock_bytes < (int64_t)1 << 30)
        sw_text_add(out,
                    "- `ulimit -l` lets %.1f MiB be pinned for I/O: raise it, or transfers "
                    "pin their memory one by one\n",
                    (double)machine->memlock_bytes / (double)(1 << 20));
    if (!machine->io_uring)
        sw_text_add(
            out, "- io_uring is forbidden (a container's seccomp profile, or "
                 "kernel.io_uring_disabled): threads read and write instead, at more CPU time\n");
    for (int i = 0; i < machine->drive_count; i++)
        warn_of_drive(&machine->drives[i], out);
}

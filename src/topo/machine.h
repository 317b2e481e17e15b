/* A machine as the planner sees it: sizes, limits and measured rates. `spillway probe --out FILE`
 * writes it as JSON, `spillway plan --machine FILE` reads it; docs/MACHINE.md explains the fields.
 * A rate of 0 was not measured. */
#ifndef SPILLWAY_TOPO_MACHINE_H
#define SPILLWAY_TOPO_MACHINE_H

#include "base/err.h"

#include <stdint.h>

enum { SW_MACHINE_NAME_BYTES = 256, SW_MACHINE_MAX_GPUS = 64, SW_MACHINE_MAX_DRIVES = 16 };

struct sw_machine_gpu {
    char name[SW_MACHINE_NAME_BYTES];
    int64_t memory_bytes;
    int64_t free_bytes;                                /* for ranks, when probed; 0: not known */
    int numa_node;                                     /* nearest; -1: not known */
    int peers;                                         /* GPUs whose memory it reaches directly */
    double h2d_bytes_per_second, d2h_bytes_per_second; /* pinned copies, one direction at a time */
    double both_bytes_per_second;                      /* both at once, in all */
    double peer_bytes_per_second;                      /* into it from another GPU */
    double memory_bytes_per_second;                    /* its own memory, copy: reads plus writes */
    double gemm_flops_per_second;                      /* bf16, fp32 accumulation */
};

/* A directory given for spilling, and what lies under it. */
struct sw_machine_drive {
    char directory[SW_MACHINE_NAME_BYTES];
    char device[SW_MACHINE_NAME_BYTES];      /* block device ("nvme0n1") or kind of file system */
    char file_system[SW_MACHINE_NAME_BYTES]; /* "ext4", "tmpfs", ... */
    int64_t free_bytes;
    bool rotational;
    bool memory_backed;    /* tmpfs and the like: takes the memory it should relieve */
    bool direct;           /* O_DIRECT works */
    int numa_node;         /* nearest; -1: not known */
    int64_t request_bytes; /* found best; 0: not measured */
    int queue_depth;       /* likewise */
    double read_bytes_per_second, write_bytes_per_second;
    double both_bytes_per_second; /* reads and writes in turn, in all */
    double transfer_seconds; /* that a chunk alone takes longer than its bytes at these rates */
};

struct sw_machine {
    char host_name[SW_MACHINE_NAME_BYTES];
    int cpus;       /* that this process may use: affinity, cgroup quota */
    int cpus_total; /* of the machine */
    int numa_nodes;
    int64_t memory_total_bytes;
    int64_t memory_available_bytes; /* free or freeable now */
    int64_t memory_limit_bytes;     /* cgroup; -1: none */
    int64_t memlock_bytes;          /* `ulimit -l`; -1: no limit, or privileged */
    bool io_uring;                  /* allowed to this process */

    char gpu_versions[SW_MACHINE_NAME_BYTES]; /* driver and toolkit, for people */
    int gpu_count;
    struct sw_machine_gpu gpus[SW_MACHINE_MAX_GPUS];
    int drive_count;
    struct sw_machine_drive drives[SW_MACHINE_MAX_DRIVES];

    /* Of the CPUs together. */
    double triad_bytes_per_second;     /* a = b + s c, reads plus writes */
    double optimizer_bytes_per_second; /* AdamW, fp32 states: reads plus writes */
    double memcpy_bytes_per_second;    /* reads plus writes */
    double memory_bytes_per_second;    /* by them and the GPUs' links at once, reads plus writes */
    double gemm_flops_per_second;      /* fp32 */
};

/* All zero but for what means "not known". */
void sw_machine_init(struct sw_machine *machine);
/* What the host can spend: the least of available memory and what the cgroup's limit leaves. */
int64_t sw_machine_host_bytes(const struct sw_machine *machine);
/* The machine as a JSON text; free with free(). */
sw_code sw_machine_to_json(const struct sw_machine *machine, char **out_text,
                           struct sw_err *err) SW_WARN_UNUSED;
/* `name` is for messages. SW_E_FORMAT names a key that is unknown, of a wrong type or out of range;
 * keys that are missing mean "not known" or 0, but `cpus` and `memory_total_bytes`. */
sw_code sw_machine_from_json(const char *text, int64_t bytes, const char *name,
                             struct sw_machine *out, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_machine_read(const char *path, struct sw_machine *out,
                        struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_machine_write(const char *path, const struct sw_machine *machine,
                         struct sw_err *err) SW_WARN_UNUSED;

#endif

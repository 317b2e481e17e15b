/* What `spillway probe` finds out and says. */
#ifndef SPILLWAY_CLI_PROBE_H
#define SPILLWAY_CLI_PROBE_H

#include "base/pool.h"
#include "base/text.h"
#include "kernels/device.h"
#include "topo/machine.h"
#include "topo/topo.h"

struct sw_probe_options {
    const char *const *directories; /* for spilling; may be none */
    int directory_count;
    int64_t file_bytes;    /* written to each of them to measure it; 0: rates are not measured */
    int64_t host_elements; /* floats of each array for the host's rates; 0: beyond any cache */
    const struct sw_device_ops *gpus; /* back end that has them; NULL: there are none, because */
    const char *why_no_gpus;
    /* What is under way, `fraction` (0 to 1) of it done; may be NULL. */
    void (*progress)(void *context, const char *what, double fraction);
    void *progress_context;
};

/* SW_E_USAGE for a directory that cannot be used. */
sw_code sw_probe_machine(const struct sw_probe_options *options, struct sw_machine *out,
                         struct sw_err *err) SW_WARN_UNUSED;
/* The GPUs: names, memory, nodes; with `measure` their rates too (a second each). */
sw_code sw_probe_gpus(const struct sw_device_ops *ops, const struct sw_topo *topo, bool measure,
                      struct sw_machine *out, struct sw_err *err) SW_WARN_UNUSED;
/* Host memory as CPUs and all GPUs' links ask for it at once, by rates that are in `machine`. */
sw_code sw_probe_shared_memory(const struct sw_device_ops *ops, struct sw_pool *pool,
                               struct sw_machine *machine, struct sw_err *err) SW_WARN_UNUSED;
/* Which CPUs, GPUs and drives are near which node: a line for each node. */
void sw_probe_print_map(const struct sw_topo *topo, const struct sw_machine *machine,
                        struct sw_text *out);
/* A table for a person, and below it what will hurt. */
void sw_probe_print(const struct sw_machine *machine, struct sw_text *out);
/* What will hurt, a line each; nothing when nothing will. */
void sw_probe_warnings(const struct sw_machine *machine, struct sw_text *out);

#endif

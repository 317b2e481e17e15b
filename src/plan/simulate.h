/* A program on a virtual clock: what `plan` predicts, and what the executor is measured against. */
#ifndef SPILLWAY_PLAN_SIMULATE_H
#define SPILLWAY_PLAN_SIMULATE_H

#include "plan/program.h"
#include "topo/machine.h"

/* Measured rates of the machine, per second; 0: not known. */
struct sw_plan_rates {
    bool device_is_host;         /* the device computes on the host's CPUs and memory */
    double gemm_flops;           /* of the device */
    double device_bytes;         /* of the device's memory, reads plus writes */
    double optimizer_bytes;      /* host optimizer, reads plus writes */
    double host_bytes;           /* of host memory by the CPUs (triad), reads plus writes */
    double memory_bytes;         /* of host memory by CPUs and links at once */
    double h2d_bytes, d2h_bytes; /* of one device's link */
    double both_bytes;           /* of both ways at once, in all; 0: their sum */
    double peer_bytes; /* from device to device, where they reach each other: by the links that the
                          host has to them, unless it is faster than those */
    double nvme_read_bytes, nvme_write_bytes; /* of all spill directories together */
    double nvme_both_bytes; /* of reads and writes, as many bytes of each, at once, in all; 0: as if
                               they took turns */
    double nvme_transfer_seconds; /* that an op alone takes longer; others under way hide it */
    const char *origin; /* where they are from, in words, for explain.c; NULL: nothing is said */
};

/* Of a probed machine: its first GPU as the device, or its CPUs. */
void sw_plan_rates_of_machine(const struct sw_machine *machine, bool gpu,
                              struct sw_plan_rates *out);

/* What ops share. */
enum sw_resource {
    SW_RESOURCE_DEVICE, /* the device's arithmetic; the host's CPUs where they are the device */
    SW_RESOURCE_CPU,
    SW_RESOURCE_DRAM,
    SW_RESOURCE_LINK_UP,
    SW_RESOURCE_LINK_DOWN,
    SW_RESOURCE_LINK, /* what the two ways share */
    SW_RESOURCE_DRIVES,
    SW_RESOURCES
};
const char *sw_resource_name(enum sw_resource resource);

struct sw_op_cost {
    double seconds;           /* with nobody else about */
    float load[SW_RESOURCES]; /* share of each resource that it then takes; 0 .. 1 */
    bool writes;              /* to drives, which go slower while they read, too */
    int32_t device;           /* whose arithmetic and links it uses; others have their own */
};
typedef void (*sw_op_cost_fn)(const struct sw_op *op, void *context, struct sw_op_cost *out);

struct sw_simulation {
    double makespan_seconds;
    double busy_seconds[SW_LANES];         /* an op under way, however slowly */
    double resource_seconds[SW_RESOURCES]; /* of full use: seconds times load; of the device with
                                              the most */
    double give_up_seconds; /* set before: when the makespan will be that much or more, stop there;
                               0: go on to the end */
    double *queue_seconds;  /* borrowed [queue_count], set before; as busy_seconds. NULL: not wanted
                             */
    double drives_mixing;   /* set before: of their time, what drives take longer where half of it
                               goes to reads and half to writes; less than 0: shorter */
};

/* Each lane runs its ops in order, one at a time, each as soon as its waits are over; where ops ask
 * for more than all of a resource, all that use it slow down alike. Drives take 1 + drives_mixing 4
 * r w as long while they read and write, r and w being the shares of reads and writes in what is
 * asked for: as measured where it is half and half, and not at all for one kind alone. `overlap`
 * false: one op at a time in serial order. */
sw_code sw_program_simulate(const struct sw_program *program, sw_op_cost_fn cost, void *context,
                            bool overlap, struct sw_simulation *out,
                            struct sw_err *err) SW_WARN_UNUSED;
/* The resource, or by `lane` >= 0 the lane, that is in use longest. */
enum sw_resource sw_simulation_busiest(const struct sw_simulation *simulation);

#endif

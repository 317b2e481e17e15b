/* A program: the ops of a step, a drain, an evaluation or a generation, as queues of lanes. A pure
 * function of the plan; needs no device.
 *
 * The builder emits ops in an order that would be right if they ran one after the other, and says
 * what each reads and writes. Waits follow from that: an op waits for the last writers of what it
 * reads, and for the last writers and readers of what it writes. So whatever the lanes do, every
 * op sees what it would have seen serially:
 *   I1  an op's inputs are there when its waits are over;
 *   I2  nothing is written while somebody still reads or writes it (slots included);
 *   I3  waits and lane order are acyclic: both only point back in the serial order. */
#ifndef SPILLWAY_PLAN_PROGRAM_H
#define SPILLWAY_PLAN_PROGRAM_H

#include "base/err.h"

#include <stdint.h>

enum sw_lane {
    SW_LANE_COMPUTE,
    SW_LANE_H2D,
    SW_LANE_D2H,
    SW_LANE_OPTIMIZER,
    SW_LANE_NVME_READ,
    SW_LANE_NVME_WRITE,
    SW_LANES
};
const char *sw_lane_name(enum sw_lane lane); /* "compute", "h2d", … */

enum sw_op_kind {
    SW_OP_BATCH,    /* micro-batch to the device */
    SW_OP_FORWARD,  /* block over a micro-batch */
    SW_OP_HEAD,     /* loss, and in training its gradients */
    SW_OP_BACKWARD, /* block over a micro-batch, recomputing its inside first when so planned */
    SW_OP_BIAS,     /* relative bias tables' gradients: partials of blocks added in order */
    SW_OP_PARTIALS, /* norm partials of a unit's gradient, which is complete */
    SW_OP_NORM,     /* norm, finite, clip scale */
    SW_OP_STEP,     /* optimizer step of a unit with its held gradient */
    SW_OP_DECODE_BEGIN,
    SW_OP_DECODE_CROSS, /* keys and values of the encoder output, for a decoder block */
    SW_OP_DECODE_EMBED,
    SW_OP_DECODE_BLOCK,
    SW_OP_DECODE_HEAD,
    SW_OP_KINDS
};
const char *sw_op_name(enum sw_op_kind kind);

enum { SW_OP_USES = 12 };

struct sw_op {
    enum sw_op_kind kind;
    enum sw_lane lane;
    int32_t block, unit, microbatch; /* -1: none */
    int32_t slot;                    /* of the context; -1: none */
    int32_t ordinal;                 /* position in its lane */
    int32_t waits[SW_LANES];         /* ops that each lane must have finished first; 0: none */
    /* Resources (numbers private to the builder), for tests. */
    int32_t read_count, write_count;
    int32_t reads[SW_OP_USES], writes[SW_OP_USES];
};

struct sw_program {
    const char *name;
    struct sw_op *ops; /* owned; serial order */
    int64_t op_count;
    int32_t lane_count[SW_LANES];
    int32_t *lane_ops[SW_LANES]; /* owned: indices of ops, in lane order */
    int64_t resource_count;
};

void sw_program_free(struct sw_program *program);

/* ---- building ---- */

struct sw_program_builder;

/* `resources`: numbers 0 .. resources-1 are used. */
struct sw_program_builder *sw_program_begin(const char *name, int64_t resources);
/* Add an op; it is borrowed until the next call. Failures stick until the end. */
struct sw_op *sw_program_add(struct sw_program_builder *builder, enum sw_op_kind kind,
                             enum sw_lane lane);
void sw_program_reads(struct sw_program_builder *builder, int64_t resource);
void sw_program_writes(struct sw_program_builder *builder, int64_t resource);
/* Derive waits; frees the builder in any case. */
sw_code sw_program_end(struct sw_program_builder *builder, struct sw_program **out,
                       struct sw_err *err) SW_WARN_UNUSED;

/* ---- simulation ---- */

/* Seconds that an op takes; and the resources' sharing is in that figure. */
typedef double (*sw_op_seconds_fn)(const struct sw_op *op, void *context);

struct sw_simulation {
    double makespan_seconds;
    double busy_seconds[SW_LANES];
};

/* The program on a virtual clock: each lane runs its ops in order, each as soon as its waits are
 * over. `overlap` false: one op at a time in serial order. SW_E_MEMORY only. */
sw_code sw_program_simulate(const struct sw_program *program, sw_op_seconds_fn seconds,
                            void *context, bool overlap, struct sw_simulation *out,
                            struct sw_err *err) SW_WARN_UNUSED;

#endif

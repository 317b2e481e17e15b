/* A program: the ops of a step, a drain, an evaluation or a generation, as queues of lanes. A pure
 * function of the plan; needs no device.
 *
 * The builder emits ops in an order that would be right if they ran one after the other, and says
 * what each reads, writes and adds to. Waits follow from that: an op waits for the last writers of
 * what it reads, and for the last writers and readers of what it writes; ops that add to a resource
 * (each its own part of it) wait for what came before, not for each other. So whatever the lanes
 * do, every op sees what it would have seen serially:
 *   I1  an op's inputs are there when its waits are over;
 *   I2  nothing is written while somebody still reads or writes it (slots and buffers included);
 *   I3  waits and lane order are acyclic: both only point back in the serial order. */
#ifndef SPILLWAY_PLAN_PROGRAM_H
#define SPILLWAY_PLAN_PROGRAM_H

#include "base/err.h"

#include <stdint.h>

/* Every rank has the first ones. Those from SW_LANE_OPTIMIZER on are the machine's: all ranks share
 * its processors and drives. */
enum sw_lane {
    SW_LANE_COMPUTE,
    SW_LANE_ENDS, /* embeddings, final norm and head, where there are several stages: these then do
                     not wait for the blocks of their own stage */
    SW_LANE_H2D,
    SW_LANE_D2H,
    SW_LANE_SEND,        /* to another stage */
    SW_LANE_RECV,        /* from another stage, where the devices cannot reach each other */
    SW_LANE_COLLECTIVE,  /* over the replicas of a stage; of the first of them */
    SW_LANE_STATE_UP,    /* host → stepping buffers: states of units that are stepped through the
                            device */
    SW_LANE_DEVICE_STEP, /* their steps, and those of what is at home on a device that is not the
                            host */
    SW_LANE_STATE_DOWN,  /* and back */
    SW_LANE_OPTIMIZER,
    SW_LANE_STATE_READ,  /* drives → rotating buffers: states of the window */
    SW_LANE_STATE_WRITE, /* and back */
    SW_LANE_FETCH, /* drives → host: weights and kept activations, on their way to the device */
    SW_LANE_SPILL, /* host → drives: gradients and kept activations, on their way from it */
    SW_LANES
};
const char *sw_lane_name(enum sw_lane lane); /* "compute", "h2d", … */

enum sw_op_kind {
    SW_OP_BATCH,    /* micro-batch to the device */
    SW_OP_FORWARD,  /* block over a micro-batch */
    SW_OP_HEAD,     /* loss, and in training its gradients */
    SW_OP_BACKWARD, /* block over a micro-batch, recomputing its inside first when so planned */
    SW_OP_BIAS,     /* relative bias tables' gradients: partials of blocks added in order */
    SW_OP_PARTIALS, /* norm partials of a range of a unit's gradient, which is complete */
    SW_OP_NORM,     /* norm, finite, clip scale */
    SW_OP_STEP,     /* optimizer step of a range of a unit with its held gradient */
    SW_OP_READ,     /* states of a range of a unit: drives → rotating buffer */
    SW_OP_WRITE,    /* and back */
    SW_OP_FETCH,    /* drives → staging buffer */
    SW_OP_UPLOAD,   /* host, staging or rotating buffer → device */
    SW_OP_DOWNLOAD, /* device → host, staging or rotating buffer */
    SW_OP_SPILL,    /* staging buffer → drives */
    SW_OP_SEND,     /* to rank `peer`: an activation, its gradient, partials of bias tables */
    SW_OP_RECV,     /* out of the mailbox that SEND filled */
    SW_OP_REDUCE,   /* a unit's gradient over a stage's replicas: sums, each its range or all */
    SW_OP_GATHER,   /* a unit's weights over a stage's replicas: each its range, to all */
    SW_OP_DECODE_BEGIN,
    SW_OP_DECODE_CROSS, /* keys and values of the encoder output, for a decoder block */
    SW_OP_DECODE_EMBED,
    SW_OP_DECODE_BLOCK,
    SW_OP_DECODE_HEAD,
    SW_OP_KINDS
};
const char *sw_op_name(enum sw_op_kind kind);

/* What an op that moves bytes carries. */
enum sw_cargo {
    SW_CARGO_NONE,
    SW_CARGO_WEIGHTS,
    SW_CARGO_GRADIENT,
    SW_CARGO_ACTIVATION,
    SW_CARGO_ACTIVATION_GRADIENT, /* of the target side, of the source side, or both: see sides */
    SW_CARGO_BIAS,                /* partials of the relative bias tables */
    SW_CARGO_STATES,              /* what a step through the device takes there, or brings back */
};

/* Which gradients of a micro-batch travel: bits. */
enum { SW_SIDE_TARGET = 1, SW_SIDE_SOURCE = 2 };

/* What an op does to a resource. */
enum sw_use_kind { SW_USE_READ, SW_USE_WRITE, SW_USE_ADD };
struct sw_use {
    int32_t resource; /* number private to the builder */
    enum sw_use_kind kind;
};

/* A queue that an op waits for: its first `count` ops must be done. */
struct sw_wait {
    int32_t queue, count;
};

struct sw_op {
    enum sw_op_kind kind;
    enum sw_lane lane;
    enum sw_cargo cargo;
    int32_t rank;                    /* whose memory it is about */
    int32_t peer;                    /* SEND: to; RECV: from; -1 */
    int32_t block, unit, microbatch; /* -1: none. Of an activation: the block that made it */
    /* Places; -1: none, or at home on the device. */
    int32_t context;                /* slot of the block's inside */
    int32_t weights, gradient;      /* slots of the block's own unit, or of `unit` */
    int32_t input, output, memory;  /* activation slots; memory: of the encoder output; SEND: input
                                       here, output at the peer */
    int32_t buffer;                 /* staging or rotating buffer */
    int32_t stepping;               /* stepping buffer on the device */
    int64_t first, count;           /* elements of the unit */
    int32_t phase;                  /* of Adafactor; -1: all of them */
    bool clears_own, clears_common; /* gradients of its units begin here, from zero */
    bool clears_encoder;            /* the gradient of the encoder output begins here, from zero */
    bool to_window;                 /* buffer is a rotating one, not a staging one */
    bool whole;                     /* REDUCE: every replica gets all of it */
    bool sums;                      /* REDUCE of a micro-batch's: each replica adds its range to
                                       what it has; with clears_own, that begins here */
    uint8_t sides;                  /* SW_CARGO_ACTIVATION_GRADIENT */

    int32_t ordinal; /* position in its queue */
    int64_t first_wait;
    int32_t wait_count; /* of program->waits */
    int64_t first_use;  /* of program->uses */
    int32_t use_count;
};

/* The lanes of rank r are queues r * SW_LANES + lane; those of the machine, of rank 0. */
struct sw_queue {
    int32_t *ops; /* owned: indices, in lane order */
    int32_t count;
};

struct sw_program {
    const char *name;
    struct sw_op *ops; /* owned; serial order */
    int64_t op_count;
    struct sw_wait *waits; /* owned */
    int64_t wait_count;
    struct sw_use *uses; /* owned */
    int64_t use_count;
    struct sw_queue *queues; /* owned [queue_count] */
    int32_t queue_count;
    int64_t resource_count;
};

void sw_program_free(struct sw_program *program);

static inline int32_t sw_op_queue(const struct sw_op *op)
{
    return (op->lane < SW_LANE_OPTIMIZER ? op->rank * SW_LANES : 0) + (int32_t)op->lane;
}

/* ---- building ---- */

struct sw_program_builder;

/* `resources`: numbers 0 .. resources-1 are used. `unordered`: bits of lanes whose ops may be under
 * way at the same time; those wait for ops of their own lane, too. */
struct sw_program_builder *sw_program_begin(const char *name, int32_t ranks, int64_t resources,
                                            uint32_t unordered);
/* An op with nothing set. */
struct sw_op sw_op_blank(enum sw_op_kind kind, enum sw_lane lane, int32_t rank);
/* Add an op of rank `rank`; it is borrowed until the next call. Failures stick until the end. */
struct sw_op *sw_program_add(struct sw_program_builder *builder, enum sw_op_kind kind,
                             enum sw_lane lane, int32_t rank);
/* Of the op added last. */
void sw_program_reads(struct sw_program_builder *builder, int64_t resource);
void sw_program_writes(struct sw_program_builder *builder, int64_t resource);
void sw_program_adds(struct sw_program_builder *builder, int64_t resource);
/* Derive waits; frees the builder in any case. */
sw_code sw_program_end(struct sw_program_builder *builder, struct sw_program **out,
                       struct sw_err *err) SW_WARN_UNUSED;

#endif

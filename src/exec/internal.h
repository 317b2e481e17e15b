/* What the files of the engine share. */
#ifndef SPILLWAY_EXEC_INTERNAL_H
#define SPILLWAY_EXEC_INTERNAL_H

#include "exec/engine.h"
#include "exec/executor.h"
#include "exec/store.h"
#include "kernels/comm.h"

#include <stdatomic.h>

/* One micro-batch's place: device arrays and their staging copy. */
struct sw_batch_slot {
    struct sw_microbatch view; /* what blocks get */
    char *device, *staging;    /* plan->batch_bytes each */
    int64_t used_bytes;
    int64_t first_target; /* target tokens of the batch before this one's */
    bool filled;          /* false: this step has fewer micro-batches */
};

/* Transfers of an op under way. */
struct sw_op_tickets {
    struct sw_spill_ticket tickets[SW_PARTS];
    int count;
};

/* An op that was submitted to its lane's stream: its end. */
struct sw_queued_op {
    struct sw_event *event;
    bool under_way;
};

/* What a rank computes in. */
struct sw_engine_rank {
    int32_t stage, replica;
    struct sw_device *device;
    struct sw_stream *streams[SW_LANES];   /* of lanes that use one; NULL else */
    struct sw_batch_slot *batches;         /* [microbatches] */
    int64_t batch_count;                   /* filled ones */
    void **activations;                    /* by slot */
    void *recomputed;                      /* output of a block that is run again */
    void **contexts;                       /* by slot */
    void **gradients, **encoder_gradients; /* [microbatches] */
    char **mailboxes;                      /* host memory; NULL: none */
    void *workspace, *ends_workspace;
    struct sw_model_tables tables;
    float **bias_gradients; /* [block_count] of expanded bias tables, while a block's backward runs;
                               NULL where it has none, or is on another stage */
    float **bias_partials;  /* [block_count]; on stage 0 of all blocks */
    double *loss_sum;       /* device */
    double *partials;       /* a remote device's: of the unit whose norm is taken; NULL else */
    struct sw_queued_op queued[SW_LANES][SW_EXECUTOR_DEPTH]; /* of queued lanes, by place */
};

struct sw_engine {
    struct sw_engine_config config;
    const struct sw_plan *plan;
    const struct sw_model *model;
    const struct sw_device_ops *device_ops;
    struct sw_engine_rank *ranks;   /* owned [plan->ranks] */
    struct sw_comm **replica_comms; /* owned [stages] the replicas of a stage; NULL: one of them */
    struct sw_executor *executor;
    struct sw_store store;
    struct sw_op_tickets tickets[SW_LANES][SW_EXECUTOR_DEPTH];
    double *partials;       /* [sum over units of their norm partials] */
    int64_t *partial_start; /* [unit_count] */

    /* the step in progress */
    bool training;
    bool diagnosing; /* look for the first block whose output is not finite: nonfinite_block */
    _Atomic int32_t nonfinite_block;
    float dropout;
    uint32_t dropout_key[2];
    int64_t target_tokens;
    int32_t *row_numbers; /* owned [rows of all micro-batches and replicas] */
    float *logits;        /* of the batch at hand, where HEADs write; evaluation only */
    double busy_seconds[SW_LANES];

    /* the window */
    bool held;     /* gradients wait to be applied */
    bool applying; /* the program that runs applies them */
    struct sw_gradient_norm norm;
    struct sw_optim_update update; /* of the held gradients; number: updates once applied */
    double last_end_seconds;       /* when the last step's backward ended; < 0: does not count */
    bool started, broken;
    int64_t sealed_bytes;               /* of the process, when it started */
    struct sw_spill_counters io_before; /* at the end of the last step */

    struct sw_generation *generation;
};

static inline struct sw_engine_rank *sw_engine_rank_of(const struct sw_engine *engine,
                                                       const struct sw_op *op)
{
    return &engine->ranks[op->rank];
}

static inline struct sw_stream *sw_engine_stream(const struct sw_engine *engine,
                                                 const struct sw_op *op)
{
    return engine->ranks[op->rank].streams[op->lane];
}

static inline bool sw_engine_early(const struct sw_engine *engine)
{
    return engine->config.optim != NULL && engine->config.optim->early_step;
}

/* memory.c */
sw_code sw_engine_alloc(struct sw_engine *engine, struct sw_err *err);

/* batch.c: fill the slots from rows (staging only); SW_OP_BATCH copies. */
void sw_engine_fill_batches(struct sw_engine *engine, const struct sw_batch *batch,
                            float smoothing);
void sw_engine_copy_batch(struct sw_engine *engine, const struct sw_op *op);

/* ops.c: what the executor calls. */
sw_code sw_engine_run_op(void *engine, const struct sw_op *op, struct sw_err *err);
sw_code sw_engine_start_op(void *engine, const struct sw_op *op, int place, struct sw_err *err);
sw_code sw_engine_finish_op(void *engine, const struct sw_op *op, int place, struct sw_err *err);
/* What an op works on: a block or a unit. */
const char *sw_engine_op_name(void *engine, const struct sw_op *op);

/* compute.c */
void sw_engine_forward(struct sw_engine *engine, const struct sw_op *op);
void sw_engine_head(struct sw_engine *engine, const struct sw_op *op);
void sw_engine_backward(struct sw_engine *engine, const struct sw_op *op);
void sw_engine_bias(struct sw_engine *engine, const struct sw_op *op);
/* A backward (or head) without rows: its gradients begin all the same. */
void sw_engine_begin_gradients(struct sw_engine *engine, const struct sw_op *op);
/* While diagnosing: note the block when one of its output's values [tokens, d_model] is not finite
 * and no block before it had one. Back ends whose memory cannot be read note nothing. */
void sw_engine_diagnose(struct sw_engine *engine, int32_t block, const void *output,
                        int64_t tokens);

/* moves.c */
void sw_engine_upload(struct sw_engine *engine, const struct sw_op *op);
void sw_engine_download(struct sw_engine *engine, const struct sw_op *op);
/* Between host memory and a stepping buffer. */
void sw_engine_move_states(struct sw_engine *engine, const struct sw_op *op);
/* READ, WRITE, FETCH and SPILL: start the transfers. */
void sw_engine_start_transfers(struct sw_engine *engine, const struct sw_op *op,
                               struct sw_op_tickets *tickets);

/* messages.c */
void sw_engine_send(struct sw_engine *engine, const struct sw_op *op);
void sw_engine_receive(struct sw_engine *engine, const struct sw_op *op);
sw_code sw_engine_reduce(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err);
sw_code sw_engine_gather(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err);

/* window.c */
sw_code sw_engine_partials(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err);
void sw_engine_norm(struct sw_engine *engine);
void sw_engine_step_op(struct sw_engine *engine, const struct sw_op *op);

/* Where elements [op->first, …) of a part are outside the device's stepping buffers: in the
 * rotating buffer when they pass through it, else at home. NULL: there is no such part. */
char *sw_engine_part_outside(const struct sw_engine *engine, const struct sw_op *op,
                             enum sw_part part);

/* streams.c */
sw_code sw_engine_open_streams(struct sw_engine *engine, struct sw_engine_rank *rank,
                               struct sw_err *err);
void sw_engine_close_streams(struct sw_engine *engine, struct sw_engine_rank *rank);
/* Lanes (bits) whose ops are submitted to a stream, several of them, before the first is done. */
uint32_t sw_engine_queued_lanes(void);
/* What an op submitted ends with an event; wait for that. */
void sw_engine_queue(struct sw_engine *engine, const struct sw_op *op, int place);
sw_code sw_engine_wait_queued(struct sw_engine *engine, const struct sw_op *op, int place,
                              struct sw_err *err);

/* generate.c */
sw_code sw_generation_open(struct sw_engine *engine, struct sw_err *err);
void sw_generation_close(struct sw_engine *engine);
sw_code sw_generation_run_op(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err);

#endif

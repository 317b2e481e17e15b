/* What the files of the engine share. */
#ifndef SPILLWAY_EXEC_INTERNAL_H
#define SPILLWAY_EXEC_INTERNAL_H

#include "exec/engine.h"
#include "exec/executor.h"

/* A unit's arrays; NULL where there is none. */
struct sw_unit_memory {
    void *weights;        /* device, compute dtype: what blocks read */
    float *master;        /* fp32 masters; the same array as `weights` where that is fp32 */
    uint16_t *high, *low; /* or split; `high` is `weights` where that is bf16 */
    float *gradient;      /* accumulated by blocks; zero unless held */
    void *moments[SW_OPTIM_STATES_MAX]; /* AdamW */
    float *factors;                     /* Adafactor */
    struct sw_optim_unit optim;
};

/* One micro-batch's place: device arrays and their staging copy. */
struct sw_batch_slot {
    struct sw_microbatch view; /* what blocks get */
    char *device, *staging;    /* plan->batch_bytes each */
    int64_t used_bytes;
    bool filled; /* false: this step has fewer micro-batches */
};

struct sw_engine {
    struct sw_engine_config config;
    const struct sw_plan *plan;
    const struct sw_model *model;
    const struct sw_device_ops *device_ops;
    struct sw_device *device;
    struct sw_stream *streams[SW_LANES]; /* of lanes that use one; NULL else */
    struct sw_executor *executor;
    struct sw_unit_memory *units;          /* [unit_count] */
    struct sw_optim_param *optim_params;   /* [param_count], by unit */
    struct sw_batch_slot *batches;         /* [microbatches] */
    int64_t batch_count;                   /* filled ones */
    void **activations;                    /* [slot * microbatches + m] */
    void **contexts;                       /* [context slots] */
    void **gradients, **encoder_gradients; /* [microbatches] */
    void *workspace;
    struct sw_model_tables tables;
    float *bias_gradient;   /* of the block whose backward runs */
    float **bias_partials;  /* [block_count]; NULL where a block has no bias table */
    double *loss_sum;       /* device */
    double *partials;       /* [sum over units of their norm partials] */
    int64_t *partial_start; /* [unit_count] */
    void *scratch;          /* Adafactor */

    /* the step in progress */
    bool training;
    float dropout;
    uint32_t dropout_key[2];
    double loss;
    int64_t target_tokens;
    float *logits; /* where the next HEAD writes; evaluation only */
    double busy_seconds[SW_LANES];

    /* the window */
    bool held; /* gradients wait to be applied */
    struct sw_gradient_norm norm;
    struct sw_optim_update update; /* of the held gradients; number: updates once applied */
    double last_end_seconds;       /* when the last step's backward ended; < 0: does not count */
    bool started, traced;

    struct sw_generation *generation;
};

/* memory.c */
sw_code sw_engine_alloc(struct sw_engine *engine, struct sw_err *err);

/* batch.c: fill the slots from rows (staging only); SW_OP_BATCH copies. */
void sw_engine_fill_batches(struct sw_engine *engine, const struct sw_batch *batch,
                            float smoothing);
sw_code sw_engine_copy_batch(struct sw_engine *engine, int32_t microbatch, struct sw_err *err);
int64_t sw_batch_slot_bytes(const struct sw_bounds *bounds);

/* ops.c */
sw_code sw_engine_run_op(void *engine, const struct sw_op *op, struct sw_err *err);

/* generate.c */
sw_code sw_generation_open(struct sw_engine *engine, struct sw_err *err);
void sw_generation_close(struct sw_engine *engine);
sw_code sw_generation_run_op(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err);

#endif

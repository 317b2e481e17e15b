/* A small random T5 in an engine, for tests: what to change, a few steps, what came out. */
#ifndef SPILLWAY_TESTS_ENGINE_RIG_H
#define SPILLWAY_TESTS_ENGINE_RIG_H

#include "tests/support.h"

#include "exec/engine.h"

enum { ROWS = 8, SOURCE = 12, TARGET = 9, STEPS = 3, BEAMS = 2, TOKENS = 6 /* generated */ };

struct setup {
    enum sw_purpose purpose; /* 0: training */
    int64_t micro_batch;
    int threads;
    bool recompute, serial, adafactor, split, untied, bf16, bf16_grads, bf16_moments, early;
    bool no_clipping, scale_parameter;
    bool tiny; /* one layer a side */
    float dropout;
    const char *freeze; /* NULL: nothing */
    /* Tiers; 0: auto */
    enum sw_tier params, optimizer, grads, activations;
    enum sw_step_where where;
    const struct sw_plan_rates *rates; /* of a device beside the host; NULL: none are known */
    int64_t prefetch_depth, chunk_bytes, device_memory_bytes, host_memory_bytes;
    const struct sw_aio_method *method;
    bool verify;
    struct sw_aio_fault *fault;
    const char *directory; /* to spill to; NULL: a scratch directory of the rig's own */
    /* The grid; 0: 1 */
    int pipeline, data, zero;
    enum sw_schedule schedule;
    enum sw_uploads uploads;
    bool mailbox;
    bool wide; /* units of several blocks of the optimizers' sums, so that ranges are real */
    int encoder, decoder;               /* blocks; 0: as the other settings say */
    const struct sw_device_ops *device; /* NULL: the CPU's */
    void (*near)(void *context, int32_t rank);
    bool remote; /* as on a device that the host does not reach */
};

struct rig {
    struct sw_model *model;
    struct sw_optim_settings optim;
    struct sw_plan *plan;
    struct sw_pool *pool;
    struct sw_engine *engine;
    char *directory; /* of its own, to spill to; NULL: none */
    struct sw_err err;
};

/* Rows of several lengths, of 1 and 3 target tokens among them. */
struct rows {
    int32_t ids[ROWS][SOURCE + TARGET];
    struct sw_row rows[ROWS];
    int32_t numbers[ROWS];
    struct sw_batch batch;
};

struct outcome {
    double loss[STEPS], norm[STEPS], evaluation;
    int64_t count;
    float *weights;
    int64_t state_bytes;
    char *states;
    struct sw_slot_pool slots; /* of blocks' weights */
    int64_t total_bytes[SW_TIERS];
    enum sw_tier params, optimizer, grads, activations; /* farthest homes */
    int64_t streamed;                                   /* units */
    int64_t micro_batch;                                /* as planned */
    enum sw_schedule schedule;
};

struct sw_model *make_model(bool untied);
void open_rig(struct rig *rig, const struct setup *setup);
/* The same, for what may fail on the way; rig->err then says why. */
sw_code try_open_rig(struct rig *rig, const struct setup *setup) SW_WARN_UNUSED;
/* Model and plan alone. */
sw_code try_plan_rig(struct rig *rig, const struct setup *setup) SW_WARN_UNUSED;
void close_rig(struct rig *rig);
void make_rows(struct rows *rows, int step);
float *read_all(struct rig *rig, int64_t *count);
char *read_states(struct rig *rig, int64_t *bytes);
struct outcome train(const struct setup *setup);
/* The same, for what may be refused: `err` then says why, and there is no outcome to free. */
sw_code try_train(const struct setup *setup, struct outcome *out,
                  struct sw_err *err) SW_WARN_UNUSED;
void free_outcome(struct outcome *outcome);
/* `what` names the difference when there is one. */
void assert_same_outcome(const struct outcome *a, const struct outcome *b, const char *what);
void assert_same_bits(const struct setup *a, const struct setup *b);

#endif

/* Running a plan: weights, gradients and optimizer states in their tiers; steps, drains, evaluation
 * and generation as programs over them. One engine a process; calls come from one thread.
 *
 *   open → write_param / write_state for everything → start → step … drain … evaluate … close
 *
 * A step leaves its gradients held: they are applied by the window that the next step begins with,
 * or by drain. So weights and states are those of "after step N" only once step N is drained;
 * evaluate, generate and the read functions drain first by themselves. */
#ifndef SPILLWAY_EXEC_ENGINE_H
#define SPILLWAY_EXEC_ENGINE_H

#include "data/row.h"
#include "io/spill.h"
#include "kernels/device.h"
#include "model/spec.h"
#include "optim/optim.h"
#include "plan/plan.h"

struct sw_engine;

/* What the engine borrows until it is closed. */
struct sw_engine_config {
    const struct sw_plan *plan;
    const struct sw_model *model;
    const struct sw_optim_settings *optim; /* NULL: no training, only evaluate and generate */
    const struct sw_device_ops *device;
    struct sw_pool *pool;
    const int32_t
        *devices;    /* [plan->ranks] physical device of each rank; NULL: the first for all */
    uint64_t seed;   /* of dropout */
    float dropout;   /* in training */
    float smoothing; /* label smoothing, in training */
    bool overlap;    /* lanes run at the same time; false: one op after the other */
    /* Before host memory that a rank copies from and to is allocated and first touched, on the same
     * thread: where it should lie; NULL: anywhere. Used while the engine is opened. */
    void (*near)(void *context, int32_t rank);
    void *near_context;
    /* Words to the user, when nothing has moved for minutes; may be NULL. */
    void (*note)(void *context, const char *text);
    void *note_context;
    /* Directories and settings for what the plan puts on drives; its capacity is the plan's. NULL:
     * none. Used while the engine is opened. */
    const struct sw_spill_config *spill;
};

sw_code sw_engine_open(struct sw_engine **out, const struct sw_engine_config *config,
                       struct sw_err *err) SW_WARN_UNUSED;
void sw_engine_close(struct sw_engine *engine);

/* Elements [first, first + count) of a parameter's master weights, fp32 in host memory. */
sw_code sw_engine_write_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                              const float *values, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_engine_read_param(struct sw_engine *engine, int64_t param, int64_t first, int64_t count,
                             float *values, struct sw_err *err) SW_WARN_UNUSED;

/* The optimizer's view of a parameter. */
struct sw_optim_param sw_engine_optim_param(const struct sw_param *param);

/* Optimizer states of a parameter: sw_optim_state_count() arrays, named and shaped by
 * optim/optim.h; as stored (fp32 or bf16), so that they come back bit for bit. */
sw_code sw_engine_write_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                              int64_t count, const void *values, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_engine_read_state(struct sw_engine *engine, int64_t param, int state, int64_t first,
                             int64_t count, void *values, struct sw_err *err) SW_WARN_UNUSED;

/* Everything is written: build compute weights, seal the memory, start the lanes. */
sw_code sw_engine_start(struct sw_engine *engine, struct sw_err *err) SW_WARN_UNUSED;

/* Optimizer updates applied so far: steps that were skipped do not count. Set it on resuming,
 * before the first step. */
int64_t sw_engine_updates(const struct sw_engine *engine);
void sw_engine_set_updates(struct sw_engine *engine, int64_t updates);
/* Memory of the process when the engine was started (sw_memory_process_bytes()). */
int64_t sw_engine_sealed_bytes(const struct sw_engine *engine);
/* Highest device memory of a rank so far. */
int64_t sw_engine_device_bytes(const struct sw_engine *engine, int32_t rank);
/* Bytes that went from and to drives since the engine was opened; zero without any. */
void sw_engine_io(const struct sw_engine *engine, struct sw_spill_counters *out);

struct sw_step_result {
    double loss;      /* mean over the global batch's target tokens (with smoothing) */
    double grad_norm; /* before clipping */
    bool finite;      /* false: loss or gradient is not finite, and this step changes nothing */
    int32_t nonfinite_block; /* the first block whose output was not finite; -1: all were, or the
                                back end cannot tell */
    double seconds;          /* end of the previous step's backward to the end of this one's, drains
                                excluded */
    double busy_seconds[SW_LANES]; /* of each lane, the drains since the last step included */
    int64_t nvme_read_bytes, nvme_written_bytes; /* likewise */
};

/* One optimizer step. `step` counts from 1; `lr` is its learning rate, used when its window runs.
 */
sw_code sw_engine_step(struct sw_engine *engine, int64_t step, double lr,
                       const struct sw_batch *batch, struct sw_step_result *out,
                       struct sw_err *err) SW_WARN_UNUSED;
/* Apply the held gradients. Nothing to do: SW_OK at once. */
sw_code sw_engine_drain(struct sw_engine *engine, struct sw_err *err) SW_WARN_UNUSED;
/* The held gradient of a parameter, fp32, before clipping; between step and drain. For tests. */
sw_code sw_engine_read_gradient(struct sw_engine *engine, int64_t param, int64_t first,
                                int64_t count, float *values, struct sw_err *err) SW_WARN_UNUSED;

/* Sum of the token losses (no dropout, no smoothing) over any number of rows, in micro-batches. It
 * is handed out even when it is not finite; sw_engine_nonfinite then names the block.
 * logits: NULL, or fp32 [target tokens of the batch][vocabulary] in memory of the devices'
 * host_alloc, for tests and tools. */
sw_code sw_engine_evaluate(struct sw_engine *engine, const struct sw_batch *batch, double *loss_sum,
                           int64_t *tokens, float *logits, struct sw_err *err) SW_WARN_UNUSED;

/* Generation. begin: encode `count` rows (at most the plan's generation rows); every row has
 * `beams` hypotheses, numbered row * beams + beam. step: hypothesis i goes on from hypothesis
 * parents[i] (of the same row) with token tokens[i]; log_probabilities fp32 [count * beams]
 * [vocabulary] of the next token in host memory. The first step's tokens are the start token and
 * parents[i] = i. At most the plan's generation length steps. SW_E_NONFINITE when one of them is
 * not finite. */
sw_code sw_engine_generate_begin(struct sw_engine *engine, const struct sw_row *rows, int64_t count,
                                 int64_t beams, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_engine_generate_step(struct sw_engine *engine, const int32_t *tokens,
                                const int32_t *parents, float *log_probabilities,
                                struct sw_err *err) SW_WARN_UNUSED;

/* The first block whose output was not finite in the last evaluation or generation; NULL: all were,
 * or the back end cannot tell. */
const char *sw_engine_nonfinite(const struct sw_engine *engine);

/* Trace what the lanes run, from the next call on; before start. write_trace: as a Chrome trace. */
sw_code sw_engine_trace(struct sw_engine *engine, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_engine_write_trace(struct sw_engine *engine, const char *path,
                              struct sw_err *err) SW_WARN_UNUSED;

#endif

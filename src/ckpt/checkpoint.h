/* Checkpoints: a model directory (fp32) with optimizer.safetensors and state.json in it. Everything
 * that resuming needs; written beside its place and renamed, so what bears the name is whole. */
#ifndef SPILLWAY_CKPT_CHECKPOINT_H
#define SPILLWAY_CKPT_CHECKPOINT_H

#include "ckpt/weights.h"

/* Where a run is, and what its results depend on that the planner decided. */
struct sw_run_state {
    int64_t step;            /* steps done */
    int64_t updates;         /* of them applied */
    int64_t nonfinite_steps; /* of them not applied */
    int64_t micro_batch;     /* rows */
    int64_t rows;            /* of the training data */
    int64_t global_batch;    /* rows of a step; 0: not recorded (then `compute` is not, either) */
    enum sw_dtype compute;
    int64_t pipeline, data; /* stages, replicas; 0: not recorded (then `schedule` is not, either) */
    enum sw_schedule schedule; /* SW_SCHEDULE_AUTO: not recorded */
    enum sw_optim_name optimizer;
    enum sw_dtype moments;
};

sw_code sw_checkpoint_save(struct sw_engine *engine, const struct sw_model *model,
                           const struct sw_optim_settings *optim, const char *source,
                           const char *directory, const struct sw_run_state *state,
                           const struct sw_transfer *transfer, struct sw_err *err) SW_WARN_UNUSED;

/* About the bytes of its files; a little more than they take. */
sw_code sw_checkpoint_bytes(const struct sw_model *model, const struct sw_optim_settings *optim,
                            int64_t *out, struct sw_err *err) SW_WARN_UNUSED;

/* state.json of a checkpoint. SW_E_USAGE when the directory is no checkpoint. */
sw_code sw_checkpoint_read(const char *directory, struct sw_run_state *out,
                           struct sw_err *err) SW_WARN_UNUSED;
/* Are all its files there and whole, by their headers and lengths? The text of a failure names the
 * file and gives the reason, no advice. */
sw_code sw_checkpoint_check(const char *directory, struct sw_err *err) SW_WARN_UNUSED;
/* Optimizer states into the engine. SW_E_FORMAT when they are not those of this model and
 * optimizer. */
sw_code sw_checkpoint_load_states(struct sw_engine *engine, const struct sw_model *model,
                                  const struct sw_optim_settings *optim, const char *directory,
                                  struct sw_err *err) SW_WARN_UNUSED;

#endif

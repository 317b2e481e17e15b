/* A training run under way, inside src/train: made by begin.c, driven by loop.c. */
#ifndef SPILLWAY_TRAIN_RUN_H
#define SPILLWAY_TRAIN_RUN_H

#include "ckpt/run_dir.h"
#include "data/batcher.h"
#include "train/loop.h"
#include "train/metrics.h"
#include "train/session.h"

struct sw_run {
    const struct sw_train_options *options;
    const struct sw_config *config;
    struct sw_run_dir *directory;
    char *resumed; /* checkpoint directory, or NULL */
    char *source;  /* output.dir/model: config.json and tokenizer */
    struct sw_run_state state;
    struct sw_session session;
    struct sw_dataset *rows, *eval_rows;
    struct sw_batcher *batcher;
    struct sw_metrics *metrics;
    int64_t steps, nonfinite_in_a_row;
    double begin_seconds;    /* of the loop */
    int64_t first_step_done; /* steps done before this process */
};

/* From the options to an engine that has started. Settings, paths and what does not fit are refused
 * before rows are read, everything before output.dir is made. */
sw_code sw_run_begin(struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;

#endif

/* A training run under way, inside src/train: made by begin.c, driven by loop.c. */
#ifndef SPILLWAY_TRAIN_RUN_H
#define SPILLWAY_TRAIN_RUN_H

#include "ckpt/run_dir.h"
#include "data/batcher.h"
#include "train/loop.h"
#include "train/metrics.h"
#include "train/session.h"
#include "train/space.h"

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
    struct sw_metrics *metrics, *evaluations; /* evaluations: NULL without data.eval */
    int64_t steps, nonfinite_in_a_row;
    int64_t ended_after; /* --resume auto over a run that ended and kept no checkpoint: its steps */
    bool finished;       /* there is nothing to do */
    struct sw_space space;   /* what will be written */
    double begin_seconds;    /* of the loop */
    int64_t first_step_done; /* steps done before this process */
};

/* From the options to an engine that has started. Settings, paths and what does not fit are refused
 * before rows are read, everything before output.dir is made. */
sw_code sw_run_begin(struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;

/* Has somebody asked to stop? */
bool sw_run_stop_asked(const struct sw_run *run);

/* ---- resume.c: for begin.c ---- */

/* By options->resume: run->resumed and run->state; or run->ended_after; or a fresh start. */
sw_code sw_run_find_checkpoint(struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;
/* Checkpoints of later steps than run->state.step are damaged then: rename them. */
sw_code sw_run_set_damaged_aside(const struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;
/* Once run->steps is known: run->finished. SW_E_USAGE when more is done than is asked for, or what
 * is left cannot be done. */
sw_code sw_run_check_left(struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;
/* A line for every key that is set otherwise than the run directory of run->resumed recorded. */
sw_code sw_run_note_changes(const struct sw_run *run, struct sw_err *err) SW_WARN_UNUSED;

#endif

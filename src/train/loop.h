/* The training run: rows in, steps, checkpoints, evaluation, the final model directory. */
#ifndef SPILLWAY_TRAIN_LOOP_H
#define SPILLWAY_TRAIN_LOOP_H

#include "config/config.h"
#include "kernels/device.h"

struct sw_train_options {
    const struct sw_config *config;
    const struct sw_device_ops *device;
    const char *resume; /* NULL: a new run; "auto": the newest checkpoint of output.dir, if any; or
                           a checkpoint directory */
    const char *trace;  /* NULL, or where a Chrome trace goes */
    /* Has somebody asked to stop? Asked while rows are read, after every step, and while
     * evaluating. NULL: never. */
    bool (*stop_requested)(void);
    /* Called before anything is written: from here on a stop must wait until it is asked for. NULL:
     * nobody needs to know. */
    void (*begin_writing)(void);
};

/* SW_E_STOPPED when it stopped early: with a checkpoint, or before the first step. */
sw_code sw_train(const struct sw_train_options *options, struct sw_err *err) SW_WARN_UNUSED;

#endif

/* The run directory (output.dir): config.yaml, metrics.jsonl, checkpoint-N, final. One process at a
 * time; a directory that holds a run is only continued on request. */
#ifndef SPILLWAY_CKPT_RUN_DIR_H
#define SPILLWAY_CKPT_RUN_DIR_H

#include "base/err.h"

#include <stdint.h>

struct sw_run_dir;

/* Look at `path` and, when it is there, lock it; nothing is made. SW_E_USAGE when it cannot be
 * written or made, and, `resuming` false, when it holds a run already; SW_E_FAILED when another
 * process trains in it. */
sw_code sw_run_dir_open(struct sw_run_dir **out, const char *path, bool resuming,
                        struct sw_err *err) SW_WARN_UNUSED;
/* Make and lock the directory, unless that was done; before anything is written into it. */
sw_code sw_run_dir_make(struct sw_run_dir *run, struct sw_err *err) SW_WARN_UNUSED;
void sw_run_dir_close(struct sw_run_dir *run);

/* Step of the newest checkpoint; -1: there is none. */
int64_t sw_run_dir_newest(const struct sw_run_dir *run);
/* The same of those below `step`. */
int64_t sw_run_dir_before(const struct sw_run_dir *run, int64_t step);
/* Rename a checkpoint to "checkpoint-<step>.damaged", which is none any more; *out is its new path,
 * free with free(). */
sw_code sw_run_dir_set_aside(const struct sw_run_dir *run, int64_t step, char **out,
                             struct sw_err *err) SW_WARN_UNUSED;
/* "<path>/checkpoint-<step>" and "<path>/<name>"; free with free(), NULL without memory. */
char *sw_run_dir_checkpoint(const struct sw_run_dir *run, int64_t step);
char *sw_run_dir_file(const struct sw_run_dir *run, const char *name);
/* Remove all checkpoints but the `keep` newest; 0 keeps all. */
sw_code sw_run_dir_prune(const struct sw_run_dir *run, int64_t keep,
                         struct sw_err *err) SW_WARN_UNUSED;

#endif

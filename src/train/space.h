/* Room on output.dir's file system, looked at before step 1: a run must not end with nowhere to put
 * its result. */
#ifndef SPILLWAY_TRAIN_SPACE_H
#define SPILLWAY_TRAIN_SPACE_H

#include "base/err.h"

#include <stdint.h>

struct sw_space {
    int64_t checkpoint_bytes;
    int64_t final_bytes; /* 0: none is written */
    bool final_is_fp32;  /* half as large in another output.dtype */
    int64_t saves;       /* checkpoints to come by output.save_every, that of the end included */
    int64_t keep;        /* output.keep_last; 0: all, of which one must fit */
    int64_t existing;    /* checkpoints that are there already */
    bool stops;          /* meant to stop early with a checkpoint (run.max_time) */
};

/* Bytes to come at most at once, beyond what is there: a checkpoint is whole before an old one
 * goes. */
int64_t sw_space_needed(const struct sw_space *space);
/* SW_E_FIT, with the numbers and what would help, when that is more than `free_bytes`; -1: not
 * known. `directory` is output.dir. */
sw_code sw_space_check(const struct sw_space *space, const char *directory, int64_t free_bytes,
                       struct sw_err *err) SW_WARN_UNUSED;

#endif

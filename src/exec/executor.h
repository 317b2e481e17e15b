/* Runs programs: a thread per lane, each in lane order, an op as soon as its waits are over. Nobody
 * spins: who must wait sleeps until an op that it waits for is done. */
#ifndef SPILLWAY_EXEC_EXECUTOR_H
#define SPILLWAY_EXEC_EXECUTOR_H

#include "plan/program.h"

struct sw_executor;

enum { SW_EXECUTOR_DEPTH = 4 };

struct sw_executor_config {
    /* Run one op to its end, on the thread of its lane. */
    sw_code (*run)(void *context, const struct sw_op *op, struct sw_err *err);
    /* Lanes in `deep` (bits) have up to SW_EXECUTOR_DEPTH ops under way: start begins one, finish
     * waits for its end; both in lane order. `place` (0 .. SW_EXECUTOR_DEPTH-1) is the op's alone
     * in its lane from start to finish. What was started is finished even after a failure. */
    sw_code (*start)(void *context, const struct sw_op *op, int place, struct sw_err *err);
    sw_code (*finish)(void *context, const struct sw_op *op, int place, struct sw_err *err);
    uint32_t deep;
    void *context;
    int32_t ranks;
    bool overlap; /* false: no threads; ops in serial order on the caller's */
    /* Words for when no op has ended for `stall_seconds`, and again each time that they are over:
     * what every lane is in or waits for. NULL: none. Of overlapping lanes only; on the thread that
     * called sw_executor_run(). `name`: what an op works on. */
    void (*stalled)(void *context, const char *text);
    const char *(*name)(void *context, const struct sw_op *op);
    double stall_seconds;
};

sw_code sw_executor_open(struct sw_executor **out, const struct sw_executor_config *config,
                         struct sw_err *err) SW_WARN_UNUSED;
void sw_executor_close(struct sw_executor *executor);

/* Run a program to its end. The first failure stops all lanes and is returned. Adds to
 * busy_seconds [SW_LANES] the time in which each lane had an op under way. */
sw_code sw_executor_run(struct sw_executor *executor, const struct sw_program *program,
                        double *busy_seconds, struct sw_err *err) SW_WARN_UNUSED;

/* Record what is run from now on, at most `ops` of them; sw_executor_write_trace() writes a Chrome
 * trace. Before the memory is sealed. */
sw_code sw_executor_trace(struct sw_executor *executor, int64_t ops,
                          struct sw_err *err) SW_WARN_UNUSED;
/* block_name, unit_name: of an index; for labels. */
sw_code sw_executor_write_trace(const struct sw_executor *executor, const char *path,
                                const char *(*block_name)(void *, int32_t),
                                const char *(*unit_name)(void *, int32_t), void *names,
                                struct sw_err *err) SW_WARN_UNUSED;

#endif

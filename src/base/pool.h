/* The worker pool: every thread that computes on the CPU.
 *
 * A job is a function over task indices 0 .. tasks-1. Which thread runs which task is not
 * defined, so a task writes only what is its own: results never depend on the number of threads.
 * The calling thread works too; several threads may run jobs at once and share the workers. */
#ifndef SPILLWAY_BASE_POOL_H
#define SPILLWAY_BASE_POOL_H

#include "base/err.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sw_pool;

/* Runs task `index` of a job. `worker` (0 .. sw_pool_workers()-1) is unique among the tasks of one
 * job that run at the same time: index scratch memory by it. */
typedef void (*sw_task_fn)(void *context, int64_t index, int64_t worker);

/* Start a pool of `threads` threads, the caller of sw_pool_run() counted in (so threads-1 are
 * created). threads = 0: the CPUs this process may use, by affinity mask and cgroup quota. */
sw_code sw_pool_open(struct sw_pool **out, int threads, struct sw_err *err) SW_WARN_UNUSED;
/* The same; `begin` is called on every created thread, `index` 1 .. threads-1, before it works.
 * `context` is borrowed until the pool is closed. */
sw_code sw_pool_open_with(struct sw_pool **out, int threads,
                          void (*begin)(void *context, int64_t index), void *context,
                          struct sw_err *err) SW_WARN_UNUSED;
void sw_pool_close(struct sw_pool *pool);

/* Run tasks 0 .. tasks-1 and return when all are done. Must not be called from inside a task. */
void sw_pool_run(struct sw_pool *pool, sw_task_fn task, void *context, int64_t tasks);

/* Number of threads that work on one job, its caller counted in. */
int64_t sw_pool_workers(const struct sw_pool *pool);

/* CPUs this process may use: the affinity mask, cut by the CPU quotas of its cgroup and
 * those above (v1 or v2). >= 1. */
int sw_cpus_available(void);

#ifdef __cplusplus
}
#endif
#endif

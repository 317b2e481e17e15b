/* What lanes ran and when, as a Chrome trace (chrome://tracing, ui.perfetto.dev). */
#ifndef SPILLWAY_EXEC_TRACE_H
#define SPILLWAY_EXEC_TRACE_H

#include "plan/program.h"

struct sw_trace;

struct sw_trace_names {
    const char *(*block)(void *context, int32_t block);
    const char *(*unit)(void *context, int32_t unit);
    void *context;
};

/* Room for `ops` of them; more are not recorded. */
sw_code sw_trace_open(struct sw_trace **out, int64_t ops, struct sw_err *err) SW_WARN_UNUSED;
void sw_trace_close(struct sw_trace *trace);
/* Not thread-safe. */
void sw_trace_add(struct sw_trace *trace, const struct sw_op *op, double begin, double end);
sw_code sw_trace_write(const struct sw_trace *trace, const char *path,
                       const struct sw_trace_names *names, struct sw_err *err) SW_WARN_UNUSED;

#endif

#include "exec/trace.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>

struct event {
    double begin, end;
    enum sw_op_kind kind;
    enum sw_lane lane;
    int32_t rank, block, unit, microbatch;
};

struct sw_trace {
    int64_t count, room;
    struct event events[];
};

sw_code sw_trace_open(struct sw_trace **out, int64_t ops, struct sw_err *err)
{
    struct sw_trace *trace =
        sw_calloc(1, (int64_t)(sizeof *trace + (size_t)ops * sizeof *trace->events));
    if (trace == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to trace %lld ops", (long long)ops);
    trace->room = ops;
    *out = trace;
    return SW_OK;
}

void sw_trace_close(struct sw_trace *trace)
{
    free(trace);
}

void sw_trace_add(struct sw_trace *trace, const struct sw_op *op, double begin, double end)
{
    if (trace->count == trace->room)
        return;
    trace->events[trace->count++] = (struct event){begin,    end,       op->kind, op->lane,
                                                   op->rank, op->block, op->unit, op->microbatch};
}

static void add_event(const struct event *event, double zero, const struct sw_trace_names *names,
                      struct sw_text *text)
{
    const char *what = event->block >= 0  ? names->block(names->context, event->block)
                       : event->unit >= 0 ? names->unit(names->context, event->unit)
                                          : "";
    sw_text_add(text,
                "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
                "\"name\": \"%s %s\", \"args\": {\"micro-batch\": %d}}",
                (int)event->rank, (int)event->lane, 1e6 * (event->begin - zero),
                1e6 * (event->end - event->begin), sw_op_name(event->kind), what,
                (int)event->microbatch);
}

static int32_t last_rank(const struct sw_trace *trace)
{
    int32_t last = 0;
    for (int64_t i = 0; trace != NULL && i < trace->count; i++)
        if (trace->events[i].rank > last)
            last = trace->events[i].rank;
    return last;
}

/* A rank is a process of the trace, its lanes are threads. */
static void add_names(int32_t rank, bool ends_list, struct sw_text *text)
{
    sw_text_add(text,
                "{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", "
                "\"args\": {\"name\": \"rank %d\"}},\n",
                (int)rank, (int)rank);
    for (int i = 0; i < SW_LANES; i++)
        sw_text_add(text,
                    "{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", "
                    "\"args\": {\"name\": \"%s\"}}%s\n",
                    (int)rank, i, sw_lane_name((enum sw_lane)i),
                    i + 1 < SW_LANES || !ends_list ? "," : "");
}

sw_code sw_trace_write(const struct sw_trace *trace, const char *path,
                       const struct sw_trace_names *names, struct sw_err *err)
{
    struct sw_text text = {0};
    int64_t count = trace != NULL ? trace->count : 0;
    double zero = count > 0 ? trace->events[0].begin : 0;
    sw_text_add(&text, "{\"traceEvents\": [\n");
    for (int32_t rank = 0; rank <= last_rank(trace); rank++)
        add_names(rank, rank == last_rank(trace) && count == 0, &text);
    for (int64_t i = 0; i < count; i++) {
        add_event(&trace->events[i], zero, names, &text);
        sw_text_add(&text, "%s\n", i + 1 < count ? "," : "");
    }
    sw_text_add(&text, "]}\n");
    sw_code code = sw_text_check(&text, path, err);
    if (code == SW_OK)
        code = sw_file_write_atomic(path, text.bytes, text.used_bytes, err);
    free(text.bytes);
    return code;
}

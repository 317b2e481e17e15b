#include "cli/bench_comm.h"

#include "base/pool.h"
#include "base/timing.h"
#include "cli/back_end.h"
#include "cli/measure_args.h"
#include "kernels/comm.h"

#include <stdio.h>

enum { MOST = 8, REPEATS = 5 };

/* A group of members, each with two arrays. */
struct rig {
    const struct sw_device_ops *ops;
    struct sw_pool *pool;
    int size;
    int64_t count; /* elements of an array */
    struct sw_device *devices[MOST];
    struct sw_stream *streams[MOST];
    void *arrays[MOST], *others[MOST];
    struct sw_comm *comm;
};

static void close_rig(struct rig *rig)
{
    if (rig->comm != NULL)
        rig->comm->ops->close(rig->comm);
    for (int m = 0; m < rig->size; m++) {
        if (rig->streams[m] != NULL)
            rig->ops->stream_close(rig->streams[m]);
        if (rig->devices[m] != NULL)
            rig->ops->close(rig->devices[m]);
    }
    sw_pool_close(rig->pool);
}

static sw_code open_member(struct rig *rig, int m, int32_t physical, struct sw_err *err)
{
    int64_t bytes = rig->count * (int64_t)sizeof(float);
    const struct sw_device_config config = {
        .physical_index = physical, .memory_bytes = 2 * bytes + 4096, .pool = rig->pool};
    sw_code code = rig->ops->open(&rig->devices[m], &config, err);
    if (code == SW_OK)
        code = rig->ops->stream_open(rig->devices[m], SW_STREAM_COLLECTIVE, &rig->streams[m], err);
    if (code == SW_OK)
        code = rig->ops->alloc(rig->devices[m], bytes, &rig->arrays[m], err);
    if (code == SW_OK)
        code = rig->ops->alloc(rig->devices[m], bytes, &rig->others[m], err);
    if (code != SW_OK)
        return code;
    rig->ops->zero(rig->streams[m], rig->arrays[m], bytes);
    rig->ops->zero(rig->streams[m], rig->others[m], bytes);
    return rig->ops->stream_sync(rig->streams[m], err);
}

/* A member a GPU; two where there is one GPU, or none. */
static sw_code open_rig(struct rig *rig, struct sw_err *err)
{
    int devices = 1;
    int32_t physical[MOST];
    sw_code code = sw_pool_open(&rig->pool, sw_cpus_available(), err);
    if (code == SW_OK)
        code = rig->ops->count(&devices, err);
    rig->size = devices < 2 ? 2 : devices < MOST ? devices : MOST;
    for (int m = 0; m < rig->size && code == SW_OK; m++) {
        physical[m] = m % devices;
        code = open_member(rig, m, physical[m], err);
    }
    const struct sw_comm_ops *method =
        code == SW_OK ? sw_comm_choose(rig->ops, physical, rig->size) : NULL;
    /* its sums read the others' memory */
    for (int m = 1; method == &sw_comm_local && m < rig->size && code == SW_OK; m++)
        if (rig->ops->reaches != NULL && !rig->ops->reaches(physical[0], physical[m]))
            code = SW_FAIL(err, SW_E_FAILED,
                           "bench comm: GPU %d does not reach GPU %d's memory, and there is no "
                           "NCCL; CUDA_VISIBLE_DEVICES chooses others",
                           (int)physical[0], (int)physical[m]);
    const struct sw_comm_group group = {
        .device = rig->ops, .size = rig->size, .streams = rig->streams};
    return code == SW_OK ? method->open(&rig->comm, &group, err) : code;
}

static void run_send(struct rig *rig, const struct sw_comm_range *ranges)
{
    (void)ranges;
    rig->comm->ops->send(rig->comm, 0, 1, rig->others[1], rig->arrays[0],
                         rig->count * (int64_t)sizeof(float));
}

static void run_gather(struct rig *rig, const struct sw_comm_range *ranges)
{
    const void *sources[MOST];
    for (int m = 0; m < rig->size; m++)
        sources[m] = (float *)rig->arrays[m] + ranges[m].first;
    rig->comm->ops->all_gather(rig->comm, rig->arrays, sources, ranges, (int64_t)sizeof(float));
}

static void run_broadcast(struct rig *rig, const struct sw_comm_range *ranges)
{
    (void)ranges;
    sw_comm_broadcast(rig->comm, rig->size, 0, rig->arrays, rig->count * (int64_t)sizeof(float));
}

static void run_scatter(struct rig *rig, const struct sw_comm_range *ranges)
{
    float *arrays[MOST];
    for (int m = 0; m < rig->size; m++)
        arrays[m] = rig->arrays[m];
    rig->comm->ops->reduce_scatter(rig->comm, arrays, ranges);
}

static void run_reduce(struct rig *rig, const struct sw_comm_range *ranges)
{
    float *arrays[MOST];
    (void)ranges;
    for (int m = 0; m < rig->size; m++)
        arrays[m] = rig->arrays[m];
    rig->comm->ops->all_reduce(rig->comm, arrays, rig->count);
}

/* The shortest of some times; the first one does not count. */
static sw_code time_call(struct rig *rig, void (*run)(struct rig *, const struct sw_comm_range *),
                         double *out, struct sw_err *err)
{
    struct sw_comm_range ranges[MOST];
    int64_t share = rig->count / rig->size;
    for (int m = 0; m < rig->size; m++)
        ranges[m] = (struct sw_comm_range){m * share, share};
    *out = 0;
    for (int i = 0; i <= REPEATS; i++) {
        double begin = sw_seconds_now();
        run(rig, ranges);
        sw_code code = rig->comm->ops->barrier(rig->comm, err);
        if (code != SW_OK)
            return code;
        double here = sw_seconds_now() - begin;
        if (i == 1 || (i > 1 && here < *out))
            *out = here;
    }
    return SW_OK;
}

sw_code sw_cli_bench_comm(const char *size, struct sw_err *err)
{
    static const struct {
        const char *name;
        void (*run)(struct rig *rig, const struct sw_comm_range *ranges);
    } calls[] = {{"send", run_send},
                 {"broadcast", run_broadcast},
                 {"all-gather", run_gather},
                 {"reduce-scatter", run_scatter},
                 {"all-reduce", run_reduce}};
    struct rig rig = {0};
    int64_t bytes = 0;
    const char *why;
    sw_code code = sw_cli_size("size", size, 1024, (int64_t)1 << 36, 64 << 20, &bytes, err);
    if (code == SW_OK)
        code = sw_back_end_cuda(&rig.ops, &why, err);
    if (code != SW_OK)
        return code;
    if (rig.ops == NULL)
        rig.ops = &sw_cpu_device_ops;
    rig.count = bytes / (int64_t)sizeof(float);
    code = open_rig(&rig, err);
    for (size_t i = 0; i < sizeof calls / sizeof *calls && code == SW_OK; i++) {
        double seconds;
        code = time_call(&rig, calls[i].run, &seconds, err);
        if (code == SW_OK)
            printf("%-14s %9.2f GB/s\n", calls[i].name, (double)bytes / seconds / 1e9);
    }
    if (code == SW_OK)
        printf("bytes of an array / seconds; %s, %d members on %s\n", rig.comm->ops->name, rig.size,
               rig.ops->asynchronous ? "GPUs" : "the CPU");
    close_rig(&rig);
    return code;
}

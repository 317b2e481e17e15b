/* Groups whose members can reach each other's memory. */
#include "kernels/comm.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "kernels/kernels.h"

#include <stdlib.h>

struct local {
    struct sw_comm head;
    const struct sw_device_ops *device;
    int size;
    int failed;               /* member; -1: none */
    struct sw_event **events; /* [size] */
    struct sw_stream *streams[];
};

static struct local *own(struct sw_comm *comm)
{
    return (struct local *)comm;
}

static void close_comm(struct sw_comm *handle)
{
    struct local *comm = own(handle);
    if (comm == NULL)
        return;
    for (int m = 0; comm->events != NULL && m < comm->size; m++)
        if (comm->events[m] != NULL)
            comm->device->event_close(comm->events[m]);
    free(comm->events);
    free(comm);
}

static int64_t member_bytes(int size)
{
    (void)size;
    return 0;
}

static sw_code open_comm(struct sw_comm **out, const struct sw_comm_group *group,
                         struct sw_err *err)
{
    int size = group->size;
    struct local *comm =
        sw_calloc(1, (int64_t)(sizeof *comm + (size_t)size * sizeof *comm->streams));
    if (comm == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a group of %d ranks", size);
    comm->head.ops = &sw_comm_local;
    comm->device = group->device;
    comm->size = size;
    comm->failed = -1;
    comm->events = sw_calloc(size, sizeof(struct sw_event *));
    sw_code code = comm->events != NULL
                       ? SW_OK
                       : SW_FAIL(err, SW_E_MEMORY, "no memory for a group of %d ranks", size);
    for (int m = 0; m < size && code == SW_OK; m++) {
        sw_assert(group->streams[m] != NULL);
        comm->streams[m] = group->streams[m];
        code = comm->device->event_open(comm->streams[m]->device, &comm->events[m], err);
    }
    if (code != SW_OK) {
        close_comm(&comm->head);
        return code;
    }
    *out = &comm->head;
    return SW_OK;
}

static void note_failure(struct local *comm, int member)
{
    if (comm->failed < 0 && comm->streams[member]->error.code != SW_OK)
        comm->failed = member;
}

/* What member `second` does from here on comes after what member `first` has been given. */
static void order(struct local *comm, int first, int second)
{
    if (first == second)
        return;
    note_failure(comm, second);
    note_failure(comm, first);
    comm->device->event_record(comm->events[first], comm->streams[first]);
    comm->device->event_wait(comm->events[first], comm->streams[second]);
}

/* Before and after something that one member does with everybody's memory. */
static void gather_on(struct local *comm, int member)
{
    for (int m = 0; m < comm->size; m++)
        order(comm, m, member);
}

static void release_from(struct local *comm, int member)
{
    for (int m = 0; m < comm->size; m++)
        order(comm, member, m);
}

static void send_bytes(struct sw_comm *handle, int from, int to, void *destination,
                       const void *source, int64_t bytes)
{
    struct local *comm = own(handle);
    order(comm, to, from);
    comm->device->copy(comm->streams[from], destination, source, bytes);
    order(comm, from, to);
}

/* Every member fetches what it lacks. */
static void all_gather(struct sw_comm *handle, void *const *destinations,
                       const void *const *sources, const struct sw_comm_range *ranges,
                       int64_t element_bytes)
{
    struct local *comm = own(handle);
    gather_on(comm, 0);
    release_from(comm, 0);
    for (int to = 0; to < comm->size; to++)
        for (int from = 0; from < comm->size; from++) {
            char *place = (char *)destinations[to] + ranges[from].first * element_bytes;
            if (ranges[from].count > 0 && place != sources[from])
                comm->device->copy(comm->streams[to], place, sources[from],
                                   ranges[from].count * element_bytes);
        }
    gather_on(comm, 0);
    release_from(comm, 0);
}

/* The sums are made in the first member's memory, in the order of the members. */
static void sum_on_first(struct local *comm, float *const *arrays, int64_t first, int64_t count)
{
    gather_on(comm, 0);
    for (int m = 1; m < comm->size && count > 0; m++)
        comm->device->kernels->add(comm->streams[0], arrays[0] + first, arrays[m] + first, count,
                                   SW_F32);
}

static void reduce_scatter(struct sw_comm *handle, float *const *arrays,
                           const struct sw_comm_range *ranges)
{
    struct local *comm = own(handle);
    for (int m = 0; m < comm->size; m++)
        sum_on_first(comm, arrays, ranges[m].first, ranges[m].count);
    for (int m = 1; m < comm->size; m++)
        if (ranges[m].count > 0)
            comm->device->copy(comm->streams[0], arrays[m] + ranges[m].first,
                               arrays[0] + ranges[m].first,
                               ranges[m].count * (int64_t)sizeof(float));
    release_from(comm, 0);
}

static void all_reduce(struct sw_comm *handle, float *const *arrays, int64_t count)
{
    struct local *comm = own(handle);
    sum_on_first(comm, arrays, 0, count);
    for (int m = 1; m < comm->size && count > 0; m++)
        comm->device->copy(comm->streams[0], arrays[m], arrays[0], count * (int64_t)sizeof(float));
    release_from(comm, 0);
}

static sw_code barrier(struct sw_comm *handle, struct sw_err *err)
{
    struct local *comm = own(handle);
    sw_code code = SW_OK;
    for (int m = 0; m < comm->size; m++) {
        sw_code one = comm->device->stream_sync(comm->streams[m], code == SW_OK ? err : NULL);
        code = code == SW_OK ? one : code;
        note_failure(comm, m);
    }
    return code;
}

static int failed(const struct sw_comm *handle)
{
    return ((const struct local *)handle)->failed;
}

const struct sw_comm_ops sw_comm_local = {
    .name = "local",
    .member_bytes = member_bytes,
    .open = open_comm,
    .close = close_comm,
    .send = send_bytes,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .barrier = barrier,
    .failed = failed,
};

void sw_comm_broadcast(struct sw_comm *comm, int size, int root, void *const *arrays, int64_t bytes)
{
    struct sw_comm_range ranges[SW_COMM_BROADCAST_MEMBERS] = {0};
    const void *sources[SW_COMM_BROADCAST_MEMBERS] = {0};
    sw_assert(size <= SW_COMM_BROADCAST_MEMBERS && root >= 0 && root < size);
    ranges[root].count = bytes;
    sources[root] = arrays[root];
    comm->ops->all_gather(comm, arrays, sources, ranges, 1);
}

const struct sw_comm_ops *sw_comm_choose(const struct sw_device_ops *device,
                                         const int32_t *physical, int size)
{
    const char *why;
    for (int i = 0; i < size; i++)
        for (int other = 0; other < i; other++)
            if (physical[i] == physical[other])
                return &sw_comm_local;
    const struct sw_comm_ops *own_method =
        device->comm != NULL && size > 1 ? device->comm(&why) : NULL;
    return own_method != NULL ? own_method : &sw_comm_local;
}

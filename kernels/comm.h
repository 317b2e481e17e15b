/* Communication within a group of ranks of one process: the replicas of a stage, or two stages that
 * talk. One call, by one thread, is for the whole group; it goes on when the streams of its members
 * are done with it, and failures are on those streams, as of kernels. Results do not depend on
 * timing: sums are made in the order of the members.
 *
 * `local` (below) copies and adds through the device interface: for ranks that share a device or
 * whose devices can copy to each other. */
#ifndef SPILLWAY_KERNELS_COMM_H
#define SPILLWAY_KERNELS_COMM_H

#include "kernels/device.h"

struct sw_comm;

/* Elements [first, first + count) that are a member's. */
struct sw_comm_range {
    int64_t first, count;
};

struct sw_comm_ops {
    const char *name;

    /* A group of `size` members; streams[m] carries what member m takes part in. Borrowed. */
    sw_code (*open)(struct sw_comm **out, const struct sw_device_ops *device,
                    struct sw_stream *const *streams, int size, struct sw_err *err);
    void (*close)(struct sw_comm *comm);

    /* `bytes` from member `from`'s memory to member `to`'s, on the streams of both. */
    void (*send)(struct sw_comm *comm, int from, int to, void *destination, const void *source,
                 int64_t bytes);
    /* destinations[m] of every member gets all ranges; sources[m]: the first element of member m's
     * range, which may lie in its destination already. */
    void (*all_gather)(struct sw_comm *comm, void *const *destinations, const void *const *sources,
                       const struct sw_comm_range *ranges, int64_t element_bytes);
    /* In place: member m's range becomes the sum over all members, in their order; what is outside
     * of it is undefined. Ranges do not overlap; they may be empty. */
    void (*reduce_scatter)(struct sw_comm *comm, float *const *arrays,
                           const struct sw_comm_range *ranges);
    /* In place: elements [0, count) become the sum over all members, in their order. */
    void (*all_reduce)(struct sw_comm *comm, float *const *arrays, int64_t count);
    /* `bytes` of member `root` to all. */
    void (*broadcast)(struct sw_comm *comm, int root, void *const *arrays, int64_t bytes);
    /* Wait until all members are done; the first failure of any. */
    sw_code (*barrier)(struct sw_comm *comm, struct sw_err *err);
    /* The member whose stream was seen to fail first, since a failure is soon on all of them; -1:
     * none yet. */
    int (*failed)(const struct sw_comm *comm);
};

extern const struct sw_comm_ops sw_comm_local;

#endif

/* Communication within a group of ranks, the replicas of a stage. A handle (struct sw_comm) stands
 * for those members of the group that its owner drives, which are *here*: one thread may have all
 * of them, or a thread or process each member. What an owner says of members that are not here
 * (their arrays) is not looked at, and all owners call the same functions in the same order.
 *
 * A call goes on when the streams of its members are done with it, and failures are on those
 * streams, as of kernels; only barrier() waits. Results do not depend on timing: sums are made in
 * the order of the members, so that every method has the same bits.
 *
 * `local` (below) copies and adds through the device interface: for ranks that share a device or
 * whose devices reach each other's memory, all of them here. A back end may have a method of its
 * own for members on devices of their own (struct sw_device_ops): CUDA's is `nccl`. */
#ifndef SPILLWAY_KERNELS_COMM_H
#define SPILLWAY_KERNELS_COMM_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sw_comm_ops;

/* Common head of every method's handle; methods embed it first. */
struct sw_comm {
    const struct sw_comm_ops *ops;
};

/* By which owners of a group's parts find each other. */
struct sw_comm_id {
    char bytes[128];
};

struct sw_comm_group {
    const struct sw_device_ops *device;
    int size;                         /* members, here or elsewhere */
    struct sw_stream *const *streams; /* [size], borrowed until close; NULL: that member is
                                         elsewhere. Carries what its member takes part in */
    const struct sw_comm_id *id;      /* the same for all owners; NULL: all members are here */
};

/* Elements [first, first + count) that are a member's. */
struct sw_comm_range {
    int64_t first, count;
};

struct sw_comm_ops {
    const char *name;

    /* A new id, for one owner to make and hand to the others. NULL: all members must be here. */
    sw_code (*id)(struct sw_comm_id *out, struct sw_err *err);
    /* Device memory that a member of such a group takes beside its rank's cap. */
    int64_t (*member_bytes)(int size);
    /* Returns once all owners have opened their part. */
    sw_code (*open)(struct sw_comm **out, const struct sw_comm_group *group, struct sw_err *err);
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
    /* Wait until all members have come here and those that are here are done; their first failure.
     */
    sw_code (*barrier)(struct sw_comm *comm, struct sw_err *err);
    /* The member whose stream was seen to fail first, since a failure is soon on all of them; -1:
     * none yet. */
    int (*failed)(const struct sw_comm *comm);
};

extern const struct sw_comm_ops sw_comm_local;

enum { SW_COMM_BROADCAST_MEMBERS = 64 };

/* `bytes` at arrays[root] to the arrays of all `size` members, at most SW_COMM_BROADCAST_MEMBERS:
 * an all_gather in which only the root has a range. */
void sw_comm_broadcast(struct sw_comm *comm, int size, int root, void *const *arrays,
                       int64_t bytes);

/* For a group on these physical devices: the back end's own method where no two members share one
 * and there is such a method, else `local`. */
const struct sw_comm_ops *sw_comm_choose(const struct sw_device_ops *device,
                                         const int32_t *physical, int size);

#ifdef __cplusplus
}
#endif
#endif

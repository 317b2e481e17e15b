#include "train/links.h"

#include "kernels/comm.h"

#include <stddef.h>

enum { MOST_REPLICAS = 64 };

static bool reach(const struct sw_device_ops *device, int32_t one, int32_t other)
{
    return one == other || device->reaches == NULL || device->reaches(one, other);
}

/* Activations go from stage to stage and round; the ends are on stage 0. `devices` of a pipeline.
 */
static bool pipeline_reaches(const struct sw_device_ops *device, const int32_t *devices,
                             int32_t stages)
{
    for (int32_t s = 1; s < stages; s++)
        if (!reach(device, devices[s - 1], devices[s]) || !reach(device, devices[0], devices[s]))
            return false;
    return true;
}

/* The replicas of a stage, on devices `group`. */
static sw_code find_group(struct sw_links *links, const struct sw_device_ops *device,
                          const int32_t *group, int32_t replicas, struct sw_err *err)
{
    const struct sw_comm_ops *method = sw_comm_choose(device, group, replicas);
    const char *why = NULL;
    if (method->member_bytes(replicas) > links->group_bytes)
        links->group_bytes = method->member_bytes(replicas);
    if (method != &sw_comm_local || device->comm == NULL)
        return SW_OK;
    bool missing = device->comm(&why) == NULL;
    for (int32_t d = 1; d < replicas; d++)
        for (int32_t other = 0; other < d; other++) {
            if (group[d] == group[other])
                continue;
            if (missing)
                links->without = why;
            if (!reach(device, group[other], group[d]))
                return SW_FAIL(err, SW_E_USAGE,
                               "parallel.data: GPUs %d and %d do not reach each other's memory, "
                               "and %s; devices.list or parallel.pipeline would help",
                               (int)group[other], (int)group[d],
                               missing ? why : "NCCL wants a GPU for every replica of a stage");
        }
    return SW_OK;
}

sw_code sw_links_find(struct sw_links *out, const struct sw_device_ops *device,
                      const int32_t *devices, int32_t stages, int32_t replicas, struct sw_err *err)
{
    int32_t group[MOST_REPLICAS];
    sw_code code = SW_OK;
    *out = (struct sw_links){0};
    sw_assert(replicas <= MOST_REPLICAS);
    for (int32_t d = 0; d < replicas; d++)
        out->mailbox = out->mailbox || !pipeline_reaches(device, devices + d * stages, stages);
    if (stages == 1) /* no activations; but what replicas exchange goes that way at that cost */
        out->mailbox = !pipeline_reaches(device, devices, replicas);
    for (int32_t stage = 0; stage < stages && replicas > 1 && code == SW_OK; stage++) {
        for (int32_t d = 0; d < replicas; d++)
            group[d] = devices[d * stages + stage];
        code = find_group(out, device, group, replicas, err);
    }
    return code;
}

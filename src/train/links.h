/* What the links between the devices of a grid's ranks allow. */
#ifndef SPILLWAY_TRAIN_LINKS_H
#define SPILLWAY_TRAIN_LINKS_H

#include "kernels/device.h"

struct sw_links {
    bool mailbox;        /* some that pass activations do not reach each other's memory; or, with
                            one stage, some replicas */
    int64_t group_bytes; /* of its device that a rank's group of replicas takes beside its cap */
    const char *without; /* why replicas on devices of their own copy and add like those that share
                            one; NULL: they do not */
};

/* devices [stages * replicas]: the physical device of each rank; rank = replica * stages + stage.
 * SW_E_USAGE when replicas would have to add each other's memory and cannot reach it. */
sw_code sw_links_find(struct sw_links *out, const struct sw_device_ops *device,
                      const int32_t *devices, int32_t stages, int32_t replicas,
                      struct sw_err *err) SW_WARN_UNUSED;

#endif

/* AdamW and the gradient norm on a device against the host's: the same bits. */
#ifndef SPILLWAY_TESTS_OPTIM_ON_DEVICE_H
#define SPILLWAY_TESTS_OPTIM_ON_DEVICE_H

#include "kernels/device.h"

/* Two steps of a unit that has everything in it, with every type of gradients, moments, masters and
 * copies, in one chunk and in several. The test fails when a bit differs. */
void optim_on_device_steps(const struct sw_device_ops *ops, struct sw_pool *pool);
void optim_on_device_norms(const struct sw_device_ops *ops, struct sw_pool *pool);

#endif

/* Which back end runs: the only place beside tests that names concrete ones. */
#ifndef SPILLWAY_CLI_BACK_END_H
#define SPILLWAY_CLI_BACK_END_H

#include "cli/command.h"
#include "config/config.h"
#include "kernels/device.h"

/* By devices.kind; auto takes CUDA where its module loads and a GPU is there. */
sw_code sw_back_end_choose(const struct sw_config *config, const struct sw_device_ops **out,
                           struct sw_err *err) SW_WARN_UNUSED;

/* CUDA's, or SW_OK with *out NULL and the reason when there is no GPU to use. */
sw_code sw_back_end_cuda(const struct sw_device_ops **out, const char **why,
                         struct sw_err *err) SW_WARN_UNUSED;

/* A configuration from a file (NULL: none) and --set, checked. End with sw_config_deinit(). */
sw_code sw_cli_config(const struct sw_cli_args *args, const char *path, struct sw_config *out,
                      struct sw_err *err) SW_WARN_UNUSED;

#endif

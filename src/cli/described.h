/* Planning for a machine that a file describes (--machine), which need not be this one. */
#ifndef SPILLWAY_CLI_DESCRIBED_H
#define SPILLWAY_CLI_DESCRIBED_H

#include "config/config.h"
#include "kernels/device.h"
#include "plan/plan.h"
#include "topo/machine.h"
#include "train/session.h"

/* Errors name --machine. Free with free(). */
sw_code sw_cli_machine_read(const char *path, struct sw_machine **out,
                            struct sw_err *err) SW_WARN_UNUSED;

/* What to plan for, by devices.kind: GPUs where the file names some, whether or not any is here
 * (workspaces are then as large as the CPU's kernels want them), else the CPU. Only for planning:
 * it tells of `machine`'s devices and opens none. Borrows `machine` until the process is done. */
sw_code sw_cli_machine_device(const struct sw_config *config, const struct sw_machine *machine,
                              const struct sw_device_ops **out, struct sw_err *err) SW_WARN_UNUSED;

/* A session to plan in: `path` is --machine's file, or NULL; `here`: what is planned will run on
 * this machine's own devices. *machine is the file's, NULL without one; free it after the session,
 * when there is one. */
sw_code sw_cli_planning_open(struct sw_session *session, const struct sw_config *config,
                             const char *path, bool here, struct sw_machine **machine,
                             struct sw_err *err) SW_WARN_UNUSED;

/* The machine's limits and rates in place of this one's; limits that were configured stay. The
 * request is of a session with the machine's device. */
void sw_cli_machine_use(const struct sw_machine *machine, const struct sw_config *config,
                        struct sw_plan_request *request);

#endif

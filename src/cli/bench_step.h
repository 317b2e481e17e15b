/* spillway bench step: a step as predicted, and as run. */
#ifndef SPILLWAY_CLI_BENCH_STEP_H
#define SPILLWAY_CLI_BENCH_STEP_H

#include "cli/command.h"

/* Of the arguments of sw_command_bench: second, machine, run and the --sets. */
sw_code sw_cli_bench_step(const struct sw_cli_args *args, struct sw_err *err) SW_WARN_UNUSED;

#endif

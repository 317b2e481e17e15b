/* `spillway bench comm`: what groups of ranks move between their devices. */
#ifndef SPILLWAY_CLI_BENCH_COMM_H
#define SPILLWAY_CLI_BENCH_COMM_H

#include "base/err.h"

/* Times each call of the method that replicas would take here, a member a GPU, and prints the
 * rates. `size`: of an array, as written; NULL: 64 MiB. */
sw_code sw_cli_bench_comm(const char *size, struct sw_err *err) SW_WARN_UNUSED;

#endif

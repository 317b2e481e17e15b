/* Rates of the host's CPUs and memory, measured with the code that training runs. */
#ifndef SPILLWAY_CLI_RATES_H
#define SPILLWAY_CLI_RATES_H

#include "base/pool.h"
#include "topo/machine.h"

/* Fill `machine`'s triad, optimizer, memcpy and gemm rates; about two seconds, and memory for
 * `elements` (a multiple of 64) floats four times. Rates it cannot take stay as they are. */
sw_code sw_rates_measure(struct sw_pool *pool, int64_t elements, struct sw_machine *machine,
                         struct sw_err *err) SW_WARN_UNUSED;

/* Floats of each array for sw_rates_measure(), so that the four together are beyond any cache:
 * `bytes_per_worker` of them all for every worker of the pool, since a virtual machine's CPUs have
 * more of a package's last level than it is told of; at most an eighth of what memory is available,
 * and 4 GiB. */
int64_t sw_rates_elements(const struct sw_pool *pool, int64_t bytes_per_worker,
                          int64_t available_bytes);

/* fp32 products of 1024 x 1024 matrices on the CPU back end, operations a second. */
sw_code sw_rates_measure_gemm(struct sw_pool *pool, double *out_rate,
                              struct sw_err *err) SW_WARN_UNUSED;

#endif

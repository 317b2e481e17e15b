/* Rates of the host's CPUs and memory, measured with the code that training runs. */
#ifndef SPILLWAY_CLI_RATES_H
#define SPILLWAY_CLI_RATES_H

#include "base/pool.h"
#include "topo/machine.h"

/* Fill `machine`'s triad, optimizer, memcpy and gemm rates; about two seconds, and memory for
 * `elements` (a multiple of 64) floats four times. Rates it cannot take stay as they are. */
sw_code sw_rates_measure(struct sw_pool *pool, int64_t elements, struct sw_machine *machine,
                         struct sw_err *err) SW_WARN_UNUSED;

/* fp32 products of 1024 x 1024 matrices on the CPU back end, operations a second. */
sw_code sw_rates_measure_gemm(struct sw_pool *pool, double *out_rate,
                              struct sw_err *err) SW_WARN_UNUSED;

#endif

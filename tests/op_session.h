/* Running one case on a device: memory with sentinels around every block, and what must come out.
 */
#ifndef SPILLWAY_TESTS_OP_SESSION_H
#define SPILLWAY_TESTS_OP_SESSION_H

#include "op_cases.h"

struct op_session {
    const struct sw_device_ops *ops;
    const struct sw_kernels *kernels;
    struct sw_device *device;
    struct sw_stream *stream, *up, *down;
    bool expect;
    struct op_result *result;
};

/* `count` numbers in [-size, size), the same for every run, that `dtype` can hold. Freed with the
 * session, as all that follows. */
double *op_values(struct op_session *s, int64_t count, enum sw_dtype dtype, double size);
double *op_zeros(struct op_session *s, int64_t count);
/* Device memory holding `values`; must not change. */
void *op_input(struct op_session *s, const double *values, int64_t count, enum sw_dtype dtype);
int32_t *op_indices(struct op_session *s, const int32_t *values, int64_t count);
/* Device memory to be written; holds `initial`, or NaN when that is NULL. */
void *op_output(struct op_session *s, const char *name, const double *initial, int64_t count,
                enum sw_dtype dtype);
double *op_output_double(struct op_session *s, const char *name, double initial);
void *op_workspace(struct op_session *s, int64_t bytes);
/* What the output must be, to fill in: starts as its initial value. With `expect` only. */
double *op_want(struct op_session *s, const char *name, double tolerance);

#endif

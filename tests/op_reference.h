/* The kernels' math in double, written the plainest way: what back ends are compared with. */
#ifndef SPILLWAY_TESTS_OP_REFERENCE_H
#define SPILLWAY_TESTS_OP_REFERENCE_H

#include "kernels/kernels.h"

/* A kept value's factor: 0 or 1 / (1 - p). `element`: channel or key position. */
double op_dropout_factor(const struct sw_dropout *dropout, int64_t element, int64_t position,
                         int64_t row, uint32_t c3);

void op_rmsnorm(double *y, double *rstd, const double *x, const double *w, int64_t rows,
                int64_t width, double eps);
/* dx and dw += */
void op_rmsnorm_backward(double *dx, double *dw, const double *dy, const double *x, const double *w,
                         int64_t rows, int64_t width, double eps);

double op_activation(enum sw_activation activation, double x);
double op_activation_slope(enum sw_activation activation, double x);

/* dlogits may be NULL. Returns the loss of one row. */
double op_cross_entropy(double *dlogits, const double *logits, int64_t vocabulary, int64_t label,
                        double smoothing, double gradient_scale);

/* Operands as in struct sw_attention (whose pointers are host memory here, and whose q, k, v, bias
 * are not read). */
struct op_attention {
    const struct sw_attention *shape;
    const double *q, *k, *v, *bias;
};
/* Only what rows hold is written. */
void op_attention_forward(const struct op_attention *attention, double *o, double *lse);
/* dq, dk, dv: += ; dbias (may be NULL): += */
void op_attention_backward(const struct op_attention *attention, double *dq, double *dk, double *dv,
                           double *dbias, const double *d_o);

#endif

/* The CPU's kernels: every case of the table against double, with any number of threads and any
 * lane variant the same bits; the references' gradients against differences. */
#include "kernels/cpu/lanes.h"

#include "op_cases.h"
#include "op_reference.h"
#include "optim_on_device.h"
#include "support.h"

#include <math.h>

static struct sw_pool *open_pool(int threads)
{
    struct sw_err err = {0};
    struct sw_pool *pool = NULL;
    assert_ok(sw_pool_open(&pool, threads, &err), &err);
    return pool;
}

static void cases_agree_with_double(void **state)
{
    struct sw_pool *pool = open_pool(2);
    (void)state;
    for (const struct op_case *c = op_cases; c->name != NULL; c++) {
        struct op_result result;
        op_case_run(c, &sw_cpu_device_ops, pool, true, &result);
        op_result_check(c, &result);
        op_result_free(&result);
    }
    sw_pool_close(pool);
}

static void assert_same_bits(const struct op_case *c, const struct op_result *a,
                             const struct op_result *b, const char *what)
{
    for (int i = 0; i < a->count; i++)
        if (memcmp(a->outputs[i].bits, b->outputs[i].bits, (size_t)a->outputs[i].bytes) != 0)
            fail_msg("%s: %s has other bits with %s", c->name, a->outputs[i].name, what);
}

static void threads_do_not_change_bits(void **state)
{
    static const int threads[] = {2, 3, 5};
    (void)state;
    struct sw_pool *one = open_pool(1);
    for (int i = 0; i < 3; i++) {
        struct sw_pool *several = open_pool(threads[i]);
        for (const struct op_case *c = op_cases; c->name != NULL; c++) {
            struct op_result a, b;
            op_case_run(c, &sw_cpu_device_ops, one, false, &a);
            op_case_run(c, &sw_cpu_device_ops, several, false, &b);
            assert_same_bits(c, &a, &b, "several threads");
            op_result_free(&a);
            op_result_free(&b);
        }
        sw_pool_close(several);
    }
    sw_pool_close(one);
}

static void lane_variants_do_not_change_bits(void **state)
{
    static const char *const variants[] = {"avx2", "avx512"};
    (void)state;
    const char *usual = sw_cpu_lanes()->name;
    struct sw_pool *pool = open_pool(1);
    for (int i = 0; i < 2; i++) {
        if (!sw_cpu_lanes_select(variants[i])) {
            printf("skipped: this CPU has no %s\n", variants[i]);
            continue;
        }
        for (const struct op_case *c = op_cases; c->name != NULL; c++) {
            struct op_result a, b;
            assert_true(sw_cpu_lanes_select("generic"));
            op_case_run(c, &sw_cpu_device_ops, pool, false, &a);
            assert_true(sw_cpu_lanes_select(variants[i]));
            op_case_run(c, &sw_cpu_device_ops, pool, false, &b);
            assert_same_bits(c, &a, &b, variants[i]);
            op_result_free(&a);
            op_result_free(&b);
        }
    }
    assert_true(sw_cpu_lanes_select(usual));
    sw_pool_close(pool);
}

/* The kernels of the optimizer, as src/optim uses them on a device. */
static void optimizer_kernels_have_the_hosts_bits(void **state)
{
    struct sw_pool *pool = open_pool(2);
    (void)state;
    optim_on_device_steps(&sw_cpu_device_ops, pool);
    optim_on_device_norms(&sw_cpu_device_ops, pool);
    sw_pool_close(pool);
}

static void unknown_variants_are_refused(void **state)
{
    (void)state;
    const char *usual = sw_cpu_lanes()->name;
    assert_false(sw_cpu_lanes_select("mmx"));
    assert_string_equal(sw_cpu_lanes()->name, usual);
}

/* --- The references' gradients against central differences ---------------------------------------
 *
 * A central difference with step h is off by h^2 / 6 times the third derivative plus 2^-53 / h
 * times the value: with h = 2^-17, about 1e-11 each here; 1e-8 is far above and far below any
 * mistake. */

static const double h = 0x1p-17;
static const double close_to = 1e-8;

static double pseudo_random(int i)
{
    return sin(0.7 * (double)i * (double)i + 1.3 * (double)i);
}

static void fill(double *values, int count, int seed)
{
    for (int i = 0; i < count; i++)
        values[i] = pseudo_random(i + 1000 * seed);
}

static double weighted(const double *y, const double *weights, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += y[i] * weights[i];
    return sum;
}

/* d(value) / d(x[i]) for every i must be `gradient`. */
static void assert_slopes(double (*value)(void *), void *context, double *x, int64_t count,
                          const double *gradient)
{
    for (int64_t i = 0; i < count; i++) {
        double at = x[i];
        x[i] = at + h;
        double up = value(context);
        x[i] = at - h;
        double down = value(context);
        x[i] = at;
        double slope = (up - down) / (2.0 * h);
        if (!(fabs(slope - gradient[i]) <= close_to * (1.0 + fabs(slope))))
            fail_msg("gradient %lld is %.12g, the difference says %.12g", (long long)i, gradient[i],
                     slope);
    }
}

enum { NORM_ROWS = 3, NORM_WIDTH = 5, NORM_COUNT = NORM_ROWS * NORM_WIDTH };

struct norm_case {
    double x[NORM_COUNT], w[NORM_WIDTH], dy[NORM_COUNT];
};

static double norm_value(void *context)
{
    struct norm_case *n = context;
    double y[NORM_COUNT], rstd[NORM_ROWS];
    op_rmsnorm(y, rstd, n->x, n->w, NORM_ROWS, NORM_WIDTH, 1e-3);
    return weighted(y, n->dy, NORM_COUNT);
}

static void norm_reference_is_right(void **state)
{
    struct norm_case n;
    double dx[NORM_COUNT] = {0}, dw[NORM_WIDTH] = {0};
    (void)state;
    fill(n.x, NORM_COUNT, 1);
    fill(n.w, NORM_WIDTH, 2);
    fill(n.dy, NORM_COUNT, 3);
    op_rmsnorm_backward(dx, dw, n.dy, n.x, n.w, NORM_ROWS, NORM_WIDTH, 1e-3);
    assert_slopes(norm_value, &n, n.x, NORM_COUNT, dx);
    assert_slopes(norm_value, &n, n.w, NORM_WIDTH, dw);
}

static void activation_references_are_right(void **state)
{
    static const enum sw_activation kinds[] = {SW_ACT_RELU, SW_ACT_GELU_TANH, SW_ACT_GELU_ERF,
                                               SW_ACT_SILU};
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < 22; i++) {
            double x = -4.0 + 0.37 * i;
            double slope =
                (op_activation(kinds[kind], x + h) - op_activation(kinds[kind], x - h)) / (2.0 * h);
            assert_true(fabs(slope - op_activation_slope(kinds[kind], x)) <= close_to);
        }
}

enum { VOCABULARY = 9 };

static double loss_value(void *context)
{
    return 0.5 * op_cross_entropy(NULL, context, VOCABULARY, 4, 0.1, 0.5);
}

static void loss_reference_is_right(void **state)
{
    double logits[VOCABULARY], gradient[VOCABULARY];
    (void)state;
    fill(logits, VOCABULARY, 4);
    (void)op_cross_entropy(gradient, logits, VOCABULARY, 4, 0.1, 0.5);
    assert_slopes(loss_value, logits, logits, VOCABULARY, gradient);
}

enum { HEADS = 2, HEAD_DIM = 3, WIDTH = HEADS * HEAD_DIM, TOKENS = 9, REACH = 5 };
enum { COUNT = TOKENS * WIDTH, BIASES = HEADS * (2 * REACH - 1) };

struct attention_case {
    struct sw_attention shape;
    double q[COUNT], k[COUNT], v[COUNT], bias[BIASES], d_o[COUNT];
};

static double attention_value(void *context)
{
    struct attention_case *a = context;
    const struct op_attention math = {&a->shape, a->q, a->k, a->v, a->bias};
    double o[COUNT] = {0}, lse[HEADS * TOKENS];
    op_attention_forward(&math, o, lse);
    return weighted(o, a->d_o, COUNT);
}

static void check_attention_reference(bool causal, float p)
{
    static const int32_t starts[] = {0, 5}, lengths[] = {5, 4}, rows[] = {9, 2};
    const struct sw_rows layout = {
        .count = 2, .tokens = TOKENS, .longest = 5, .starts = starts, .lengths = lengths};
    struct attention_case a = {.shape = {.heads = HEADS,
                                         .head_dim = HEAD_DIM,
                                         .scale = 0.75f,
                                         .causal = causal,
                                         .queries = layout,
                                         .keys = layout,
                                         .q_stride = WIDTH,
                                         .kv_stride = WIDTH,
                                         .o_stride = WIDTH,
                                         .bias_reach = REACH,
                                         .dropout = {.p = p, .key = {1, 2}, .global_rows = rows}}};
    const struct op_attention math = {&a.shape, a.q, a.k, a.v, a.bias};
    double dq[COUNT] = {0}, dk[COUNT] = {0}, dv[COUNT] = {0}, dbias[BIASES] = {0};
    fill(a.q, COUNT, 5);
    fill(a.k, COUNT, 6);
    fill(a.v, COUNT, 7);
    fill(a.bias, BIASES, 8);
    fill(a.d_o, COUNT, 9);
    op_attention_backward(&math, dq, dk, dv, dbias, a.d_o);
    assert_slopes(attention_value, &a, a.q, COUNT, dq);
    assert_slopes(attention_value, &a, a.k, COUNT, dk);
    assert_slopes(attention_value, &a, a.v, COUNT, dv);
    assert_slopes(attention_value, &a, a.bias, BIASES, dbias);
}

static void attention_reference_is_right(void **state)
{
    (void)state;
    check_attention_reference(false, 0.0f);
    check_attention_reference(true, 0.0f);
    check_attention_reference(false, 0.4f);
    check_attention_reference(true, 0.4f);
}

/* --- Values that are not numbers -----------------------------------------------------------------
 */

/* A NaN among the logits must reach the loss, or the step would not be skipped. */
static void nan_reaches_the_loss(void **state)
{
    (void)state;
    for (int at = 0; at < 40; at++) {
        float logits[40] = {0}, d[40], loss;
        const struct sw_cross_entropy entropy = {
            .rows = 1, .vocabulary = 40, .gradient_scale = 1.0f};
        logits[at] = NAN;
        loss = sw_cpu_lanes()->cross_entropy(&entropy, d, SW_F32, logits, 3);
        assert_true(loss != loss);
        logits[at] = INFINITY;
        loss = sw_cpu_lanes()->cross_entropy(&entropy, d, SW_F32, logits, 3);
        assert_true(!(fabsf(loss) < INFINITY));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_reference_is_right),
        cmocka_unit_test(activation_references_are_right),
        cmocka_unit_test(loss_reference_is_right),
        cmocka_unit_test(attention_reference_is_right),
        cmocka_unit_test(cases_agree_with_double),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(lane_variants_do_not_change_bits),
        cmocka_unit_test(optimizer_kernels_have_the_hosts_bits),
        cmocka_unit_test(unknown_variants_are_refused),
        cmocka_unit_test(nan_reaches_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

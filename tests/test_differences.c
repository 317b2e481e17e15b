/* Backward kernels of the CPU against central differences of its own forward kernels: what is not
 * compared with a reference of its own in test_kernels. */
#include "tests/support.h"

#include "kernels/kernels.h"

#include <math.h>

enum { VALUES = 256 };

/* One op: y of x, and x's gradient for the value sum of y weights. */
struct op {
    const char *name;
    struct sw_stream *stream;
    float x[VALUES], y[VALUES], weights[VALUES], gradient[VALUES];
    int inputs, outputs;
    void (*forward)(struct op *);
    void (*backward)(struct op *);
    const void *shape;
};

static const struct sw_kernels *const kernels = &sw_cpu_kernels;

/* A step of 2^-6 makes the difference off by h^2 / 6 times the third derivative, which is below 2
 * here times the 4 of a gate: 3e-4. fp32 rounds outputs below 16 by 2^-21, which 2 h divides: 2e-5
 * times a weight. So 5e-4, of values that are about 1. */
static const float h = 0x1p-6f;
static const double close_to = 5e-4;

static double value_of(struct op *op)
{
    struct sw_err err = {0};
    double sum = 0.0;
    op->forward(op);
    assert_ok(sw_cpu_device_ops.stream_sync(op->stream, &err), &err);
    for (int i = 0; i < op->outputs; i++)
        sum += (double)op->y[i] * (double)op->weights[i];
    return sum;
}

static void check(struct op *op)
{
    struct sw_err err = {0};
    int different = 0;
    for (int i = 0; i < op->inputs; i++) {
        double whole = 3.0 * sin(0.7 * i * i + 1.3 * i); /* no kink nearer than h */
        op->x[i] = (float)(whole + (whole < 0.0 ? -0.05 : 0.05));
        op->gradient[i] = 0.0f;
    }
    for (int i = 0; i < op->outputs; i++)
        op->weights[i] = (float)cos(1.9 * i + 0.2 * i * i);
    op->backward(op);
    assert_ok(sw_cpu_device_ops.stream_sync(op->stream, &err), &err);
    for (int i = 0; i < op->inputs; i++) {
        float at = op->x[i], up = at + h, down = at - h;
        op->x[i] = up;
        double above = value_of(op);
        op->x[i] = down;
        double below = value_of(op);
        op->x[i] = at;
        double slope = (above - below) / ((double)up - (double)down);
        if (!(fabs(slope - (double)op->gradient[i]) <= close_to * (1.0 + fabs(slope))))
            fail_msg("%s: gradient %d is %.9g, the difference says %.9g", op->name, i,
                     (double)op->gradient[i], slope);
        different += fabs(slope) > close_to;
    }
    assert_true(4 * different > op->inputs); /* relu and dropout leave that much to see */
}

/* ---- rows with dropout: 3 and 2 tokens of two rows ---- */

static const int32_t starts[] = {0, 3}, lengths[] = {3, 2}, row_of_token[] = {0, 0, 0, 1, 1};
static const int32_t global_rows[] = {5, 2};
static const struct sw_rows layout = {.count = 2,
                                      .tokens = 5,
                                      .longest = 3,
                                      .starts = starts,
                                      .lengths = lengths,
                                      .row_of_token = row_of_token};

static struct sw_dropout dropout_of(float p)
{
    return (struct sw_dropout){.p = p, .key = {3, 4}, .site = 9, .global_rows = global_rows};
}

static void ffn_forward(struct op *op)
{
    kernels->ffn_forward(op->stream, op->shape, op->y, op->x);
}

static void ffn_backward(struct op *op)
{
    kernels->ffn_backward(op->stream, op->shape, op->gradient, op->weights, op->x);
}

static void feed_forward(void **state)
{
    static const struct {
        const char *name;
        enum sw_activation activation;
    } kinds[] = {{"relu", SW_ACT_RELU},
                 {"gelu tanh", SW_ACT_GELU_TANH},
                 {"gelu erf", SW_ACT_GELU_ERF},
                 {"silu", SW_ACT_SILU}};
    enum { WIDTH = 19 }; /* a vector and a rest */
    for (int i = 0; i < 16; i++) {
        const bool gated = i / 4 % 2 != 0;
        const struct sw_ffn shape = {.rows = layout.tokens,
                                     .width = WIDTH,
                                     .gated = gated,
                                     .activation = kinds[i % 4].activation,
                                     .dropout = dropout_of(i / 8 != 0 ? 0.3f : 0.0f),
                                     .layout = &layout};
        struct op op = {.name = kinds[i % 4].name,
                        .stream = *state,
                        .inputs = (int)layout.tokens * WIDTH * (gated ? 2 : 1),
                        .outputs = (int)layout.tokens * WIDTH,
                        .forward = ffn_forward,
                        .backward = ffn_backward,
                        .shape = &shape};
        check(&op);
    }
}

/* y = x + dropout(r), with r the input. */
enum { RESIDUAL_WIDTH = 21 };

static void residual_forward(struct op *op)
{
    float x[VALUES];
    for (int i = 0; i < op->outputs; i++)
        x[i] = (float)i * 0.125f;
    kernels->residual_forward(op->stream, op->y, x, op->x, RESIDUAL_WIDTH, &layout, op->shape,
                              SW_F32);
}

static void residual_backward(struct op *op)
{
    kernels->residual_backward(op->stream, op->gradient, op->weights, RESIDUAL_WIDTH, &layout,
                               op->shape, SW_F32);
}

static void residual(void **state)
{
    for (int i = 0; i < 2; i++) {
        const struct sw_dropout dropout = dropout_of(i == 0 ? 0.0f : 0.25f);
        struct op op = {.name = "residual",
                        .stream = *state,
                        .inputs = (int)layout.tokens * RESIDUAL_WIDTH,
                        .outputs = (int)layout.tokens * RESIDUAL_WIDTH,
                        .forward = residual_forward,
                        .backward = residual_backward,
                        .shape = &dropout};
        check(&op);
    }
}

/* ---- tables ---- */

enum { BUCKETS = 6, BIAS_HEADS = 3, REACH = 9, ENTRIES = 2 * REACH - 1 };
static const int32_t bucket_of[ENTRIES] = {2, 2, 2, 2, 1, 1, 0, 0, 0, 3, 4, 4, 5, 5, 5, 5, 5};

static void bias_forward(struct op *op)
{
    kernels->bias_expand(op->stream, op->y, op->x, SW_F32, bucket_of, BUCKETS, BIAS_HEADS, REACH);
}

static void bias_backward(struct op *op)
{
    kernels->bias_reduce(op->stream, op->gradient, op->weights, bucket_of, BUCKETS, BIAS_HEADS,
                         REACH);
}

static void relative_bias(void **state)
{
    struct op op = {.name = "relative bias",
                    .stream = *state,
                    .inputs = BUCKETS * BIAS_HEADS,
                    .outputs = BIAS_HEADS * ENTRIES,
                    .forward = bias_forward,
                    .backward = bias_backward};
    check(&op);
}

enum { VOCABULARY = 7, EMBEDDING_WIDTH = 18, EMBEDDING_TOKENS = 11 };
static const int32_t ids[EMBEDDING_TOKENS] = {3, 1, 3, 0, 6, 3, 5, 1, 2, 6, 4};

static void embedding_forward(struct op *op)
{
    kernels->embedding_forward(op->stream, op->y, op->x, ids, EMBEDDING_TOKENS, EMBEDDING_WIDTH,
                               SW_F32);
}

static void embedding_backward(struct op *op)
{
    struct sw_err err = {0};
    int64_t bytes =
        kernels->embedding_backward_workspace_bytes(EMBEDDING_TOKENS, EMBEDDING_WIDTH, VOCABULARY);
    void *workspace = malloc((size_t)bytes + 1);
    assert_non_null(workspace);
    kernels->embedding_backward(op->stream, op->gradient, op->weights, ids, EMBEDDING_TOKENS,
                                EMBEDDING_WIDTH, VOCABULARY, SW_F32, workspace);
    assert_ok(sw_cpu_device_ops.stream_sync(op->stream, &err), &err);
    free(workspace);
}

static void embedding(void **state)
{
    struct op op = {.name = "embedding",
                    .stream = *state,
                    .inputs = VOCABULARY * EMBEDDING_WIDTH,
                    .outputs = EMBEDDING_TOKENS * EMBEDDING_WIDTH,
                    .forward = embedding_forward,
                    .backward = embedding_backward};
    check(&op);
}

/* ---- a stream for all ---- */

static struct sw_device *device;
static struct sw_pool *pool;

static int setup(void **state)
{
    struct sw_err err = {0};
    struct sw_stream *stream;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    const struct sw_device_config config = {.memory_bytes = 1 << 20, .pool = pool};
    assert_ok(sw_cpu_device_ops.open(&device, &config, &err), &err);
    assert_ok(sw_cpu_device_ops.stream_open(device, SW_STREAM_COMPUTE, &stream, &err), &err);
    *state = stream;
    return 0;
}

static int teardown(void **state)
{
    sw_cpu_device_ops.stream_close(*state);
    sw_cpu_device_ops.close(device);
    sw_pool_close(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feed_forward),
        cmocka_unit_test(residual),
        cmocka_unit_test(relative_bias),
        cmocka_unit_test(embedding),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* A value that is not finite must not turn into one that looks right: attention passes it on, the
 * engine names the block that it comes from, generation stops. */
#include "tests/engine_rig.h"

#include "kernels/cpu/lanes.h"

#include <math.h>

/* ---- attention ---- */

/* Two blocks of keys and of queries, heads whose width is no multiple of the lanes. */
enum { QUERIES = 66, KEYS = 260, HEADS = 2, HEAD_DIM = 5, WIDTH = HEADS * HEAD_DIM };
enum { REACH = KEYS, BIASES = HEADS * (2 * REACH - 1) };

struct attention {
    struct sw_stream *stream;
    struct sw_attention shape;
    float q[QUERIES * WIDTH], k[KEYS * WIDTH], v[KEYS * WIDTH], bias[BIASES];
    float o[QUERIES * WIDTH], d_o[QUERIES * WIDTH], lse[HEADS * QUERIES];
    float dq[QUERIES * WIDTH], dk[KEYS * WIDTH], dv[KEYS * WIDTH], dbias[BIASES];
    void *workspace;
};

static const int32_t zero = 0, queries = QUERIES, keys = KEYS;

static void fill(float *values, int count, double seed)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)sin(seed + 1.7 * (double)i);
}

static void prepare(struct attention *a, struct sw_stream *stream, float p)
{
    a->stream = stream;
    a->shape = (struct sw_attention){
        .heads = HEADS,
        .head_dim = HEAD_DIM,
        .scale = 1.0f,
        .queries = {.count = 1, .tokens = QUERIES, .longest = QUERIES},
        .keys = {.count = 1, .tokens = KEYS, .longest = KEYS},
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .q_stride = WIDTH,
        .kv_stride = WIDTH,
        .o_stride = WIDTH,
        .bias = a->bias,
        .bias_reach = REACH,
        .dropout = {.p = p, .key = {1, 2}, .global_rows = &zero},
    };
    a->shape.queries.starts = a->shape.keys.starts = &zero;
    a->shape.queries.lengths = &queries;
    a->shape.keys.lengths = &keys;
    fill(a->q, QUERIES * WIDTH, 1.0);
    fill(a->k, KEYS * WIDTH, 2.0);
    fill(a->v, KEYS * WIDTH, 3.0);
    fill(a->bias, BIASES, 4.0);
    fill(a->d_o, QUERIES * WIDTH, 5.0);
}

static void forward(struct attention *a)
{
    struct sw_err err = {0};
    sw_cpu_kernels.attention_forward(a->stream, &a->shape, a->o, a->lse, NULL);
    assert_ok(sw_cpu_device_ops.stream_sync(a->stream, &err), &err);
}

static void backward(struct attention *a)
{
    struct sw_err err = {0};
    memset(a->dbias, 0, sizeof a->dbias);
    sw_cpu_kernels.attention_backward(a->stream, &a->shape, a->dq, a->dk, a->dv, a->dbias, a->d_o,
                                      a->o, a->lse, a->workspace);
    assert_ok(sw_cpu_device_ops.stream_sync(a->stream, &err), &err);
}

static bool any_nonfinite(const float *values, int count)
{
    for (int i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return true;
    return false;
}

/* Forward and backward with values[at] of `head` broken; queries first .. end - 1 use it. */
static void check_broken(struct attention *a, float *values, int at, int head, int first, int end)
{
    static const float broken[] = {NAN, INFINITY, -INFINITY};
    float keep = values[at];
    for (int i = 0; i < 3; i++) {
        values[at] = broken[i];
        forward(a);
        for (int t = first; t < end; t++)
            if (!any_nonfinite(a->o + t * WIDTH + head * HEAD_DIM, HEAD_DIM))
                fail_msg("%s: %g at %d does not reach query %d of head %d", sw_cpu_lanes()->name,
                         (double)broken[i], at, t, head);
        backward(a);
        assert_true(any_nonfinite(a->dq, QUERIES * WIDTH));
        assert_true(any_nonfinite(a->dk, KEYS * WIDTH));
        assert_true(any_nonfinite(a->dv, KEYS * WIDTH) || values == a->v);
        assert_true(any_nonfinite(a->dbias, BIASES));
    }
    values[at] = keep;
}

static void check_attention(struct attention *a)
{
    static const int some_keys[] = {0, 15, 16, 255, 256, 259};
    forward(a);
    backward(a);
    assert_false(any_nonfinite(a->o, QUERIES * WIDTH) || any_nonfinite(a->dq, QUERIES * WIDTH));
    for (int head = 0; head < HEADS; head++) {
        for (int i = 0; i < 6; i++) {
            int at = some_keys[i] * WIDTH + head * HEAD_DIM + i % HEAD_DIM;
            check_broken(a, a->k, at, head, 0, QUERIES);
            check_broken(a, a->v, at, head, 0, QUERIES);
        }
        for (int t = 0; t < QUERIES; t += 13)
            check_broken(a, a->q, t * WIDTH + head * HEAD_DIM + t % HEAD_DIM, head, t, t + 1);
        /* key 258 seen from query 3 */
        check_broken(a, a->bias, head * (2 * REACH - 1) + 258 - 3 + REACH - 1, head, 3, 4);
    }
    /* no key left: everything there is is broken */
    for (int i = 0; i < QUERIES * WIDTH; i++)
        a->q[i] = NAN;
    forward(a);
    for (int t = 0; t < QUERIES * WIDTH; t++)
        assert_true(!isfinite(a->o[t]));
}

static void attention_passes_on_what_is_not_finite(void **state)
{
    static const char *const variants[] = {"generic", "avx2", "avx512"};
    (void)state;
    const char *usual = sw_cpu_lanes()->name;
    struct sw_err err = {0};
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    const struct sw_device_config config = {.memory_bytes = 1 << 24, .pool = pool};
    assert_ok(sw_cpu_device_ops.open(&device, &config, &err), &err);
    assert_ok(sw_cpu_device_ops.stream_open(device, SW_STREAM_COMPUTE, &stream, &err), &err);
    struct attention *a = calloc(1, sizeof *a);
    assert_non_null(a);
    prepare(a, stream, 0.0f);
    a->workspace = malloc((size_t)sw_cpu_kernels.attention_backward_workspace_bytes(&a->shape));
    assert_non_null(a->workspace);
    for (int i = 0; i < 6; i++) {
        if (!sw_cpu_lanes_select(variants[i / 2])) {
            printf("skipped: this CPU has no %s\n", variants[i / 2]);
            continue;
        }
        prepare(a, stream, i % 2 == 0 ? 0.0f : 0.3f);
        check_attention(a);
    }
    assert_true(sw_cpu_lanes_select(usual));
    free(a->workspace);
    free(a);
    sw_cpu_device_ops.stream_close(stream);
    sw_cpu_device_ops.close(device);
    sw_pool_close(pool);
}

/* ---- the engine ---- */

/* The block that first uses element 0 of the parameter. Row 0 of the embedding is the start token
 * of the decoder, and no source has it. */
static const char *block_of(const struct sw_model *model, int64_t param)
{
    const struct sw_param *it = &model->params[param];
    if (it->unit == model->embedding_unit)
        return "target embedding";
    if (it->unit == model->common_unit) {
        bool encoder = strncmp(it->name, "encoder", 7) == 0;
        if (strstr(it->name, "final_layer_norm") != NULL)
            return encoder ? "encoder's final norm" : "head";
        return NULL; /* bias tables: whichever distance has bucket 0, in the first block */
    }
    return it->unit == model->head_unit ? "head" : model->units[it->unit].name;
}

static void the_block_with_the_broken_weight_is_named(void **state)
{
    (void)state;
    const struct setup setup = {.micro_batch = 4, .threads = 2, .untied = true};
    struct rows rows;
    make_rows(&rows, 0);
    struct rig rig;
    open_rig(&rig, &setup);
    int64_t count = rig.model->param_count, named = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *block = block_of(rig.model, i);
        float was, broken = i % 2 == 0 ? NAN : INFINITY;
        double sum;
        int64_t tokens;
        struct sw_step_result result;
        if (block == NULL)
            continue;
        assert_ok(sw_engine_read_param(rig.engine, i, 0, 1, &was, &rig.err), &rig.err);
        assert_ok(sw_engine_write_param(rig.engine, i, 0, 1, &broken, &rig.err), &rig.err);
        assert_ok(sw_engine_evaluate(rig.engine, &rows.batch, &sum, &tokens, NULL, &rig.err),
                  &rig.err);
        assert_true(!isfinite(sum));
        assert_string_equal(sw_engine_nonfinite(rig.engine), block);
        assert_ok(sw_engine_step(rig.engine, i + 1, 0.1, &rows.batch, &result, &rig.err), &rig.err);
        assert_false(result.finite);
        assert_string_equal(rig.model->blocks[result.nonfinite_block].name, block);
        assert_ok(sw_engine_write_param(rig.engine, i, 0, 1, &was, &rig.err), &rig.err);
        assert_ok(sw_engine_evaluate(rig.engine, &rows.batch, &sum, &tokens, NULL, &rig.err),
                  &rig.err);
        assert_true(isfinite(sum));
        assert_null(sw_engine_nonfinite(rig.engine));
        named++;
    }
    assert_true(named == count - 2);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_passes_on_what_is_not_finite),
        cmocka_unit_test(the_block_with_the_broken_weight_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

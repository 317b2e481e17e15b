/* The engine on small random T5 models: what must not change a result does not. */
#include "tests/support.h"

#include "base/json.h"
#include "base/pool.h"
#include "exec/engine.h"
#include "model/config.h"
#include "model/init.h"

#include <math.h>

enum { ROWS = 8, SOURCE = 12, TARGET = 9, VOCABULARY = 61, STEPS = 3 };

struct setup {
    int64_t micro_batch;
    int threads;
    bool recompute, serial, adafactor, split;
    float dropout;
    const char *freeze; /* NULL: nothing */
};

struct rig {
    struct sw_model *model;
    struct sw_optim_settings optim;
    struct sw_plan *plan;
    struct sw_pool *pool;
    struct sw_engine *engine;
    struct sw_err err;
};

static struct sw_model *make_model(void)
{
    static const char text[] =
        "{\"model_type\": \"t5\", \"d_model\": 24, \"d_kv\": 8, \"d_ff\": 97, \"num_heads\": 2, "
        "\"num_layers\": 2, \"num_decoder_layers\": 3, \"vocab_size\": 61, \"feed_forward_proj\": "
        "\"gated-gelu\", \"decoder_start_token_id\": 0}";
    struct sw_err err;
    sw_err_init(&err);
    struct sw_json *json;
    struct sw_model *model;
    assert_ok(sw_json_parse(text, (int64_t)strlen(text), "config", &json, &err), &err);
    assert_ok(sw_model_open(json, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    return model;
}

static void write_initial(struct rig *rig)
{
    for (int64_t i = 0; i < rig->model->param_count; i++) {
        int64_t count = rig->model->params[i].elements;
        float *values = malloc((size_t)count * sizeof *values);
        sw_init_fill(rig->model, 5, i, 0, count, values);
        assert_ok(sw_engine_write_param(rig->engine, i, 0, count, values, &rig->err), &rig->err);
        free(values);
    }
}

static void open_rig(struct rig *rig, const struct setup *setup)
{
    memset(rig, 0, sizeof *rig);
    sw_err_init(&rig->err);
    rig->model = make_model();
    if (setup->freeze != NULL)
        assert_ok(sw_model_freeze(rig->model, &setup->freeze, 1, &rig->err), &rig->err);
    sw_optim_settings_init(&rig->optim, setup->adafactor ? SW_OPTIM_ADAFACTOR : SW_OPTIM_ADAMW);
    rig->optim.max_grad_norm = 1.0;
    rig->optim.weight_decay = 0.01;
    rig->optim.master = setup->split ? SW_MASTER_SPLIT : SW_MASTER_FP32;
    const struct sw_plan_request request = {
        .model = rig->model,
        .optim = &rig->optim,
        .kernels = &sw_cpu_kernels,
        .purpose = SW_FOR_TRAINING,
        .compute = SW_F32,
        .global_batch = ROWS,
        .micro_batch = setup->micro_batch,
        .source_length = SOURCE,
        .target_length = TARGET,
        .recompute = setup->recompute ? SW_RECOMPUTE_ON : SW_RECOMPUTE_OFF,
        .overlap = !setup->serial,
    };
    assert_ok(sw_plan_make(&rig->plan, &request, &rig->err), &rig->err);
    assert_ok(sw_pool_open(&rig->pool, setup->threads, &rig->err), &rig->err);
    const struct sw_engine_config config = {.plan = rig->plan,
                                            .model = rig->model,
                                            .optim = &rig->optim,
                                            .device = &sw_cpu_device_ops,
                                            .pool = rig->pool,
                                            .seed = 11,
                                            .dropout = setup->dropout,
                                            .overlap = !setup->serial};
    assert_ok(sw_engine_open(&rig->engine, &config, &rig->err), &rig->err);
    write_initial(rig);
    assert_ok(sw_engine_start(rig->engine, &rig->err), &rig->err);
}

static void close_rig(struct rig *rig)
{
    sw_engine_close(rig->engine);
    sw_pool_close(rig->pool);
    sw_plan_free(rig->plan);
    sw_model_close(rig->model);
}

/* Rows of several lengths, of 1 and 3 target tokens among them. */
struct rows {
    int32_t ids[ROWS][SOURCE + TARGET];
    struct sw_row rows[ROWS];
    int32_t numbers[ROWS];
    struct sw_batch batch;
};

static void make_rows(struct rows *rows, int step)
{
    static const int32_t sources[ROWS] = {12, 3, 7, 1, 12, 5, 9, 2};
    static const int32_t targets[ROWS] = {9, 1, 3, 4, 1, 6, 9, 2};
    rows->batch = (struct sw_batch){rows->rows, rows->numbers, ROWS, 0};
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < SOURCE + TARGET; i++)
            rows->ids[r][i] = 2 + (step * 31 + r * 17 + i * 7) % (VOCABULARY - 2);
        rows->rows[r] =
            (struct sw_row){rows->ids[r], rows->ids[r] + SOURCE, sources[r], targets[r]};
        rows->numbers[r] = r;
        rows->batch.target_tokens += targets[r];
    }
}

struct outcome {
    double loss[STEPS], norm[STEPS], evaluation;
    int64_t count;
    float *weights;
};

static float *read_all(struct rig *rig, int64_t *count)
{
    float *values = malloc((size_t)rig->model->elements * sizeof *values);
    *count = 0;
    for (int64_t i = 0; i < rig->model->param_count; i++) {
        int64_t n = rig->model->params[i].elements;
        assert_ok(sw_engine_read_param(rig->engine, i, 0, n, values + *count, &rig->err),
                  &rig->err);
        *count += n;
    }
    return values;
}

static struct outcome train(const struct setup *setup)
{
    struct rig rig;
    struct outcome outcome;
    struct rows rows;
    open_rig(&rig, setup);
    for (int step = 0; step < STEPS; step++) {
        struct sw_step_result result;
        make_rows(&rows, step);
        assert_ok(sw_engine_step(rig.engine, step + 1, 1e-3, &rows.batch, &result, &rig.err),
                  &rig.err);
        assert_true(result.finite);
        outcome.loss[step] = result.loss;
        outcome.norm[step] = result.grad_norm;
    }
    int64_t tokens;
    assert_ok(
        sw_engine_evaluate(rig.engine, &rows.batch, &outcome.evaluation, &tokens, NULL, &rig.err),
        &rig.err);
    assert_int_equal(tokens, rows.batch.target_tokens);
    assert_int_equal(sw_engine_updates(rig.engine), STEPS);
    outcome.weights = read_all(&rig, &outcome.count);
    close_rig(&rig);
    return outcome;
}

static void assert_same_bits(const struct setup *a, const struct setup *b)
{
    struct outcome x = train(a), y = train(b);
    assert_memory_equal(x.loss, y.loss, sizeof x.loss);
    assert_memory_equal(x.norm, y.norm, sizeof x.norm);
    assert_memory_equal(&x.evaluation, &y.evaluation, sizeof x.evaluation);
    assert_memory_equal(x.weights, y.weights, (size_t)x.count * sizeof *x.weights);
    free(x.weights);
    free(y.weights);
}

static void threads_overlap_and_recomputation_change_no_bit(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .threads = 1, .dropout = 0.1f};
    const struct setup others[] = {
        {.micro_batch = 3, .threads = 2, .dropout = 0.1f},
        {.micro_batch = 3, .threads = 5, .dropout = 0.1f, .serial = true},
        {.micro_batch = 3, .threads = 2, .dropout = 0.1f, .recompute = true},
        {.micro_batch = 3, .threads = 2, .dropout = 0.1f, .split = true},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_same_bits(&base, &others[i]);
    const struct setup adafactor = {.micro_batch = 8, .threads = 1, .adafactor = true};
    const struct setup adafactor_threads = {.micro_batch = 8, .threads = 3, .adafactor = true};
    assert_same_bits(&adafactor, &adafactor_threads);
}

/* Sums of some hundred fp32 terms in another order: a few units in the last place of 2^-24 each,
 * which training over three steps may carry on; 1e-5 leaves room, a wrong average is off by more
 * than 1e-2. With dropout, because its numbers go by the row. */
static void the_cut_into_micro_batches_does_not_matter(void **state)
{
    (void)state;
    const struct setup whole = {.micro_batch = 8, .threads = 2, .dropout = 0.1f};
    struct outcome want = train(&whole);
    for (int64_t rows = 1; rows < 8; rows += rows == 2 ? 2 : 1) {
        const struct setup cut = {.micro_batch = rows, .threads = 2, .dropout = 0.1f};
        struct outcome have = train(&cut);
        for (int step = 0; step < STEPS; step++) {
            assert_true(fabs(have.loss[step] - want.loss[step]) <= 1e-5 * want.loss[step]);
            assert_true(fabs(have.norm[step] - want.norm[step]) <= 1e-4 * want.norm[step]);
        }
        free(have.weights);
    }
    free(want.weights);
}

/* The loss's slope along the gradient, by central differences of the loss in double. Its error is
 * h^2 times the third derivative, plus 2^-24 * loss / h: some 1e-4 at h = 1e-2 / norm. */
static void gradients_are_the_slope_of_the_loss(void **state)
{
    (void)state;
    struct rig rig;
    struct rows rows;
    struct sw_step_result result;
    const struct setup setup = {.micro_batch = 4, .threads = 2};
    open_rig(&rig, &setup);
    make_rows(&rows, 0);
    assert_ok(sw_engine_step(rig.engine, 1, 0.0, &rows.batch, &result, &rig.err), &rig.err);
    int64_t total = rig.model->elements, at = 0;
    float *gradient = malloc((size_t)total * sizeof *gradient);
    for (int64_t i = 0; i < rig.model->param_count; i++) {
        int64_t n = rig.model->params[i].elements;
        assert_ok(sw_engine_read_gradient(rig.engine, i, 0, n, gradient + at, &rig.err), &rig.err);
        at += n;
    }
    double squares = 0, losses[2];
    for (int64_t i = 0; i < total; i++)
        squares += (double)gradient[i] * (double)gradient[i];
    assert_true(fabs(sqrt(squares) - result.grad_norm) <= 1e-6 * result.grad_norm);
    int64_t count;
    float *weights = read_all(&rig, &count);
    double h = 1e-2 / sqrt(squares);
    for (int side = 0; side < 2; side++) {
        at = 0;
        for (int64_t i = 0; i < rig.model->param_count; i++) {
            int64_t n = rig.model->params[i].elements;
            float *moved = malloc((size_t)n * sizeof *moved);
            for (int64_t j = 0; j < n; j++)
                moved[j] = (float)((double)weights[at + j] +
                                   (side == 0 ? h : -h) * (double)gradient[at + j]);
            assert_ok(sw_engine_write_param(rig.engine, i, 0, n, moved, &rig.err), &rig.err);
            at += n;
            free(moved);
        }
        int64_t tokens;
        assert_ok(
            sw_engine_evaluate(rig.engine, &rows.batch, &losses[side], &tokens, NULL, &rig.err),
            &rig.err);
        losses[side] /= (double)tokens;
    }
    double slope = (losses[0] - losses[1]) / (2 * h);
    if (fabs(slope - squares) > 5e-3 * squares)
        fail_msg("slope %.6g, squared norm %.6g", slope, squares);
    free(gradient);
    free(weights);
    close_rig(&rig);
}

static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct rig rig;
    struct rows rows;
    struct sw_step_result result;
    const struct setup setup = {.micro_batch = 4, .threads = 2};
    open_rig(&rig, &setup);
    make_rows(&rows, 0);
    float big = INFINITY, kept;
    assert_ok(sw_engine_read_param(rig.engine, 3, 0, 1, &kept, &rig.err), &rig.err);
    assert_ok(sw_engine_write_param(rig.engine, 3, 0, 1, &big, &rig.err), &rig.err);
    int64_t count;
    float *before = read_all(&rig, &count);
    assert_ok(sw_engine_step(rig.engine, 1, 1e-3, &rows.batch, &result, &rig.err), &rig.err);
    assert_false(result.finite);
    assert_true(result.nonfinite_block >= 0);
    float *after = read_all(&rig, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    assert_int_equal(sw_engine_updates(rig.engine), 0);
    assert_ok(sw_engine_write_param(rig.engine, 3, 0, 1, &kept, &rig.err), &rig.err);
    assert_ok(sw_engine_step(rig.engine, 2, 1e-3, &rows.batch, &result, &rig.err), &rig.err);
    assert_true(result.finite);
    free(before);
    free(after);
    close_rig(&rig);
}

static void frozen_parameters_stay(void **state)
{
    (void)state;
    const struct setup setup = {.micro_batch = 4, .threads = 2, .freeze = "encoder.*"};
    struct outcome outcome = train(&setup);
    struct sw_model *model = make_model();
    int64_t at = 0, moved = 0;
    for (int64_t i = 0; i < model->param_count; i++) {
        int64_t n = model->params[i].elements;
        float *initial = malloc((size_t)n * sizeof *initial);
        sw_init_fill(model, 5, i, 0, n, initial);
        bool same = memcmp(initial, outcome.weights + at, (size_t)n * sizeof *initial) == 0;
        if (strncmp(model->params[i].name, "encoder.", 8) == 0)
            assert_true(same);
        moved += !same;
        free(initial);
        at += n;
    }
    assert_true(moved > 10);
    free(outcome.weights);
    sw_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_overlap_and_recomputation_change_no_bit),
        cmocka_unit_test(the_cut_into_micro_batches_does_not_matter),
        cmocka_unit_test(gradients_are_the_slope_of_the_loss),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
        cmocka_unit_test(frozen_parameters_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

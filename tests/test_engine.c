/* The engine on small random T5 models: what must not change a result does not. */
#include "tests/engine_rig.h"

#include "model/config.h"
#include "model/init.h"

#include <math.h>

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
        free_outcome(&have);
    }
    free_outcome(&want);
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
    struct sw_model *model = make_model(false);
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
    free_outcome(&outcome);
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

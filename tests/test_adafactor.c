/* Adafactor against tests/reference/adafactor.json: what transformers does in float64 to the same
 * parameters, with and without scale_parameter, relative_step and weight decay, on every
 * instruction set and with the state passed by in pieces. */
#include "tests/support.h"

#include "base/json.h"
#include "base/mem.h"
#include "optim/optim.h"

#include <math.h>

enum { PARAMS = 4, STEPS_MAX = 64 };

/* Weights are below 1 and rounded to 2^-25 once a step, with weight decay twice; an update is below
 * 0.2 (a parameter's size of 0.5 at most times a rate of 0.02, or 0.02, over at most 5 times the
 * typical gradient) and goes through 8 roundings: 5 steps of 2^-24 + 0.2 * 8 * 2^-24. */
static const double close_to = 5 * (1 + 1.6) * 0x1p-24;

struct world {
    struct sw_pool *pool;
    struct sw_optim_param params[PARAMS];
    struct sw_optim_unit unit;
    float *weights, *gradient, *factors;
    void *scratch;
};

static int64_t count_of(const struct sw_optim_param *param)
{
    return param->rows * param->columns;
}

static int64_t integer(const struct sw_json *value)
{
    int64_t out = -1;
    assert_true(sw_json_to_integer(value, &out));
    return out;
}

static bool truth(const struct sw_json *object, const char *key)
{
    bool out = false;
    assert_true(sw_json_to_bool(sw_json_get(object, key), &out));
    return out;
}

static double real(const struct sw_json *value)
{
    double out = 0.0;
    assert_true(sw_json_to_double(value, &out));
    return out;
}

static void *zeros(int64_t bytes)
{
    void *memory = sw_aligned_alloc(bytes);
    assert_non_null(memory);
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* The reference's parameters one behind the other in a unit, vectors as one row. */
static void open_world(struct world *w, const struct sw_json *shapes)
{
    struct sw_err err = {0};
    int64_t end = 0;
    assert_int_equal(sw_json_count(shapes), PARAMS);
    assert_ok(sw_pool_open(&w->pool, 2, &err), &err);
    for (int p = 0; p < PARAMS; p++) {
        const struct sw_json *shape = sw_json_at(shapes, p);
        bool matrix = sw_json_count(shape) == 2;
        w->params[p] =
            (struct sw_optim_param){.offset = end,
                                    .rows = matrix ? integer(sw_json_at(shape, 0)) : 1,
                                    .columns = integer(sw_json_at(shape, matrix ? 1 : 0)),
                                    .factored = matrix,
                                    .decays = true,
                                    .trainable = true};
        end = sw_align_up(end + count_of(&w->params[p]), 64);
    }
    w->unit = (struct sw_optim_unit){.params = w->params, .param_count = PARAMS, .elements = end};
    w->weights = zeros(end * (int64_t)sizeof(float));
    w->gradient = zeros(end * (int64_t)sizeof(float));
    w->factors = zeros(sw_adafactor_state_elements(&w->unit) * (int64_t)sizeof(float));
    w->scratch = zeros(sw_adafactor_scratch_bytes(&w->unit));
}

static void close_world(struct world *w)
{
    free(w->weights);
    free(w->gradient);
    free(w->factors);
    free(w->scratch);
    sw_pool_close(w->pool);
}

/* Numbers as the reference makes them; step 0: the weights. */
static void fill(const struct world *w, int64_t step)
{
    for (int p = 0; p < PARAMS; p++) {
        float *out = (step > 0 ? w->gradient : w->weights) + w->params[p].offset;
        for (int64_t i = 0; i < count_of(&w->params[p]); i++)
            out[i] = step > 0 ? (float)((53 * i + 29 * step + 7 * p) % 97 - 48) / 128.0F
                              : (float)((37 * i + 11 * p) % 101 - 50) / 64.0F;
    }
}

/* One step, the unit in chunks of `piece` elements. */
static void step(const struct world *w, const struct sw_optim_settings *settings, int64_t number,
                 int64_t piece)
{
    const struct sw_optim_update update = {
        .number = number, .lr = sw_optim_lr(settings, number), .clip_scale = 1.0F};
    const struct sw_adafactor a = {settings, &update, &w->unit, w->factors, w->scratch};
    sw_adafactor_begin(&a);
    for (int phase = 0; phase < SW_ADAFACTOR_PHASES; phase++) {
        for (int64_t first = 0; first < w->unit.elements; first += piece) {
            int64_t rest = w->unit.elements - first;
            const struct sw_optim_chunk chunk = {.first = first,
                                                 .count = rest < piece ? rest : piece,
                                                 .gradient = w->gradient + first,
                                                 .master = w->weights + first};
            sw_adafactor_visit(w->pool, &a, (enum sw_adafactor_phase)phase, &chunk);
        }
        sw_adafactor_finish(w->pool, &a, (enum sw_adafactor_phase)phase);
    }
}

static void check_run(const struct world *w, const struct sw_json *reference,
                      const struct sw_json *run, int64_t piece)
{
    struct sw_err err = {0};
    struct sw_optim_settings settings;
    sw_optim_settings_init(&settings, SW_OPTIM_ADAFACTOR);
    settings.scale_parameter = truth(run, "scale_parameter");
    settings.relative_step = truth(run, "relative_step");
    settings.weight_decay = real(sw_json_get(run, "weight_decay"));
    settings.lr = real(sw_json_get(reference, "lr"));
    assert_ok(sw_optim_settings_check(&settings, &err), &err);
    memset(w->factors, 0, (size_t)sw_adafactor_state_elements(&w->unit) * sizeof *w->factors);
    fill(w, 0);
    int64_t steps = integer(sw_json_get(reference, "steps"));
    assert_true(steps >= 5 && steps <= STEPS_MAX);
    for (int64_t number = 1; number <= steps; number++) {
        fill(w, number);
        step(w, &settings, number, piece);
    }
    for (int p = 0; p < PARAMS; p++) {
        const struct sw_json *positions = sw_json_at(sw_json_get(reference, "positions"), p);
        const struct sw_json *weights = sw_json_at(sw_json_get(run, "weights"), p);
        assert_true(sw_json_count(weights) >= 13);
        for (int64_t k = 0; k < sw_json_count(weights); k++) {
            int64_t i = integer(sw_json_at(positions, k));
            double have = (double)w->weights[w->params[p].offset + i];
            double want = real(sw_json_at(weights, k));
            if (!(fabs(have - want) <= close_to))
                fail_msg("scale %d, relative %d, decay %g, parameter %d: weight %lld is %.9g, not "
                         "%.9g",
                         settings.scale_parameter, settings.relative_step, settings.weight_decay, p,
                         (long long)i, have, want);
        }
    }
}

static void adafactor_agrees_with_its_reference(void **state)
{
    struct sw_err err = {0};
    struct sw_json *reference;
    struct world world;
    const enum sw_optim_isa usual = sw_optim_isa();
    (void)state;
    assert_ok(sw_json_read_file(SW_SOURCE_DIRECTORY "/tests/reference/adafactor.json", 1 << 20,
                                &reference, &err),
              &err);
    open_world(&world, sw_json_get(reference, "shapes"));
    const struct sw_json *runs = sw_json_get(reference, "runs");
    assert_int_equal(sw_json_count(runs), 8);
    for (enum sw_optim_isa isa = SW_ISA_SCALAR; isa <= SW_ISA_AVX512; isa++) {
        if (!sw_optim_isa_choose(isa)) {
            printf("skipped: this CPU has no %s\n", sw_optim_isa_text(isa));
            continue;
        }
        for (int64_t run = 0; run < sw_json_count(runs); run++) {
            check_run(&world, reference, sw_json_at(runs, run), world.unit.elements);
            check_run(&world, reference, sw_json_at(runs, run), SW_OPTIM_BLOCK);
        }
    }
    assert_true(sw_optim_isa_choose(usual));
    close_world(&world);
    sw_json_free(reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(adafactor_agrees_with_its_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

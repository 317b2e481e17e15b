/* Grids at random, and longer: every configuration ends as a single rank does or is refused, under
 * a watchdog; 50 steps over stages leave every tensor as a single rank leaves it.
 *
 * SPILLWAY_GRIDS=N takes N configurations at random instead of 20, SPILLWAY_SEED=S begins them with
 * another seed than 1: the seed of each is printed when it fails, and SPILLWAY_GRIDS=1 with it runs
 * that one alone. */
#include "base/random.h"
#include "model/config.h"
#include "tests/engine_rig.h"

#include <math.h>
#include <signal.h>

enum { GRIDS = 20, WATCHDOG_SECONDS = 60, LONG_STEPS = 50 };

/* ---- drawing ---- */

struct dice {
    uint32_t seed, throws;
};

static int throw_die(struct dice *dice, int sides)
{
    const uint32_t key[2] = {dice->seed, 0};
    uint32_t words[4];
    sw_philox(key, (const uint32_t[4]){dice->throws++, 0, 0, 0}, words);
    return (int)(words[0] % (uint32_t)sides);
}

static bool one_in(struct dice *dice, int sides)
{
    return throw_die(dice, sides) == 0;
}

static enum sw_tier draw_tier(struct dice *dice)
{
    static const enum sw_tier tiers[] = {SW_TIER_AUTO, SW_TIER_AUTO, SW_TIER_DEVICE, SW_TIER_HOST,
                                         SW_TIER_NVME};
    return tiers[throw_die(dice, 5)];
}

static void draw_optimizer(struct dice *dice, struct setup *out)
{
    out->adafactor = one_in(dice, 4);
    out->scale_parameter = one_in(dice, 2);
    out->early = one_in(dice, 5);
    out->no_clipping = one_in(dice, 4);
    out->split = !out->adafactor && one_in(dice, 4);
    out->bf16_grads = one_in(dice, 4);
    out->bf16_moments = !out->adafactor && one_in(dice, 4);
    out->freeze = one_in(dice, 6) ? "encoder*" : NULL;
}

static struct setup draw(uint32_t seed)
{
    static const enum sw_schedule schedules[] = {SW_SCHEDULE_AUTO, SW_SCHEDULE_LAYERED,
                                                 SW_SCHEDULE_1F1B, SW_SCHEDULE_GPIPE};
    struct dice dice = {seed, 0};
    struct setup setup = {.pipeline = 1 + throw_die(&dice, 5), .data = 1 + throw_die(&dice, 4)};
    setup.zero = throw_die(&dice, 4);
    setup.schedule = schedules[throw_die(&dice, 4)];
    setup.encoder = 1 + throw_die(&dice, 4);
    setup.decoder = 1 + throw_die(&dice, 4);
    if (!one_in(&dice, 8) && setup.pipeline > setup.encoder + setup.decoder)
        setup.pipeline = setup.encoder + setup.decoder; /* the most there can be */
    setup.wide = one_in(&dice, 3);
    setup.untied = one_in(&dice, 3);
    setup.micro_batch = throw_die(&dice, ROWS + 1);
    setup.threads = 1 + throw_die(&dice, 3);
    setup.recompute = one_in(&dice, 2);
    setup.serial = one_in(&dice, 4);
    setup.mailbox = one_in(&dice, 3);
    setup.bf16 = one_in(&dice, 6);
    setup.dropout = one_in(&dice, 2) ? 0.1f : 0.0f;
    draw_optimizer(&dice, &setup);
    bool stays = setup.schedule > SW_SCHEDULE_LAYERED && !one_in(&dice, 8); /* or is refused */
    setup.params = stays ? SW_TIER_AUTO : draw_tier(&dice);
    setup.grads = stays ? SW_TIER_AUTO : draw_tier(&dice);
    setup.optimizer = draw_tier(&dice);
    setup.activations = draw_tier(&dice);
    setup.prefetch_depth = throw_die(&dice, 4);
    setup.chunk_bytes = one_in(&dice, 2) ? 4096 << throw_die(&dice, 4) : 0;
    setup.verify = one_in(&dice, 3);
    if (one_in(&dice, 3))
        setup.where = SW_STEP_STREAM; /* adafactor is refused */
    setup.remote = one_in(&dice, 3);
    if (one_in(&dice, 3))
        setup.device_memory_bytes = (int64_t)(200 + throw_die(&dice, 1800))
                                    << (setup.wide ? 13 : 10);
    return setup;
}

static char description[400];

static void describe(uint32_t seed, const struct setup *s)
{
    snprintf(description, sizeof description,
             "SPILLWAY_SEED=%u: pipeline %d, data %d, zero %d, %s, micro-batch %lld, blocks %d+%d"
             "%s%s%s, %s%s%s%s%s%s%s, weights %s, states %s, gradients %s, activations %s%s%s%s, "
             "cap %lld",
             seed, s->pipeline, s->data, s->zero, sw_schedule_name(s->schedule),
             (long long)s->micro_batch, s->encoder, s->decoder, s->wide ? " wide" : "",
             s->untied ? " untied" : "", s->bf16 ? " bf16" : "",
             s->adafactor ? "adafactor" : "adamw", s->early ? " early" : "",
             s->split ? " split" : "", s->bf16_grads ? " bf16 gradients" : "",
             s->freeze != NULL ? " frozen" : "", s->where == SW_STEP_STREAM ? " streamed" : "",
             s->remote ? " remote" : "", sw_tier_name(s->params), sw_tier_name(s->optimizer),
             sw_tier_name(s->grads), sw_tier_name(s->activations),
             s->recompute ? ", recomputed" : "", s->serial ? ", serial" : "",
             s->mailbox ? ", mailboxes" : "", (long long)s->device_memory_bytes);
}

static void on_alarm(int number)
{
    static const char hangs[] = "hangs: ";
    ssize_t ignored = write(STDERR_FILENO, hangs, sizeof hangs - 1);
    ignored = write(STDERR_FILENO, description, strlen(description));
    (void)ignored;
    (void)number;
    abort();
}

/* ---- judging ---- */

/* The same model, optimizer and numbers, everything at home on each device, one stage. ZeRO stays
 * where it changes the order in which gradients are summed (docs/NUMERICS.md). */
static struct setup plain(const struct setup *setup, const struct outcome *have)
{
    struct setup out = *setup;
    out.pipeline = 1;
    out.zero = have->schedule != SW_SCHEDULE_LAYERED && setup->zero >= 2 ? 2 : 0;
    out.threads = 2;
    out.schedule = have->schedule;
    out.micro_batch = have->micro_batch;
    out.recompute = out.serial = out.mailbox = out.verify = false;
    out.params = out.optimizer = out.grads = out.activations = SW_TIER_AUTO;
    out.where = SW_STEP_AUTO;
    out.remote = false;
    out.prefetch_depth = out.chunk_bytes = out.device_memory_bytes = 0;
    return out;
}

/* Sums of another order: a few units in the last place, carried over three steps. Where numbers are
 * rounded to bf16 on the way, some of them to the other side: 2^-9 of one, averaged over many. */
static void assert_close(const struct outcome *have, const struct outcome *want, bool rounded)
{
    double loss = rounded ? 1e-3 : 1e-5, norm = rounded ? 1e-2 : 1e-4;
    for (int step = 0; step < STEPS; step++) {
        if (!(fabs(have->loss[step] - want->loss[step]) <= loss * want->loss[step]))
            fail_msg("%s: loss %.9g of step %d, not %.9g", description, have->loss[step], step,
                     want->loss[step]);
        if (!(fabs(have->norm[step] - want->norm[step]) <= norm * want->norm[step]))
            fail_msg("%s: norm %.9g of step %d, not %.9g", description, have->norm[step], step,
                     want->norm[step]);
    }
}

static void judge(const struct setup *setup, const struct outcome *have)
{
    struct setup same = plain(setup, have);
    struct outcome want = train(&same);
    assert_same_outcome(have, &want, description);
    free_outcome(&want);
    if (setup->data == 1)
        return;
    same.data = 1;
    want = train(&same);
    assert_close(have, &want,
                 setup->bf16 || setup->bf16_grads || setup->bf16_moments || setup->split);
    free_outcome(&want);
}

static int environment(const char *name, int otherwise)
{
    const char *text = getenv(name);
    int value = text != NULL ? atoi(text) : otherwise;
    return value > 0 ? value : otherwise;
}

static void grids_at_random(void **state)
{
    int count = environment("SPILLWAY_GRIDS", GRIDS), refused = 0;
    uint32_t first = (uint32_t)environment("SPILLWAY_SEED", 1);
    bool shown = getenv("SPILLWAY_GRIDS") != NULL;
    (void)state;
    for (uint32_t seed = first; seed < first + (uint32_t)count; seed++) {
        struct setup setup = draw(seed);
        struct outcome have;
        struct sw_err err;
        describe(seed, &setup);
        alarm(WATCHDOG_SECONDS);
        sw_code code = try_train(&setup, &have, &err);
        if (code == SW_OK) {
            judge(&setup, &have);
            free_outcome(&have);
        } else if ((code != SW_E_FIT && code != SW_E_USAGE) || strlen(err.text) < 20) {
            fail_msg("%s: code %d, %s", description, (int)code, err.text);
        }
        alarm(0);
        refused += code != SW_OK;
        if (shown)
            print_message("%s: %s\n", description, code == SW_OK ? "right" : err.text);
    }
    print_message("seeds %u to %u: %d right, %d refused\n", first, first + (uint32_t)count - 1,
                  count - refused, refused);
    assert_true(count < GRIDS || refused < count / 2); /* or nothing was looked at */
}

/* ---- 50 steps ---- */

struct long_run {
    float *weights;
    char *states;
    int64_t count, state_bytes;
    double loss[LONG_STEPS];
};

static struct long_run run_long(const struct setup *setup)
{
    struct rig rig;
    struct rows rows;
    struct long_run out;
    open_rig(&rig, setup);
    for (int step = 0; step < LONG_STEPS; step++) {
        struct sw_step_result result;
        make_rows(&rows, step % 4);
        assert_ok(sw_engine_step(rig.engine, step + 1, 1e-3, &rows.batch, &result, &rig.err),
                  &rig.err);
        assert_true(result.finite);
        out.loss[step] = result.loss;
    }
    out.weights = read_all(&rig, &out.count);
    out.states = read_states(&rig, &out.state_bytes);
    close_rig(&rig);
    return out;
}

/* By name: the tied table, final norms and bias tables, which several stages use, among them. */
static void assert_every_tensor(const struct long_run *have, const struct long_run *want,
                                int stages)
{
    struct sw_model *model = make_model(false);
    int64_t at = 0;
    for (int64_t i = 0; i < model->param_count; i++) {
        size_t bytes = (size_t)model->params[i].elements * sizeof(float);
        if (memcmp(have->weights + at, want->weights + at, bytes) != 0)
            fail_msg("pipeline %d: %s differs after %d steps", stages, model->params[i].name,
                     (int)LONG_STEPS);
        at += model->params[i].elements;
    }
    assert_int_equal(at, want->count);
    sw_model_close(model);
    assert_memory_equal(have->loss, want->loss, sizeof want->loss);
    assert_int_equal(have->state_bytes, want->state_bytes);
    assert_memory_equal(have->states, want->states, (size_t)want->state_bytes);
}

static void fifty_steps_over_stages_change_no_bit(void **state)
{
    struct setup setup = {.micro_batch = 2, .threads = 2, .dropout = 0.1f};
    (void)state;
    setup.schedule = SW_SCHEDULE_LAYERED;
    struct long_run want = run_long(&setup);
    assert_true(want.loss[LONG_STEPS - 1] < want.loss[0]);
    for (setup.pipeline = 2; setup.pipeline <= 4; setup.pipeline++) {
        setup.optimizer = setup.pipeline == 3 ? SW_TIER_HOST : SW_TIER_AUTO;
        struct long_run have = run_long(&setup);
        assert_every_tensor(&have, &want, setup.pipeline);
        free(have.weights);
        free(have.states);
    }
    free(want.weights);
    free(want.states);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_at_random),
        cmocka_unit_test(fifty_steps_over_stages_change_no_bit),
    };
    signal(SIGALRM, on_alarm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

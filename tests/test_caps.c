/* Homes that the planner chooses under caps of device and host memory, down to the least that fits:
 * the result is the resident run's, bit for bit. And the same model asked, not trained: evaluation
 * and generation from every tier. */
#include "tests/engine_rig.h"

static struct outcome resident(struct setup setup)
{
    setup.params = setup.optimizer = setup.grads = setup.activations = SW_TIER_DEVICE;
    return train(&setup);
}

static bool fits(const struct setup *setup)
{
    struct rig rig;
    sw_code code = try_plan_rig(&rig, setup);
    assert_true(code == SW_OK || code == SW_E_FIT);
    close_rig(&rig);
    return code == SW_OK;
}

/* The least cap at which the setup fits, to 1 KiB. `cap` is in `setup`. */
static int64_t least_cap(struct setup *setup, int64_t *cap, int64_t most)
{
    int64_t low = 1024, high = most;
    while (high - low > 1024) {
        *cap = (low + high) / 2;
        if (fits(setup))
            high = *cap;
        else
            low = *cap;
    }
    *cap = high;
    return high;
}

/* What the runs under caps had, all together. */
struct seen {
    int runs;
    bool two_slots, host, nvme, mixed;
};

static void run_under(const struct setup *setup, const struct outcome *want, struct seen *seen)
{
    char what[96];
    struct outcome have = train(setup);
    snprintf(what, sizeof what, "device %lld, host %lld bytes",
             (long long)setup->device_memory_bytes, (long long)setup->host_memory_bytes);
    assert_true(have.total_bytes[SW_TIER_DEVICE] <= setup->device_memory_bytes);
    assert_true(setup->host_memory_bytes == 0 ||
                have.total_bytes[SW_TIER_HOST] <= setup->host_memory_bytes);
    assert_same_outcome(want, &have, what);
    seen->runs++;
    seen->two_slots |= have.slots.slots == 2;
    seen->host |= have.optimizer == SW_TIER_HOST;
    seen->nvme |= have.optimizer == SW_TIER_NVME && have.params != SW_TIER_DEVICE;
    seen->mixed |= have.params != have.optimizer;
    free_outcome(&have);
}

static void caps_change_no_bit(struct setup setup)
{
    struct seen seen = {0};
    struct outcome want = resident(setup);
    int64_t full = want.total_bytes[SW_TIER_DEVICE];
    int64_t least = least_cap(&setup, &setup.device_memory_bytes, full);
    assert_true(least < full * 2 / 3);
    static const int eighths[] = {0, 1, 3, 6};
    for (size_t i = 0; i < sizeof eighths / sizeof *eighths; i++) {
        setup.device_memory_bytes = least + (full - least) * eighths[i] / 8;
        setup.host_memory_bytes = 0;
        run_under(&setup, &want, &seen);
        int64_t host = least_cap(&setup, &setup.host_memory_bytes, 64 << 20);
        run_under(&setup, &want, &seen);
        setup.host_memory_bytes = host + host / 4;
        run_under(&setup, &want, &seen);
    }
    assert_true(seen.host && seen.nvme && seen.mixed);
    free_outcome(&want);
}

static void planned_homes_change_no_bit(void **state)
{
    (void)state;
    const struct setup adamw = {.micro_batch = 3, .threads = 2, .dropout = 0.1f};
    caps_change_no_bit(adamw);
    const struct setup adafactor = {.micro_batch = 4,
                                    .threads = 2,
                                    .adafactor = true,
                                    .scale_parameter = true,
                                    .untied = true,
                                    .bf16 = true,
                                    .recompute = true};
    caps_change_no_bit(adafactor);
}

/* A cap under which weights that must be off the device have two slots, by nobody's wish. */
static void two_slots_change_no_bit(void **state)
{
    (void)state;
    struct setup setup = {.micro_batch = 3,
                          .threads = 2,
                          .params = SW_TIER_NVME,
                          .optimizer = SW_TIER_NVME,
                          .grads = SW_TIER_NVME,
                          .activations = SW_TIER_NVME,
                          .chunk_bytes = 4096,
                          .verify = true};
    struct outcome want = resident(setup);
    int64_t full = want.total_bytes[SW_TIER_DEVICE];
    struct seen seen = {0};
    int64_t least = least_cap(&setup, &setup.device_memory_bytes, full);
    for (int i = 0; i < 8 && !seen.two_slots; i++) {
        setup.device_memory_bytes = least + i * (full - least) / 32;
        run_under(&setup, &want, &seen);
    }
    assert_true(seen.two_slots);
    free_outcome(&want);
}

/* ---- evaluation and generation ---- */

static const struct setup PLACES[] = {
    {.params = SW_TIER_DEVICE, .activations = SW_TIER_DEVICE},
    {.params = SW_TIER_HOST},
    {.params = SW_TIER_HOST, .prefetch_depth = 1, .serial = true},
    {.params = SW_TIER_NVME, .prefetch_depth = 1, .chunk_bytes = 4096, .verify = true},
    {.params = SW_TIER_NVME, .prefetch_depth = 5, .method = &sw_aio_sync},
    {.params = SW_TIER_NVME, .prefetch_depth = 2, .activations = SW_TIER_HOST},
};
enum { PLACE_COUNT = sizeof PLACES / sizeof *PLACES };

static struct setup place(int index, enum sw_purpose purpose, bool bf16, bool untied)
{
    struct setup setup = PLACES[index];
    setup.purpose = purpose;
    setup.micro_batch = 3;
    setup.threads = 2;
    setup.bf16 = bf16;
    setup.untied = untied;
    return setup;
}

static double evaluate(const struct setup *setup)
{
    struct rig rig;
    struct rows rows;
    double loss;
    int64_t tokens;
    open_rig(&rig, setup);
    make_rows(&rows, 1);
    for (int repeat = 0; repeat < 2; repeat++) {
        double again;
        assert_ok(sw_engine_evaluate(rig.engine, &rows.batch, repeat ? &again : &loss, &tokens,
                                     NULL, &rig.err),
                  &rig.err);
        assert_true(repeat == 0 || memcmp(&again, &loss, sizeof loss) == 0);
        assert_int_equal(tokens, rows.batch.target_tokens);
    }
    assert_true(rig.plan->params == setup->params);
    close_rig(&rig);
    return loss;
}

static void evaluation_is_the_same_from_every_tier(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        double want = 0;
        for (int i = 0; i < PLACE_COUNT; i++) {
            struct setup setup = place(i, SW_FOR_EVALUATION, kind % 2 == 1, kind / 2 == 1);
            double have = evaluate(&setup);
            want = i == 0 ? have : want;
            if (memcmp(&have, &want, sizeof want) != 0)
                fail_msg("kind %d, place %d: another loss", kind, i);
        }
    }
}

/* log P of the next token for every hypothesis, TOKENS times; beams follow fixed parents. */
static float *generate(const struct setup *setup, int64_t *count)
{
    struct rig rig;
    struct rows rows;
    open_rig(&rig, setup);
    make_rows(&rows, 2);
    int64_t hypotheses = ROWS * BEAMS, width = hypotheses * rig.model->t5.vocab_size;
    float *all = calloc((size_t)(2 * TOKENS * width), sizeof *all);
    int32_t tokens[ROWS * BEAMS] = {0}, parents[ROWS * BEAMS];
    for (int repeat = 0; repeat < 2; repeat++) {
        assert_ok(sw_engine_generate_begin(rig.engine, rows.rows, ROWS, BEAMS, &rig.err), &rig.err);
        for (int step = 0; step < TOKENS; step++) {
            for (int32_t i = 0; i < (int32_t)hypotheses; i++) {
                tokens[i] = step == 0 ? 0 : 2 + (i * 31 + step * 7) % 500;
                parents[i] = step == 0 ? i : i - i % BEAMS + (i + step) % BEAMS;
            }
            assert_ok(sw_engine_generate_step(rig.engine, tokens, parents,
                                              all + (repeat * TOKENS + step) * width, &rig.err),
                      &rig.err);
        }
    }
    assert_memory_equal(all, all + TOKENS * width, (size_t)(TOKENS * width) * sizeof *all);
    assert_true(rig.plan->params == setup->params);
    close_rig(&rig);
    *count = TOKENS * width;
    return all;
}

static void generation_is_the_same_from_every_tier(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        float *want = NULL;
        for (int i = 0; i < PLACE_COUNT; i++) {
            struct setup setup = place(i, SW_FOR_GENERATION, kind % 2 == 1, kind / 2 == 1);
            int64_t count;
            float *have = generate(&setup, &count);
            if (i > 0 && memcmp(have, want, (size_t)count * sizeof *have) != 0)
                fail_msg("kind %d, place %d: other probabilities", kind, i);
            free(i == 0 ? NULL : have);
            want = i == 0 ? have : want;
        }
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_homes_change_no_bit),
        cmocka_unit_test(two_slots_change_no_bit),
        cmocka_unit_test(evaluation_is_the_same_from_every_tier),
        cmocka_unit_test(generation_is_the_same_from_every_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

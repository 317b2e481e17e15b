/* Units whose states pass through a device to be stepped end as those that the host steps, bit for
 * bit: over homes, forms of weights, moments and gradients, lanes and grids. */
#include "tests/engine_rig.h"

#define HOST SW_TIER_HOST
#define NVME SW_TIER_NVME
#define DEVICE SW_TIER_DEVICE

struct variant {
    const char *what;
    struct setup setup; /* homes and travel only */
};

static const struct variant HOMES[] = {
    {"all on the host", {.params = HOST, .optimizer = HOST, .grads = HOST}},
    {"all on the host, small chunks, one op at a time",
     {.params = HOST, .optimizer = HOST, .grads = HOST, .chunk_bytes = 4096, .serial = true}},
    {"states on the host, gradients on the device",
     {.params = HOST, .optimizer = HOST, .grads = DEVICE, .chunk_bytes = 4096}},
    {"states on the host, the rest on the device",
     {.params = DEVICE, .optimizer = HOST, .grads = DEVICE, .chunk_bytes = 4096}},
    {"weights on the device, the rest on the host",
     {.params = DEVICE, .optimizer = HOST, .grads = HOST, .remote = true}},
    {"all on drives",
     {.params = NVME, .optimizer = NVME, .grads = NVME, .chunk_bytes = 4096, .verify = true}},
    {"all on drives, one op at a time",
     {.params = NVME, .optimizer = NVME, .grads = NVME, .serial = true}},
    {"states on drives, gradients on the device, which the host does not reach",
     {.params = HOST, .optimizer = NVME, .grads = DEVICE, .chunk_bytes = 4096, .remote = true}},
    {"weights and gradients on drives, states on the host",
     {.params = NVME, .optimizer = HOST, .grads = NVME, .chunk_bytes = 4096}},
    {"states on drives, the rest on the device",
     {.params = DEVICE, .optimizer = NVME, .grads = DEVICE}},
};
enum { COUNT = sizeof HOMES / sizeof *HOMES };

static struct outcome run(const struct setup *base, const struct setup *homes,
                          enum sw_step_where where)
{
    struct setup setup = *base;
    setup.params = homes->params;
    setup.optimizer = homes->optimizer;
    setup.grads = homes->grads;
    setup.chunk_bytes = homes->chunk_bytes;
    setup.serial = homes->serial;
    setup.verify = homes->verify;
    setup.remote = homes->remote;
    setup.where = where;
    return train(&setup);
}

/* All but the common unit, and what is frozen, are streamed, and everything is as the host has it.
 */
static void compare(const struct setup *base, const struct variant *variants, int count)
{
    for (int i = 0; i < count; i++) {
        struct outcome want = run(base, &variants[i].setup, SW_STEP_HOST);
        struct outcome have = run(base, &variants[i].setup, SW_STEP_STREAM);
        assert_int_equal(want.streamed, 0);
        assert_true(have.streamed >= 5);
        assert_same_outcome(&want, &have, variants[i].what);
        free_outcome(&want);
        free_outcome(&have);
    }
}

static void streaming_changes_no_bit(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .threads = 2, .dropout = 0.1f};
    compare(&base, HOMES, COUNT);
}

static void nor_in_bf16_with_an_untied_head(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .threads = 2, .untied = true, .bf16 = true};
    compare(&base, HOMES, COUNT);
}

static void nor_with_a_split_master_and_bf16_moments(void **state)
{
    (void)state;
    const struct setup base = {
        .micro_batch = 2, .threads = 2, .bf16 = true, .split = true, .bf16_moments = true};
    compare(&base, HOMES, COUNT);
}

static void nor_with_gradients_held_in_bf16_and_frozen_units(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 4,
                               .threads = 2,
                               .bf16_grads = true,
                               .bf16_moments = true,
                               .freeze = "decoder.block.1.*"};
    compare(&base, HOMES, COUNT);
}

static void nor_when_stepping_early(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 4, .threads = 2, .early = true, .dropout = 0.1f};
    compare(&base, HOMES, COUNT);
}

static const struct variant OF_GRIDS[] = {
    {"all on the host", {.params = HOST, .optimizer = HOST, .grads = HOST}},
    {"states on the host, the rest on the device",
     {.params = DEVICE, .optimizer = HOST, .grads = DEVICE, .remote = true}},
    {"states and gradients on drives, weights on the host",
     {.params = HOST, .optimizer = NVME, .grads = NVME}},
};
enum { OF_GRIDS_COUNT = sizeof OF_GRIDS / sizeof *OF_GRIDS };

static void nor_over_stages(void **state)
{
    (void)state;
    struct setup base = {.micro_batch = 2, .threads = 2, .bf16 = true, .pipeline = 3};
    compare(&base, OF_GRIDS, OF_GRIDS_COUNT);
    base.schedule = SW_SCHEDULE_1F1B;
    compare(&base, &OF_GRIDS[1], 1);
}

/* Each replica streams its range; what all have at home is gathered. */
static void nor_over_replicas(void **state)
{
    (void)state;
    struct setup base = {.micro_batch = 2, .threads = 2, .bf16 = true, .wide = true, .data = 3};
    for (base.zero = 0; base.zero <= 3; base.zero++)
        compare(&base, OF_GRIDS, OF_GRIDS_COUNT);
    base.data = base.pipeline = 2;
    base.early = true;
    compare(&base, OF_GRIDS, OF_GRIDS_COUNT);
}

/* The step that is planned for, and by `auto` how many units stream. */
static double predicted(const struct sw_plan_rates *rates, enum sw_step_where where,
                        int64_t *streamed)
{
    const struct setup setup = {.micro_batch = 4,
                                .optimizer = HOST,
                                .where = where,
                                .rates = rates,
                                .remote = true,
                                .encoder = 8,
                                .decoder = 8};
    struct rig rig;
    assert_ok(try_plan_rig(&rig, &setup), &rig.err);
    double seconds = rig.plan->predicted.makespan_seconds;
    *streamed = 0;
    for (int64_t i = 0; i < rig.model->unit_count; i++)
        *streamed += rig.plan->homes[i].streamed;
    close_rig(&rig);
    return seconds;
}

/* A host that takes as long over all units as its links would: both at once are faster than either.
 * With slow links nothing is streamed. */
static void auto_streams_what_is_faster_so(void **state)
{
    (void)state;
    struct sw_plan_rates rates = {.gemm_flops = 1e12,
                                  .device_bytes = 1e12,
                                  .optimizer_bytes = 2e8,
                                  .host_bytes = 2e8,
                                  .memory_bytes = 1e9,
                                  .h2d_bytes = 7e7,
                                  .d2h_bytes = 7e7};
    int64_t streamed, all;
    double host = predicted(&rates, SW_STEP_HOST, &streamed);
    assert_int_equal(streamed, 0);
    double stream = predicted(&rates, SW_STEP_STREAM, &all);
    double best = predicted(&rates, SW_STEP_AUTO, &streamed);
    assert_true(streamed > 0 && streamed < all);
    assert_true(best < 0.8 * host && best < 0.8 * stream);
    /* What links and CPUs share is all used up by the CPUs. */
    rates.memory_bytes = 0;
    double shared = predicted(&rates, SW_STEP_AUTO, &streamed);
    assert_true(shared > best);
    /* Both ways of a link may be less than their sum. */
    rates.memory_bytes = 1e9;
    stream = predicted(&rates, SW_STEP_STREAM, &all);
    rates.both_bytes = 7e7;
    assert_true(predicted(&rates, SW_STEP_STREAM, &all) > 1.2 * stream);
    rates.memory_bytes = rates.both_bytes = 0;
    rates.h2d_bytes = rates.d2h_bytes = 1e6;
    host = predicted(&rates, SW_STEP_HOST, &streamed);
    best = predicted(&rates, SW_STEP_AUTO, &streamed);
    assert_int_equal(streamed, 0);
    assert_true(best == host);
}

static void and_ends_as_the_host_does(void **state)
{
    (void)state;
    static const struct sw_plan_rates rates = {.gemm_flops = 1e12,
                                               .device_bytes = 1e12,
                                               .optimizer_bytes = 2e8,
                                               .host_bytes = 2e8,
                                               .memory_bytes = 1e9,
                                               .h2d_bytes = 7e7,
                                               .d2h_bytes = 7e7};
    struct setup setup = {
        .micro_batch = 4, .threads = 2, .bf16 = true, .remote = true, .rates = &rates};
    setup.optimizer = HOST;
    struct outcome have = train(&setup);
    setup.where = SW_STEP_HOST;
    struct outcome want = train(&setup);
    assert_true(have.streamed > 0 && want.streamed == 0);
    assert_same_outcome(&want, &have, "auto");
    free_outcome(&want);
    free_outcome(&have);
}

static void adafactor_is_refused_by_name(void **state)
{
    (void)state;
    struct setup setup = {.micro_batch = 4, .adafactor = true, .where = SW_STEP_STREAM};
    struct rig rig;
    assert_refused(try_plan_rig(&rig, &setup), SW_E_USAGE,
                   "optimizer.where: stream clashes with optimizer.name: adafactor", &rig.err);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_changes_no_bit),
        cmocka_unit_test(nor_in_bf16_with_an_untied_head),
        cmocka_unit_test(nor_with_a_split_master_and_bf16_moments),
        cmocka_unit_test(nor_with_gradients_held_in_bf16_and_frozen_units),
        cmocka_unit_test(nor_when_stepping_early),
        cmocka_unit_test(nor_over_stages),
        cmocka_unit_test(nor_over_replicas),
        cmocka_unit_test(auto_streams_what_is_faster_so),
        cmocka_unit_test(and_ends_as_the_host_does),
        cmocka_unit_test(adafactor_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pipelines and replicas of small random T5 models on the CPU back end: what must not change a
 * result does not, and memory is cut as ZeRO says. */
#include "tests/engine_rig.h"

#include <math.h>

/* Sums of another order: a few units in the last place, carried over three steps. */
static void assert_close(const struct outcome *a, const struct outcome *b, const char *what)
{
    for (int step = 0; step < STEPS; step++) {
        if (!(fabs(a->loss[step] - b->loss[step]) <= 1e-5 * b->loss[step]))
            fail_msg("%s: loss %.9g of step %d, not %.9g", what, a->loss[step], step,
                     b->loss[step]);
        if (!(fabs(a->norm[step] - b->norm[step]) <= 1e-4 * b->norm[step]))
            fail_msg("%s: norm %.9g of step %d, not %.9g", what, a->norm[step], step,
                     b->norm[step]);
    }
}

static const char *describe(const struct setup *setup)
{
    static char text[160];
    snprintf(text, sizeof text,
             "pipeline %d, data %d, zero %d, %s, states %s, weights %s, activations %s%s%s",
             setup->pipeline, setup->data, setup->zero, sw_schedule_name(setup->schedule),
             sw_tier_name(setup->optimizer), sw_tier_name(setup->params),
             sw_tier_name(setup->activations), setup->recompute ? ", recomputed" : "",
             setup->mailbox ? ", mailboxes" : "");
    return text;
}

static void assert_same(const struct setup *setup, const struct outcome *want)
{
    struct outcome have = train(setup);
    assert_same_outcome(&have, want, describe(setup));
    free_outcome(&have);
}

static void stages_change_no_bit(void **state)
{
    (void)state;
    static const enum sw_schedule schedules[] = {SW_SCHEDULE_LAYERED, SW_SCHEDULE_1F1B,
                                                 SW_SCHEDULE_GPIPE};
    for (int s = 0; s < 3; s++) {
        struct setup setup = {
            .micro_batch = 2, .threads = 2, .dropout = 0.1f, .schedule = schedules[s]};
        struct outcome want = train(&setup);
        for (setup.pipeline = 2; setup.pipeline <= 5; setup.pipeline++) {
            setup.mailbox = setup.pipeline == 3;
            setup.serial = setup.pipeline == 4;
            setup.recompute = setup.pipeline == 2;
            assert_same(&setup, &want);
        }
        free_outcome(&want);
    }
}

static void nor_do_tiers_below_stages(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .threads = 2};
    struct outcome want = train(&base);
    static const enum sw_tier tiers[] = {SW_TIER_HOST, SW_TIER_NVME};
    for (int t = 0; t < 2; t++) {
        struct setup setup = {.micro_batch = 3,
                              .threads = 2,
                              .pipeline = 2 + t,
                              .params = tiers[t],
                              .optimizer = tiers[t],
                              .grads = tiers[t],
                              .activations = tiers[t],
                              .chunk_bytes = 4096,
                              .verify = true};
        assert_same(&setup, &want);
        setup.prefetch_depth = 1;
        setup.schedule = SW_SCHEDULE_LAYERED;
        assert_same(&setup, &want);
        struct setup states = {.micro_batch = 3,
                               .threads = 2,
                               .pipeline = 3,
                               .optimizer = tiers[t],
                               .chunk_bytes = 4096};
        assert_same(&states, &want);
    }
    free_outcome(&want);
    const struct setup adafactor = {.micro_batch = 3, .threads = 1, .adafactor = true};
    const struct setup staged = {.micro_batch = 3,
                                 .threads = 2,
                                 .adafactor = true,
                                 .pipeline = 3,
                                 .optimizer = SW_TIER_HOST};
    assert_same_bits(&adafactor, &staged);
    const struct setup early = {.micro_batch = 3, .threads = 1, .early = true};
    const struct setup early_staged = {
        .micro_batch = 3, .threads = 2, .early = true, .pipeline = 2, .optimizer = SW_TIER_NVME};
    assert_same_bits(&early, &early_staged);
}

/* Equal micro-batches, replicas and schedule: the same bits whatever is cut and wherever it lies.
 * Other numbers of replicas: the same up to rounding. */
static void replicas_agree(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 1, .threads = 2, .wide = true};
    struct outcome one = train(&base);
    for (int data = 2; data <= 4; data += 2) {
        struct setup setup = base;
        setup.data = data;
        struct outcome want = train(&setup);
        assert_close(&want, &one, describe(&setup));
        for (setup.zero = 1; setup.zero <= 3; setup.zero++)
            assert_same(&setup, &want);
        setup.pipeline = 2;
        for (setup.zero = 0; setup.zero <= 3; setup.zero++) {
            static const enum sw_schedule schedules[] = {SW_SCHEDULE_LAYERED, SW_SCHEDULE_1F1B,
                                                         SW_SCHEDULE_GPIPE, SW_SCHEDULE_LAYERED};
            setup.optimizer = setup.zero == 1 ? SW_TIER_HOST : SW_TIER_AUTO;
            setup.params = setup.zero == 3 ? SW_TIER_NVME : SW_TIER_AUTO;
            setup.schedule = schedules[setup.zero];
            struct outcome have = train(&setup);
            assert_close(&have, &one, describe(&setup));
            if (setup.schedule == SW_SCHEDULE_LAYERED)
                assert_same_outcome(&have, &want, describe(&setup));
            free_outcome(&have);
        }
        free_outcome(&want);
    }
    free_outcome(&one);
}

static void replicas_agree_with_other_optimizers(void **state)
{
    (void)state;
    struct setup setup = {
        .micro_batch = 2, .threads = 2, .wide = true, .adafactor = true, .data = 2};
    for (int kind = 0; kind < 3; kind++) {
        setup.zero = 0;
        setup.adafactor = kind == 0;
        setup.early = kind == 1;
        setup.bf16_grads = kind == 2;
        struct outcome want = train(&setup);
        for (setup.zero = 1; setup.zero <= 3; setup.zero++)
            assert_same(&setup, &want);
        setup.optimizer = SW_TIER_NVME;
        assert_same(&setup, &want);
        setup.optimizer = SW_TIER_AUTO;
        free_outcome(&want);
    }
}

/* Where gradients are summed up in ranges, micro-batch by micro-batch: what is cut beside them, and
 * where states lie, changes no bit; against whole gradients it is another order of the same sum. */
static void so_they_do_with_ranges_of_gradients(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        struct setup setup = {.micro_batch = 1,
                              .threads = 2,
                              .wide = true,
                              .pipeline = 1 + kind % 2,
                              .data = kind == 5 ? 4 : 2,
                              .schedule = kind % 3 == 1 ? SW_SCHEDULE_GPIPE : SW_SCHEDULE_1F1B,
                              .adafactor = kind == 2,
                              .early = kind == 3,
                              .bf16_grads = kind == 4,
                              .untied = kind == 1,
                              .freeze = kind == 5 ? "decoder.block.0.*" : NULL};
        struct outcome whole = train(&setup);
        setup.zero = 2;
        struct outcome want = train(&setup);
        if (kind != 4) /* rounding to bf16 makes more of the difference */
            assert_close(&want, &whole, describe(&setup));
        setup.zero = 3;
        assert_same(&setup, &want);
        setup.prefetch_depth = 1;
        setup.serial = true;
        assert_same(&setup, &want);
        setup.serial = false;
        setup.optimizer = SW_TIER_HOST;
        assert_same(&setup, &want);
        setup.zero = 2;
        setup.optimizer = SW_TIER_NVME;
        setup.chunk_bytes = 4096;
        setup.recompute = true;
        assert_same(&setup, &want);
        free_outcome(&whole);
        free_outcome(&want);
    }
}

/* Weights that are not on the devices come whole to each replica, or in ranges: the same bits. */
static void either_way_of_uploading(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct setup setup = {.micro_batch = 1,
                              .threads = 2,
                              .wide = kind < 3, /* else some units are smaller than a range */
                              .pipeline = 1 + kind % 2,
                              .data = kind == 2 ? 2 : 4,
                              .zero = kind,
                              .params = kind % 2 == 0 ? SW_TIER_HOST : SW_TIER_NVME,
                              .optimizer = kind == 2 ? SW_TIER_NVME : SW_TIER_AUTO,
                              .chunk_bytes = kind == 1 ? 0 : 4096,
                              .bf16 = kind == 2,
                              .split = kind == 2,
                              .verify = true,
                              .prefetch_depth = 1 + kind,
                              .uploads = SW_UPLOADS_WHOLE};
        struct outcome want = train(&setup);
        assert_true(want.params == setup.params);
        setup.uploads = SW_UPLOADS_RANGES;
        assert_same(&setup, &want);
        free_outcome(&want);
    }
}

/* Eight rows over three replicas are 3, 3 and 2; over eight, one each; and with micro-batches of 3
 * some replicas have none of the second. */
static void rows_that_do_not_divide(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 8, .threads = 2};
    struct outcome one = train(&base);
    for (int data = 3; data <= 8; data += 5) {
        const struct setup setup = {.micro_batch = 2, .threads = 2, .data = data, .pipeline = 2};
        struct outcome have = train(&setup);
        assert_close(&have, &one, describe(&setup));
        free_outcome(&have);
    }
    free_outcome(&one);
}

static void a_short_batch_leaves_replicas_without_rows(void **state)
{
    (void)state;
    double losses[2], norms[2];
    for (int i = 0; i < 2; i++) {
        const struct setup setup = {
            .micro_batch = 1, .threads = 2, .data = i == 0 ? 1 : 4, .pipeline = 2};
        struct rig rig;
        struct rows rows;
        struct sw_step_result result;
        open_rig(&rig, &setup);
        for (int step = 0; step < 2; step++) {
            make_rows(&rows, step);
            if (step == 1) { /* one row: three replicas have none, and stale gradients */
                rows.batch.count = 1;
                rows.batch.target_tokens = rows.rows[0].target_length;
            }
            assert_ok(sw_engine_step(rig.engine, step + 1, 1e-3, &rows.batch, &result, &rig.err),
                      &rig.err);
        }
        losses[i] = result.loss;
        norms[i] = result.grad_norm;
        close_rig(&rig);
    }
    assert_true(fabs(losses[1] - losses[0]) <= 1e-5 * losses[0]);
    assert_true(fabs(norms[1] - norms[0]) <= 1e-4 * norms[0]);
}

static int64_t item(const struct sw_plan *plan, const char *name)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, name) == 0)
            bytes = plan->stage[0].item_bytes[i];
    return bytes;
}

/* Bytes on a rank of the stage that has most, of each stage of ZeRO. */
struct cut {
    int64_t states[4], gradients[4], weights[4];
};

static void print_cut(const char *name, const int64_t bytes[4])
{
    print_message("  %-9s %8lld %8lld %8lld %8lld\n", name, (long long)bytes[0],
                  (long long)bytes[1], (long long)bytes[2], (long long)bytes[3]);
}

/* From stage `from` of ZeRO on, half of it up to whole blocks of a unit. */
static void assert_halved(const int64_t bytes[4], int from)
{
    for (int zero = 1; zero <= 3; zero++) {
        if (zero < from)
            assert_int_equal(bytes[zero], bytes[0]);
        else
            assert_true(bytes[zero] >= bytes[0] / 2 && bytes[zero] < bytes[0] * 3 / 4);
        if (zero > from)
            assert_int_equal(bytes[zero], bytes[from]);
    }
}

/* Device memory per rank, by the budget, which the engine's high-water mark equals: states /dp from
 * stage 1 on, gradients from 2, weights from 3, up to whole blocks of a unit; with any schedule,
 * which at most two gradients of units are added to beside. */
static void memory_follows_the_formulas(void **state)
{
    (void)state;
    for (int s = SW_SCHEDULE_LAYERED; s <= SW_SCHEDULE_GPIPE; s++) {
        struct cut cut;
        for (int zero = 0; zero <= 3; zero++) {
            struct setup setup = {.micro_batch = 2,
                                  .threads = 1,
                                  .wide = true,
                                  .pipeline = s == SW_SCHEDULE_LAYERED ? 1 : 2,
                                  .data = 2,
                                  .zero = zero,
                                  .schedule = (enum sw_schedule)s,
                                  .params = SW_TIER_DEVICE,
                                  .optimizer = SW_TIER_DEVICE,
                                  .grads = SW_TIER_DEVICE};
            struct rig rig;
            open_rig(&rig, &setup);
            for (int32_t rank = 0; rank < rig.plan->ranks; rank++)
                assert_int_equal(sw_engine_device_bytes(rig.engine, rank),
                                 rig.plan->stage[rank % rig.plan->stages].device_bytes);
            const struct sw_slot_pool *pools = rig.plan->stage[0].gradient_pools;
            assert_true(pools[SW_POOL_BLOCKS].slots <= 2 && pools[SW_POOL_TABLES].slots <= 2);
            cut.states[zero] = item(rig.plan, "optimizer states");
            cut.gradients[zero] = item(rig.plan, "held gradients");
            cut.weights[zero] = item(rig.plan, "weights");
            close_rig(&rig);
        }
        print_message("%s, ZeRO 0 to 3\n", sw_schedule_name((enum sw_schedule)s));
        print_cut("states", cut.states);
        print_cut("gradients", cut.gradients);
        print_cut("weights", cut.weights);
        assert_halved(cut.states, 1);
        assert_halved(cut.gradients, 2);
        assert_true(cut.weights[2] == cut.weights[1]); /* of their own: not the masters, if cut */
        assert_true(cut.weights[3] >= cut.weights[0] / 2 &&
                    cut.weights[3] < cut.weights[0] * 3 / 4);
    }
}

/* What a device steps itself has the host's bits; all of it there, or part. */
static void steps_on_devices_have_the_same_bits(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct setup setup = {.micro_batch = 2,
                              .threads = 2,
                              .wide = true,
                              .early = kind == 1,
                              .bf16_grads = kind == 2};
        struct outcome want = train(&setup);
        setup.remote = true;
        assert_same(&setup, &want);
        setup.pipeline = 2;
        assert_same(&setup, &want);
        setup.optimizer = SW_TIER_HOST;
        assert_same(&setup, &want);
        setup.pipeline = 1;
        setup.optimizer = SW_TIER_AUTO;
        setup.split = true;
        assert_same(&setup, &want);
        free_outcome(&want);
    }
}

static int32_t near_rank = -1;
static int64_t host_bytes[2];

static void note_near(void *context, int32_t rank)
{
    (void)context;
    near_rank = rank;
}

static sw_code count_host(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    assert_in_range(near_rank, 0, 1);
    host_bytes[near_rank] += bytes;
    return sw_cpu_device_ops.host_alloc(device, bytes, out, err);
}

/* States of both stages' units are on the host: near the rank that they go up to. */
static void host_memory_is_its_ranks(void **state)
{
    (void)state;
    struct rig rig;
    struct sw_device_ops ops = sw_cpu_device_ops;
    ops.host_alloc = count_host;
    const struct setup setup = {.micro_batch = 3,
                                .threads = 1,
                                .remote = true,
                                .pipeline = 2,
                                .optimizer = SW_TIER_HOST,
                                .device = &ops,
                                .near = note_near};
    open_rig(&rig, &setup);
    int64_t states[2] = {0};
    for (int64_t i = 0; i < rig.model->unit_count; i++)
        states[rig.plan->unit_stage[i]] += 8 * rig.model->units[i].elements; /* two moments */
    close_rig(&rig);
    for (int rank = 0; rank < 2; rank++)
        assert_true(states[rank] > 0 && host_bytes[rank] >= states[rank]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_change_no_bit),
        cmocka_unit_test(nor_do_tiers_below_stages),
        cmocka_unit_test(replicas_agree),
        cmocka_unit_test(replicas_agree_with_other_optimizers),
        cmocka_unit_test(so_they_do_with_ranges_of_gradients),
        cmocka_unit_test(either_way_of_uploading),
        cmocka_unit_test(rows_that_do_not_divide),
        cmocka_unit_test(a_short_batch_leaves_replicas_without_rows),
        cmocka_unit_test(steps_on_devices_have_the_same_bits),
        cmocka_unit_test(memory_follows_the_formulas),
        cmocka_unit_test(host_memory_is_its_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a run takes, it takes before it starts: the process does not grow over steps that spill, a
 * drain, an evaluation. */
#include "tests/engine_rig.h"

#include "base/mem.h"

/* A step that kept 100 KiB would show. What may come later is stacks that are touched deeper and
 * the buffers of the C library. */
enum { LONG_RUN_STEPS = 40, GROWTH_MAX_BYTES = 4 << 20 };

static void run_and_measure(const struct setup *setup, const char *what)
{
    struct rig rig;
    struct rows rows;
    open_rig(&rig, setup);
    int64_t sealed = sw_engine_sealed_bytes(rig.engine), most = sealed;
    assert_true(sealed > 0 && sealed <= rig.plan->total_bytes[SW_TIER_DEVICE] +
                                            rig.plan->total_bytes[SW_TIER_HOST] +
                                            SW_PLAN_PROGRAM_BYTES);
    for (int step = 0; step < LONG_RUN_STEPS; step++) {
        struct sw_step_result result;
        double loss;
        int64_t tokens;
        make_rows(&rows, step);
        assert_ok(sw_engine_step(rig.engine, step + 1, 1e-3, &rows.batch, &result, &rig.err),
                  &rig.err);
        if (step % 10 == 9)
            assert_ok(sw_engine_evaluate(rig.engine, &rows.batch, &loss, &tokens, NULL, &rig.err),
                      &rig.err);
        int64_t now = sw_memory_process_bytes();
        most = now > most ? now : most;
    }
    close_rig(&rig);
    if (most - sealed > GROWTH_MAX_BYTES)
        fail_msg("%s: %lld KiB at the seal, %lld more later", what, (long long)(sealed >> 10),
                 (long long)((most - sealed) >> 10));
}

static void a_run_does_not_grow(void **state)
{
    (void)state;
    if (sw_memory_process_bytes() < 0) {
        print_message("skipped: this system does not tell the size of a process\n");
        skip();
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer keeps memory of its own\n");
    skip();
#endif
    const struct setup nvme = {.micro_batch = 3,
                               .threads = 3,
                               .dropout = 0.1f,
                               .params = SW_TIER_NVME,
                               .optimizer = SW_TIER_NVME,
                               .grads = SW_TIER_NVME,
                               .activations = SW_TIER_NVME,
                               .chunk_bytes = 4096,
                               .verify = true};
    run_and_measure(&nvme, "nvme");
    const struct setup sync = {.micro_batch = 3,
                               .threads = 2,
                               .adafactor = true,
                               .bf16 = true,
                               .params = SW_TIER_HOST,
                               .optimizer = SW_TIER_NVME,
                               .grads = SW_TIER_HOST,
                               .activations = SW_TIER_HOST,
                               .method = &sw_aio_sync};
    run_and_measure(&sync, "sync");
    const struct setup threads = {.micro_batch = 3,
                                  .threads = 2,
                                  .params = SW_TIER_NVME,
                                  .optimizer = SW_TIER_NVME,
                                  .grads = SW_TIER_NVME,
                                  .activations = SW_TIER_HOST,
                                  .method = &sw_aio_threads};
    run_and_measure(&threads, "threads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "support.h"

#include "io/measure.h"

static char *scratch;

static double last_fraction;

static void take_progress(void *context, double fraction)
{
    (void)context;
    assert_true(fraction >= last_fraction && fraction <= 1.0001);
    last_fraction = fraction;
}

static void test_rates(void **state)
{
    (void)state;
    static const char *const methods[] = {"sync", "auto"};
    for (int i = 0; i < 2; i++) {
        struct sw_err err = {0};
        struct sw_measure_rates rates;
        struct sw_measure_config config = {.directory = scratch,
                                           .file_bytes = (4 << 20) + 5,
                                           .request_bytes = 65536,
                                           .queue_depth = 4,
                                           .progress = take_progress};
        last_fraction = 0;
        assert_true(sw_aio_method_find(methods[i], &config.method));
        assert_ok(sw_measure_drive(&config, &rates, &err), &err);
        assert_true(rates.read_bytes_per_second > 0 && rates.write_bytes_per_second > 0);
        assert_true(last_fraction > 0.99);
        if (i == 0)
            assert_string_equal(rates.method, "sync");
    }
}

static void test_best(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_machine_drive drive = {.queue_depth = 0};
    struct sw_measure_config config = {.directory = scratch,
                                       .file_bytes = 16 << 20,
                                       .max_seconds = 0.2,
                                       .progress = take_progress};
    last_fraction = 0;
    assert_ok(sw_measure_drive_best(&config, &drive, &err), &err);
    assert_true(drive.queue_depth >= 4 && drive.request_bytes >= 128 << 10);
    assert_true(drive.read_bytes_per_second > 0 && drive.write_bytes_per_second > 0);
    assert_true(drive.both_bytes_per_second > 0);
    assert_true(drive.transfer_seconds >= 0 && drive.transfer_seconds < 10);
}

static void test_directories(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill_directory list[2] = {{.path = scratch}, {.path = scratch, .weight = 5}};
    struct sw_measure_settings best;
    assert_ok(sw_measure_directories(list, 1, NULL, &best, &err), &err);
    assert_true(list[0].weight == 0); /* one directory has nothing to share with */
    assert_true(best.request_bytes >= 128 << 10 && best.request_bytes <= 4 << 20);
    assert_true(best.queue_depth >= 4 && best.queue_depth <= 32);
    assert_ok(sw_measure_directories(list, 2, NULL, &best, &err), &err);
    assert_true(list[0].weight > 1e6 && list[0].weight < 1e13);
    assert_true(list[1].weight == 5);
    list[1] = (struct sw_spill_directory){.path = "/nowhere"};
    assert_refused(sw_measure_directories(list, 2, NULL, &best, &err), SW_E_USAGE, "/nowhere",
                   &err);
}

static void test_refusals(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_measure_rates rates;
    struct sw_measure_config config = {
        .directory = "/nowhere", .file_bytes = 8192, .request_bytes = 4096, .queue_depth = 1};
    assert_refused(sw_measure_drive(&config, &rates, &err), SW_E_USAGE, "/nowhere", &err);
    config.directory = scratch;
    config.file_bytes = 4095;
    assert_refused(sw_measure_drive(&config, &rates, &err), SW_E_USAGE, "less than one request",
                   &err);
    config.file_bytes = INT64_MAX / 4;
    assert_refused(sw_measure_drive(&config, &rates, &err), SW_E_FIT, "are free", &err);
}

static int setup(void **state)
{
    (void)state;
    scratch = sw_test_scratch();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(rmdir(scratch), 0); /* nothing is left in it */
    free(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

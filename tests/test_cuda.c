/* The CUDA back end, on a machine that has a GPU: every case of the kernels' table against double,
 * twice with the same bits; the cap, pinned memory, copies, streams and events. */
#include "cuda_module.h"
#include "op_cases.h"
#include "optim_on_device.h"
#include "support.h"

static const struct sw_device_ops *ops;

enum { SKIPPED = 77 };

/* SPILLWAY_TEST_CASES: only cases whose name has this in it. */
static bool wanted(const struct op_case *c)
{
    const char *only = getenv("SPILLWAY_TEST_CASES");
    return only == NULL || strstr(c->name, only) != NULL;
}

/* --- Kernels -----------------------------------------------------------------------------------*/

static void cases_agree_with_double(void **state)
{
    int count = 0, wrong = 0;
    (void)state;
    for (const struct op_case *c = op_cases; c->name != NULL; c++) {
        if (!wanted(c))
            continue;
        struct op_result result;
        op_case_run(c, ops, NULL, true, &result);
        count++;
        if (!op_result_agrees(c, &result))
            wrong++;
        op_result_free(&result);
    }
    printf("%d cases, %d wrong\n", count, wrong);
    assert_int_equal(wrong, 0);
}

static void cases_repeat_their_bits(void **state)
{
    (void)state;
    if (getenv("SPILLWAY_TEST_ONCE") != NULL) /* under a sanitizer, which has seen them all */
        skip();
    for (const struct op_case *c = op_cases; c->name != NULL; c++) {
        if (!wanted(c))
            continue;
        struct op_result a, b;
        op_case_run(c, ops, NULL, false, &a);
        op_case_run(c, ops, NULL, false, &b);
        for (int i = 0; i < a.count; i++)
            if (memcmp(a.outputs[i].bits, b.outputs[i].bits, (size_t)a.outputs[i].bytes) != 0)
                fail_msg("%s: %s has other bits the second time", c->name, a.outputs[i].name);
        op_result_free(&a);
        op_result_free(&b);
    }
}

/* --- Optimizers: the host's bits -----------------------------------------------------------------
 */

static struct sw_pool *open_pool(void)
{
    struct sw_err err = {0};
    struct sw_pool *pool = NULL;
    assert_ok(sw_pool_open(&pool, 0, &err), &err);
    return pool;
}

static void steps_have_the_hosts_bits(void **state)
{
    struct sw_pool *pool = open_pool();
    (void)state;
    optim_on_device_steps(ops, pool);
    sw_pool_close(pool);
}

static void norms_have_the_hosts_bits(void **state)
{
    struct sw_pool *pool = open_pool();
    (void)state;
    optim_on_device_norms(ops, pool);
    sw_pool_close(pool);
}

/* --- The device --------------------------------------------------------------------------------*/

enum { CAP = 16 << 20 };

struct fixture {
    struct sw_device *device;
    struct sw_stream *compute, *up, *down;
};

static int set_up(void **state)
{
    static struct fixture f;
    struct sw_err err = {0};
    const struct sw_device_config config = {.memory_bytes = CAP};
    assert_ok(ops->open(&f.device, &config, &err), &err);
    assert_ok(ops->stream_open(f.device, SW_STREAM_COMPUTE, &f.compute, &err), &err);
    assert_ok(ops->stream_open(f.device, SW_STREAM_H2D, &f.up, &err), &err);
    assert_ok(ops->stream_open(f.device, SW_STREAM_D2H, &f.down, &err), &err);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    ops->stream_close(f->compute);
    ops->stream_close(f->up);
    ops->stream_close(f->down);
    ops->close(f->device);
    return 0;
}

static void *alloc(struct fixture *f, int64_t bytes)
{
    struct sw_err err = {0};
    void *memory = NULL;
    assert_ok(ops->alloc(f->device, bytes, &memory, &err), &err);
    return memory;
}

static void *host_alloc(struct fixture *f, int64_t bytes)
{
    struct sw_err err = {0};
    void *memory = NULL;
    assert_ok(ops->host_alloc(f->device, bytes, &memory, &err), &err);
    return memory;
}

static void memory_is_aligned_and_capped(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    void *none = NULL;
    char *a = alloc(f, 1), *b = alloc(f, 257);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal(b - a, 256);
    assert_int_equal(ops->high_water_bytes(f->device), 256 + 512);
    assert_refused(ops->alloc(f->device, CAP - 768 + 1, &none, &err), SW_E_FIT, "16777216", &err);
    assert_refused(ops->alloc(f->device, INT64_MAX, &none, &err), SW_E_FIT, "devices.memory", &err);
    assert_null(none);
    (void)alloc(f, CAP - 768);
    assert_int_equal(ops->high_water_bytes(f->device), CAP);
    assert_refused(ops->alloc(f->device, 1, &none, &err), SW_E_FIT, "devices.memory", &err);
}

static void two_ranks_share_a_gpu(void **state)
{
    struct sw_err err = {0};
    struct sw_device *second = NULL;
    const struct sw_device_config config = {.memory_bytes = CAP};
    (void)state;
    assert_ok(ops->open(&second, &config, &err), &err);
    assert_int_equal(ops->high_water_bytes(second), 0);
    ops->close(second);
}

static void what_is_not_there_is_refused(void **state)
{
    struct sw_err err = {0};
    struct sw_device *device = NULL;
    const struct sw_device_config far = {.physical_index = 1000, .memory_bytes = CAP};
    const struct sw_device_config large = {.memory_bytes = INT64_MAX};
    (void)state;
    assert_refused(ops->open(&device, &far, &err), SW_E_USAGE, "devices.list", &err);
    assert_refused(ops->open(&device, &large, &err), SW_E_FIT, "devices.memory", &err);
    assert_null(device);
}

static void copies_and_zeros(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    enum { BYTES = (5 << 20) + 13 };
    unsigned char *from = host_alloc(f, BYTES), *to = host_alloc(f, BYTES + 1);
    void *there = alloc(f, BYTES);
    assert_int_equal((uintptr_t)from % 4096, 0);
    for (int64_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 31 >> 3);
    to[BYTES] = 99;
    ops->copy(f->up, there, from, BYTES);
    assert_ok(ops->stream_sync(f->up, &err), &err);
    ops->copy(f->down, to, there, BYTES);
    assert_ok(ops->stream_sync(f->down, &err), &err);
    assert_memory_equal(from, to, BYTES);
    ops->zero(f->compute, there, BYTES - 1);
    assert_ok(ops->stream_sync(f->compute, &err), &err);
    ops->copy(f->down, to, there, BYTES);
    assert_ok(ops->stream_sync(f->down, &err), &err);
    for (int64_t i = 0; i < BYTES - 1; i++)
        assert_int_equal(to[i], 0);
    assert_int_equal(to[BYTES - 1], from[BYTES - 1]);
    assert_int_equal(to[BYTES], 99);
    ops->host_free(f->device, from, BYTES);
    ops->host_free(f->device, to, BYTES + 1);
}

/* Pinned memory of more than a gigabyte is registered in pieces; copies go over their ends. */
static void copies_go_over_pieces(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    enum { BYTES = 1 << 20, AROUND = BYTES / 2 };
    const int64_t piece = (int64_t)1 << 30, all = piece + BYTES;
    char *memory = host_alloc(f, all), *back = host_alloc(f, BYTES);
    int64_t end = piece - (int64_t)((uintptr_t)memory % (uintptr_t)piece);
    end = end < AROUND ? end + AROUND : end > all - AROUND ? all - AROUND : end;
    char *from = memory + end - AROUND;
    void *there = alloc(f, BYTES);
    for (int64_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 7 >> 4);
    ops->copy(f->up, there, from, BYTES);
    assert_ok(ops->stream_sync(f->up, &err), &err);
    ops->copy(f->down, back, there, BYTES);
    assert_ok(ops->stream_sync(f->down, &err), &err);
    assert_memory_equal(from, back, BYTES);
    ops->host_free(f->device, memory, all);
    ops->host_free(f->device, back, BYTES);
}

/* Work on three streams in an order that only events keep: up, added on the GPU, down; again and
 * again into the same memory. */
static void events_order_streams(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    enum { COUNT = 1 << 18, BYTES = COUNT * 4, TIMES = 30 };
    struct sw_event *arrived, *added, *left;
    float *from = host_alloc(f, BYTES), *to = host_alloc(f, BYTES * TIMES);
    float *x = alloc(f, BYTES), *sum = alloc(f, BYTES);
    assert_ok(ops->event_open(f->device, &arrived, &err), &err);
    assert_ok(ops->event_open(f->device, &added, &err), &err);
    assert_ok(ops->event_open(f->device, &left, &err), &err);
    for (int64_t i = 0; i < COUNT; i++)
        from[i] = (float)(i % 13);
    ops->zero(f->compute, sum, BYTES);
    for (int i = 0; i < TIMES; i++) {
        ops->event_wait(added, f->up);
        ops->copy(f->up, x, from, BYTES);
        ops->event_record(arrived, f->up);
        ops->event_wait(arrived, f->compute);
        ops->event_wait(left, f->compute);
        ops->kernels->add(f->compute, sum, x, COUNT, SW_F32);
        ops->zero(f->compute, x, BYTES);
        ops->event_record(added, f->compute);
        ops->event_wait(added, f->down);
        ops->copy(f->down, to + (int64_t)i * COUNT, sum, BYTES);
        ops->event_record(left, f->down);
    }
    assert_ok(ops->event_sync(left, &err), &err);
    for (int i = 0; i < TIMES; i++)
        for (int64_t e = 0; e < COUNT; e++)
            if (to[(int64_t)i * COUNT + e] != (float)(e % 13) * (float)(i + 1))
                fail_msg("time %d, element %lld", i, (long long)e);
    assert_ok(ops->stream_sync(f->compute, &err), &err);
    ops->event_close(arrived);
    ops->event_close(added);
    ops->event_close(left);
    ops->host_free(f->device, from, BYTES);
    ops->host_free(f->device, to, BYTES * TIMES);
}

/* After a failure a stream does nothing; events carry it to the streams that wait. */
static void failures_stick_and_travel(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    struct sw_event *event = NULL;
    float *x = alloc(f, 16), *to = host_alloc(f, 16);
    to[0] = 7.0f;
    ops->zero(f->compute, x, 16);
    assert_ok(ops->stream_sync(f->compute, &err), &err);
    assert_ok(ops->event_open(f->device, &event, &err), &err);
    assert_ok(ops->event_sync(event, &err), &err);
    (void)SW_FAIL(&f->up->error, SW_E_DEVICE, "the first");
    ops->event_record(event, f->up);
    assert_refused(ops->event_sync(event, &err), SW_E_DEVICE, "the first", &err);
    ops->event_wait(event, f->down);
    ops->copy(f->down, to, x, 16);
    assert_refused(ops->stream_sync(f->down, &err), SW_E_DEVICE, "the first", &err);
    assert_true(to[0] == 7.0f);
    assert_ok(ops->stream_sync(f->compute, &err), &err);
    ops->event_close(event);
    ops->host_free(f->device, to, 16);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(memory_is_aligned_and_capped),
        TEST(two_ranks_share_a_gpu),
        TEST(what_is_not_there_is_refused),
        TEST(copies_and_zeros),
        TEST(copies_go_over_pieces),
        TEST(events_order_streams),
        TEST(failures_stick_and_travel),
        cmocka_unit_test(steps_have_the_hosts_bits),
        cmocka_unit_test(norms_have_the_hosts_bits),
        cmocka_unit_test(cases_agree_with_double),
        cmocka_unit_test(cases_repeat_their_bits),
    };
#undef TEST
    ops = sw_test_cuda();
    if (ops == NULL)
        return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The CPU as a device: the cap, alignment, copies, streams that carry their first failure, events
 * between threads, several threads on one pool. */
#include "kernels/kernels.h"
#include "support.h"

#include <pthread.h>

static const struct sw_device_ops *ops = &sw_cpu_device_ops;

struct fixture {
    struct sw_pool *pool;
    struct sw_device *device;
    struct sw_stream *stream;
};

enum { CAP = 1 << 20 };

static int set_up(void **state)
{
    static struct fixture f;
    struct sw_err err = {0};
    assert_ok(sw_pool_open(&f.pool, 3, &err), &err);
    const struct sw_device_config config = {.memory_bytes = CAP, .pool = f.pool};
    assert_ok(ops->open(&f.device, &config, &err), &err);
    assert_ok(ops->stream_open(f.device, SW_STREAM_COMPUTE, &f.stream, &err), &err);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    ops->stream_close(f->stream);
    ops->close(f->device);
    sw_pool_close(f->pool);
    return 0;
}

static void there_is_one(void **state)
{
    struct sw_err err = {0};
    int count = 0;
    (void)state;
    assert_ok(ops->count(&count, &err), &err);
    assert_int_equal(count, 1);
    assert_false(ops->asynchronous);
    assert_ptr_equal(ops->kernels, &sw_cpu_kernels);
}

static void memory_is_aligned_and_capped(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    void *a = NULL, *b = NULL, *rest = NULL, *none = NULL;
    assert_ok(ops->alloc(f->device, 1, &a, &err), &err);
    assert_ok(ops->alloc(f->device, 257, &b, &err), &err);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((uintptr_t)b % 256, 0);
    assert_int_equal((char *)b - (char *)a, 256);
    assert_int_equal(ops->high_water_bytes(f->device), 256 + 512);
    assert_refused(ops->alloc(f->device, CAP - 768 + 1, &none, &err), SW_E_FIT, "1048576", &err);
    assert_null(none);
    assert_int_equal(ops->high_water_bytes(f->device), 256 + 512);
    assert_ok(ops->alloc(f->device, CAP - 768, &rest, &err), &err);
    memset(rest, 7, CAP - 768);
    assert_refused(ops->alloc(f->device, 1, &none, &err), SW_E_FIT, "devices.memory", &err);
    assert_ok(ops->alloc(f->device, 0, &none, &err), &err);
    assert_int_equal(ops->high_water_bytes(f->device), CAP);
}

static void sizes_beyond_reason_are_refused(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    struct sw_device *device = NULL;
    void *none = NULL;
    const struct sw_device_config config = {.memory_bytes = INT64_MAX, .pool = f->pool};
    assert_refused(ops->open(&device, &config, &err), SW_E_FIT, "9223372036854775807", &err);
    assert_null(device);
    assert_refused(ops->alloc(f->device, INT64_MAX, &none, &err), SW_E_FIT, "1048576", &err);
}

static void a_cap_of_zero_is_what_is_free(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    struct sw_device *device = NULL;
    void *memory = NULL;
    const struct sw_device_config config = {.pool = f->pool};
    assert_ok(ops->open(&device, &config, &err), &err);
    assert_ok(ops->alloc(device, CAP, &memory, &err), &err);
    ops->close(device);
}

static void host_memory_is_page_aligned_and_zero(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    static const int64_t sizes[] = {0, 1, 4097, 3 << 20};
    for (int i = 0; i < 4; i++) {
        void *memory = NULL;
        assert_ok(ops->host_alloc(f->device, sizes[i], &memory, &err), &err);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        for (int64_t b = 0; b < sizes[i]; b += 997)
            assert_int_equal(((char *)memory)[b], 0);
        ops->host_free(f->device, memory, sizes[i]);
    }
}

static void copies_and_zeros(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    enum { BYTES = (5 << 20) + 13 };
    void *from = NULL, *to = NULL;
    assert_ok(ops->host_alloc(f->device, BYTES, &from, &err), &err);
    assert_ok(ops->host_alloc(f->device, BYTES + 1, &to, &err), &err);
    unsigned char *a = from, *b = to;
    for (int64_t i = 0; i < BYTES; i++)
        a[i] = (unsigned char)(i * 31 >> 3);
    b[BYTES] = 99;
    ops->copy(f->stream, to, from, BYTES);
    assert_memory_equal(a, b, BYTES);
    ops->zero(f->stream, to, BYTES - 1);
    for (int64_t i = 0; i < BYTES - 1; i++)
        assert_int_equal(b[i], 0);
    assert_int_equal(b[BYTES - 1], a[BYTES - 1]);
    assert_int_equal(b[BYTES], 99);
    ops->host_free(f->device, from, BYTES);
    ops->host_free(f->device, to, BYTES + 1);
}

/* After a failure a stream does nothing; events carry it to the streams that wait. */
static void failures_stick_and_travel(void **state)
{
    struct fixture *f = *state;
    struct sw_err err = {0};
    struct sw_stream *other = NULL;
    struct sw_event *event = NULL;
    float x[4] = {1, 2, 3, 4}, y[4] = {0}, z[4] = {0};
    assert_ok(ops->stream_open(f->device, SW_STREAM_H2D, &other, &err), &err);
    assert_ok(ops->event_open(f->device, &event, &err), &err);
    assert_ok(ops->event_sync(event, &err), &err);
    SW_FAIL(&other->error, SW_E_DEVICE, "the first");
    SW_FAIL(&other->error, SW_E_DEVICE, "the second");
    ops->copy(other, y, x, sizeof x);
    assert_true(y[0] == 0.0f);
    assert_refused(ops->stream_sync(other, &err), SW_E_DEVICE, "the first", &err);
    ops->event_record(event, other);
    assert_refused(ops->event_sync(event, &err), SW_E_DEVICE, "the first", &err);
    sw_cpu_kernels.add(f->stream, z, x, 4, SW_F32);
    assert_true(z[3] == 4.0f);
    ops->event_wait(event, f->stream);
    sw_cpu_kernels.add(f->stream, z, x, 4, SW_F32);
    assert_true(z[3] == 4.0f);
    assert_refused(sw_stream_check(f->stream, &err), SW_E_DEVICE, "the first", &err);
    ops->event_close(event);
    ops->stream_close(other);
}

/* --- Several threads, a stream each, on one pool -------------------------------------------------
 */

enum { LANES = 4, ELEMENTS = 100000, TIMES = 20 };

struct lane {
    struct fixture *f;
    float *values;
    float step;
};

static void *add_often(void *context)
{
    struct lane *lane = context;
    struct sw_err err = {0};
    struct sw_stream *stream = NULL;
    float *step = calloc(ELEMENTS, sizeof *step);
    assert_ok(ops->stream_open(lane->f->device, SW_STREAM_COMPUTE, &stream, &err), &err);
    for (int64_t i = 0; i < ELEMENTS; i++)
        step[i] = lane->step;
    for (int i = 0; i < TIMES; i++)
        ops->kernels->add(stream, lane->values, step, ELEMENTS, SW_F32);
    assert_ok(ops->stream_sync(stream, &err), &err);
    ops->stream_close(stream);
    free(step);
    return NULL;
}

static void threads_share_the_pool(void **state)
{
    struct lane lanes[LANES];
    pthread_t threads[LANES];
    for (int i = 0; i < LANES; i++) {
        lanes[i] = (struct lane){*state, calloc(ELEMENTS, sizeof(float)), (float)(i + 1)};
        assert_int_equal(pthread_create(&threads[i], NULL, add_often, &lanes[i]), 0);
    }
    for (int i = 0; i < LANES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int64_t e = 0; e < ELEMENTS; e++)
            assert_true(lanes[i].values[e] == (float)(TIMES * (i + 1)));
        free(lanes[i].values);
    }
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(there_is_one),
        TEST(memory_is_aligned_and_capped),
        TEST(sizes_beyond_reason_are_refused),
        TEST(a_cap_of_zero_is_what_is_free),
        TEST(host_memory_is_page_aligned_and_zero),
        TEST(copies_and_zeros),
        TEST(failures_stick_and_travel),
        TEST(threads_share_the_pool),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* One rank of a grid fails: its copies, its kernels or its memory, at the n-th call. The others are
 * down within seconds, the message has the rank, the block and the reason, and everything closes.
 */
#include "kernels/kernels.h"
#include "tests/engine_rig.h"

#include <pthread.h>
#include <time.h>

enum { RANKS = 6, WATCHDOG_SECONDS = 60, LIMIT_SECONDS = 10 };

/* ---- a back end of which one device fails ---- */

enum fault { FAULT_NONE, FAULT_COPY, FAULT_GEMM, FAULT_ADD, FAULT_STEP, FAULT_ALLOC };

static struct {
    pthread_mutex_t lock;
    enum fault fault;
    int rank;
    int64_t left;  /* calls until the fault; it stays */
    int64_t calls; /* of this sort, on this rank */
    struct sw_device *devices[RANKS];
    int opened;
} injected = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fails(enum fault fault, const struct sw_device *device)
{
    pthread_mutex_lock(&injected.lock);
    bool mine = injected.fault == fault && injected.devices[injected.rank] == device;
    bool now = mine && injected.calls++ >= injected.left;
    pthread_mutex_unlock(&injected.lock);
    return now;
}

static void fail_stream(struct sw_stream *stream)
{
    if (stream->error.code == SW_OK)
        (void)SW_FAIL(&stream->error, SW_E_DEVICE, "the card has fallen off the bus");
}

static sw_code open_device(struct sw_device **out, const struct sw_device_config *config,
                           struct sw_err *err)
{
    sw_code code = sw_cpu_device_ops.open(out, config, err);
    if (code == SW_OK)
        injected.devices[injected.opened++] = *out; /* ranks are opened in order */
    return code;
}

static sw_code alloc(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    if (fails(FAULT_ALLOC, device))
        return SW_FAIL(err, SW_E_FIT, "%lld bytes do not fit the device", (long long)bytes);
    return sw_cpu_device_ops.alloc(device, bytes, out, err);
}

static void copy(struct sw_stream *stream, void *destination, const void *source, int64_t bytes)
{
    if (fails(FAULT_COPY, stream->device))
        fail_stream(stream);
    sw_cpu_device_ops.copy(stream, destination, source, bytes);
}

static void gemm(struct sw_stream *stream, const struct sw_gemm *product)
{
    if (fails(FAULT_GEMM, stream->device))
        fail_stream(stream);
    sw_cpu_kernels.gemm(stream, product);
}

static void add(struct sw_stream *stream, void *y, const void *x, int64_t count,
                enum sw_dtype dtype)
{
    if (fails(FAULT_ADD, stream->device))
        fail_stream(stream);
    sw_cpu_kernels.add(stream, y, x, count, dtype);
}

static void adamw(struct sw_stream *stream, const struct sw_adamw_run *run)
{
    if (fails(FAULT_STEP, stream->device))
        fail_stream(stream);
    sw_cpu_kernels.adamw(stream, run);
}

static struct sw_kernels kernels;
static struct sw_device_ops device_ops;

static int make_back_end(void **state)
{
    (void)state;
    kernels = sw_cpu_kernels;
    kernels.gemm = gemm;
    kernels.add = add;
    kernels.adamw = adamw;
    device_ops = sw_cpu_device_ops;
    device_ops.kernels = &kernels;
    device_ops.open = open_device;
    device_ops.alloc = alloc;
    device_ops.copy = copy;
    return 0;
}

static void inject(enum fault fault, int rank, int64_t left)
{
    pthread_mutex_lock(&injected.lock);
    injected.fault = fault;
    injected.rank = rank;
    injected.left = left;
    injected.calls = 0;
    pthread_mutex_unlock(&injected.lock);
}

/* ---- running with it ---- */

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Step `step`, which `fault` of `rank` ends at its `left`-th call or does not: the calls it made.
 */
static int64_t step_with(struct rig *rig, int step, enum fault fault, int rank, int64_t left,
                         sw_code *code)
{
    struct rows rows;
    struct sw_step_result result;
    make_rows(&rows, step);
    inject(fault, rank, left);
    double begin = now_seconds();
    alarm(WATCHDOG_SECONDS);
    *code = sw_engine_step(rig->engine, step + 1, 1e-3, &rows.batch, &result, &rig->err);
    alarm(0);
    assert_true(now_seconds() - begin < LIMIT_SECONDS);
    int64_t calls = injected.calls;
    inject(FAULT_NONE, rank, 0);
    return calls;
}

static void assert_said(const struct rig *rig, sw_code code, int rank)
{
    char words[32];
    snprintf(words, sizeof words, "on rank %d", rank);
    assert_int_equal(code, SW_E_DEVICE);
    assert_int_equal(rig->err.code, SW_E_DEVICE);
    if (strstr(rig->err.text, words) == NULL || strstr(rig->err.text, "fallen off the bus") == NULL)
        fail_msg("the message lacks rank %d or the reason: %s", rank, rig->err.text);
    bool named = strstr(rig->err.text, "batch of rows") != NULL; /* before any block */
    for (int64_t i = 0; i < rig->model->block_count; i++)
        named = named || strstr(rig->err.text, rig->model->blocks[i].name) != NULL;
    for (int64_t i = 0; i < rig->model->unit_count; i++)
        named = named || strstr(rig->err.text, rig->model->units[i].name) != NULL;
    if (!named)
        fail_msg("the message names no block: %s", rig->err.text);
}

/* In the second step, which has a window, of every rank: the first call, one in the middle, the
 * last. */
static void break_ranks(const struct setup *setup, enum fault fault)
{
    int ranks = setup->pipeline * setup->data, broken = 0;
    for (int rank = 0; rank < ranks; rank++)
        for (int position = 0; position < 3; position++) {
            struct rig rig;
            sw_code code;
            injected.opened = 0;
            inject(FAULT_NONE, rank, 0);
            open_rig(&rig, setup);
            int64_t calls = step_with(&rig, 0, fault, rank, INT64_MAX, &code);
            assert_ok(code, &rig.err);
            if (calls > 0) {
                step_with(&rig, 1, fault, rank, position * (calls - 1) / 2, &code);
                assert_said(&rig, code, rank);
                broken++;
            }
            close_rig(&rig);
        }
    assert_true(broken >= 3);
}

static const struct setup PIPELINE = {.micro_batch = 2,
                                      .threads = 2,
                                      .pipeline = 3,
                                      .data = 1,
                                      .encoder = 2,
                                      .decoder = 1,
                                      .device = &device_ops,
                                      .optimizer = SW_TIER_HOST};
static const struct setup REPLICAS = {.micro_batch = 2,
                                      .threads = 2,
                                      .pipeline = 2,
                                      .data = 2,
                                      .zero = 3,
                                      .tiny = true,
                                      .device = &device_ops,
                                      .optimizer = SW_TIER_NVME};

static void a_copy_fails_in_a_pipeline(void **state)
{
    (void)state;
    break_ranks(&PIPELINE, FAULT_COPY);
}

static void a_kernel_fails_in_a_pipeline(void **state)
{
    (void)state;
    break_ranks(&PIPELINE, FAULT_GEMM);
}

static void a_copy_fails_among_replicas(void **state)
{
    (void)state;
    struct setup setup = REPLICAS;
    break_ranks(&setup, FAULT_COPY);
    setup.wide = true; /* with ranges that every replica has something of */
    setup.tiny = false;
    break_ranks(&setup, FAULT_COPY);
}

static void a_kernel_fails_among_replicas(void **state)
{
    (void)state;
    struct setup setup = REPLICAS;
    break_ranks(&setup, FAULT_GEMM);
    setup.schedule = SW_SCHEDULE_1F1B;
    setup.zero = 1;
    break_ranks(&setup, FAULT_GEMM);
    break_ranks(&setup, FAULT_ADD); /* sums of gradients among them */
}

static void one_after_the_other_too(void **state)
{
    (void)state;
    struct setup setup = PIPELINE;
    setup.serial = setup.mailbox = true;
    break_ranks(&setup, FAULT_COPY);
}

/* States on their way to a device, there, and back. */
static void a_streamed_step_fails(void **state)
{
    (void)state;
    struct setup setup = PIPELINE;
    setup.where = SW_STEP_STREAM;
    break_ranks(&setup, FAULT_COPY);
    setup = REPLICAS;
    setup.where = SW_STEP_STREAM;
    setup.wide = true;
    setup.tiny = false;
    break_ranks(&setup, FAULT_COPY);
    setup.remote = true;
    for (int rank = 0; rank < 4; rank++) { /* no rank steps before the second step */
        struct rig rig;
        sw_code code;
        injected.opened = 0;
        open_rig(&rig, &setup);
        step_with(&rig, 0, FAULT_NONE, rank, 0, &code);
        assert_ok(code, &rig.err);
        step_with(&rig, 1, FAULT_STEP, rank, 1, &code);
        assert_said(&rig, code, rank);
        close_rig(&rig);
    }
}

/* Where one device has less than the others: refused when the engine is opened, by its number. */
static void the_memory_of_a_rank_is_too_small(void **state)
{
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        sw_code code = SW_E_FIT;
        int refused = 0;
        for (int64_t left = 0; code != SW_OK; left += 5) {
            struct rig rig;
            injected.opened = 0;
            inject(FAULT_ALLOC, rank, left);
            code = try_open_rig(&rig, &REPLICAS);
            inject(FAULT_NONE, rank, 0);
            char words[32];
            snprintf(words, sizeof words, "memory of rank %d", rank);
            if (code != SW_OK) {
                assert_refused(code, SW_E_FIT, words, &rig.err);
                refused++;
            }
            close_rig(&rig);
        }
        assert_true(refused >= 3);
    }
}

/* The rig's checks would pass with a wrapper that never fails anything: it must change nothing
 * either. */
static void without_a_fault_nothing_changes(void **state)
{
    (void)state;
    struct setup plain = REPLICAS;
    plain.device = NULL;
    injected.opened = 0;
    inject(FAULT_NONE, 0, 0);
    struct outcome want = train(&plain), have = train(&REPLICAS);
    assert_same_outcome(&have, &want, "the wrapper");
    free_outcome(&want);
    free_outcome(&have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_fails_in_a_pipeline),
        cmocka_unit_test(a_kernel_fails_in_a_pipeline),
        cmocka_unit_test(a_copy_fails_among_replicas),
        cmocka_unit_test(a_kernel_fails_among_replicas),
        cmocka_unit_test(one_after_the_other_too),
        cmocka_unit_test(a_streamed_step_fails),
        cmocka_unit_test(the_memory_of_a_rank_is_too_small),
        cmocka_unit_test(without_a_fault_nothing_changes),
    };
    return cmocka_run_group_tests(tests, make_back_end, NULL);
}

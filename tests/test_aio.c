/* One suite over every method, alone and with each kind of fault in between. */
#include "support.h"

#include "base/mem.h"
#include "io/aio_method.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *scratch;

/* What a note said last. */
static char noted[1024];
static int notes;

static void take_note(void *context, const char *text)
{
    (void)context;
    snprintf(noted, sizeof noted, "%s", text);
    notes++;
}

struct setting {
    const struct sw_aio_method *method;
    bool direct;
};

static const struct setting settings[] = {{&sw_aio_sync, false},   {&sw_aio_threads, false},
                                          {&sw_aio_uring, false},  {&sw_aio_sync, true},
                                          {&sw_aio_threads, true}, {&sw_aio_uring, true}};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* A queue over one file of its own. Null where io_uring is forbidden. */
struct fixture {
    struct sw_aio *aio;
    int descriptor;
    char path[512];
    const char *name;
};

static bool fixture_open(struct fixture *fixture, const struct setting *setting, int depth,
                         struct sw_aio_fault *fault)
{
    static int number;
    struct sw_err err = {0};
    if (setting->method == &sw_aio_uring && sw_aio_uring_check() != 0) {
        printf("skipped: io_uring: %s\n", strerror(sw_aio_uring_check()));
        return false;
    }
    snprintf(fixture->path, sizeof fixture->path, "%s/f%d", scratch, number++);
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (setting->direct ? O_DIRECT : 0);
    fixture->descriptor = open(fixture->path, flags, 0600);
    if (fixture->descriptor < 0 && errno == EINVAL) {
        printf("skipped: no O_DIRECT in %s\n", scratch);
        return false;
    }
    assert_true(fixture->descriptor >= 0);
    struct sw_aio_config config = {
        .method = setting->method, .depth = depth, .note = take_note, .fault = fault};
    assert_ok(sw_aio_open(&fixture->aio, &config, &err), &err);
    fixture->name = fixture->path;
    assert_ok(sw_aio_set_files(fixture->aio, &fixture->descriptor, &fixture->name, 1, &err), &err);
    return true;
}

static void fixture_close(struct fixture *fixture)
{
    sw_aio_close(fixture->aio);
    close(fixture->descriptor);
    unlink(fixture->path);
}

static void *aligned(int64_t bytes)
{
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, SW_AIO_ALIGNMENT_BYTES, (size_t)bytes), 0);
    return memory;
}

static void fill(char *memory, int64_t bytes, unsigned seed)
{
    for (int64_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        memory[i] = (char)(seed >> 24);
    }
}

/* Submit all, reap all, all must be fine. */
static void run_all(struct sw_aio *aio, struct sw_aio_request *requests, int count)
{
    struct sw_err err = {0};
    struct sw_aio_request *done[4];
    for (int i = 0; i < count; i++)
        sw_aio_submit(aio, &requests[i]);
    for (int left = count; left > 0;) {
        int got = sw_aio_reap(aio, done, 4, true, &err);
        if (got < 0)
            fail_msg("%s", err.text);
        for (int i = 0; i < got; i++)
            if (done[i]->os_errno != 0) {
                (void)sw_aio_request_fail(aio, done[i], &err);
                fail_msg("%s", err.text);
            }
        left -= got;
    }
    assert_int_equal(sw_aio_pending(aio), 0);
}

/* Write `bytes` in pieces of `piece`, read them back in one. */
static void write_and_read(struct fixture *fixture, int64_t bytes, int64_t piece)
{
    struct sw_aio_request requests[128] = {0};
    char *out = aligned(bytes), *in = aligned(bytes);
    int count = 0;
    fill(out, bytes, (unsigned)bytes);
    for (int64_t at = 0; at < bytes; at += piece, count++) {
        assert_true(count < 128);
        requests[count].write = true;
        requests[count].offset_bytes = at;
        requests[count].bytes = bytes - at < piece ? bytes - at : piece;
        requests[count].memory = out + at;
    }
    run_all(fixture->aio, requests, count);
    struct sw_aio_request whole = {.bytes = bytes, .memory = in};
    run_all(fixture->aio, &whole, 1);
    assert_memory_equal(in, out, (size_t)bytes);
    free(out);
    free(in);
}

static void test_sizes(void **state)
{
    static const int64_t odd[] = {1, 511, 513, 4095, 4097, 28824000};
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
            struct fixture fixture;
            if (!fixture_open(&fixture, &settings[s], 8, NULL))
                break;
            int64_t bytes = settings[s].direct ? sw_align_up(odd[i], 4096) : odd[i];
            write_and_read(&fixture, bytes, 1 << 20);
            fixture_close(&fixture);
        }
    }
}

/* More requests than depth, and requests above the largest transfer, which is lowered from 1 GiB.
 */
static void test_split(void **state)
{
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        if (!fixture_open(&fixture, &settings[s], 3, NULL))
            continue;
        fixture.aio->max_transfer_bytes = 8192;
        write_and_read(&fixture, 40 * 4096, 4096);
        write_and_read(&fixture, 41 * 4096, 5 * 4096);
        fixture_close(&fixture);
    }
}

static void test_registered_buffers(void **state)
{
    (void)state;
    enum { BYTES = 64 * 4096 };
    struct sw_err err = {0};
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        if (!fixture_open(&fixture, &settings[s], 8, NULL))
            continue;
        char *memory = aligned(2 * BYTES);
        struct sw_aio_buffer buffers[] = {{memory, BYTES}, {memory + BYTES, BYTES}};
        notes = 0;
        assert_ok(sw_aio_set_buffers(fixture.aio, buffers, 2, &err), &err);
        assert_int_equal(notes, 0);
        fill(memory, BYTES, 7);
        struct sw_aio_request write = {.write = true, .bytes = BYTES, .memory = memory};
        run_all(fixture.aio, &write, 1);
        /* into the second buffer, and across the two (then not as a registered one) */
        struct sw_aio_request reads[] = {
            {.bytes = BYTES / 2, .memory = memory + BYTES},
            {.offset_bytes = BYTES / 2, .bytes = BYTES / 2, .memory = memory + BYTES + BYTES / 2}};
        run_all(fixture.aio, reads, 2);
        assert_memory_equal(memory, memory + BYTES, BYTES);
        struct sw_aio_request across = {.bytes = BYTES, .memory = memory + BYTES / 2};
        run_all(fixture.aio, &across, 1);
        assert_memory_equal(memory + BYTES, memory + BYTES + BYTES / 2, BYTES / 2);
        fixture_close(&fixture);
        free(memory);
    }
}

static void test_end_of_file(void **state)
{
    (void)state;
    struct sw_err err = {0};
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        if (!fixture_open(&fixture, &settings[s], 2, NULL))
            continue;
        write_and_read(&fixture, 4096, 4096);
        assert_int_equal(ftruncate(fixture.descriptor, 4096 + 100), 0);
        char *memory = aligned(3 * 4096);
        struct sw_aio_request request = {.bytes = 3 * 4096, .memory = memory}, *done;
        sw_aio_submit(fixture.aio, &request);
        assert_int_equal(sw_aio_reap(fixture.aio, &done, 1, true, &err), 1);
        assert_int_equal(done->os_errno, ENODATA);
        assert_refused(sw_aio_request_fail(fixture.aio, done, &err), SW_E_IO,
                       "cannot read 12288 bytes at offset 0 of ", &err);
        free(memory);
        fixture_close(&fixture);
    }
}

static void test_failure_is_named(void **state)
{
    (void)state;
    struct sw_err err = {0};
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        if (!fixture_open(&fixture, &settings[s], 2, NULL))
            continue;
        /* a descriptor that may not be written */
        int read_only = open(fixture.path, O_RDONLY | O_CLOEXEC);
        struct sw_aio *aio;
        struct sw_aio_config config = {.method = settings[s].method, .depth = 1};
        assert_ok(sw_aio_open(&aio, &config, &err), &err);
        assert_ok(sw_aio_set_files(aio, &read_only, &fixture.name, 1, &err), &err);
        char *memory = aligned(4096);
        memset(memory, 0, 4096);
        struct sw_aio_request request = {
            .write = true, .offset_bytes = 8192, .bytes = 4096, .memory = memory};
        struct sw_aio_request *done;
        sw_aio_submit(aio, &request);
        assert_int_equal(sw_aio_reap(aio, &done, 1, true, &err), 1);
        assert_ptr_equal(done, &request);
        assert_int_equal(done->os_errno, EBADF);
        char part[600];
        snprintf(part, sizeof part, "cannot write 4096 bytes at offset 8192 of %s: Bad file",
                 fixture.path);
        assert_refused(sw_aio_request_fail(aio, done, &err), SW_E_IO, part, &err);
        sw_aio_close(aio);
        close(read_only);
        free(memory);
        fixture_close(&fixture);
    }
}

enum { FAULT_REQUESTS = 6, FAULT_BYTES = 8192 };

/* Write all of `out`, then, when nothing failed, read it into `in`. How many requests failed. */
static int write_then_read(struct sw_aio *aio, char *out, char *in)
{
    struct sw_err err = {0};
    int failures = 0;
    for (int pass = 0; pass < 2 && failures == 0; pass++) {
        struct sw_aio_request requests[FAULT_REQUESTS] = {0}, *done;
        for (int i = 0; i < FAULT_REQUESTS; i++) {
            requests[i].write = pass == 0;
            requests[i].offset_bytes = requests[i].bytes = FAULT_BYTES;
            requests[i].offset_bytes *= i;
            requests[i].memory = (pass == 0 ? out : in) + i * FAULT_BYTES;
            sw_aio_submit(aio, &requests[i]);
        }
        for (int i = 0; i < FAULT_REQUESTS; i++) {
            assert_int_equal(sw_aio_reap(aio, &done, 1, true, &err), 1);
            failures += done->os_errno != 0;
        }
    }
    return failures;
}

/* Every call fails once: transiently, and nobody sees it; for good, and exactly one request does.
 */
static void fault_at(const struct setting *setting, enum sw_aio_fault_kind kind, int64_t position,
                     bool *beyond)
{
    struct sw_err err = {0};
    struct sw_aio_fault *fault;
    struct fixture fixture;
    assert_ok(sw_aio_fault_open(&fault, kind, position, &err), &err);
    struct sw_aio_config probe = {.method = setting->method, .depth = 2, .fault = fault};
    struct sw_aio *aio;
    bool fatal = kind == SW_AIO_FAULT_EIO || kind == SW_AIO_FAULT_ENOSPC;
    /* the opening may be the call that fails */
    if (sw_aio_open(&aio, &probe, &err) != SW_OK) {
        assert_true(fatal && position == 1);
        sw_aio_fault_close(fault);
        return;
    }
    sw_aio_close(aio);
    assert_true(fixture_open(&fixture, setting, 2, fault));
    char *out = aligned(FAULT_REQUESTS * FAULT_BYTES), *in = aligned(FAULT_REQUESTS * FAULT_BYTES);
    fill(out, FAULT_REQUESTS * FAULT_BYTES, 3);
    int failures = write_then_read(fixture.aio, out, in);
    int64_t calls = sw_aio_fault_count(fault);
    int64_t opens = sw_aio_fault_count_of(fault, SW_AIO_CALL_OPEN);
    int64_t transfers = sw_aio_fault_count_of(fault, SW_AIO_CALL_READ) +
                        sw_aio_fault_count_of(fault, SW_AIO_CALL_WRITE);
    *beyond = calls < position;
    assert_true(transfers >= (failures == 0 ? 2 : 1) * FAULT_REQUESTS);
    bool hit_transfer = position > calls - transfers && !*beyond;
    assert_true(opens <= calls - transfers);
    assert_int_equal(failures, fatal && hit_transfer ? 1 : 0);
    if (failures == 0)
        assert_memory_equal(in, out, FAULT_REQUESTS * FAULT_BYTES);
    free(out);
    free(in);
    fixture_close(&fixture);
    sw_aio_fault_close(fault);
}

static void test_fault_sweep(void **state)
{
    static const enum sw_aio_fault_kind kinds[] = {SW_AIO_FAULT_NONE,  SW_AIO_FAULT_EAGAIN,
                                                   SW_AIO_FAULT_EINTR, SW_AIO_FAULT_SHORT,
                                                   SW_AIO_FAULT_EIO,   SW_AIO_FAULT_ENOSPC};
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        if (!fixture_open(&fixture, &settings[s], 2, NULL))
            continue;
        fixture_close(&fixture);
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            bool beyond = false;
            int64_t position = 1;
            /* a fatal open in fixture_open() is not a case of this test: skip position 2 */
            for (; !beyond && position < 40; position++)
                if (position != 2 || kinds[k] < SW_AIO_FAULT_EIO)
                    fault_at(&settings[s], kinds[k], position, &beyond);
            assert_true(position < 40);
        }
    }
}

/* A method that cuts the first transfer to a length that is no multiple of anything, and notes what
 * it is asked for. */
static struct sw_aio_event cut_event;
static int64_t cut_offsets[8], cut_bytes[8];
static int cut_count;

static sw_code cut_open(struct sw_aio *aio, struct sw_err *err)
{
    (void)err;
    aio->state = NULL;
    cut_count = 0;
    return SW_OK;
}

static void cut_close(struct sw_aio *aio)
{
    (void)aio;
}

static void cut_start(struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    (void)aio;
    assert_true(cut_count < 8);
    cut_offsets[cut_count] = transfer->offset_bytes;
    cut_bytes[cut_count] = transfer->bytes;
    int64_t moved = cut_count == 0 ? transfer->bytes / 2 + 100 : transfer->bytes;
    cut_count++;
    cut_event = (struct sw_aio_event){transfer->request, moved};
}

static int cut_collect(struct sw_aio *aio, struct sw_aio_event *out, int max, bool wait,
                       bool *woken, struct sw_err *err)
{
    (void)aio;
    (void)wait;
    (void)woken;
    (void)err;
    assert_true(max >= 1);
    out[0] = cut_event;
    return 1;
}

/* What is left of an aligned request is aligned, as O_DIRECT wants; of others it is just the rest.
 */
static void test_rest_is_aligned(void **state)
{
    static const struct sw_aio_method cut = {.name = "cut",
                                             .open = cut_open,
                                             .close = cut_close,
                                             .start = cut_start,
                                             .collect = cut_collect};
    static const int64_t cases[][3] = {/* bytes, offset and bytes of the second transfer */
                                       {32768, 16384 + 4096, 16384},
                                       {1000, 4096 + 600, 400}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sw_err err = {0};
        struct sw_aio *aio;
        struct sw_aio_config config = {.method = &cut, .depth = 1};
        int descriptor = -1;
        const char *name = "nothing";
        char memory[1];
        struct sw_aio_request request = {
            .offset_bytes = 4096, .bytes = cases[i][0], .memory = memory};
        assert_ok(sw_aio_open(&aio, &config, &err), &err);
        assert_ok(sw_aio_set_files(aio, &descriptor, &name, 1, &err), &err);
        run_all(aio, &request, 1);
        assert_int_equal(cut_count, 2);
        assert_int_equal(cut_offsets[1], cases[i][1]);
        assert_int_equal(cut_bytes[1], cases[i][2]);
        sw_aio_close(aio);
    }
}

/* A wake ends a wait, also one that comes first, and is used up by it. */
static void *waker(void *argument)
{
    sw_aio_wake(argument);
    return NULL;
}

static void test_wake(void **state)
{
    (void)state;
    struct sw_err err = {0};
    for (int s = 0; s < SETTINGS; s++) {
        struct fixture fixture;
        struct sw_aio_request *done;
        pthread_t thread;
        if (!fixture_open(&fixture, &settings[s], 2, NULL))
            continue;
        sw_aio_wake(fixture.aio);
        assert_int_equal(sw_aio_reap(fixture.aio, &done, 1, true, &err), 0);
        assert_int_equal(sw_aio_reap(fixture.aio, &done, 1, false, &err), 0);
        assert_int_equal(pthread_create(&thread, NULL, waker, fixture.aio), 0);
        assert_int_equal(sw_aio_reap(fixture.aio, &done, 1, true, &err), 0);
        pthread_join(thread, NULL);
        write_and_read(&fixture, 4096, 4096);
        fixture_close(&fixture);
    }
}

/* --- Machines that allow less, made in a child process
 * --------------------------------------------*/

static int in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

enum { CHILD_FINE = 0, CHILD_SKIPPED = 77 };

/* Open a queue by `method`, write and read a little; 0, or the number of the check that failed. */
static int use_queue(const struct sw_aio_method *method, const struct sw_aio_method *expected,
                     bool buffers, const char *note_part)
{
    struct sw_err err = {0};
    struct sw_aio *aio;
    struct sw_aio_config config = {.method = method, .depth = 2, .note = take_note};
    static char memory[1 << 20];
    char path[512];
    const char *name = path;
    notes = 0;
    snprintf(path, sizeof path, "%s/child", scratch);
    unlink(path);
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || sw_aio_open(&aio, &config, &err) != SW_OK)
        return 1;
    struct sw_aio_buffer buffer = {memory, sizeof memory};
    if (sw_aio_set_files(aio, &descriptor, &name, 1, &err) != SW_OK ||
        (buffers && sw_aio_set_buffers(aio, &buffer, 1, &err) != SW_OK))
        return 2;
    if (sw_aio_method_of(aio) != expected)
        return 3;
    if (note_part != NULL && (notes != 1 || strstr(noted, note_part) == NULL))
        return 4;
    memset(memory, 'x', 4096);
    struct sw_aio_request write = {.write = true, .bytes = 4096, .memory = memory}, *done;
    struct sw_aio_request read = {.bytes = 4096, .memory = memory + 4096};
    sw_aio_submit(aio, &write);
    if (sw_aio_reap(aio, &done, 1, true, &err) != 1 || done->os_errno != 0)
        return 5;
    sw_aio_submit(aio, &read);
    if (sw_aio_reap(aio, &done, 1, true, &err) != 1 || done->os_errno != 0)
        return 6;
    sw_aio_close(aio);
    close(descriptor);
    return memcmp(memory, memory + 4096, 4096) == 0 ? CHILD_FINE : 7;
}

static int forbid_uring(unsigned reason)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | reason),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

static int child_without_uring(unsigned reason)
{
    struct sw_err err = {0};
    struct sw_aio *aio;
    struct sw_aio_config config = {.method = &sw_aio_uring, .depth = 2};
    if (forbid_uring(reason))
        return CHILD_SKIPPED;
    if (sw_aio_uring_check() != (int)reason)
        return 10;
    if (sw_aio_open(&aio, &config, &err) != SW_E_IO || err.os_errno != (int)reason)
        return 11;
    if (strstr(err.text, "io.method io_uring; auto goes on with threads") == NULL)
        return 12;
    return use_queue(NULL, &sw_aio_threads, true, "reading and writing with threads instead");
}

static int child_eperm(void)
{
    return child_without_uring(EPERM);
}

static int child_enosys(void)
{
    return child_without_uring(ENOSYS);
}

static void test_uring_forbidden(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        int status = in_child(i == 0 ? child_eperm : child_enosys);
        if (status == CHILD_SKIPPED)
            printf("skipped: no seccomp here\n");
        else
            assert_int_equal(status, CHILD_FINE);
    }
}

static int child_without_memlock(void)
{
    struct rlimit little = {64 << 10, 64 << 10};
    if (sw_aio_uring_check() != 0)
        return CHILD_SKIPPED;
    if (chmod(scratch, 0777) != 0 || setrlimit(RLIMIT_MEMLOCK, &little) != 0)
        return CHILD_SKIPPED;
    if (getuid() == 0 && setuid(65534) != 0) /* root may pin whatever the limit says */
        return CHILD_SKIPPED;
    return use_queue(&sw_aio_uring, &sw_aio_uring, true, "cannot pin");
}

static void test_no_memory_to_pin(void **state)
{
    (void)state;
    int status = in_child(child_without_memlock);
    if (status == CHILD_SKIPPED)
        printf("skipped: io_uring or setuid is not allowed here\n");
    else
        assert_int_equal(status, CHILD_FINE);
}

static void test_method_names(void **state)
{
    (void)state;
    const struct sw_aio_method *method = &sw_aio_sync;
    assert_true(sw_aio_method_find("auto", &method));
    assert_null(method);
    assert_true(sw_aio_method_find("io_uring", &method));
    assert_ptr_equal(method, &sw_aio_uring);
    assert_true(sw_aio_method_find("sync", &method));
    assert_ptr_equal(method, &sw_aio_sync);
    assert_false(sw_aio_method_find("fast", &method));
    assert_string_equal(sw_aio_method_name(&sw_aio_uring), "io_uring");
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
    sw_test_scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_registered_buffers),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_failure_is_named),
        cmocka_unit_test(test_fault_sweep),
        cmocka_unit_test(test_rest_is_aligned),
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_uring_forbidden),
        cmocka_unit_test(test_no_memory_to_pin),
        cmocka_unit_test(test_method_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

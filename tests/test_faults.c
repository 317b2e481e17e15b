/* A whole small training run in which one call for I/O fails: every read, write, open, allocation
 * of file space and registration, once or from then on, passing or not. It ends with the right
 * weights and states, bit for bit, or with a message; it never hangs and leaves nothing open.
 *
 * By default positions are sampled; SPILLWAY_SWEEP=all takes every one (about two minutes). */
#include "tests/engine_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

enum { RUN_STEPS = 2, MOST_CALLS = 400, WATCHDOG_SECONDS = 30, SAMPLE = 11 };

struct result {
    double norm[RUN_STEPS], loss[RUN_STEPS], evaluation;
    float *weights;
    char *states;
    int64_t weight_count, state_bytes;
};

static void free_result(struct result *result)
{
    free(result->weights);
    free(result->states);
    *result = (struct result){0};
}

/* ---- a run that may fail ---- */

static sw_code read_weights(struct rig *rig, struct result *out)
{
    sw_code code = SW_OK;
    out->weights = calloc((size_t)rig->model->elements, sizeof *out->weights);
    for (int64_t i = 0; i < rig->model->param_count && code == SW_OK; i++) {
        int64_t n = rig->model->params[i].elements;
        code =
            sw_engine_read_param(rig->engine, i, 0, n, out->weights + out->weight_count, &rig->err);
        out->weight_count += n;
    }
    return code;
}

static sw_code read_moments(struct rig *rig, struct result *out)
{
    sw_code code = SW_OK;
    out->states = calloc((size_t)rig->model->elements, 8);
    for (int64_t i = 0; i < 2 * rig->model->param_count && code == SW_OK; i++) {
        int64_t n = rig->model->params[i / 2].elements;
        code = sw_engine_read_state(rig->engine, i / 2, (int)(i % 2), 0, n,
                                    out->states + out->state_bytes, &rig->err);
        out->state_bytes += 4 * n;
    }
    return code;
}

static sw_code steps(struct rig *rig, struct result *out)
{
    struct rows rows;
    sw_code code = SW_OK;
    for (int step = 0; step < RUN_STEPS && code == SW_OK; step++) {
        struct sw_step_result result = {0};
        make_rows(&rows, step);
        code = sw_engine_step(rig->engine, step + 1, 1e-3, &rows.batch, &result, &rig->err);
        out->loss[step] = result.loss;
        out->norm[step] = result.grad_norm;
    }
    int64_t tokens;
    if (code == SW_OK)
        code = sw_engine_evaluate(rig->engine, &rows.batch, &out->evaluation, &tokens, NULL,
                                  &rig->err);
    return code;
}

/* `opened` (may be NULL): called when everything is allocated. */
static sw_code run(const struct setup *setup, void (*opened)(const char *directory),
                   struct result *out, struct sw_err *err)
{
    struct rig rig;
    *out = (struct result){0};
    sw_code code = try_open_rig(&rig, setup);
    if (code == SW_OK && opened != NULL)
        opened(setup->directory);
    if (code == SW_OK)
        code = steps(&rig, out);
    if (code == SW_OK)
        code = read_weights(&rig, out);
    if (code == SW_OK)
        code = read_moments(&rig, out);
    *err = rig.err;
    close_rig(&rig);
    return code;
}

static bool same(const struct result *a, const struct result *b)
{
    return memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(&a->evaluation, &b->evaluation, sizeof a->evaluation) == 0 &&
           memcmp(a->weights, b->weights, (size_t)a->weight_count * sizeof *a->weights) == 0 &&
           memcmp(a->states, b->states, (size_t)a->state_bytes) == 0;
}

/* ---- watching ---- */

static volatile int watched_kind, watched_position;

static void on_alarm(int number)
{
    char text[96];
    int bytes =
        snprintf(text, sizeof text, "hangs: fault %d at call %d\n", watched_kind, watched_position);
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)bytes);
    (void)ignored;
    (void)number;
    abort();
}

static int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int files_in(const char *path)
{
    int count = 0;
    const struct dirent *entry;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

/* ---- the sweep ---- */

static const struct {
    enum sw_aio_fault_kind kind;
    bool stays;
    bool passes; /* the run must get over it */
} FAULTS[] = {
    {SW_AIO_FAULT_EAGAIN, false, true},  {SW_AIO_FAULT_EINTR, false, true},
    {SW_AIO_FAULT_SHORT, false, true},   {SW_AIO_FAULT_EIO, false, false},
    {SW_AIO_FAULT_ENOSPC, false, false}, {SW_AIO_FAULT_EAGAIN, true, false},
    {SW_AIO_FAULT_SHORT, true, false},   {SW_AIO_FAULT_EIO, true, false},
};
enum { FAULT_COUNT = sizeof FAULTS / sizeof *FAULTS };

struct tally {
    int right, refused;
};

static void try_fault(const struct setup *base, const struct result *want, int fault_index,
                      int64_t position, struct tally *tally)
{
    struct sw_err err;
    struct result have;
    struct setup setup = *base;
    sw_err_init(&err);
    watched_kind = fault_index;
    watched_position = (int)position;
    assert_ok(sw_aio_fault_open(&setup.fault, FAULTS[fault_index].kind, position, &err), &err);
    if (FAULTS[fault_index].stays)
        sw_aio_fault_stay(setup.fault);
    int files = open_files();
    alarm(WATCHDOG_SECONDS);
    sw_code code = run(&setup, NULL, &have, &err);
    alarm(0);
    if (open_files() != files || files_in(base->directory) != 0)
        fail_msg("fault %d at call %lld: a file is left", fault_index, (long long)position);
    if (code == SW_OK && !same(want, &have))
        fail_msg("fault %d at call %lld: another result", fault_index, (long long)position);
    if (code != SW_OK && FAULTS[fault_index].passes)
        fail_msg("fault %d at call %lld ends the run: %s", fault_index, (long long)position,
                 err.text);
    if (code != SW_OK && (err.code != code || strlen(err.text) < 20))
        fail_msg("fault %d at call %lld: no message but \"%s\"", fault_index, (long long)position,
                 err.text);
    tally->right += code == SW_OK;
    tally->refused += code != SW_OK;
    free_result(&have);
    sw_aio_fault_close(setup.fault);
}

/* The run without a fault, and how many calls it makes. */
static int64_t reference(const struct setup *base, struct result *want)
{
    struct sw_err err;
    struct setup setup = *base;
    sw_err_init(&err);
    assert_ok(sw_aio_fault_open(&setup.fault, SW_AIO_FAULT_NONE, 0, &err), &err);
    assert_ok(run(&setup, NULL, want, &err), &err);
    int64_t calls = sw_aio_fault_count(setup.fault);
    sw_aio_fault_close(setup.fault);
    return calls;
}

/* Without checksums in the reference method: what is reported must be enough. */
static void sweep(const struct sw_aio_method *method, int first, int stride)
{
    char *directory = sw_test_scratch();
    const struct setup base = {.tiny = true,
                               .micro_batch = 4,
                               .threads = 1,
                               .params = SW_TIER_NVME,
                               .optimizer = SW_TIER_NVME,
                               .grads = SW_TIER_NVME,
                               .activations = SW_TIER_NVME,
                               .chunk_bytes = 1 << 20,
                               .verify = method == NULL,
                               .method = method,
                               .directory = directory};
    struct result want;
    struct tally tally = {0, 0};
    int64_t calls = reference(&base, &want);
    if (calls < 100 || calls > MOST_CALLS)
        fail_msg("the run makes %lld calls", (long long)calls);
    int at = first;
    for (int64_t position = 1; position <= calls; position++)
        for (int fault = 0; fault < FAULT_COUNT; fault++, at++)
            if (at % stride == 0)
                try_fault(&base, &want, fault, position, &tally);
    print_message("%lld calls: %d runs came out right, %d were ended with a message\n",
                  (long long)calls, tally.right, tally.refused);
    assert_true(tally.right > 0 && tally.refused > 0);
    free_result(&want);
    sw_test_scratch_remove(directory);
}

/* ---- a full drive ---- */

/* Take all that is left of a file system but `left_bytes`. */
static void fill(const char *directory, int64_t left_bytes)
{
    char *path = sw_path_join(directory, "ballast");
    int64_t bytes = sw_directory_free_bytes(directory) - left_bytes;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0 || (bytes > 0 && posix_fallocate(file, 0, bytes) != 0))
        abort();
    close(file);
    free(path);
}

static void fill_all(const char *directory)
{
    fill(directory, 0);
}

static bool write_word(const char *path, const char *word)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    bool written = file >= 0 && write(file, word, strlen(word)) == (ssize_t)strlen(word);
    if (file >= 0)
        close(file);
    return written;
}

/* A file system of 20 MB of this process's own. False where that is not permitted. */
static bool mount_small(const char *directory)
{
    char map[64];
    snprintf(map, sizeof map, "0 %d 1", (int)geteuid());
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
            !write_word("/proc/self/setgroups", "deny") || !write_word("/proc/self/uid_map", map))
            return false;
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", directory, "tmpfs", 0, "size=20m") == 0;
}

enum { NOT_PERMITTED = 77 };

/* In a process of its own: 0 when all is well. */
static int run_on_small_drive(const struct setup *base, const struct result *want)
{
    static const int64_t left_kib[] = {0, 4, 60, 1000, 20000};
    struct sw_err err;
    struct result have;
    if (!mount_small(base->directory))
        return NOT_PERMITTED;
    for (size_t i = 0; i < sizeof left_kib / sizeof *left_kib; i++) {
        bool small = i + 1 < sizeof left_kib / sizeof *left_kib;
        char *ballast = sw_path_join(base->directory, "ballast");
        fill(base->directory, left_kib[i] * 1024);
        sw_code code = run(base, fill_all, &have, &err);
        bool told = err.code == SW_E_FIT && strstr(err.text, base->directory) != NULL;
        if (small ? code == SW_OK || !told : code != SW_OK || !same(want, &have)) {
            fprintf(stderr, "%lld KiB left: code %d, %s\n", (long long)left_kib[i], (int)code,
                    code != SW_OK ? err.text : "another result");
            return 1;
        }
        (void)unlink(ballast);
        free(ballast);
        free_result(&have);
    }
    return 0;
}

/* Too small a drive is refused; one that is filled up when the run has started does no harm, for
 * the space is the run's. */
static void a_full_drive_is_refused_or_does_no_harm(void **state)
{
    (void)state;
    char *directory = sw_test_scratch();
    const struct setup base = {.micro_batch = 4,
                               .threads = 1,
                               .params = SW_TIER_NVME,
                               .optimizer = SW_TIER_NVME,
                               .grads = SW_TIER_NVME,
                               .activations = SW_TIER_NVME,
                               .chunk_bytes = 1 << 20,
                               .directory = directory};
    struct result want;
    int status = 0;
    assert_true(reference(&base, &want) > 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(run_on_small_drive(&base, &want));
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    free_result(&want);
    sw_test_scratch_remove(directory);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_PERMITTED) {
        print_message("skipped: no file system may be mounted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- */

static bool sweep_all(void)
{
    const char *wanted = getenv("SPILLWAY_SWEEP");
    return wanted != NULL && strcmp(wanted, "all") == 0;
}

static void a_fault_ends_in_the_right_answer_or_a_message(void **state)
{
    (void)state;
    sweep(NULL, 0, sweep_all() ? 1 : SAMPLE);
}

static void likewise_one_call_at_a_time(void **state)
{
    (void)state;
    sweep(&sw_aio_sync, 5, 3 * SAMPLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_ends_in_the_right_answer_or_a_message),
        cmocka_unit_test(likewise_one_call_at_a_time),
        cmocka_unit_test(a_full_drive_is_refused_or_does_no_harm),
    };
    (void)signal(SIGALRM, on_alarm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

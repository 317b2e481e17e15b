#include "support.h"

#include "base/mem.h"
#include "io/spill_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static char *scratch;
static char *directories[3];

static char noted[1024];
static int notes;

static void take_note(void *context, const char *text)
{
    (void)context;
    snprintf(noted, sizeof noted, "%s", text);
    notes++;
}

static void *aligned(int64_t bytes)
{
    void *memory = NULL;
    assert_int_equal(
        posix_memalign(&memory, SW_AIO_ALIGNMENT_BYTES, (size_t)sw_align_up(bytes, 4096)), 0);
    memset(memory, 0, (size_t)bytes);
    return memory;
}

static void fill(char *memory, int64_t bytes, unsigned seed)
{
    seed = seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        memory[i] = (char)(seed >> 24);
    }
}

/* A small store over `count` directories; the caller may change the configuration. */
static struct sw_spill_config small_config(struct sw_spill_directory *list, int count)
{
    for (int i = 0; i < count; i++)
        list[i] = (struct sw_spill_directory){.path = directories[i], .weight = i + 1};
    return (struct sw_spill_config){
        .directories = list,
        .directory_count = count,
        .capacity_bytes = 4 << 20,
        .block_bytes = 8192,
        .chunk_bytes = 16384,
        .request_bytes = 32768,
        .queue_depth = 4,
        .verify = true,
        .note = take_note,
    };
}

/* The methods this machine allows: the suite runs over all of them, buffered and not. */
struct setting {
    const struct sw_aio_method *method;
    bool buffered, verify;
    int directory_count;
};
static const struct setting settings[] = {
    {&sw_aio_sync, true, true, 1},     {&sw_aio_sync, false, true, 3},
    {&sw_aio_threads, false, true, 2}, {&sw_aio_uring, true, true, 2},
    {&sw_aio_uring, false, true, 1},   {&sw_aio_uring, false, true, 3},
    {&sw_aio_uring, false, false, 2},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static bool allowed(const struct setting *setting)
{
    if (setting->method != &sw_aio_uring || sw_aio_uring_check() == 0)
        return true;
    printf("skipped: io_uring: %s\n", strerror(sw_aio_uring_check()));
    return false;
}

static struct sw_spill *open_store(const struct setting *setting, int64_t capacity_bytes)
{
    struct sw_spill_directory list[3];
    struct sw_spill_config config = small_config(list, setting->directory_count);
    struct sw_err err = {0};
    struct sw_spill *spill = NULL;
    config.method = setting->method;
    config.buffered = setting->buffered;
    config.verify = setting->verify;
    config.capacity_bytes = capacity_bytes;
    assert_ok(sw_spill_open(&spill, &config, &err), &err);
    return spill;
}

static void store(struct sw_spill *spill, const struct sw_spill_region *region, int64_t offset,
                  const char *memory, int64_t bytes)
{
    struct sw_spill_ticket ticket;
    struct sw_err err = {0};
    sw_spill_write(spill, region, offset, memory, bytes, &ticket);
    assert_ok(sw_spill_wait(&ticket, &err), &err);
}

static void load(struct sw_spill *spill, const struct sw_spill_region *region, int64_t offset,
                 char *memory, int64_t bytes)
{
    struct sw_spill_ticket ticket;
    struct sw_err err = {0};
    sw_spill_read(spill, region, offset, memory, bytes, &ticket);
    assert_ok(sw_spill_wait(&ticket, &err), &err);
    assert_true(sw_spill_ready(&ticket));
}

/* Nothing may be written beyond what was asked for: memory ends in a guard. */
static void round_trip(struct sw_spill *spill, const struct sw_spill_region *region, unsigned seed)
{
    int64_t bytes = region->bytes;
    char *out = aligned(bytes), *in = aligned(bytes + 64);
    fill(out, bytes, seed);
    memset(in + bytes, 0x5a, 64);
    store(spill, region, 0, out, bytes);
    load(spill, region, 0, in, bytes);
    assert_memory_equal(in, out, (size_t)bytes);
    for (int i = 0; i < 64; i++)
        assert_int_equal(in[bytes + i], 0x5a);
    free(out);
    free(in);
}

static void test_sizes(void **state)
{
    static const int64_t odd[] = {1, 511, 513, 4095, 4096, 4097, 8193, 100000, 28824000};
    enum { REGIONS = sizeof odd / sizeof odd[0] };
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct sw_err err = {0};
        struct sw_spill_region regions[REGIONS];
        if (!allowed(&settings[s]))
            continue;
        struct sw_spill *spill = open_store(&settings[s], 32 << 20);
        for (int i = 0; i < REGIONS; i++)
            assert_ok(sw_spill_reserve(spill, odd[i], &regions[i], &err), &err);
        assert_ok(sw_spill_seal(spill, &err), &err);
        for (int i = 0; i < REGIONS; i++)
            round_trip(spill, &regions[i], (unsigned)i);
        for (int i = 0; i < REGIONS; i++) /* again, over what was there */
            round_trip(spill, &regions[i], (unsigned)i + 100);
        struct sw_spill_counters counters;
        int64_t total = 0;
        for (int i = 0; i < REGIONS; i++)
            total += 2 * odd[i];
        sw_spill_counters(spill, &counters);
        assert_int_equal(counters.read_bytes, total);
        assert_int_equal(counters.written_bytes, total);
        sw_spill_close(spill);
    }
}

static void test_unwritten_is_zero(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill_region region;
    struct sw_spill *spill = open_store(&settings[1], 1 << 20);
    assert_ok(sw_spill_reserve(spill, 50001, &region, &err), &err);
    assert_ok(sw_spill_seal(spill, &err), &err);
    char *memory = aligned(50001);
    memset(memory, 1, 50001);
    load(spill, &region, 0, memory, 50001);
    for (int i = 0; i < 50001; i++)
        assert_int_equal(memory[i], 0);
    free(memory);
    sw_spill_close(spill);
}

/* Any offset, any length, any alignment of memory, against a copy in memory. */
static void test_any_offset(void **state)
{
    enum { BYTES = 150001, ROUNDS = 300 };
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct sw_err err = {0};
        struct sw_spill_region region, other;
        if (!allowed(&settings[s]))
            continue;
        struct sw_spill *spill = open_store(&settings[s], 1 << 20);
        assert_ok(sw_spill_reserve(spill, BYTES, &region, &err), &err);
        assert_ok(sw_spill_reserve(spill, 5000, &other, &err), &err);
        assert_ok(sw_spill_seal(spill, &err), &err);
        char *truth = aligned(BYTES), *memory = aligned(BYTES + 4096);
        unsigned random = 1;
        for (int round = 0; round < ROUNDS; round++) {
            random = random * 1664525u + 1013904223u;
            int64_t offset = (random >> 8) % BYTES;
            random = random * 1664525u + 1013904223u;
            int64_t bytes = (random >> 8) % (BYTES - offset + 1);
            if (round % 3 == 0)
                offset &= ~8191;
            if (round % 4 == 0 && bytes > 3000)
                bytes = 3000;
            char *at = memory + (round % 5 < 2 ? 0 : random % 4096);
            fill(at, bytes, random);
            memcpy(truth + offset, at, (size_t)bytes);
            store(spill, &region, offset, at, bytes);
            memset(at, 0, (size_t)bytes);
            load(spill, &region, offset, at, bytes);
            assert_memory_equal(at, truth + offset, (size_t)bytes);
        }
        load(spill, &region, 0, memory, BYTES);
        assert_memory_equal(memory, truth, BYTES);
        load(spill, &other, 0, memory, 5000);
        for (int i = 0; i < 5000; i++)
            assert_int_equal(memory[i], 0);
        free(truth);
        free(memory);
        sw_spill_close(spill);
    }
}

static void test_stripes_follow_weights(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill_region region;
    struct sw_spill *spill = open_store(&settings[5], 2 << 20);
    assert_ok(sw_spill_reserve(spill, 60 * 16384, &region, &err), &err);
    assert_ok(sw_spill_reserve(spill, 60 * 16384, &region, &err), &err);
    for (int i = 0; i < 3; i++) /* weights 1 : 2 : 3 */
        assert_int_equal(sw_spill_directory_bytes(spill, i), 20 * (i + 1) * 16384);
    struct sw_spill_region more;
    assert_refused(sw_spill_reserve(spill, 10 * 16384, &more, &err), SW_E_FIT, "does not fit",
                   &err);
    sw_spill_close(spill);
}

static int64_t progress_last, progress_total;

static void take_progress(void *context, int64_t done_bytes, int64_t total_bytes)
{
    (void)context;
    assert_true(done_bytes >= progress_last);
    progress_last = done_bytes;
    progress_total = total_bytes;
}

/* The space is there after the seal, and does not grow. */
static void test_space_is_written_once(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill_directory list[2];
    struct sw_spill_region region;
    struct sw_spill_config config = small_config(list, 2);
    struct sw_spill *spill;
    config.progress = take_progress;
    progress_last = 0;
    assert_ok(sw_spill_open(&spill, &config, &err), &err);
    assert_ok(sw_spill_reserve(spill, 3000000, &region, &err), &err);
    assert_ok(sw_spill_seal(spill, &err), &err);
    struct sw_spill_counters counters;
    sw_spill_counters(spill, &counters);
    assert_int_equal(counters.prepared_bytes, sw_spill_region_space_bytes(3000000));
    assert_int_equal(progress_total, sw_spill_region_space_bytes(3000000));
    for (int pass = 0; pass < 2; pass++) {
        int64_t size = 0;
        for (int i = 0; i < 2; i++) {
            struct stat status;
            assert_int_equal(fstat(spill->places[i].descriptor, &status), 0);
            assert_int_equal(status.st_nlink, 0);
            assert_true((int64_t)status.st_blocks * 512 >= sw_spill_directory_bytes(spill, i));
            size += status.st_size;
        }
        assert_int_equal(size, sw_spill_region_space_bytes(3000000));
        round_trip(spill, &region, 5);
    }
    sw_spill_close(spill);
}

static void assert_directories_empty(void)
{
    for (int i = 0; i < 3; i++) {
        DIR *directory = opendir(directories[i]);
        assert_non_null(directory);
        for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
            if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
                fail_msg("%s/%s was left behind", directories[i], entry->d_name);
        closedir(directory);
    }
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL)
        return 0;
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* A byte that changes behind the store's back is seen, straight and through a staging buffer. */
static void test_corruption_is_seen(void **state)
{
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct sw_err err = {0};
        struct sw_spill_region region;
        if (!settings[s].verify || !settings[s].buffered || !allowed(&settings[s]))
            continue;
        struct sw_spill *spill = open_store(&settings[s], 1 << 20);
        char *memory = aligned(60000);
        fill(memory, 60000, 9);
        assert_ok(sw_spill_reserve(spill, 60000, &region, &err), &err);
        assert_ok(sw_spill_seal(spill, &err), &err);
        store(spill, &region, 0, memory, 60000);
        const int64_t wrong[] = {3, 20000, 59999};
        for (int i = 0; i < 3; i++) {
            const struct sw_spill_chunk *chunk = &spill->chunks[wrong[i] / spill->chunk_bytes];
            int descriptor = spill->places[chunk->place].descriptor;
            off_t at = chunk->file_offset_bytes + wrong[i] % spill->chunk_bytes;
            char right = memory[wrong[i]], changed = (char)(right ^ 4);
            struct sw_spill_ticket ticket;
            assert_int_equal(pwrite(descriptor, &changed, 1, at), 1);
            char *in = aligned(60000);
            sw_spill_read(spill, &region, 0, in, 60000, &ticket);
            assert_refused(sw_spill_wait(&ticket, &err), SW_E_FORMAT, "checksum differs", &err);
            /* a part of the block, elsewhere than the wrong byte */
            int64_t near = wrong[i] > 30000 ? wrong[i] - 50 : wrong[i] + 50;
            sw_spill_read(spill, &region, near, in, 10, &ticket);
            assert_refused(sw_spill_wait(&ticket, &err), SW_E_FORMAT, directories[chunk->place],
                           &err);
            /* a change of a part does not make a wrong block right */
            sw_spill_write(spill, &region, near, memory, 10, &ticket);
            assert_refused(sw_spill_wait(&ticket, &err), SW_E_FORMAT, "checksum differs", &err);
            assert_int_equal(pwrite(descriptor, &right, 1, at), 1);
            load(spill, &region, 0, in, 60000);
            assert_memory_equal(in, memory, 60000);
            free(in);
        }
        free(memory);
        sw_spill_close(spill);
    }
}

/* --- Threads
 * ---------------------------------------------------------------------------------------*/

struct lane {
    pthread_t thread;
    struct sw_spill *spill;
    struct sw_spill_region region; /* shared; lanes own odd stripes of it that share blocks */
    int64_t first, bytes;
    unsigned seed;
    bool failed;
};

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    enum { ROUNDS = 20, FLIGHT = 4 };
    char *memory = malloc((size_t)lane->bytes), *back = malloc((size_t)lane->bytes);
    int64_t piece = lane->bytes / FLIGHT;
    for (int round = 0; round < ROUNDS && !lane->failed; round++) {
        struct sw_spill_ticket tickets[FLIGHT];
        fill(memory, lane->bytes, lane->seed + (unsigned)round);
        for (int i = 0; i < FLIGHT; i++)
            sw_spill_write(lane->spill, &lane->region, lane->first + i * piece, memory + i * piece,
                           piece, &tickets[i]);
        for (int i = 0; i < FLIGHT; i++)
            lane->failed |= sw_spill_wait(&tickets[i], NULL) != SW_OK;
        for (int i = 0; i < FLIGHT; i++)
            sw_spill_read(lane->spill, &lane->region, lane->first + i * piece, back + i * piece,
                          piece, &tickets[i]);
        for (int i = FLIGHT - 1; i >= 0; i--)
            lane->failed |= sw_spill_wait(&tickets[i], NULL) != SW_OK;
        lane->failed |= memcmp(memory, back, (size_t)(piece * FLIGHT)) != 0;
    }
    free(memory);
    free(back);
    return NULL;
}

static void test_threads(void **state)
{
    enum { LANES = 4, BYTES = 10004 };
    (void)state;
    for (int s = 0; s < SETTINGS; s++) {
        struct lane lanes[LANES] = {0};
        struct sw_err err = {0};
        struct sw_spill_region region;
        if (!allowed(&settings[s]))
            continue;
        struct sw_spill *spill = open_store(&settings[s], 1 << 20);
        assert_ok(sw_spill_reserve(spill, LANES * BYTES, &region, &err), &err);
        assert_ok(sw_spill_seal(spill, &err), &err);
        for (int i = 0; i < LANES; i++) {
            lanes[i].spill = spill;
            lanes[i].region = region;
            lanes[i].first = i * BYTES;
            lanes[i].bytes = BYTES;
            lanes[i].seed = (unsigned)(100 * i);
            assert_int_equal(pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]), 0);
        }
        for (int i = 0; i < LANES; i++) {
            pthread_join(lanes[i].thread, NULL);
            assert_false(lanes[i].failed);
        }
        sw_spill_close(spill);
    }
}

/* What another line has queued, however much, is not waited for. */
static void test_lines_take_turns(void **state)
{
    enum { LARGE = 32 << 20, SMALL = 8192, TRIES = 5 };
    const struct setting by_pieces = {&sw_aio_sync, false, true, 1};
    struct sw_err err = {0};
    struct sw_spill_region large, small;
    struct sw_spill_ticket first, second;
    bool overtook = false;
    char *memory = aligned(LARGE), *block = aligned(SMALL);
    (void)state;
    struct sw_spill *spill = open_store(&by_pieces, LARGE + SMALL);
    fill(memory, LARGE, 1);
    fill(block, SMALL, 2);
    assert_ok(sw_spill_reserve(spill, LARGE, &large, &err), &err);
    assert_ok(sw_spill_reserve(spill, SMALL, &small, &err), &err);
    assert_ok(sw_spill_seal(spill, &err), &err);
    struct sw_spill_transfer transfer = {
        .region = &small, .memory = block, .bytes = SMALL, .write = true, .line = 2};
    /* a thousand pieces, unless this thread sleeps until all of them are written */
    for (int i = 0; i < TRIES && !overtook; i++) {
        sw_spill_write(spill, &large, 0, memory, LARGE, &first);
        sw_spill_start(spill, &transfer, &second);
        assert_ok(sw_spill_wait(&second, &err), &err);
        overtook = !sw_spill_ready(&first);
        assert_ok(sw_spill_wait(&first, &err), &err);
    }
    assert_true(overtook);
    load(spill, &small, 0, memory, SMALL);
    assert_memory_equal(memory, block, SMALL);
    sw_spill_close(spill);
    free(memory);
    free(block);
}

static void test_pinned_memory(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill_region region;
    if (!allowed(&settings[4]))
        skip();
    struct sw_spill *spill = open_store(&settings[4], 1 << 20);
    char *slab = aligned(1 << 18);
    notes = 0;
    assert_ok(sw_spill_reserve(spill, 1 << 17, &region, &err), &err);
    assert_ok(sw_spill_pin(spill, slab, 1 << 18, &err), &err);
    assert_ok(sw_spill_seal(spill, &err), &err);
    assert_string_equal(sw_spill_method_name(spill), "io_uring");
    fill(slab, 1 << 17, 77);
    store(spill, &region, 0, slab, 1 << 17);
    load(spill, &region, 0, slab + (1 << 17), 1 << 17);
    assert_memory_equal(slab, slab + (1 << 17), 1 << 17);
    sw_spill_close(spill);
    free(slab);
}

/* --- Refusals
 * --------------------------------------------------------------------------------------*/

static void test_refusals(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_spill *spill = NULL;
    struct sw_spill_directory list[3];
    struct sw_spill_config config = small_config(list, 2);
    char *missing = sw_path_join(scratch, "missing"), *file = sw_path_join(scratch, "file");
    list[1].path = missing;
    assert_refused(sw_spill_open(&spill, &config, &err), SW_E_USAGE, "missing", &err);
    assert_ok(sw_file_write_atomic(file, "x", 1, &err), &err);
    list[1].path = file;
    assert_refused(sw_spill_open(&spill, &config, &err), SW_E_USAGE, "is not a directory", &err);
    list[1].path = "/proc";
    assert_refused(sw_spill_open(&spill, &config, &err), SW_E_USAGE, "cannot write to", &err);
    /* two directories of one file system do not make it twice as large */
    config = small_config(list, 2);
    config.capacity_bytes = sw_directory_free_bytes(scratch) / 2 * 3;
    assert_refused(sw_spill_open(&spill, &config, &err), SW_E_FIT, "free (shared", &err);
    config.directory_count = 0;
    assert_refused(sw_spill_open(&spill, &config, &err), SW_E_USAGE, "1 to 16 directories", &err);
    assert_null(spill);
    assert_directories_empty();
    free(missing);
    free(file);
}

/* --- Faults
 * ----------------------------------------------------------------------------------------*/

/* A small job: open, reserve, seal, write, change a part, read. What it read must be right if every
 * step said so. */
static sw_code job(struct sw_aio_fault *fault, const struct setting *setting, struct sw_err *err)
{
    enum { BYTES = 50001 };
    struct sw_spill_directory list[3];
    struct sw_spill_config config = small_config(list, setting->directory_count);
    struct sw_spill *spill = NULL;
    struct sw_spill_region region;
    struct sw_spill_ticket tickets[3];
    char *truth = aligned(BYTES), *memory = aligned(BYTES);
    config.fault = fault;
    config.method = setting->method;
    config.buffered = setting->buffered;
    sw_code code = sw_spill_open(&spill, &config, err);
    if (code == SW_OK)
        code = sw_spill_reserve(spill, BYTES, &region, err);
    if (code == SW_OK)
        code = sw_spill_seal(spill, err);
    if (code != SW_OK)
        goto out;
    fill(truth, BYTES, 1);
    sw_spill_write(spill, &region, 0, truth, 20000, &tickets[0]);
    sw_spill_write(spill, &region, 20000, truth + 20000, BYTES - 20000, &tickets[1]);
    for (int i = 0; i < 2; i++) {
        sw_code one = sw_spill_wait(&tickets[i], err);
        code = code != SW_OK ? code : one;
    }
    if (code != SW_OK)
        goto out;
    fill(truth + 30001, 77, 2);
    sw_spill_write(spill, &region, 30001, truth + 30001, 77, &tickets[2]);
    code = sw_spill_wait(&tickets[2], err);
    if (code != SW_OK)
        goto out;
    sw_spill_read(spill, &region, 0, memory, BYTES, &tickets[0]);
    code = sw_spill_wait(&tickets[0], err);
    if (code == SW_OK)
        assert_memory_equal(memory, truth, BYTES);
out:
    sw_spill_close(spill);
    free(truth);
    free(memory);
    return code;
}

static void sweep(const struct setting *setting, enum sw_aio_fault_kind kind)
{
    bool fatal = kind >= SW_AIO_FAULT_EIO;
    int descriptors = open_descriptors(), failed = 0;
    int64_t position = 1;
    for (bool beyond = false; !beyond; position++) {
        struct sw_err err = {0};
        struct sw_aio_fault *fault;
        assert_ok(sw_aio_fault_open(&fault, kind, position, &err), &err);
        sw_code code = job(fault, setting, &err);
        beyond = sw_aio_fault_count(fault) < position;
        if (!fatal || beyond)
            assert_ok(code, &err);
        if (code != SW_OK) {
            /* a message that names the place and the reason */
            assert_true(err.code == code && strlen(err.text) > 20);
            assert_non_null(strstr(err.text, strerror(kind == SW_AIO_FAULT_EIO ? EIO : ENOSPC)));
            failed++;
        }
        sw_aio_fault_close(fault);
        assert_int_equal(open_descriptors(), descriptors);
        assert_true(position < 300);
    }
    if (fatal) /* all but registrations, without which it goes on */
        assert_true(failed >= 15);
    assert_directories_empty();
}

static void test_fault_sweep(void **state)
{
    (void)state;
    for (int s = 0; s < SETTINGS; s++)
        for (int kind = SW_AIO_FAULT_EAGAIN; kind <= SW_AIO_FAULT_ENOSPC; kind++)
            if (settings[s].verify && allowed(&settings[s]))
                sweep(&settings[s], (enum sw_aio_fault_kind)kind);
}

/* --- Full file systems, in a child
 * ---------------------------------------------------------------*/

enum { CHILD_FINE = 0, CHILD_SKIPPED = 77 };

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

static int child_file_limit(void)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    struct sw_err err = {0};
    struct sw_spill_directory list[1];
    struct sw_spill_config config = small_config(list, 1);
    struct sw_spill_region region;
    struct sw_spill *spill = NULL;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return CHILD_SKIPPED;
    if (sw_spill_open(&spill, &config, &err) != SW_OK ||
        sw_spill_reserve(spill, 3 << 20, &region, &err) != SW_OK)
        return 1;
    if (sw_spill_seal(spill, &err) != SW_E_IO || strstr(err.text, "ulimit -f") == NULL)
        return 2;
    sw_spill_close(spill);
    return CHILD_FINE;
}

static void test_file_size_limit(void **state)
{
    (void)state;
    int status = in_child(child_file_limit);
    if (status == CHILD_SKIPPED)
        skip();
    assert_int_equal(status, CHILD_FINE);
    assert_directories_empty();
}

/* A 20 MB file system: too little is refused at once; what another takes meanwhile ends the seal.
 */
static int child_full_disk(void)
{
    struct sw_err err = {0};
    struct sw_spill_directory list[1];
    struct sw_spill_config config = small_config(list, 1);
    struct sw_spill_region region;
    struct sw_spill *spill = NULL;
    char *mounted = sw_path_join(scratch, "mounted"), *hog = sw_path_join(scratch, "mounted/hog");
    if (mkdir(mounted, 0700) != 0 || mount("none", mounted, "tmpfs", 0, "size=20m") != 0) {
        rmdir(mounted);
        return CHILD_SKIPPED;
    }
    int status = 1;
    list[0].path = mounted;
    config.capacity_bytes = 30 << 20;
    if (sw_spill_open(&spill, &config, &err) != SW_E_FIT ||
        strstr(err.text, "needs 30.0 MiB of file space, and there is 20.0 MiB") == NULL)
        goto out;
    status = 2;
    sw_err_init(&err);
    config.capacity_bytes = 16 << 20;
    if (sw_spill_open(&spill, &config, &err) != SW_OK ||
        sw_spill_reserve(spill, 16 << 20, &region, &err) != SW_OK)
        goto out;
    int descriptor = open(hog, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    status = 3;
    if (descriptor < 0 || fallocate(descriptor, 0, 0, 10 << 20) != 0)
        goto out;
    close(descriptor);
    status = 4;
    if (sw_spill_seal(spill, &err) != SW_E_IO || strstr(err.text, "No space left") == NULL)
        goto out;
    sw_spill_close(spill);
    unlink(hog);
    struct statfs space;
    status = 5;
    for (int tries = 0; tries < 20 && status != CHILD_FINE; tries++) {
        if (statfs(mounted, &space) == 0 && space.f_bfree == space.f_blocks)
            status = CHILD_FINE;
        else /* the kernel lets go of a ring's files a moment after it is closed */
            usleep(50000);
    }
out:
    if (status != CHILD_FINE)
        fprintf(stderr, "%s\n", err.text);
    umount2(mounted, MNT_DETACH);
    rmdir(mounted);
    return status;
}

static void test_full_disk(void **state)
{
    (void)state;
    int status = in_child(child_full_disk);
    if (status == CHILD_SKIPPED) {
        printf("skipped: cannot mount a small file system here\n");
        skip();
    }
    assert_int_equal(status, CHILD_FINE);
}

/* A killed process leaves nothing. */
static int child_killed(void)
{
    struct sw_err err = {0};
    struct sw_spill_directory list[3];
    struct sw_spill_config config = small_config(list, 3);
    struct sw_spill_region region;
    struct sw_spill *spill = NULL;
    if (sw_spill_open(&spill, &config, &err) == SW_OK &&
        sw_spill_reserve(spill, 1 << 20, &region, &err) == SW_OK &&
        sw_spill_seal(spill, &err) == SW_OK)
        kill(getpid(), SIGKILL);
    return 1;
}

static void test_killed_leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(in_child(child_killed), 128);
    assert_directories_empty();
}

static void test_overhead(void **state)
{
    (void)state;
    struct sw_spill_directory list[1];
    struct sw_spill_config config = small_config(list, 1);
    int64_t small = sw_spill_overhead_bytes(&config, 10);
    config.capacity_bytes *= 2;
    int64_t large = sw_spill_overhead_bytes(&config, 10);
    /* one sum of 8 bytes a block of 8 KiB, two table entries of 16 bytes a chunk of 16 KiB */
    assert_int_equal(large - small, (4 << 20) / 8192 * 8 + (4 << 20) / 16384 * 2 * 16);
}

static int setup(void **state)
{
    static const char *const names[] = {"a", "b", "c"};
    (void)state;
    scratch = sw_test_scratch();
    for (int i = 0; i < 3; i++) {
        directories[i] = sw_path_join(scratch, names[i]);
        if (directories[i] == NULL || mkdir(directories[i], 0700) != 0)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        free(directories[i]);
    sw_test_scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_unwritten_is_zero),
        cmocka_unit_test(test_any_offset),
        cmocka_unit_test(test_stripes_follow_weights),
        cmocka_unit_test(test_space_is_written_once),
        cmocka_unit_test(test_corruption_is_seen),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_lines_take_turns),
        cmocka_unit_test(test_pinned_memory),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fault_sweep),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_killed_leaves_nothing),
        cmocka_unit_test(test_overhead),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

#include "io/measure.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/timing.h"
#include "io/scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file, written once, and memory for requests in flight. */
struct session {
    const struct sw_measure_config *config;
    int descriptor;
    bool direct;
    int64_t file_bytes;
    char *memory; /* for the largest request times the largest depth */
    int64_t memory_bytes;
    const char *method;                /* that was used last */
    double progress_from, progress_to; /* what the pass under way is of the whole */
};

static void report(const struct session *session, double fraction)
{
    if (session->config->progress != NULL)
        session->config->progress(session->config->progress_context,
                                  session->progress_from +
                                      fraction * (session->progress_to - session->progress_from));
}

static void session_close(struct session *session)
{
    if (session->descriptor >= 0)
        close(session->descriptor);
    free(session->memory);
}

static sw_code session_open(struct session *session, int64_t memory_bytes, struct sw_err *err)
{
    const struct sw_measure_config *config = session->config;
    int64_t free_bytes = sw_directory_free_bytes(config->directory);
    if (free_bytes >= 0 && free_bytes < session->file_bytes)
        return SW_FAIL(err, SW_E_FIT, "measuring %s needs %lld bytes, and %lld are free",
                       config->directory, (long long)session->file_bytes, (long long)free_bytes);
    session->memory_bytes = memory_bytes;
    /* Like the engine's: of huge pages. */
    session->memory =
        sw_aligned_alloc(memory_bytes > SW_HUGE_PAGE_BYTES ? memory_bytes : SW_HUGE_PAGE_BYTES);
    if (session->memory == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %lld bytes of transfers",
                       (long long)memory_bytes);
    /* noise: some drives are faster with zeros */
    uint64_t word = 1;
    for (int64_t at = 0; at + 8 <= memory_bytes; at += 8) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        memcpy(session->memory + at, &word, sizeof word);
    }
    session->direct = true;
    session->descriptor = sw_scratch_file_open(config->directory, O_DIRECT);
    if (session->descriptor < 0 && errno == EINVAL) {
        session->direct = false;
        session->descriptor = sw_scratch_file_open(config->directory, 0);
    }
    if (session->descriptor < 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno, "cannot write to the directory %s",
                          config->directory);
    return SW_OK;
}

/* One pass over the file: requests of `request_bytes`, `depth` in flight, until the end or until
 * `max_seconds` are over (0: until the end). Both: reads of its first half and writes of its second
 * in turn, as a spill store takes them. */
enum direction { READS, WRITES, BOTH };
struct pass {
    enum direction direction;
    int64_t request_bytes;
    int depth;
    double max_seconds;
};

static sw_code open_queue(struct session *session, const struct pass *pass, struct sw_aio **out,
                          struct sw_err *err)
{
    struct sw_aio_config config = {
        .method = session->config->method,
        .depth = pass->depth,
        .note = session->config->note,
        .note_context = session->config->note_context,
    };
    struct sw_aio_buffer buffer = {session->memory, pass->depth * pass->request_bytes};
    sw_assert(buffer.bytes <= session->memory_bytes);
    sw_code code = sw_aio_open(out, &config, err);
    if (code == SW_OK)
        code = sw_aio_set_files(*out, &session->descriptor, &session->config->directory, 1, err);
    if (code == SW_OK)
        code = sw_aio_set_buffers(*out, &buffer, 1, err);
    return code;
}

/* A pass under way. */
struct run {
    struct session *session;
    const struct pass *pass;
    struct sw_aio *aio;
    int64_t started; /* requests */
    int64_t done_bytes;
    double begin, now; /* seconds */
    sw_code code;
};

/* Give `request` the next piece of the file, if there is one and it is not time to stop. */
static void start_next(struct run *run, struct sw_aio_request *request)
{
    double limit = run->pass->max_seconds;
    enum direction direction = run->pass->direction;
    int64_t pieces = run->session->file_bytes / request->bytes, n = run->started;
    if (direction == BOTH)
        pieces -= pieces % 2;
    if (run->code != SW_OK || n >= pieces || (limit > 0 && run->now - run->begin >= limit))
        return;
    request->write = direction == WRITES || (direction == BOTH && n % 2 == 1);
    if (direction == BOTH)
        n = n / 2 + (request->write ? pieces / 2 : 0);
    request->offset_bytes = n * request->bytes;
    run->started++;
    sw_aio_submit(run->aio, request);
}

static sw_code move_all(struct run *run, struct sw_aio_request *requests, double *out_rate,
                        struct sw_err *err)
{
    struct sw_aio_request *finished[32];
    run->begin = run->now = sw_seconds_now();
    for (int i = 0; i < run->pass->depth; i++)
        start_next(run, &requests[i]);
    while (sw_aio_pending(run->aio) > 0) {
        int count = sw_aio_reap(run->aio, finished, 32, true, err);
        if (count < 0)
            return SW_E_IO;
        run->now = sw_seconds_now();
        for (int i = 0; i < count; i++) {
            if (finished[i]->os_errno != 0)
                run->code = sw_aio_request_fail(run->aio, finished[i], err);
            run->done_bytes += finished[i]->bytes;
            start_next(run, finished[i]);
        }
        report(run->session, (double)run->done_bytes / (double)run->session->file_bytes);
    }
    *out_rate = run->now > run->begin ? (double)run->done_bytes / (run->now - run->begin) : 0;
    return run->code;
}

static sw_code run_pass(struct session *session, const struct pass *pass, double *out_rate,
                        struct sw_err *err)
{
    struct sw_aio *aio = NULL;
    struct sw_aio_request *requests = sw_calloc(pass->depth, sizeof *requests);
    if (requests == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %d requests", pass->depth);
    for (int i = 0; i < pass->depth; i++) {
        requests[i].bytes = pass->request_bytes;
        requests[i].memory = session->memory + i * pass->request_bytes;
    }
    sw_code code = open_queue(session, pass, &aio, err);
    if (code == SW_OK) {
        session->method = sw_aio_method_name(sw_aio_method_of(aio));
        struct run run = {.session = session, .pass = pass, .aio = aio};
        code = move_all(&run, requests, out_rate, err);
    }
    sw_aio_close(aio);
    free(requests);
    return code;
}

static void set_progress(struct session *session, double from, double to)
{
    session->progress_from = from;
    session->progress_to = to;
}

sw_code sw_measure_drive(const struct sw_measure_config *config, struct sw_measure_rates *out,
                         struct sw_err *err)
{
    int64_t file_bytes = config->file_bytes / config->request_bytes * config->request_bytes;
    if (file_bytes == 0)
        return SW_FAIL(err, SW_E_USAGE, "a file of %lld bytes is less than one request of %lld",
                       (long long)config->file_bytes, (long long)config->request_bytes);
    struct session session = {.config = config, .descriptor = -1, .file_bytes = file_bytes};
    struct sw_measure_rates rates = {0};
    double first;
    sw_code code = session_open(&session, config->queue_depth * config->request_bytes, err);
    struct pass pass = {WRITES, config->request_bytes, config->queue_depth, 0};
    set_progress(&session, 0, 0.4);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &first, err);
    pass.max_seconds = config->max_seconds;
    set_progress(&session, 0.4, 0.7);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &rates.write_bytes_per_second, err);
    pass.direction = READS;
    set_progress(&session, 0.7, 1);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &rates.read_bytes_per_second, err);
    rates.direct = session.direct;
    rates.method = session.method;
    session_close(&session);
    if (code == SW_OK)
        *out = rates;
    return code;
}

/* What is tried, from small to large. */
static const struct {
    int64_t request_bytes;
    int depth;
} candidates[] = {
    {128 << 10, 8}, {128 << 10, 32}, {512 << 10, 8}, {512 << 10, 32},
    {1 << 20, 8},   {1 << 20, 32},   {4 << 20, 4},   {4 << 20, 16},
};
enum { CANDIDATES = sizeof candidates / sizeof candidates[0] };
static const int64_t candidate_memory_bytes = 64 << 20;

static sw_code find_best(struct session *session, struct pass *best, struct sw_err *err)
{
    double rates[CANDIDATES], highest = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        struct pass pass = {READS, candidates[i].request_bytes, candidates[i].depth,
                            session->config->max_seconds / 4};
        set_progress(session, 0.3 + 0.05 * i, 0.35 + 0.05 * i);
        sw_code code = run_pass(session, &pass, &rates[i], err);
        if (code != SW_OK)
            return code;
        if (rates[i] > highest)
            highest = rates[i];
    }
    int chosen = 0;
    while (rates[chosen] < 0.95 * highest)
        chosen++;
    best->request_bytes = candidates[chosen].request_bytes;
    best->depth = candidates[chosen].depth;
    return SW_OK;
}

/* --- One chunk at a time
 * -----------------------------------------------------------------------*/

enum { ALONE_CHUNKS = 8, ALONE_CHUNK_BYTES = 4 << 20 };

/* Seconds of a chunk that is waited for before the next is begun; median. */
static sw_code time_chunks(struct sw_spill *spill, const struct sw_spill_region *region,
                           char *memory, bool write, double *out_seconds, struct sw_err *err)
{
    double seconds[ALONE_CHUNKS];
    for (int i = 0; i < ALONE_CHUNKS; i++) {
        struct sw_spill_ticket ticket;
        double begin = sw_seconds_now();
        if (write)
            sw_spill_write(spill, region, 0, memory, region->bytes, &ticket);
        else
            sw_spill_read(spill, region, 0, memory, region->bytes, &ticket);
        sw_code code = sw_spill_wait(&ticket, err);
        if (code != SW_OK)
            return code;
        seconds[i] = sw_seconds_now() - begin;
    }
    *out_seconds = sw_median(seconds, ALONE_CHUNKS);
    return SW_OK;
}

/* drive->transfer_seconds, its rates, request size and depth being known. */
static sw_code measure_alone(const struct sw_measure_config *config, char *memory,
                             struct sw_machine_drive *drive, struct sw_err *err)
{
    struct sw_spill_directory directory = {.path = config->directory};
    struct sw_spill_config store = {.directories = &directory,
                                    .directory_count = 1,
                                    .capacity_bytes = ALONE_CHUNK_BYTES,
                                    .request_bytes = drive->request_bytes,
                                    .queue_depth = drive->queue_depth,
                                    .method = config->method};
    struct sw_spill *spill = NULL;
    struct sw_spill_region region;
    double write_seconds = 0, read_seconds = 0;
    sw_code code = sw_spill_open(&spill, &store, err);
    if (code != SW_OK)
        return code;
    code = sw_spill_reserve(spill, ALONE_CHUNK_BYTES, &region, err);
    if (code == SW_OK)
        code = sw_spill_pin(spill, memory, ALONE_CHUNK_BYTES, err);
    if (code == SW_OK)
        code = sw_spill_seal(spill, err);
    if (code == SW_OK)
        code = time_chunks(spill, &region, memory, true, &write_seconds, err);
    if (code == SW_OK)
        code = time_chunks(spill, &region, memory, false, &read_seconds, err);
    sw_spill_close(spill);
    double longer = (write_seconds - ALONE_CHUNK_BYTES / drive->write_bytes_per_second +
                     read_seconds - ALONE_CHUNK_BYTES / drive->read_bytes_per_second) /
                    2;
    drive->transfer_seconds = longer > 0 ? longer : 0;
    return code;
}

sw_code sw_measure_drive_best(const struct sw_measure_config *config,
                              struct sw_machine_drive *drive, struct sw_err *err)
{
    int64_t file_bytes =
        config->file_bytes / SW_MEASURE_MOST_REQUEST_BYTES * SW_MEASURE_MOST_REQUEST_BYTES;
    if (file_bytes == 0)
        file_bytes = SW_MEASURE_MOST_REQUEST_BYTES;
    struct session session = {.config = config, .descriptor = -1, .file_bytes = file_bytes};
    double first, write_rate = 0, read_rate = 0, both_rate = 0;
    sw_code code = session_open(&session, candidate_memory_bytes, err);
    struct pass pass = {WRITES, 1 << 20, 16, 0};
    set_progress(&session, 0, 0.3);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &first, err);
    if (code == SW_OK)
        code = find_best(&session, &pass, err);
    pass.max_seconds = config->max_seconds;
    pass.direction = WRITES;
    set_progress(&session, 0.7, 0.8);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &write_rate, err);
    pass.direction = READS;
    set_progress(&session, 0.8, 0.9);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &read_rate, err);
    pass.direction = BOTH;
    set_progress(&session, 0.9, 1);
    if (code == SW_OK)
        code = run_pass(&session, &pass, &both_rate, err);
    drive->direct = session.direct;
    drive->request_bytes = pass.request_bytes;
    drive->queue_depth = pass.depth;
    drive->read_bytes_per_second = read_rate;
    drive->write_bytes_per_second = write_rate;
    drive->both_bytes_per_second = both_rate;
    if (code == SW_OK)
        code = measure_alone(config, session.memory, drive, err);
    if (code == SW_OK)
        report(&session, 1);
    session_close(&session);
    return code;
}

sw_code sw_measure_directories(struct sw_spill_directory *directories, int count,
                               const struct sw_aio_method *method, struct sw_measure_settings *out,
                               struct sw_err *err)
{
    *out = (struct sw_measure_settings){0};
    for (int i = 0; i < count; i++) {
        struct sw_measure_config config = {.directory = directories[i].path,
                                           .file_bytes = 128 << 20,
                                           .max_seconds = 0.2,
                                           .method = method};
        struct sw_machine_drive drive = {0};
        sw_code code = sw_measure_drive_best(&config, &drive, err);
        if (code != SW_OK)
            return code;
        if (drive.request_bytes > out->request_bytes)
            out->request_bytes = drive.request_bytes;
        if (drive.queue_depth > out->queue_depth)
            out->queue_depth = drive.queue_depth;
        double seconds_per_byte =
            1 / drive.read_bytes_per_second + 1 / drive.write_bytes_per_second;
        if (count > 1 && directories[i].weight <= 0)
            directories[i].weight = 1 / seconds_per_byte;
    }
    return SW_OK;
}

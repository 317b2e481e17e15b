/* The CPU as a device: an arena with a cap; every call is done when it returns. */
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEVICE_ALIGNMENT = 256, HOST_ALIGNMENT = 4096, HUGE_PAGE = 2 << 20 };

struct sw_device {
    struct sw_pool *pool; /* may be NULL: everything on the calling thread */
    pthread_mutex_t lock; /* of what follows */
    char *arena;          /* cap_bytes of address space; the kernel gives pages when touched */
    int64_t mapped_bytes;
    int64_t cap_bytes;
    int64_t used_bytes; /* nothing is freed before close, so this is the high water too */
};

struct sw_event {
    pthread_mutex_t lock;
    struct sw_err error; /* of the stream it was recorded on */
};

void sw_cpu_run(struct sw_stream *stream, sw_task_fn task, void *context, int64_t tasks)
{
    if (sw_cpu_failed(stream))
        return;
    struct sw_pool *pool = stream->device->pool;
    if (pool != NULL)
        sw_pool_run(pool, task, context, tasks);
    else
        for (int64_t i = 0; i < tasks; i++)
            task(context, i, 0);
}

static sw_code count(int *out, struct sw_err *err)
{
    (void)err;
    *out = 1;
    return SW_OK;
}

/* A number from a one-line file, or -1. */
static int64_t read_number(const char *path)
{
    long long number = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%lld", &number) != 1)
        number = -1;
    fclose(file);
    return number;
}

/* What the machine has free, cut to what the cgroup leaves. */
static int64_t free_bytes(void)
{
    char line[128];
    long long kib = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = -1;
    if (file != NULL)
        fclose(file);
    int64_t bytes = kib > 0 ? kib * 1024 : (int64_t)1 << 30;
    int64_t limit = read_number("/sys/fs/cgroup/memory.max");
    int64_t current = read_number("/sys/fs/cgroup/memory.current");
    if (limit > 0 && current >= 0 && limit - current < bytes)
        bytes = limit > current ? limit - current : 0;
    return bytes & ~((int64_t)DEVICE_ALIGNMENT - 1);
}

static sw_code open_device(struct sw_device **out, const struct sw_device_config *config,
                           struct sw_err *err)
{
    int64_t cap = config->memory_bytes > 0 ? config->memory_bytes : free_bytes();
    if (cap > INT64_MAX / 2)
        return SW_FAIL(err, SW_E_FIT, "a device of %lld bytes is more than any machine has",
                       (long long)cap);
    struct sw_device *device = sw_calloc(1, sizeof *device);
    if (device == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a device");
    device->mapped_bytes = sw_align_up(cap + HUGE_PAGE, HUGE_PAGE);
    void *arena = mmap(NULL, (size_t)device->mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        int os_errno = errno;
        free(device);
        return SW_FAIL_OS(err, SW_E_MEMORY, os_errno,
                          "cannot reserve %lld bytes for a CPU device (devices.memory)",
                          (long long)cap);
    }
    /* Huge pages: fewer faults, fewer TLB misses. Without them it is merely slower. */
    (void)madvise(arena, (size_t)device->mapped_bytes, MADV_HUGEPAGE);
    device->arena = arena;
    device->cap_bytes = cap;
    device->pool = config->pool;
    pthread_mutex_init(&device->lock, NULL);
    sw_cpu_blas_init();
    *out = device;
    return SW_OK;
}

static void close_device(struct sw_device *device)
{
    if (device == NULL)
        return;
    munmap(device->arena, (size_t)device->mapped_bytes);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* The arena's first huge page boundary. */
static char *arena_base(const struct sw_device *device)
{
    uintptr_t address = (uintptr_t)device->arena;
    return device->arena + ((HUGE_PAGE - address % HUGE_PAGE) % HUGE_PAGE);
}

static sw_code alloc(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    sw_code code = SW_OK;
    sw_assert(bytes >= 0);
    pthread_mutex_lock(&device->lock);
    int64_t used = device->used_bytes;
    if (bytes > device->cap_bytes ||
        sw_align_up(bytes, DEVICE_ALIGNMENT) > device->cap_bytes - used) {
        code = SW_FAIL(err, SW_E_FIT,
                       "%lld bytes do not fit the device: %lld of %lld are in use; a higher "
                       "devices.memory would help",
                       (long long)bytes, (long long)used, (long long)device->cap_bytes);
    } else {
        *out = arena_base(device) + used;
        device->used_bytes = used + sw_align_up(bytes, DEVICE_ALIGNMENT);
    }
    pthread_mutex_unlock(&device->lock);
    return code;
}

static int64_t high_water_bytes(const struct sw_device *device)
{
    return device->used_bytes;
}

static sw_code host_alloc(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    (void)device;
    sw_assert(bytes >= 0 && bytes < INT64_MAX / 2);
    int64_t padded = sw_align_up(bytes > 0 ? bytes : 1, HOST_ALIGNMENT);
    void *memory =
        mmap(NULL, (size_t)padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return SW_FAIL_OS(err, SW_E_MEMORY, errno,
                          "cannot get %lld bytes of host memory (offload.host_memory)",
                          (long long)bytes);
    if (padded >= HUGE_PAGE)
        (void)madvise(memory, (size_t)padded, MADV_HUGEPAGE);
    *out = memory;
    return SW_OK;
}

static void host_free(struct sw_device *device, void *memory, int64_t bytes)
{
    (void)device;
    if (memory != NULL)
        munmap(memory, (size_t)sw_align_up(bytes > 0 ? bytes : 1, HOST_ALIGNMENT));
}

static sw_code stream_open(struct sw_device *device, enum sw_stream_kind kind,
                           struct sw_stream **out, struct sw_err *err)
{
    struct sw_stream *stream = sw_calloc(1, sizeof *stream);
    if (stream == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a stream");
    stream->device = device;
    stream->kind = kind;
    *out = stream;
    return SW_OK;
}

static void stream_close(struct sw_stream *stream)
{
    free(stream);
}

static sw_code stream_sync(struct sw_stream *stream, struct sw_err *err)
{
    return sw_stream_check(stream, err);
}

/* --- Copies: pieces big enough that a thread is worth waking ------------------------------------
 */

enum { PIECE_BYTES = 1 << 20 };

struct copy {
    char *destination;
    const char *source; /* NULL: zeros */
    int64_t bytes;
};

static void copy_piece(void *context, int64_t index, int64_t worker)
{
    const struct copy *copy = context;
    int64_t first = index * PIECE_BYTES;
    size_t bytes = (size_t)sw_cpu_min(PIECE_BYTES, copy->bytes - first);
    (void)worker;
    if (copy->source != NULL)
        memcpy(copy->destination + first, copy->source + first, bytes);
    else
        memset(copy->destination + first, 0, bytes);
}

static void copy_memory(struct sw_stream *stream, void *destination, const void *source,
                        int64_t bytes)
{
    struct copy copy = {destination, source, bytes};
    sw_assert(bytes >= 0);
    if (bytes > 0 && destination != source)
        sw_cpu_run(stream, copy_piece, &copy, sw_cpu_ceil_div(bytes, PIECE_BYTES));
}

static void zero_memory(struct sw_stream *stream, void *destination, int64_t bytes)
{
    struct copy copy = {destination, NULL, bytes};
    sw_assert(bytes >= 0);
    sw_cpu_run(stream, copy_piece, &copy, sw_cpu_ceil_div(bytes, PIECE_BYTES));
}

/* --- Events: what was submitted is done, so all they carry is the stream's failure -------------
 */

static sw_code event_open(struct sw_device *device, struct sw_event **out, struct sw_err *err)
{
    (void)device;
    struct sw_event *event = sw_calloc(1, sizeof *event);
    if (event == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for an event");
    pthread_mutex_init(&event->lock, NULL);
    *out = event;
    return SW_OK;
}

static void event_close(struct sw_event *event)
{
    if (event == NULL)
        return;
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static void event_record(struct sw_event *event, struct sw_stream *stream)
{
    pthread_mutex_lock(&event->lock);
    if (sw_cpu_failed(stream))
        event->error = stream->error;
    else
        sw_err_init(&event->error);
    pthread_mutex_unlock(&event->lock);
}

static void event_wait(struct sw_event *event, struct sw_stream *stream)
{
    pthread_mutex_lock(&event->lock);
    if (event->error.code != SW_OK && !sw_cpu_failed(stream))
        stream->error = event->error;
    pthread_mutex_unlock(&event->lock);
}

static sw_code event_sync(struct sw_event *event, struct sw_err *err)
{
    pthread_mutex_lock(&event->lock);
    sw_code code = event->error.code;
    if (code != SW_OK && err != NULL && err->code == SW_OK)
        *err = event->error;
    pthread_mutex_unlock(&event->lock);
    return code;
}

const struct sw_device_ops sw_cpu_device_ops = {
    .name = "cpu",
    .asynchronous = false,
    .kernels = &sw_cpu_kernels,
    .count = count,
    .open = open_device,
    .close = close_device,
    .alloc = alloc,
    .high_water_bytes = high_water_bytes,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_sync = stream_sync,
    .copy = copy_memory,
    .zero = zero_memory,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
};

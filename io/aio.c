#include "io/aio_method.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const char *sw_aio_method_name(const struct sw_aio_method *method)
{
    return method->name;
}

bool sw_aio_method_find(const char *name, const struct sw_aio_method **out)
{
    const struct sw_aio_method *const methods[] = {&sw_aio_uring, &sw_aio_threads, &sw_aio_sync};
    if (strcmp(name, "auto") == 0) {
        *out = NULL;
        return true;
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(name, methods[i]->name) == 0) {
            *out = methods[i];
            return true;
        }
    }
    return false;
}

const struct sw_aio_method *sw_aio_method_of(const struct sw_aio *aio)
{
    return aio->method;
}

void sw_aio_note(const struct sw_aio *aio, const char *format, ...)
{
    if (aio->note == NULL)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    aio->note(aio->note_context, text);
}

/* Open the method asked for; with none asked for, the first that is allowed. */
static sw_code open_method(struct sw_aio *aio, const struct sw_aio_method *wanted,
                           struct sw_err *err)
{
    struct sw_err reason;
    sw_err_init(&reason);
    aio->method = wanted != NULL ? wanted : &sw_aio_uring;
    if (aio->method->open(aio, wanted != NULL ? err : &reason) == SW_OK)
        return SW_OK;
    if (wanted == &sw_aio_uring)
        return sw_err_while(err, "opening one for io.method io_uring; auto goes on with threads");
    if (wanted != NULL)
        return err != NULL ? err->code : SW_E_FAILED;
    sw_aio_note(aio, "%s; reading and writing with threads instead", reason.text);
    aio->method = &sw_aio_threads;
    return aio->method->open(aio, err);
}

sw_code sw_aio_open(struct sw_aio **out, const struct sw_aio_config *config, struct sw_err *err)
{
    sw_assert(config->depth >= 1 && config->depth <= SW_AIO_MAX_DEPTH);
    struct sw_aio *aio = sw_calloc(1, sizeof *aio);
    if (aio == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a transfer queue");
    sw_code code;
    aio->depth = config->depth;
    aio->max_transfer_bytes = SW_AIO_MAX_TRANSFER_BYTES;
    aio->note = config->note;
    aio->note_context = config->note_context;
    aio->fault = config->fault;
    aio->wake_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (aio->wake_descriptor < 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot make an eventfd for a transfer queue");
        goto out;
    }
    aio->events = sw_calloc(aio->depth, sizeof *aio->events);
    aio->injected = sw_calloc(aio->depth, sizeof *aio->injected);
    if (aio->events == NULL || aio->injected == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a transfer queue of depth %d", aio->depth);
        goto out;
    }
    code = open_method(aio, config->method, err);
    if (code == SW_OK) {
        *out = aio;
        aio = NULL;
    } else {
        aio->method = NULL;
    }
out:
    sw_aio_close(aio);
    return code;
}

void sw_aio_close(struct sw_aio *aio)
{
    if (aio == NULL)
        return;
    sw_assert(aio->pending == 0 || aio->broken);
    if (aio->method != NULL)
        aio->method->close(aio);
    if (aio->wake_descriptor >= 0)
        close(aio->wake_descriptor);
    free(aio->buffers);
    free(aio->events);
    free(aio->injected);
    free(aio);
}

/* Run a registration, again when it was merely interrupted. Returns 0 or its errno. */
static int register_with_retries(struct sw_aio *aio, int (*call)(struct sw_aio *, int), int count)
{
    int reason;
    for (int tries = 0; tries < SW_AIO_MAX_TRIES; tries++) {
        reason = sw_aio_fault_check(aio->fault, SW_AIO_CALL_REGISTER);
        if (reason == 0)
            reason = call(aio, count);
        if (reason != EINTR && reason != EAGAIN)
            break;
    }
    return reason;
}

static int register_files(struct sw_aio *aio, int count)
{
    (void)count;
    return aio->method->register_files(aio);
}

sw_code sw_aio_set_files(struct sw_aio *aio, const int *descriptors, const char *const *names,
                         int count, struct sw_err *err)
{
    if (count > SW_AIO_MAX_FILES)
        return SW_FAIL(err, SW_E_USAGE, "a transfer queue takes at most %d files, not %d",
                       (int)SW_AIO_MAX_FILES, count);
    sw_assert(aio->file_count == 0 && count > 0);
    for (int i = 0; i < count; i++) {
        aio->files[i] = descriptors[i];
        aio->names[i] = names[i];
    }
    aio->file_count = count;
    if (aio->method->register_files == NULL)
        return SW_OK;
    int reason = register_with_retries(aio, register_files, count);
    char text[128];
    if (reason != 0)
        sw_aio_note(aio, "cannot register files with %s (%s); transfers go on without",
                    aio->method->name, strerror_r(reason, text, sizeof text));
    return SW_OK;
}

/* Cut buffers to what the kernel takes as one. *out_count is at most SW_AIO_MAX_BUFFERS; what is
 * beyond stays unregistered. */
static sw_code cut_buffers(struct sw_aio *aio, const struct sw_aio_buffer *buffers, int count,
                           int *out_count, int64_t *out_bytes, struct sw_err *err)
{
    aio->buffers = sw_calloc(SW_AIO_MAX_BUFFERS, sizeof *aio->buffers);
    if (aio->buffers == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the buffers of a transfer queue");
    int used = 0;
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        for (int64_t at = 0; at < buffers[i].bytes && used < SW_AIO_MAX_BUFFERS;) {
            int64_t bytes = buffers[i].bytes - at;
            if (bytes > SW_AIO_MAX_BUFFER_BYTES)
                bytes = SW_AIO_MAX_BUFFER_BYTES;
            aio->buffers[used].memory = (char *)buffers[i].memory + at;
            aio->buffers[used].bytes = bytes;
            used++;
            at += bytes;
            total += bytes;
        }
    }
    *out_count = used;
    *out_bytes = total;
    return SW_OK;
}

sw_code sw_aio_set_buffers(struct sw_aio *aio, const struct sw_aio_buffer *buffers, int count,
                           struct sw_err *err)
{
    sw_assert(aio->buffers == NULL);
    if (aio->method->register_buffers == NULL || count == 0)
        return SW_OK;
    int cut = 0;
    int64_t bytes = 0;
    sw_code code = cut_buffers(aio, buffers, count, &cut, &bytes, err);
    if (code != SW_OK)
        return code;
    /* Memory is short: the first buffers matter most, so the last are left out one by one. */
    int reason = 0;
    for (int registered = cut; registered > 0 && aio->buffer_count == 0; registered--) {
        int now = register_with_retries(aio, aio->method->register_buffers, registered);
        if (now == 0)
            aio->buffer_count = registered;
        else if (reason == 0)
            reason = now;
        if (now != 0 && now != ENOMEM)
            break;
    }
    char text[128];
    if (reason != 0)
        sw_aio_note(aio,
                    "cannot pin all of %.1f MiB of transfer buffers (%s; `ulimit -l` limits it); "
                    "transfers go on unpinned, somewhat slower",
                    (double)bytes / 1048576.0, strerror_r(reason, text, sizeof text));
    return SW_OK;
}

/* --- Requests
 * ------------------------------------------------------------------------------------*/

static void push(struct sw_aio_request **first, struct sw_aio_request **last,
                 struct sw_aio_request *request)
{
    request->next = NULL;
    if (*first == NULL)
        *first = request;
    else
        (*last)->next = request;
    *last = request;
}

static struct sw_aio_request *pop(struct sw_aio_request **first)
{
    struct sw_aio_request *request = *first;
    if (request != NULL) {
        *first = request->next;
        request->next = NULL;
    }
    return request;
}

void sw_aio_submit(struct sw_aio *aio, struct sw_aio_request *request)
{
    sw_assert(request->bytes > 0 && request->offset_bytes >= 0 && request->memory != NULL);
    sw_assert(request->offset_bytes <= INT64_MAX - request->bytes);
    sw_assert(request->file_index >= 0 && request->file_index < aio->file_count);
    request->os_errno = 0;
    request->done_bytes = 0;
    request->tries = 0;
    push(&aio->backlog_first, &aio->backlog_last, request);
    aio->pending++;
}

int64_t sw_aio_pending(const struct sw_aio *aio)
{
    return aio->pending;
}

void sw_aio_wake(struct sw_aio *aio)
{
    if (aio->method->wake != NULL) {
        aio->method->wake(aio);
        return;
    }
    uint64_t one = 1;
    /* A full counter (EAGAIN) means that a wake is due anyway. */
    ssize_t written = write(aio->wake_descriptor, &one, sizeof one);
    (void)written;
}

static void start(struct sw_aio *aio, struct sw_aio_request *request)
{
    struct sw_aio_transfer transfer = {
        .request = request,
        .offset_bytes = request->offset_bytes + request->done_bytes,
        .bytes = request->bytes - request->done_bytes,
        .memory = (char *)request->memory + request->done_bytes,
    };
    if (transfer.bytes > aio->max_transfer_bytes)
        transfer.bytes = aio->max_transfer_bytes;
    int reason = sw_aio_fault_transfer(aio->fault, request->write, &transfer.bytes);
    aio->flying++;
    if (reason != 0)
        aio->injected[aio->injected_count++] = (struct sw_aio_event){request, -reason};
    else
        aio->method->start(aio, &transfer);
}

/* How much of a transfer counts. O_DIRECT takes aligned offsets only, so a request that was aligned
 * goes on from an aligned place. */
static int64_t progress_of(const struct sw_aio_request *request, int64_t moved)
{
    int64_t mask = SW_AIO_ALIGNMENT_BYTES - 1;
    if (request->done_bytes + moved == request->bytes)
        return moved;
    if (((request->offset_bytes | request->bytes) & mask) != 0)
        return moved;
    return moved & ~mask;
}

static void finish(struct sw_aio *aio, struct sw_aio_request *request, int os_errno)
{
    request->os_errno = os_errno;
    push(&aio->finished_first, &aio->finished_last, request);
}

static void take_event(struct sw_aio *aio, const struct sw_aio_event *event)
{
    struct sw_aio_request *request = event->request;
    int reason = event->result < 0 ? (int)-event->result : 0;
    aio->flying--;
    if (reason == 0 && event->result == 0) {
        /* A read at the end of the file; a write that moves nothing has no errno to tell. */
        if (!request->write) {
            finish(aio, request, ENODATA);
            return;
        }
        reason = EAGAIN;
    }
    int64_t progress = reason == 0 ? progress_of(request, event->result) : 0;
    request->done_bytes += progress;
    request->tries = progress > 0 ? 0 : request->tries + 1;
    sw_assert(request->done_bytes <= request->bytes);
    if (request->done_bytes == request->bytes)
        finish(aio, request, 0);
    else if (reason != 0 && reason != EINTR && reason != EAGAIN)
        finish(aio, request, reason);
    else if (request->tries >= SW_AIO_MAX_TRIES)
        finish(aio, request, reason != 0 ? reason : request->write ? EIO : ENODATA);
    else
        push(&aio->backlog_first, &aio->backlog_last, request);
}

/* One round: start what there is room for, collect what has ended. -1 when the method broke. */
static int turn(struct sw_aio *aio, bool wait, bool *woken, struct sw_err *err)
{
    while (aio->flying < aio->depth && aio->backlog_first != NULL)
        start(aio, pop(&aio->backlog_first));
    int injected = aio->injected_count;
    aio->injected_count = 0;
    for (int i = 0; i < injected; i++)
        take_event(aio, &aio->injected[i]);
    wait = wait && injected == 0;
    int count = aio->method->collect(aio, aio->events, aio->depth, wait, woken, err);
    for (int i = 0; i < count; i++)
        take_event(aio, &aio->events[i]);
    return count;
}

int sw_aio_reap(struct sw_aio *aio, struct sw_aio_request **out, int max, bool wait,
                struct sw_err *err)
{
    bool woken = false;
    int count = 0;
    do {
        if (turn(aio, wait && aio->finished_first == NULL, &woken, err) < 0) {
            aio->broken = true;
            return -1;
        }
    } while (wait && !woken && aio->finished_first == NULL);
    while (count < max && aio->finished_first != NULL)
        out[count++] = pop(&aio->finished_first);
    aio->pending -= count;
    return count;
}

sw_code sw_aio_request_fail(const struct sw_aio *aio, const struct sw_aio_request *request,
                            struct sw_err *err)
{
    const char *verb = request->write ? "write" : "read";
    const char *hint = request->os_errno == ENOSPC  ? " (the file system is full)"
                       : request->os_errno == EFBIG ? " (`ulimit -f` limits file sizes)"
                                                    : "";
    if (request->os_errno == ENODATA)
        return SW_FAIL(err, SW_E_IO,
                       "cannot read %lld bytes at offset %lld of %s: the file ends after %lld "
                       "of them",
                       (long long)request->bytes, (long long)request->offset_bytes,
                       aio->names[request->file_index], (long long)request->done_bytes);
    return SW_FAIL_OS(err, SW_E_IO, request->os_errno,
                      "cannot %s %lld bytes at offset %lld of %s%s", verb,
                      (long long)request->bytes, (long long)request->offset_bytes,
                      aio->names[request->file_index], hint);
}

/* Asynchronous file transfers behind one interface.
 *
 * A queue (`struct sw_aio`) takes requests in any number, keeps up to its depth of them in flight,
 * and hands back each when it is done. Methods do the transfers: io_uring, threads (a few that read
 * and write, the next best), sync (pread and pwrite, one at a time: the reference). A fault between
 * queue and method fails a chosen call, for tests.
 *
 * The queue splits requests above 1 GiB, resubmits what a short transfer left, retries EINTR and
 * EAGAIN a bounded number of times, and checks every completion; methods only move bytes.
 *
 * One thread uses a queue: the one that opened it. Only sw_aio_wake() may be called by others. A
 * queue allocates when it is opened and at sw_aio_set_*(), never later. */
#ifndef SPILLWAY_IO_AIO_H
#define SPILLWAY_IO_AIO_H

#include "base/err.h"

#include <stdint.h>

struct sw_aio;
struct sw_aio_method;
struct sw_aio_fault;

/* Offsets, lengths and addresses that O_DIRECT takes on any drive. */
enum { SW_AIO_ALIGNMENT_BYTES = 4096 };

struct sw_aio_request {
    /* What to do; unchanged until the request comes back. */
    int file_index; /* into the files of sw_aio_set_files() */
    bool write;
    int64_t offset_bytes; /* in the file */
    int64_t bytes;        /* any number > 0; aligned if the file is open with O_DIRECT */
    void *memory; /* `bytes` of it, borrowed until the request comes back; read only if `write` */
    void *owner;  /* the caller's; not looked at */

    /* Set when it comes back: 0, or the errno that ended it. ENODATA: the file ends inside. */
    int os_errno;

    /* The queue's own. */
    int64_t done_bytes;
    int tries;
    struct sw_aio_request *next;
};

/* One word to the user about something that works, but not as well as it might. */
typedef void (*sw_aio_note_fn)(void *context, const char *text);

struct sw_aio_config {
    const struct sw_aio_method *method; /* NULL: io_uring, or threads where it is forbidden */
    int depth;                          /* transfers in flight; 1 .. SW_AIO_MAX_DEPTH */
    sw_aio_note_fn note;                /* may be NULL */
    void *note_context;
    struct sw_aio_fault *fault; /* NULL, or counts and fails calls of `method` */
};

enum { SW_AIO_MAX_DEPTH = 1024, SW_AIO_MAX_FILES = 64 };

/* The io_uring method is refused by sw_aio_open() where the kernel forbids it, unless `method` was
 * NULL: then a note says why and the threads method is used. */
extern const struct sw_aio_method sw_aio_uring;
extern const struct sw_aio_method sw_aio_threads;
extern const struct sw_aio_method sw_aio_sync;

/* "io_uring", "threads", "sync". */
const char *sw_aio_method_name(const struct sw_aio_method *method);
/* By name; NULL for "auto". False when there is no such method. */
bool sw_aio_method_find(const char *name, const struct sw_aio_method **out);
/* Whether this kernel lets this process have an io_uring: 0, or the errno that says why not. */
int sw_aio_uring_check(void);

sw_code sw_aio_open(struct sw_aio **out, const struct sw_aio_config *config,
                    struct sw_err *err) SW_WARN_UNUSED;
/* Nothing may be in flight, unless the queue broke. By the thread that opened it, or the kernel may
 * hold files a while longer. NULL is fine. */
void sw_aio_close(struct sw_aio *aio);
/* The method in use. */
const struct sw_aio_method *sw_aio_method_of(const struct sw_aio *aio);

/* Files that requests name by index: borrowed descriptors, and borrowed names for messages. Once,
 * before the first request. Registered with the kernel where the method can. */
sw_code sw_aio_set_files(struct sw_aio *aio, const int *descriptors, const char *const *names,
                         int count, struct sw_err *err) SW_WARN_UNUSED;
/* Memory that many requests will use, to be pinned once and not at every transfer. Once, before the
 * first request. Where it cannot be pinned (`ulimit -l`) a note says so and transfers go on
 * unpinned. */
struct sw_aio_buffer {
    void *memory; /* borrowed */
    int64_t bytes;
};
sw_code sw_aio_set_buffers(struct sw_aio *aio, const struct sw_aio_buffer *buffers, int count,
                           struct sw_err *err) SW_WARN_UNUSED;

/* Queue one request, borrowed until sw_aio_reap() hands it back. Transfers are started by the next
 * sw_aio_reap(), many with one system call. */
void sw_aio_submit(struct sw_aio *aio, struct sw_aio_request *request);
/* Start what is queued and store up to `max` finished requests in `out`. With `wait`, blocks until
 * there is one or sw_aio_wake() was called since the last return; without, only looks. Returns
 * their number, or -1 with `err` when the queue itself broke: then nothing more can be had of it.
 */
int sw_aio_reap(struct sw_aio *aio, struct sw_aio_request **out, int max, bool wait,
                struct sw_err *err) SW_WARN_UNUSED;
/* Requests submitted and not yet reaped. */
int64_t sw_aio_pending(const struct sw_aio *aio);
/* Make a waiting or the next waiting sw_aio_reap() return. Any thread. */
void sw_aio_wake(struct sw_aio *aio);

/* Turn a request that came back with os_errno != 0 into a message with file, offset and bytes. */
sw_code sw_aio_request_fail(const struct sw_aio *aio, const struct sw_aio_request *request,
                            struct sw_err *err);

/* --- Faults, for tests ---------------------------------------------------------------------------
 * Counts calls from 1 and makes one of them fail. One object may serve several queues and threads.
 */
enum sw_aio_fault_kind {
    SW_AIO_FAULT_NONE, /* count only */
    SW_AIO_FAULT_EAGAIN,
    SW_AIO_FAULT_EINTR,
    SW_AIO_FAULT_SHORT, /* a transfer moves only a part; as EINTR elsewhere */
    SW_AIO_FAULT_EIO,
    SW_AIO_FAULT_ENOSPC,
};
enum sw_aio_call {
    SW_AIO_CALL_READ,
    SW_AIO_CALL_WRITE,
    SW_AIO_CALL_OPEN,
    SW_AIO_CALL_ALLOCATE,
    SW_AIO_CALL_REGISTER,
    SW_AIO_CALLS
};

sw_code sw_aio_fault_open(struct sw_aio_fault **out, enum sw_aio_fault_kind kind, int64_t position,
                          struct sw_err *err) SW_WARN_UNUSED;
void sw_aio_fault_close(struct sw_aio_fault *fault);
/* Before the first call: those behind the position fail, too. */
void sw_aio_fault_stay(struct sw_aio_fault *fault);
/* Calls counted so far, of every sort and of one. */
int64_t sw_aio_fault_count(const struct sw_aio_fault *fault);
int64_t sw_aio_fault_count_of(const struct sw_aio_fault *fault, enum sw_aio_call call);
/* Count one call: 0, or the errno with which it must fail. `fault` may be NULL. */
int sw_aio_fault_check(struct sw_aio_fault *fault, enum sw_aio_call call);

#endif

/* What a method of io/aio.h is, and what the queue keeps for it. For io/aio*.c and their tests. */
#ifndef SPILLWAY_IO_AIO_METHOD_H
#define SPILLWAY_IO_AIO_METHOD_H

#include "io/aio.h"

/* One call to the operating system: part or all of what a request has left. */
struct sw_aio_transfer {
    struct sw_aio_request *request;
    int64_t offset_bytes, bytes;
    char *memory;
};

/* Its end: bytes moved, or a negative errno. */
struct sw_aio_event {
    struct sw_aio_request *request;
    int64_t result;
};

struct sw_aio_method {
    const char *name;
    sw_code (*open)(struct sw_aio *aio, struct sw_err *err); /* sets aio->state */
    void (*close)(struct sw_aio *aio);
    /* Tell the kernel about aio->files, or the first `count` of aio->buffers: 0 or an errno, with
     * which the queue goes on without. NULL where there is nothing to tell. */
    int (*register_files)(struct sw_aio *aio);
    int (*register_buffers)(struct sw_aio *aio, int count);
    /* Prepare a transfer. At most `depth` are between start and collect. */
    void (*start)(struct sw_aio *aio, const struct sw_aio_transfer *transfer);
    /* Run what was started and store up to `max` ends in `out`; with `wait` blocks for one, or for
     * a wake, which sets *woken. Returns their number or -1. */
    int (*collect)(struct sw_aio *aio, struct sw_aio_event *out, int max, bool wait, bool *woken,
                   struct sw_err *err);
    /* From any thread: end a wait in collect. NULL: the method waits for aio->wake_descriptor. */
    void (*wake)(struct sw_aio *aio);
};

struct sw_aio {
    const struct sw_aio_method *method;
    void *state;
    int depth;
    int wake_descriptor;        /* an eventfd */
    int64_t max_transfer_bytes; /* of one call; tests lower it */

    int files[SW_AIO_MAX_FILES];
    const char *names[SW_AIO_MAX_FILES];
    int file_count;
    struct sw_aio_buffer *buffers; /* as registered: pieces of at most SW_AIO_MAX_BUFFER_BYTES */
    int buffer_count;              /* registered with the kernel */

    struct sw_aio_request *backlog_first, *backlog_last; /* have something left to start */
    struct sw_aio_request *finished_first, *finished_last;
    int64_t pending;
    bool broken; /* the method failed: what is pending never comes back */
    int flying;  /* started, not collected; injected ones too */

    sw_aio_note_fn note;
    void *note_context;
    struct sw_aio_fault *fault;
    struct sw_aio_event *events;   /* room for `depth` */
    struct sw_aio_event *injected; /* likewise: ends that a fault made up */
    int injected_count;
};

enum {
    SW_AIO_MAX_TRANSFER_BYTES = 1 << 30,
    SW_AIO_MAX_BUFFER_BYTES = 1 << 30, /* the kernel's limit for one registered buffer */
    SW_AIO_MAX_BUFFERS = 1024,
    SW_AIO_MAX_TRIES = 64, /* in a row without progress */
};

void sw_aio_note(const struct sw_aio *aio, const char *format, ...) SW_PRINTF(2, 3);
/* As sw_aio_fault_check() for a transfer of *bytes, which a short one cuts (never to 0). */
int sw_aio_fault_transfer(struct sw_aio_fault *fault, bool write, int64_t *bytes);

#endif

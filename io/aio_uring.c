/* io_uring through liburing. The only file that knows its header. */
#include "io/aio_method.h"

#include "base/mem.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

struct uring_state {
    struct io_uring ring;
    bool files_registered;
    bool wake_armed; /* a poll on the eventfd is in the ring */
    int unsubmitted_tries;
};

static int init_ring(struct io_uring *ring, unsigned entries)
{
    int rc = -EINVAL;
#if defined(IORING_SETUP_DEFER_TASKRUN) && defined(IORING_SETUP_SINGLE_ISSUER)
    /* Completions are handled when the one issuing thread asks for them, not by interrupting it. */
    rc = io_uring_queue_init(entries, ring,
                             IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                 IORING_SETUP_TASKRUN_FLAG);
#endif
    return rc == -EINVAL ? io_uring_queue_init(entries, ring, 0) : rc;
}

int sw_aio_uring_check(void)
{
    struct io_uring ring;
    int rc = init_ring(&ring, 2);
    if (rc == 0)
        io_uring_queue_exit(&ring);
    return -rc;
}

static sw_code uring_open(struct sw_aio *aio, struct sw_err *err)
{
    struct uring_state *state = sw_calloc(1, sizeof *state);
    if (state == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for an io_uring");
    int reason = 0;
    for (int tries = 0; tries < SW_AIO_MAX_TRIES; tries++) {
        reason = sw_aio_fault_check(aio->fault, SW_AIO_CALL_OPEN);
        if (reason == 0)
            reason = -init_ring(&state->ring, (unsigned)aio->depth + 1);
        if (reason != EINTR && reason != EAGAIN)
            break;
    }
    if (reason != 0) {
        free(state);
        return SW_FAIL_OS(err, SW_E_IO, reason, "this system does not let us have an io_uring%s",
                          reason == ENOMEM ? " (`ulimit -l` may be too low)" : "");
    }
    aio->state = state;
    return SW_OK;
}

static void uring_close(struct sw_aio *aio)
{
    struct uring_state *state = aio->state;
    /* The kernel ends a ring some time later; files it knows would hold their space until then. */
    if (state->files_registered && !aio->broken)
        io_uring_unregister_files(&state->ring);
    io_uring_queue_exit(&state->ring);
    free(state);
}

static int uring_register_files(struct sw_aio *aio)
{
    struct uring_state *state = aio->state;
    int rc = io_uring_register_files(&state->ring, aio->files, (unsigned)aio->file_count);
    state->files_registered = rc == 0;
    return -rc;
}

static int uring_register_buffers(struct sw_aio *aio, int count)
{
    struct uring_state *state = aio->state;
    struct iovec *vectors = sw_calloc(count, sizeof *vectors);
    if (vectors == NULL)
        return ENOMEM;
    for (int i = 0; i < count; i++) {
        vectors[i].iov_base = aio->buffers[i].memory;
        vectors[i].iov_len = (size_t)aio->buffers[i].bytes;
    }
    int rc = io_uring_register_buffers(&state->ring, vectors, (unsigned)count);
    free(vectors);
    return -rc;
}

/* The registered buffer that holds all of the transfer, or -1. */
static int buffer_of(const struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    uintptr_t first = (uintptr_t)transfer->memory;
    for (int i = 0; i < aio->buffer_count; i++) {
        uintptr_t base = (uintptr_t)aio->buffers[i].memory;
        if (first >= base &&
            first - base + (uintptr_t)transfer->bytes <= (uintptr_t)aio->buffers[i].bytes)
            return i;
    }
    return -1;
}

static void uring_start(struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    struct uring_state *state = aio->state;
    struct sw_aio_request *request = transfer->request;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&state->ring);
    sw_assert(sqe != NULL); /* the ring has room for `depth` transfers and the poll */
    int file = state->files_registered ? request->file_index : aio->files[request->file_index];
    unsigned bytes = (unsigned)transfer->bytes;
    __u64 offset = (__u64)transfer->offset_bytes;
    int buffer = buffer_of(aio, transfer);
    if (request->write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, file, transfer->memory, bytes, offset, buffer);
    else if (request->write)
        io_uring_prep_write(sqe, file, transfer->memory, bytes, offset);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, file, transfer->memory, bytes, offset, buffer);
    else
        io_uring_prep_read(sqe, file, transfer->memory, bytes, offset);
    if (state->files_registered)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, request);
}

/* A poll on the eventfd lets sw_aio_wake() end a wait for completions. */
static void arm_wake(struct sw_aio *aio)
{
    struct uring_state *state = aio->state;
    if (state->wake_armed)
        return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&state->ring);
    sw_assert(sqe != NULL);
    io_uring_prep_poll_add(sqe, aio->wake_descriptor, POLLIN);
    io_uring_sqe_set_data(sqe, NULL);
    state->wake_armed = true;
}

/* Hand prepared entries to the kernel and wait for a completion if asked to. False: it broke. */
static bool enter(struct uring_state *state, bool wait, struct sw_err *err)
{
    int rc = wait ? io_uring_submit_and_wait(&state->ring, 1) : io_uring_submit(&state->ring);
    if (rc >= 0) {
        state->unsubmitted_tries = 0;
        return true;
    }
    /* Short of resources or interrupted: completions that are there may be reaped, then again. */
    bool transient = rc == -EINTR || rc == -EAGAIN || rc == -EBUSY;
    if (transient && (rc == -EINTR || ++state->unsubmitted_tries < SW_AIO_MAX_TRIES))
        return true;
    (void)SW_FAIL_OS(err, SW_E_IO, -rc, "io_uring does not take transfers");
    return false;
}

static int uring_collect(struct sw_aio *aio, struct sw_aio_event *out, int max, bool wait,
                         bool *woken, struct sw_err *err)
{
    struct uring_state *state = aio->state;
    arm_wake(aio);
    if (!enter(state, wait, err))
        return -1;
    int count = 0;
    unsigned head, seen = 0;
    struct io_uring_cqe *cqe;
    /* Looks for completions whose handling was put off until we ask, which the loop does not. */
    (void)io_uring_peek_cqe(&state->ring, &cqe);
    io_uring_for_each_cqe(&state->ring, head, cqe)
    {
        if (count == max)
            break;
        struct sw_aio_request *request = io_uring_cqe_get_data(cqe);
        seen++;
        if (request != NULL) {
            out[count++] = (struct sw_aio_event){request, cqe->res};
            continue;
        }
        uint64_t value;
        state->wake_armed = false;
        if (read(aio->wake_descriptor, &value, sizeof value) == (ssize_t)sizeof value)
            *woken = true;
    }
    io_uring_cq_advance(&state->ring, seen);
    return count;
}

const struct sw_aio_method sw_aio_uring = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .register_files = uring_register_files,
    .register_buffers = uring_register_buffers,
    .start = uring_start,
    .collect = uring_collect,
};

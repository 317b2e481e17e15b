/* The reference: one pread or pwrite after the other, in the order of submission. */
#include "io/aio_method.h"

#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

struct sync_state {
    int first, count;                   /* ring of transfers that were started */
    struct sw_aio_transfer transfers[]; /* `depth` of them */
};

static sw_code sync_open(struct sw_aio *aio, struct sw_err *err)
{
    struct sync_state *state =
        sw_calloc(1, (int64_t)(sizeof *state + (size_t)aio->depth * sizeof state->transfers[0]));
    if (state == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a transfer queue of depth %d", aio->depth);
    aio->state = state;
    return SW_OK;
}

static void sync_close(struct sw_aio *aio)
{
    free(aio->state);
}

static void sync_start(struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    struct sync_state *state = aio->state;
    sw_assert(state->count < aio->depth);
    state->transfers[(state->first + state->count) % aio->depth] = *transfer;
    state->count++;
}

static int64_t run(const struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    int descriptor = aio->files[transfer->request->file_index];
    size_t bytes = (size_t)transfer->bytes;
    ssize_t moved = transfer->request->write
                        ? pwrite(descriptor, transfer->memory, bytes, transfer->offset_bytes)
                        : pread(descriptor, transfer->memory, bytes, transfer->offset_bytes);
    return moved < 0 ? -errno : moved;
}

/* Blocks until sw_aio_wake() if `wait`; true if it was called. */
static bool take_wake(const struct sw_aio *aio, bool wait)
{
    struct pollfd poll_descriptor = {.fd = aio->wake_descriptor, .events = POLLIN};
    uint64_t value;
    if (wait)
        while (poll(&poll_descriptor, 1, -1) < 0 && errno == EINTR)
            continue;
    return read(aio->wake_descriptor, &value, sizeof value) == (ssize_t)sizeof value;
}

static int sync_collect(struct sw_aio *aio, struct sw_aio_event *out, int max, bool wait,
                        bool *woken, struct sw_err *err)
{
    struct sync_state *state = aio->state;
    (void)err;
    if (state->count == 0 || max == 0) {
        *woken = take_wake(aio, wait);
        return 0;
    }
    const struct sw_aio_transfer *transfer = &state->transfers[state->first];
    out[0] = (struct sw_aio_event){transfer->request, run(aio, transfer)};
    state->first = (state->first + 1) % aio->depth;
    state->count--;
    return 1;
}

const struct sw_aio_method sw_aio_sync = {
    .name = "sync",
    .open = sync_open,
    .close = sync_close,
    .start = sync_start,
    .collect = sync_collect,
};

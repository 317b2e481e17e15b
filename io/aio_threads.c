/* A few threads that read and write: many transfers in flight where io_uring is forbidden. */
#include "io/aio_method.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 8 };

struct threads_state {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct sw_aio_transfer *queue; /* ring of `depth`: started, not taken by a thread */
    int first, count;
    struct sw_aio_event *ends; /* stack of at most `depth` */
    int end_count;
    bool woken, stop;
    int thread_count;
    pthread_t threads[MAX_THREADS];
};

static int64_t move(const struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    int descriptor = aio->files[transfer->request->file_index];
    size_t bytes = (size_t)transfer->bytes;
    ssize_t moved = transfer->request->write
                        ? pwrite(descriptor, transfer->memory, bytes, transfer->offset_bytes)
                        : pread(descriptor, transfer->memory, bytes, transfer->offset_bytes);
    return moved < 0 ? -errno : moved;
}

static void *thread_main(void *argument)
{
    struct sw_aio *aio = argument;
    struct threads_state *state = aio->state;
    pthread_mutex_lock(&state->lock);
    for (;;) {
        while (state->count == 0 && !state->stop)
            pthread_cond_wait(&state->work, &state->lock);
        if (state->stop)
            break;
        struct sw_aio_transfer transfer = state->queue[state->first];
        state->first = (state->first + 1) % aio->depth;
        state->count--;
        pthread_mutex_unlock(&state->lock);
        int64_t result = move(aio, &transfer);
        pthread_mutex_lock(&state->lock);
        state->ends[state->end_count++] = (struct sw_aio_event){transfer.request, result};
        pthread_cond_signal(&state->done);
    }
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

static void threads_close(struct sw_aio *aio)
{
    struct threads_state *state = aio->state;
    pthread_mutex_lock(&state->lock);
    state->stop = true;
    pthread_cond_broadcast(&state->work);
    pthread_mutex_unlock(&state->lock);
    for (int i = 0; i < state->thread_count; i++)
        pthread_join(state->threads[i], NULL);
    pthread_cond_destroy(&state->work);
    pthread_cond_destroy(&state->done);
    pthread_mutex_destroy(&state->lock);
    free(state->queue);
    free(state->ends);
    free(state);
}

static sw_code threads_open(struct sw_aio *aio, struct sw_err *err)
{
    struct threads_state *state = sw_calloc(1, sizeof *state);
    if (state == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a transfer queue");
    aio->state = state;
    pthread_mutex_init(&state->lock, NULL);
    pthread_cond_init(&state->work, NULL);
    pthread_cond_init(&state->done, NULL);
    state->queue = sw_calloc(aio->depth, sizeof *state->queue);
    state->ends = sw_calloc(aio->depth, sizeof *state->ends);
    if (state->queue == NULL || state->ends == NULL) {
        threads_close(aio);
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a transfer queue of depth %d", aio->depth);
    }
    int wanted = aio->depth < MAX_THREADS ? aio->depth : MAX_THREADS;
    for (; state->thread_count < wanted; state->thread_count++) {
        int reason = pthread_create(&state->threads[state->thread_count], NULL, thread_main, aio);
        if (reason != 0) {
            threads_close(aio);
            return SW_FAIL_OS(err, SW_E_FAILED, reason, "cannot start a thread for transfers");
        }
    }
    return SW_OK;
}

static void threads_start(struct sw_aio *aio, const struct sw_aio_transfer *transfer)
{
    struct threads_state *state = aio->state;
    pthread_mutex_lock(&state->lock);
    sw_assert(state->count < aio->depth);
    state->queue[(state->first + state->count) % aio->depth] = *transfer;
    state->count++;
    pthread_cond_signal(&state->work);
    pthread_mutex_unlock(&state->lock);
}

static int threads_collect(struct sw_aio *aio, struct sw_aio_event *out, int max, bool wait,
                           bool *woken, struct sw_err *err)
{
    struct threads_state *state = aio->state;
    int count = 0;
    (void)err;
    pthread_mutex_lock(&state->lock);
    while (wait && state->end_count == 0 && !state->woken)
        pthread_cond_wait(&state->done, &state->lock);
    while (count < max && state->end_count > 0)
        out[count++] = state->ends[--state->end_count];
    if (state->woken)
        *woken = true;
    state->woken = false;
    pthread_mutex_unlock(&state->lock);
    return count;
}

static void threads_wake(struct sw_aio *aio)
{
    struct threads_state *state = aio->state;
    pthread_mutex_lock(&state->lock);
    state->woken = true;
    pthread_cond_signal(&state->done);
    pthread_mutex_unlock(&state->lock);
}

const struct sw_aio_method sw_aio_threads = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .start = threads_start,
    .collect = threads_collect,
    .wake = threads_wake,
};

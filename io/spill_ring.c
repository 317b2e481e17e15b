/* The thread of a directory: prepares its file, then turns parts of tickets into transfers.
 *
 * Invariants:
 *   R1  a part is in a line of its ring until its last piece is in flight or its ticket has failed;
 *   R2  a part is done when it has left its line and none of its pieces flies; the ticket is done
 *       when all of its parts are;
 *   R3  of two staged operations on one block, one of them a write, the later is not started
 *       before the earlier has ended. */
#include "io/spill_internal.h"

#include "base/mem.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

int sw_spill_staging_count(const struct sw_spill *spill)
{
    int64_t count = spill->request_bytes / spill->block_bytes;
    int64_t least = spill->queue_depth < 4 ? spill->queue_depth : 4;
    int64_t most = spill->queue_depth > 4 ? spill->queue_depth : 4;
    return (int)(count < least ? least : count > most ? most : count);
}

static int64_t staging_bytes(const struct sw_spill *spill)
{
    int64_t bytes = sw_spill_staging_count(spill) * spill->block_bytes;
    return bytes > spill->request_bytes ? bytes : spill->request_bytes;
}

/* --- Parts and tickets; all under the lock
 * ---------------------------------------------------------*/

static void part_done(struct sw_spill_part *part)
{
    struct sw_spill_ticket *ticket = part->ticket;
    struct sw_spill *spill = ticket->spill;
    if (--ticket->parts_left == 0)
        pthread_cond_broadcast(&spill->done);
    /* The ticket may be gone from here on. */
}

static void ticket_fail(struct sw_spill_ticket *ticket, const struct sw_err *err)
{
    if (ticket->err.code == SW_OK)
        ticket->err = *err;
}

void sw_spill_ring_push(struct sw_spill_ring *ring, struct sw_spill_part *part)
{
    if (ring->broken) {
        ticket_fail(part->ticket, &ring->err);
        part_done(part);
        return;
    }
    struct sw_spill_line *line = &ring->lines[part->ticket->line];
    part->next = NULL;
    if (line->first == NULL)
        line->first = part;
    else
        line->last->next = part;
    line->last = part;
    if (!ring->wake_sent)
        sw_aio_wake(ring->aio);
    ring->wake_sent = true;
}

static void pop_first(struct sw_spill_line *line)
{
    struct sw_spill_part *part = line->first;
    line->first = part->next;
    part->next = NULL;
    part->cursor_bytes = INT64_MAX; /* marks that it has left the line */
    if (part->flying_pieces == 0)
        part_done(part);
}

static void piece_done(struct sw_spill_part *part, const struct sw_err *err)
{
    if (err->code != SW_OK)
        ticket_fail(part->ticket, err);
    if (--part->flying_pieces == 0 && part->cursor_bytes == INT64_MAX)
        part_done(part);
}

/* --- Operations
 * ------------------------------------------------------------------------------------*/

static void give_back(struct sw_spill_ring *ring, struct sw_spill_op *op)
{
    if (op->staging >= 0)
        ring->staged[op->staging] = NULL;
    op->staging = -1;
    op->next_free = ring->free_ops;
    ring->free_ops = op;
}

/* A staging buffer for `op`; false while there is none, or another holds the block (R3). */
static bool take_staging(struct sw_spill_ring *ring, struct sw_spill_op *op)
{
    int found = -1;
    for (int i = 0; i < ring->staging_count; i++) {
        const struct sw_spill_op *other = ring->staged[i];
        if (other == NULL)
            found = i;
        else if (other->block_index == op->block_index &&
                 !(other->kind == SW_SPILL_STAGED_READ && op->kind == SW_SPILL_STAGED_READ))
            return false;
    }
    if (found < 0)
        return false;
    op->staging = found;
    op->request.memory = ring->staging + found * ring->spill->block_bytes;
    ring->staged[found] = op;
    return true;
}

/* The caller's bytes into the block in the staging buffer, which may then be written. */
static void merge(struct sw_spill_ring *ring, struct sw_spill_op *op)
{
    char *block = op->request.memory;
    memcpy(block + op->skip_bytes, op->memory, (size_t)op->bytes);
    if (op->kind == SW_SPILL_STAGED_WRITE) {
        int64_t end = op->skip_bytes + op->bytes;
        memset(block + end, 0, (size_t)(op->request.bytes - end));
    }
    op->kind = SW_SPILL_STAGED_WRITE;
    op->request.write = true;
    sw_spill_sum_set(ring->spill, op->block_index, block, op->request.bytes);
}

/* The line whose turn it is: the next that has parts; NULL: none has. */
static struct sw_spill_line *next_line(struct sw_spill_ring *ring)
{
    for (int i = 0; i < SW_SPILL_LINES; i++) {
        struct sw_spill_line *line = &ring->lines[(ring->turn + i) % SW_SPILL_LINES];
        if (line->first != NULL) {
            ring->turn = (ring->turn + i) % SW_SPILL_LINES;
            return line;
        }
    }
    return NULL;
}

/* Start pieces of queued parts while there is room, of every line in turn: a short read for the
 * next block does not wait for all that other lines have queued. Under the lock. */
static void start_pieces(struct sw_spill_ring *ring)
{
    struct sw_spill_line *line;
    while ((line = next_line(ring)) != NULL && ring->free_ops != NULL) {
        struct sw_spill_part *part = line->first;
        struct sw_spill_op *op = ring->free_ops;
        int64_t cursor = part->cursor_bytes;
        if (part->ticket->err.code != SW_OK || !sw_spill_next_piece(part, ring->index, op)) {
            pop_first(line);
            continue;
        }
        if (op->kind != SW_SPILL_DIRECT && !take_staging(ring, op)) {
            part->cursor_bytes = cursor; /* again when something has ended */
            op->part = NULL;
            return;
        }
        if (op->kind == SW_SPILL_STAGED_WRITE)
            merge(ring, op);
        ring->free_ops = op->next_free;
        part->flying_pieces++;
        ring->flying++;
        ring->turn = (ring->turn + 1) % SW_SPILL_LINES;
        sw_aio_submit(ring->aio, &op->request);
    }
}

/* An operation came back: true when it is done, with `err` set if it failed; false when it goes on
 * with its second transfer. */
static bool finish(struct sw_spill_ring *ring, struct sw_spill_op *op, struct sw_err *err)
{
    const struct sw_spill *spill = ring->spill;
    char *block = op->request.memory;
    if (op->request.os_errno != 0) {
        (void)sw_aio_request_fail(ring->aio, &op->request, err);
        return true;
    }
    if (op->kind == SW_SPILL_DIRECT || op->kind == SW_SPILL_STAGED_WRITE)
        return true;
    if (!sw_spill_sum_matches(spill, op->block_index, block, op->request.bytes)) {
        (void)sw_spill_sum_fail(spill, &op->part->ticket->region, op->region_offset_bytes,
                                op->request.bytes, err);
        return true;
    }
    if (op->kind == SW_SPILL_STAGED_READ) {
        memcpy(op->memory, block + op->skip_bytes, (size_t)op->bytes);
        return true;
    }
    merge(ring, op);
    sw_aio_submit(ring->aio, &op->request);
    return false;
}

/* --- Start: the file is written once
 * ---------------------------------------------------------------*/

static void report_prepared(struct sw_spill *spill, int64_t bytes)
{
    atomic_fetch_add(&spill->prepared_bytes, bytes);
    if (spill->progress == NULL)
        return;
    pthread_mutex_lock(&spill->lock);
    pthread_cond_broadcast(&spill->done);
    pthread_mutex_unlock(&spill->lock);
}

/* Write zeros over all of the file: extents that were merely allocated are slow at their first
 * write, and only now is the space certain. */
static sw_code prepare_file(struct sw_spill_ring *ring, struct sw_err *err)
{
    struct sw_spill *spill = ring->spill;
    int64_t total = spill->places[ring->index].used_bytes, at = 0;
    int64_t flying = 0;
    sw_code code = SW_OK;
    while ((at < total && code == SW_OK) || flying > 0) {
        while (at < total && code == SW_OK && ring->free_ops != NULL) {
            struct sw_spill_op *op = ring->free_ops;
            ring->free_ops = op->next_free;
            int64_t bytes = total - at < spill->request_bytes ? total - at : spill->request_bytes;
            op->request = (struct sw_aio_request){.write = true,
                                                  .offset_bytes = at,
                                                  .bytes = bytes,
                                                  .memory = ring->staging,
                                                  .owner = op};
            sw_aio_submit(ring->aio, &op->request);
            at += bytes;
            flying++;
        }
        struct sw_aio_request *done[16];
        int count = sw_aio_reap(ring->aio, done, 16, true, err);
        if (count < 0)
            return err->code;
        for (int i = 0; i < count; i++) {
            if (done[i]->os_errno != 0)
                code = sw_aio_request_fail(ring->aio, done[i], err);
            report_prepared(spill, done[i]->bytes);
            give_back(ring, done[i]->owner);
        }
        flying -= count;
    }
    return code;
}

static sw_code open_queue(struct sw_spill_ring *ring, struct sw_err *err)
{
    struct sw_spill *spill = ring->spill;
    struct sw_spill_place *place = &spill->places[ring->index];
    struct sw_aio_config config = {
        .method = spill->method,
        .depth = spill->queue_depth,
        .note = sw_spill_note,
        .note_context = spill,
        .fault = spill->fault,
    };
    struct sw_aio_buffer buffers[SW_SPILL_MAX_PINS + 1];
    buffers[0] = (struct sw_aio_buffer){ring->staging, staging_bytes(spill)};
    memcpy(buffers + 1, spill->pins, (size_t)spill->pin_count * sizeof buffers[0]);
    const char *name = place->file_name;
    sw_code code = sw_aio_open(&ring->aio, &config, err);
    if (code == SW_OK)
        code = sw_aio_set_files(ring->aio, &place->descriptor, &name, 1, err);
    if (code == SW_OK)
        code = sw_aio_set_buffers(ring->aio, buffers, spill->pin_count + 1, err);
    if (code == SW_OK)
        code = sw_spill_place_allocate(spill, place, err);
    if (code == SW_OK)
        code = prepare_file(ring, err);
    return code;
}

/* --- The thread
 * ------------------------------------------------------------------------------------*/

/* The queue broke: whatever waits for this ring gets the reason. */
static void break_ring(struct sw_spill_ring *ring, const struct sw_err *err)
{
    struct sw_spill *spill = ring->spill;
    pthread_mutex_lock(&spill->lock);
    ring->broken = true;
    ring->err = *err;
    for (int i = 0; i < spill->queue_depth; i++)
        if (ring->ops[i].part != NULL)
            piece_done(ring->ops[i].part, err);
    for (int i = 0; i < SW_SPILL_LINES; i++)
        while (ring->lines[i].first != NULL) {
            ticket_fail(ring->lines[i].first->ticket, err);
            pop_first(&ring->lines[i]);
        }
    pthread_cond_broadcast(&spill->done);
    pthread_mutex_unlock(&spill->lock);
}

/* Handle what came back, then tell the tickets. */
static void take_done(struct sw_spill_ring *ring, struct sw_aio_request **done, int count)
{
    struct sw_spill *spill = ring->spill;
    for (int i = 0; i < count; i++) {
        struct sw_spill_op *op = done[i]->owner;
        struct sw_err err;
        sw_err_init(&err);
        if (!finish(ring, op, &err))
            continue;
        pthread_mutex_lock(&spill->lock);
        piece_done(op->part, &err);
        ring->flying--;
        pthread_mutex_unlock(&spill->lock);
        op->part = NULL;
        give_back(ring, op);
    }
}

static void serve(struct sw_spill_ring *ring)
{
    struct sw_spill *spill = ring->spill;
    struct sw_aio_request *done[16];
    struct sw_err err;
    sw_err_init(&err);
    for (;;) {
        pthread_mutex_lock(&spill->lock);
        ring->wake_sent = false;
        start_pieces(ring);
        bool stop = ring->stop && next_line(ring) == NULL && ring->flying == 0;
        pthread_mutex_unlock(&spill->lock);
        if (stop)
            return;
        int count = sw_aio_reap(ring->aio, done, 16, true, &err);
        if (count < 0) {
            break_ring(ring, &err);
            return;
        }
        take_done(ring, done, count);
    }
}

static void *ring_main(void *argument)
{
    struct sw_spill_ring *ring = argument;
    struct sw_spill *spill = ring->spill;
    struct sw_err err;
    sw_err_init(&err);
    if (spill->places[ring->index].cpus != NULL)
        (void)sw_topo_bind_thread(spill->places[ring->index].cpus);
    sw_code code = open_queue(ring, &err);
    if (code != SW_OK)
        break_ring(ring, &err);
    pthread_mutex_lock(&spill->lock);
    ring->ready = true;
    pthread_cond_broadcast(&spill->done);
    pthread_mutex_unlock(&spill->lock);
    sw_memory_thread_is_engine();
    if (code == SW_OK)
        serve(ring);
    if (!ring->broken) { /* told to stop: nobody looks at the queue any more */
        sw_aio_close(ring->aio);
        ring->aio = NULL;
    }
    return NULL;
}

sw_code sw_spill_ring_start(struct sw_spill_ring *ring, struct sw_err *err)
{
    struct sw_spill *spill = ring->spill;
    ring->staging_count = sw_spill_staging_count(spill);
    int64_t bytes = staging_bytes(spill);
    ring->ops = sw_calloc(spill->queue_depth, sizeof *ring->ops);
    ring->staged = sw_calloc(ring->staging_count, sizeof *ring->staged);
    ring->staging = aligned_alloc(SW_AIO_ALIGNMENT_BYTES, (size_t)bytes);
    if (ring->ops == NULL || ring->staged == NULL || ring->staging == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %lld bytes of staging buffers",
                       (long long)bytes);
    memset(ring->staging, 0, (size_t)bytes);
    for (int i = spill->queue_depth - 1; i >= 0; i--) {
        ring->ops[i].staging = -1;
        give_back(ring, &ring->ops[i]);
    }
    int reason = pthread_create(&ring->thread, NULL, ring_main, ring);
    if (reason != 0)
        return SW_FAIL_OS(err, SW_E_FAILED, reason, "cannot start the thread of %s",
                          spill->places[ring->index].file_name);
    ring->thread_started = true;
    return SW_OK;
}

void sw_spill_ring_stop(struct sw_spill_ring *ring)
{
    struct sw_spill *spill = ring->spill;
    if (ring->thread_started) {
        pthread_mutex_lock(&spill->lock);
        while (!ring->ready)
            pthread_cond_wait(&spill->done, &spill->lock);
        ring->stop = true;
        if (!ring->broken)
            sw_aio_wake(ring->aio);
        pthread_mutex_unlock(&spill->lock);
        pthread_join(ring->thread, NULL);
    }
    sw_aio_close(ring->aio);
    free(ring->ops);
    free(ring->staged);
    free(ring->staging);
}

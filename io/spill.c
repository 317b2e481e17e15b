#include "io/spill_internal.h"

#include "base/mem.h"
#include "io/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CHUNK_BYTES = 1 << 20, DEFAULT_REQUEST_BYTES = 1 << 20, DEFAULT_QUEUE_DEPTH = 32 };

int64_t sw_spill_region_space_bytes(int64_t bytes)
{
    return sw_align_up(bytes, SW_AIO_ALIGNMENT_BYTES);
}

static int64_t round_to(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Sizes of `config` with defaults filled in and rounded. */
static void set_sizes(struct sw_spill *spill, const struct sw_spill_config *config)
{
    int64_t block = config->block_bytes > 0 ? config->block_bytes : SW_SPILL_BLOCK_BYTES;
    spill->verify = config->verify;
    spill->block_bytes =
        config->verify ? sw_align_up(block, SW_AIO_ALIGNMENT_BYTES) : SW_AIO_ALIGNMENT_BYTES;
    spill->chunk_bytes = round_to(
        config->chunk_bytes > 0 ? config->chunk_bytes : DEFAULT_CHUNK_BYTES, spill->block_bytes);
    spill->request_bytes =
        round_to(config->request_bytes > 0 ? config->request_bytes : DEFAULT_REQUEST_BYTES,
                 spill->block_bytes);
    spill->queue_depth = config->queue_depth > 0 ? config->queue_depth : DEFAULT_QUEUE_DEPTH;
    if (spill->queue_depth > SW_AIO_MAX_DEPTH)
        spill->queue_depth = SW_AIO_MAX_DEPTH;
    spill->capacity_bytes = config->capacity_bytes;
}

int64_t sw_spill_overhead_bytes(const struct sw_spill_config *config, int64_t regions)
{
    struct sw_spill sizes = {0};
    set_sizes(&sizes, config);
    int64_t staging = sw_spill_staging_count(&sizes) * sizes.block_bytes;
    if (staging < sizes.request_bytes)
        staging = sizes.request_bytes;
    int64_t ring = staging + sizes.queue_depth * (int64_t)sizeof(struct sw_spill_op);
    int64_t chunks = sizes.capacity_bytes / sizes.chunk_bytes + regions;
    int64_t blocks = config->verify ? sizes.capacity_bytes / sizes.block_bytes + regions : 0;
    /* a table that grows by doubling holds at most twice what it needs */
    return (int64_t)sizeof sizes + config->directory_count * ring +
           2 * chunks * (int64_t)sizeof(struct sw_spill_chunk) + blocks * (int64_t)sizeof(uint64_t);
}

void sw_spill_note(void *context, const char *text)
{
    struct sw_spill *spill = context;
    if (spill->note == NULL)
        return;
    uint64_t sum = sw_checksum(text, (int64_t)strlen(text));
    bool said = false;
    pthread_mutex_lock(&spill->note_lock);
    for (int i = 0; i < spill->note_count; i++)
        said = said || spill->notes_said[i] == sum;
    if (!said && spill->note_count < SW_SPILL_MAX_NOTES) {
        spill->notes_said[spill->note_count++] = sum;
        spill->note(spill->note_context, text);
    }
    pthread_mutex_unlock(&spill->note_lock);
}

sw_code sw_spill_open(struct sw_spill **out, const struct sw_spill_config *config,
                      struct sw_err *err)
{
    if (config->directory_count < 1 || config->directory_count > SW_SPILL_MAX_DIRECTORIES)
        return SW_FAIL(err, SW_E_USAGE, "spilling takes 1 to %d directories (offload.nvme), not %d",
                       (int)SW_SPILL_MAX_DIRECTORIES, config->directory_count);
    struct sw_spill *spill = sw_calloc(1, sizeof *spill);
    if (spill == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a spill store");
    set_sizes(spill, config);
    spill->method = config->method;
    spill->buffered = config->buffered;
    spill->fault = config->fault;
    spill->note = config->note;
    spill->note_context = config->note_context;
    spill->progress = config->progress;
    spill->progress_context = config->progress_context;
    pthread_mutex_init(&spill->lock, NULL);
    pthread_mutex_init(&spill->note_lock, NULL);
    pthread_cond_init(&spill->done, NULL);
    sw_code code = SW_OK;
    for (int i = 0; i < config->directory_count; i++) {
        spill->places[i].descriptor = -1;
        spill->rings[i].spill = spill;
        spill->rings[i].index = i;
    }
    spill->place_count = config->directory_count;
    for (int i = 0; i < spill->place_count && code == SW_OK; i++)
        code = sw_spill_place_open(spill, &spill->places[i], &config->directories[i], err);
    if (code == SW_OK)
        code = sw_spill_places_check_free(spill, err);
    if (code == SW_OK)
        *out = spill;
    else
        sw_spill_close(spill);
    return code;
}

void sw_spill_close(struct sw_spill *spill)
{
    if (spill == NULL)
        return;
    for (int i = 0; i < spill->place_count; i++)
        sw_spill_ring_stop(&spill->rings[i]);
    for (int i = 0; i < spill->place_count; i++)
        sw_spill_place_close(&spill->places[i]);
    free(spill->chunks);
    free(spill->sums);
    pthread_cond_destroy(&spill->done);
    pthread_mutex_destroy(&spill->lock);
    pthread_mutex_destroy(&spill->note_lock);
    free(spill);
}

/* --- Before the seal
 * -------------------------------------------------------------------------------*/

/* The place that is furthest behind its share of the bytes and has room; -1: none has. */
static int choose_place(const struct sw_spill *spill, int64_t bytes)
{
    int best = -1;
    double best_fill = 0;
    for (int i = 0; i < spill->place_count; i++) {
        if (sw_spill_place_left_bytes(spill, i) < bytes)
            continue;
        double fill = (double)(spill->places[i].used_bytes + bytes) / spill->places[i].weight;
        if (best < 0 || fill < best_fill) {
            best = i;
            best_fill = fill;
        }
    }
    return best;
}

static sw_code add_chunk(struct sw_spill *spill, int64_t bytes, struct sw_err *err)
{
    void *array = spill->chunks;
    bool grown =
        sw_array_reserve(&array, &spill->chunk_capacity, spill->chunk_count, sizeof *spill->chunks);
    spill->chunks = array;
    if (!grown)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the table of spilled chunks");
    int index = choose_place(spill, bytes);
    if (index < 0)
        return SW_FAIL(err, SW_E_FIT, "no spill directory (offload.nvme) has %lld bytes free",
                       (long long)bytes);
    struct sw_spill_place *place = &spill->places[index];
    spill->chunks[spill->chunk_count++] =
        (struct sw_spill_chunk){.file_offset_bytes = place->used_bytes, .place = index};
    place->used_bytes += bytes;
    return SW_OK;
}

sw_code sw_spill_reserve(struct sw_spill *spill, int64_t bytes, struct sw_spill_region *out,
                         struct sw_err *err)
{
    sw_assert(!spill->sealed && bytes > 0);
    if (bytes > spill->capacity_bytes)
        return SW_FAIL(err, SW_E_FIT, "a region of %lld bytes does not fit a store of %lld",
                       (long long)bytes, (long long)spill->capacity_bytes);
    int64_t space = sw_spill_region_space_bytes(bytes);
    if (space > spill->capacity_bytes - spill->reserved_bytes)
        return SW_FAIL(err, SW_E_FIT,
                       "spilling %lld bytes more does not fit: %lld of %lld bytes are taken "
                       "(offload.nvme_capacity)",
                       (long long)space, (long long)spill->reserved_bytes,
                       (long long)spill->capacity_bytes);
    struct sw_spill_region region = {
        .bytes = bytes, .chunk_index = spill->chunk_count, .block_index = spill->block_count};
    for (int64_t at = 0; at < space; at += spill->chunk_bytes) {
        int64_t left = space - at;
        sw_code code = add_chunk(spill, left < spill->chunk_bytes ? left : spill->chunk_bytes, err);
        if (code != SW_OK)
            return code;
    }
    spill->block_count += (space + spill->block_bytes - 1) / spill->block_bytes;
    spill->reserved_bytes += space;
    *out = region;
    return SW_OK;
}

sw_code sw_spill_pin(struct sw_spill *spill, void *memory, int64_t bytes, struct sw_err *err)
{
    sw_assert(!spill->sealed && (uintptr_t)memory % SW_AIO_ALIGNMENT_BYTES == 0);
    if (bytes <= 0)
        return SW_OK;
    if (spill->pin_count == SW_SPILL_MAX_PINS)
        return SW_FAIL(err, SW_E_FAILED, "more than %d pieces of memory to pin for spilling",
                       (int)SW_SPILL_MAX_PINS);
    spill->pins[spill->pin_count++] = (struct sw_aio_buffer){memory, bytes};
    return SW_OK;
}

/* Wait for the rings to have prepared their files, passing their progress on. */
static sw_code wait_for_rings(struct sw_spill *spill, struct sw_err *err)
{
    sw_code code = SW_OK;
    int64_t shown = -1;
    pthread_mutex_lock(&spill->lock);
    for (int i = 0; i < spill->place_count; i++) {
        struct sw_spill_ring *ring = &spill->rings[i];
        while (ring->thread_started && !ring->ready) {
            pthread_cond_wait(&spill->done, &spill->lock);
            int64_t prepared = atomic_load(&spill->prepared_bytes);
            if (spill->progress == NULL || prepared == shown)
                continue;
            shown = prepared;
            pthread_mutex_unlock(&spill->lock);
            spill->progress(spill->progress_context, prepared, spill->reserved_bytes);
            pthread_mutex_lock(&spill->lock);
        }
        if (ring->broken && code == SW_OK) {
            if (err != NULL && err->code == SW_OK)
                *err = ring->err;
            code = ring->err.code;
        }
    }
    pthread_mutex_unlock(&spill->lock);
    return code;
}

sw_code sw_spill_seal(struct sw_spill *spill, struct sw_err *err)
{
    sw_assert(!spill->sealed);
    spill->sealed = true;
    sw_code code = SW_OK;
    if (spill->verify) {
        spill->sums = sw_calloc(spill->block_count, sizeof *spill->sums);
        if (spill->sums == NULL)
            return SW_FAIL(err, SW_E_MEMORY, "no memory for %lld checksums of spilled blocks",
                           (long long)spill->block_count);
    }
    for (int i = 0; i < spill->place_count && code == SW_OK; i++)
        if (spill->places[i].used_bytes > 0)
            code = sw_spill_ring_start(&spill->rings[i], err);
    sw_code started = wait_for_rings(spill, code == SW_OK ? err : NULL);
    return code != SW_OK ? code : started;
}

/* --- Transfers
 * -------------------------------------------------------------------------------------*/

/* Queue the ticket with every directory that has some of it. */
static void submit(struct sw_spill_ticket *ticket)
{
    struct sw_spill *spill = ticket->spill;
    bool used[SW_SPILL_MAX_DIRECTORIES] = {false};
    int64_t end = ticket->offset_bytes + ticket->bytes;
    ticket->parts_left = 0;
    if (ticket->bytes == 0)
        return;
    for (int64_t chunk = ticket->offset_bytes / spill->chunk_bytes;
         chunk * spill->chunk_bytes < end; chunk++) {
        int place = spill->chunks[ticket->region.chunk_index + chunk].place;
        ticket->parts_left += !used[place];
        used[place] = true;
    }
    pthread_mutex_lock(&spill->lock);
    for (int i = 0; i < spill->place_count; i++) {
        struct sw_spill_part *part = &ticket->parts[i];
        if (!used[i])
            continue;
        part->ticket = ticket;
        part->cursor_bytes = ticket->offset_bytes;
        part->flying_pieces = 0;
        sw_spill_ring_push(&spill->rings[i], part);
    }
    pthread_mutex_unlock(&spill->lock);
}

void sw_spill_start(struct sw_spill *spill, const struct sw_spill_transfer *transfer,
                    struct sw_spill_ticket *ticket)
{
    int64_t offset = transfer->offset_bytes, bytes = transfer->bytes;
    sw_assert(spill->sealed && offset >= 0 && bytes >= 0);
    sw_assert(offset <= transfer->region->bytes && bytes <= transfer->region->bytes - offset);
    sw_assert(transfer->line >= 0 && transfer->line < SW_SPILL_LINES);
    ticket->spill = spill;
    ticket->region = *transfer->region;
    ticket->offset_bytes = offset;
    ticket->bytes = bytes;
    ticket->memory = transfer->memory;
    ticket->write = transfer->write;
    ticket->line = transfer->line;
    sw_err_init(&ticket->err);
    if (ticket->write && spill->verify)
        sw_spill_transfer_set_sums(ticket);
    submit(ticket);
}

void sw_spill_read(struct sw_spill *spill, const struct sw_spill_region *region,
                   int64_t offset_bytes, void *memory, int64_t bytes,
                   struct sw_spill_ticket *ticket)
{
    const struct sw_spill_transfer transfer = {
        .region = region, .offset_bytes = offset_bytes, .memory = memory, .bytes = bytes};
    sw_spill_start(spill, &transfer, ticket);
}

void sw_spill_write(struct sw_spill *spill, const struct sw_spill_region *region,
                    int64_t offset_bytes, const void *memory, int64_t bytes,
                    struct sw_spill_ticket *ticket)
{
    /* A write only reads the memory. */
    union {
        const void *borrowed;
        void *memory;
    } pointer = {.borrowed = memory};
    const struct sw_spill_transfer transfer = {.region = region,
                                               .offset_bytes = offset_bytes,
                                               .memory = pointer.memory,
                                               .bytes = bytes,
                                               .write = true};
    sw_spill_start(spill, &transfer, ticket);
}

sw_code sw_spill_wait(struct sw_spill_ticket *ticket, struct sw_err *err)
{
    struct sw_spill *spill = ticket->spill;
    pthread_mutex_lock(&spill->lock);
    while (ticket->parts_left > 0)
        pthread_cond_wait(&spill->done, &spill->lock);
    pthread_mutex_unlock(&spill->lock);
    if (ticket->err.code != SW_OK) {
        if (err != NULL && err->code == SW_OK)
            *err = ticket->err;
        return ticket->err.code;
    }
    if (ticket->write) {
        atomic_fetch_add(&spill->written_bytes, ticket->bytes);
        return SW_OK;
    }
    int64_t wrong = spill->verify ? sw_spill_transfer_check_sums(ticket) : -1;
    if (wrong >= 0)
        return sw_spill_sum_fail(spill, &ticket->region, wrong,
                                 sw_spill_block_end(spill, &ticket->region, wrong) - wrong, err);
    atomic_fetch_add(&spill->read_bytes, ticket->bytes);
    return SW_OK;
}

bool sw_spill_ready(struct sw_spill_ticket *ticket)
{
    pthread_mutex_lock(&ticket->spill->lock);
    bool ready = ticket->parts_left == 0;
    pthread_mutex_unlock(&ticket->spill->lock);
    return ready;
}

void sw_spill_counters(struct sw_spill *spill, struct sw_spill_counters *out)
{
    out->read_bytes = atomic_load(&spill->read_bytes);
    out->written_bytes = atomic_load(&spill->written_bytes);
    out->prepared_bytes = atomic_load(&spill->prepared_bytes);
}

void sw_spill_describe(struct sw_spill *spill, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    pthread_mutex_lock(&spill->lock);
    for (int i = 0; i < spill->place_count && at < size; i++) {
        const struct sw_spill_ring *ring = &spill->rings[i];
        bool queued = false;
        for (int k = 0; k < SW_SPILL_LINES; k++)
            queued = queued || ring->lines[k].first != NULL;
        at += (size_t)snprintf(text + at, size - at, "%s%s has %lld transfers under way%s%s",
                               i > 0 ? ", " : "", spill->places[i].path, (long long)ring->flying,
                               queued ? " and more queued" : "",
                               ring->broken ? ", and is broken" : "");
    }
    pthread_mutex_unlock(&spill->lock);
}

int64_t sw_spill_directory_bytes(const struct sw_spill *spill, int index)
{
    sw_assert(index >= 0 && index < spill->place_count);
    return spill->places[index].used_bytes;
}

const char *sw_spill_method_name(const struct sw_spill *spill)
{
    for (int i = 0; i < spill->place_count; i++)
        if (spill->rings[i].aio != NULL)
            return sw_aio_method_name(sw_aio_method_of(spill->rings[i].aio));
    return spill->method != NULL ? sw_aio_method_name(spill->method) : "none";
}

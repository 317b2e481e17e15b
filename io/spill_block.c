/* How a transfer is cut into pieces, and the checksums of blocks.
 *
 * A region is a row of blocks; the last is short where the region ends, but a multiple of what
 * O_DIRECT takes. Chunks are whole blocks, so a block lies in one piece in one file. */
#include "io/spill_internal.h"

#include "base/mem.h"
#include "io/checksum.h"

#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t sw_spill_block_end(const struct sw_spill *spill, const struct sw_spill_region *region,
                           int64_t offset_bytes)
{
    return smaller(offset_bytes + spill->block_bytes, sw_spill_region_space_bytes(region->bytes));
}

static bool is_zero(const char *data, int64_t bytes)
{
    return bytes == 0 || (data[0] == 0 && memcmp(data, data + 1, (size_t)bytes - 1) == 0);
}

void sw_spill_sum_set(struct sw_spill *spill, int64_t block_index, const void *data, int64_t bytes)
{
    if (spill->verify)
        spill->sums[block_index] = sw_checksum(data, bytes);
}

bool sw_spill_sum_matches(const struct sw_spill *spill, int64_t block_index, const void *data,
                          int64_t bytes)
{
    if (!spill->verify)
        return true;
    uint64_t sum = spill->sums[block_index];
    return sum == 0 ? is_zero(data, bytes) : sum == sw_checksum(data, bytes);
}

/* The blocks wholly inside a transfer: from *first to *last of the region. The padded last block of
 * a region of odd length is not: the caller's memory ends before it. */
static void whole_blocks(const struct sw_spill_ticket *ticket, int64_t *first, int64_t *last)
{
    int64_t block = ticket->spill->block_bytes, end = ticket->offset_bytes + ticket->bytes;
    *first = (ticket->offset_bytes + block - 1) / block * block;
    *last = end == sw_spill_region_space_bytes(ticket->region.bytes) ? end : end / block * block;
}

void sw_spill_transfer_set_sums(const struct sw_spill_ticket *ticket)
{
    int64_t at, last;
    whole_blocks(ticket, &at, &last);
    while (at < last) {
        int64_t end = sw_spill_block_end(ticket->spill, &ticket->region, at);
        sw_spill_sum_set(ticket->spill,
                         ticket->region.block_index + at / ticket->spill->block_bytes,
                         ticket->memory + (at - ticket->offset_bytes), end - at);
        at = end;
    }
}

int64_t sw_spill_transfer_check_sums(const struct sw_spill_ticket *ticket)
{
    int64_t at, last;
    whole_blocks(ticket, &at, &last);
    while (at < last) {
        int64_t end = sw_spill_block_end(ticket->spill, &ticket->region, at);
        if (!sw_spill_sum_matches(ticket->spill,
                                  ticket->region.block_index + at / ticket->spill->block_bytes,
                                  ticket->memory + (at - ticket->offset_bytes), end - at))
            return at;
        at = end;
    }
    return -1;
}

static const struct sw_spill_chunk *chunk_at(const struct sw_spill *spill,
                                             const struct sw_spill_region *region, int64_t offset)
{
    return &spill->chunks[region->chunk_index + offset / spill->chunk_bytes];
}

static int64_t file_offset(const struct sw_spill *spill, const struct sw_spill_region *region,
                           int64_t offset)
{
    return chunk_at(spill, region, offset)->file_offset_bytes + offset % spill->chunk_bytes;
}

sw_code sw_spill_sum_fail(const struct sw_spill *spill, const struct sw_spill_region *region,
                          int64_t region_offset_bytes, int64_t bytes, struct sw_err *err)
{
    const struct sw_spill_chunk *chunk = chunk_at(spill, region, region_offset_bytes);
    return SW_FAIL(err, SW_E_FORMAT,
                   "%lld bytes at offset %lld of %s are not what was written there: their checksum "
                   "differs. Suspect the drive, its cable or memory",
                   (long long)bytes, (long long)file_offset(spill, region, region_offset_bytes),
                   spill->places[chunk->place].file_name);
}

/* Where the stretch of file ends that begins at `offset` of the region: at most `limit`. */
static int64_t stretch_end(const struct sw_spill *spill, const struct sw_spill_region *region,
                           int64_t offset, int64_t limit)
{
    const struct sw_spill_chunk *chunk = chunk_at(spill, region, offset);
    int64_t end = offset / spill->chunk_bytes * spill->chunk_bytes + spill->chunk_bytes;
    while (end < limit) {
        const struct sw_spill_chunk *next = chunk_at(spill, region, end);
        if (next->place != chunk->place ||
            next->file_offset_bytes != chunk->file_offset_bytes + spill->chunk_bytes)
            break;
        chunk = next;
        end += spill->chunk_bytes;
    }
    return smaller(end, limit);
}

static void make_staged(struct sw_spill_op *op, const struct sw_spill_ticket *ticket, int64_t at,
                        int64_t end)
{
    const struct sw_spill *spill = ticket->spill;
    int64_t begin = at / spill->block_bytes * spill->block_bytes;
    int64_t block_end = sw_spill_block_end(spill, &ticket->region, begin);
    op->skip_bytes = at - begin;
    op->bytes = smaller(end, block_end) - at;
    op->region_offset_bytes = begin;
    op->request.bytes = block_end - begin;
    op->request.memory = NULL;
    /* Padding after the region's end belongs to nobody and need not be kept. */
    bool covers = at == begin && at + op->bytes >= smaller(block_end, ticket->region.bytes);
    op->kind = !ticket->write ? SW_SPILL_STAGED_READ
               : covers       ? SW_SPILL_STAGED_WRITE
                              : SW_SPILL_MERGE_READ;
}

bool sw_spill_next_piece(struct sw_spill_part *part, int index, struct sw_spill_op *op)
{
    const struct sw_spill_ticket *ticket = part->ticket;
    const struct sw_spill *spill = ticket->spill;
    const struct sw_spill_region *region = &ticket->region;
    int64_t at = part->cursor_bytes, transfer_end = ticket->offset_bytes + ticket->bytes;
    while (at < transfer_end && chunk_at(spill, region, at)->place != index)
        at = (at / spill->chunk_bytes + 1) * spill->chunk_bytes;
    if (at >= transfer_end)
        return false;
    int64_t end = stretch_end(spill, region, at, transfer_end);
    end = smaller(end, at + spill->request_bytes);
    char *memory = ticket->memory + (at - ticket->offset_bytes);
    int64_t whole_end = end == sw_spill_region_space_bytes(region->bytes)
                            ? end
                            : end / spill->block_bytes * spill->block_bytes;
    bool aligned = (uintptr_t)memory % SW_AIO_ALIGNMENT_BYTES == 0;
    op->part = part;
    op->memory = memory;
    op->staging = -1;
    if (aligned && at % spill->block_bytes == 0 && whole_end > at) {
        op->kind = SW_SPILL_DIRECT;
        op->region_offset_bytes = at;
        op->skip_bytes = 0;
        op->bytes = op->request.bytes = whole_end - at;
        op->request.memory = memory;
    } else {
        make_staged(op, ticket, at, end);
    }
    op->block_index = region->block_index + op->region_offset_bytes / spill->block_bytes;
    op->request.write =
        op->kind == SW_SPILL_STAGED_WRITE || (op->kind == SW_SPILL_DIRECT && ticket->write);
    op->request.file_index = 0;
    op->request.offset_bytes = file_offset(spill, region, op->region_offset_bytes);
    op->request.owner = op;
    part->cursor_bytes = at + op->bytes;
    return true;
}

/* Packing rows into micro-batches: one device buffer each, copied in one piece. */
#include "exec/internal.h"

#include "base/mem.h"

#include <string.h>

/* Arrays start at multiples of this in the buffer. */
enum { ARRAY_BYTES = 256 };

/* Carves int32 arrays out of the staging buffer; the same offsets hold on the device. */
struct packer {
    struct sw_batch_slot *slot;
    int64_t capacity_bytes;
};

static int32_t *pack(struct packer *packer, int64_t count, const int32_t **device)
{
    struct sw_batch_slot *slot = packer->slot;
    int64_t offset = slot->used_bytes;
    slot->used_bytes = sw_align_up(offset + count * (int64_t)sizeof(int32_t), ARRAY_BYTES);
    sw_assert(slot->used_bytes <= packer->capacity_bytes);
    *device = (const int32_t *)(const void *)(slot->device + offset);
    return (int32_t *)(void *)(slot->staging + offset);
}

static void pack_rows(struct packer *packer, const struct sw_batch *batch, bool source,
                      struct sw_rows *rows)
{
    *rows = (struct sw_rows){.count = batch->count};
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t length = source ? batch->rows[i].source_length : batch->rows[i].target_length;
        rows->tokens += length;
        rows->longest = length > rows->longest ? length : rows->longest;
    }
    int32_t *starts = pack(packer, batch->count, &rows->starts);
    int32_t *lengths = pack(packer, batch->count, &rows->lengths);
    int32_t *row_of_token = pack(packer, rows->tokens, &rows->row_of_token);
    int32_t at = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        starts[i] = at;
        lengths[i] = source ? batch->rows[i].source_length : batch->rows[i].target_length;
        for (int32_t t = 0; t < lengths[i]; t++)
            row_of_token[at++] = (int32_t)i;
    }
}

static void fill_slot(struct sw_engine *engine, struct sw_batch_slot *slot,
                      const struct sw_batch *batch)
{
    struct packer packer = {slot, engine->plan->batch_bytes};
    struct sw_microbatch *view = &slot->view;
    slot->used_bytes = 0;
    view->rows = batch->count;
    pack_rows(&packer, batch, true, &view->source);
    pack_rows(&packer, batch, false, &view->target);
    int32_t *source = pack(&packer, view->source.tokens, &view->source_ids);
    int32_t *target = pack(&packer, view->target.tokens, &view->target_ids);
    int32_t *labels = pack(&packer, view->target.tokens, &view->labels);
    int32_t *global_rows = pack(&packer, batch->count, &view->global_rows);
    for (int64_t i = 0; i < batch->count; i++) {
        const struct sw_row *row = &batch->rows[i];
        size_t target_bytes = (size_t)row->target_length * sizeof *labels;
        memcpy(source, row->source, (size_t)row->source_length * sizeof *source);
        source += row->source_length;
        if (row->target_length > 0) {
            memcpy(labels, row->target, target_bytes);
            target[0] = engine->model->t5.decoder_start_id;
            memcpy(target + 1, row->target, target_bytes - sizeof *target);
        }
        labels += row->target_length;
        target += row->target_length;
        global_rows[i] = batch->global_rows[i];
    }
    slot->filled = true;
}

/* A rank's share: its replica's rows, cut into micro-batches. */
static void fill_rank(struct sw_engine *engine, struct sw_engine_rank *rank,
                      const struct sw_batch *batch, int64_t first_target, float smoothing)
{
    int64_t rows = engine->plan->bounds.rows;
    rank->batch_count = (batch->count + rows - 1) / rows;
    sw_assert(rank->batch_count <= engine->plan->microbatches);
    for (int64_t m = 0; m < engine->plan->microbatches; m++) {
        struct sw_batch_slot *slot = &rank->batches[m];
        slot->filled = false;
        if (m >= rank->batch_count)
            continue;
        int64_t first = m * rows, left = batch->count - first;
        const struct sw_batch part = {
            .rows = batch->rows + first,
            .global_rows = batch->global_rows + first,
            .count = left < rows ? left : rows,
        };
        fill_slot(engine, slot, &part);
        slot->first_target = first_target;
        first_target += slot->view.target.tokens;
        slot->view.loss_scale = 1.0f / (float)engine->target_tokens;
        slot->view.smoothing = smoothing;
    }
}

/* Rows go to replicas in equal parts, as far as they go; the last ones may get fewer, or none. */
void sw_engine_fill_batches(struct sw_engine *engine, const struct sw_batch *batch, float smoothing)
{
    int64_t replicas = engine->plan->replicas, share = (batch->count + replicas - 1) / replicas;
    int64_t first_target = 0;
    for (int32_t d = 0; d < replicas; d++) {
        int64_t first = d * share, left = batch->count - first;
        int64_t count = left < 0 ? 0 : left < share ? left : share;
        const struct sw_batch part = {
            .rows = batch->rows + (count > 0 ? first : 0),
            .global_rows = engine->row_numbers + (count > 0 ? first : 0),
            .count = count,
        };
        for (int64_t i = 0; i < count; i++)
            engine->row_numbers[first + i] =
                batch->global_rows != NULL ? batch->global_rows[first + i] : (int32_t)(first + i);
        for (int32_t stage = 0; stage < engine->plan->stages; stage++)
            fill_rank(engine, &engine->ranks[sw_plan_rank(engine->plan, stage, d)], &part,
                      first_target, smoothing);
        for (int64_t i = 0; i < count; i++)
            first_target += part.rows[i].target_length;
    }
}

void sw_engine_copy_batch(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_batch_slot *slot = &sw_engine_rank_of(engine, op)->batches[op->microbatch];
    struct sw_stream *stream = sw_engine_stream(engine, op);
    engine->device_ops->copy(stream, slot->device, slot->staging, slot->used_bytes);
}

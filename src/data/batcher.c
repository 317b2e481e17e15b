#include "data/batcher.h"

#include "base/mem.h"
#include "base/random.h"

#include <stdlib.h>

/* A row of the batch while it is put in order. */
struct place {
    struct sw_row row;
    int32_t number; /* within the global batch */
};

struct sw_batcher {
    const struct sw_dataset *dataset;
    struct sw_batcher_options options;
    int64_t rows_count;
    int64_t *order;       /* [rows_count] of epoch `order_epoch`; NULL without shuffling */
    int64_t order_epoch;  /* -1: none yet */
    struct place *places; /* [global_batch], as are the two below */
    struct sw_row *rows;
    int32_t *numbers;
};

/* Uniform in 0 .. bound-1, by the high half of a product (Lemire, arXiv 1805.10941, without the
 * rejection: the bias is below bound / 2^64). Number `draw` of `epoch`. */
static int64_t draw_below(const uint32_t key[2], int64_t epoch, int64_t draw, int64_t bound)
{
    const uint32_t counter[4] = {(uint32_t)draw, (uint32_t)(draw >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    uint32_t word[4];
    sw_philox(key, counter, word);
    uint64_t bits = (uint64_t)word[1] << 32 | word[0];
    return (int64_t)(((unsigned __int128)bits * (uint64_t)bound) >> 64);
}

void sw_batcher_permutation(int64_t rows, uint64_t seed, int64_t epoch, int64_t *out)
{
    uint32_t key[2];
    sw_random_key(seed, SW_RANDOM_SHUFFLE, key);
    for (int64_t i = 0; i < rows; i++)
        out[i] = i;
    for (int64_t i = rows - 1; i > 0; i--) {
        int64_t other = draw_below(key, epoch, i, i + 1), held = out[i];
        out[i] = out[other];
        out[other] = held;
    }
}

sw_code sw_batcher_open(const struct sw_dataset *dataset, const struct sw_batcher_options *options,
                        struct sw_batcher **out, struct sw_err *err)
{
    const int64_t count = options->global_batch;
    if (count < 1 || count > INT32_MAX)
        return SW_FAIL(err, SW_E_USAGE, "train.global_batch is %lld: give 1 to %d rows",
                       (long long)count, INT32_MAX);
    struct sw_batcher *batcher = sw_calloc(1, sizeof *batcher);
    if (batcher == NULL)
        goto no_memory;
    batcher->dataset = dataset;
    batcher->options = *options;
    batcher->rows_count = sw_dataset_rows(dataset);
    batcher->order_epoch = -1;
    sw_assert(batcher->rows_count > 0);
    batcher->places = sw_calloc(count, sizeof *batcher->places);
    batcher->rows = sw_calloc(count, sizeof *batcher->rows);
    batcher->numbers = sw_calloc(count, sizeof *batcher->numbers);
    if (options->shuffle)
        batcher->order = sw_calloc(batcher->rows_count, sizeof *batcher->order);
    if (batcher->places == NULL || batcher->rows == NULL || batcher->numbers == NULL ||
        (options->shuffle && batcher->order == NULL))
        goto no_memory;
    *out = batcher;
    return SW_OK;
no_memory:
    sw_batcher_close(batcher);
    return SW_FAIL(err, SW_E_MEMORY, "no memory for batches of %lld rows (train.global_batch)",
                   (long long)count);
}

void sw_batcher_close(struct sw_batcher *batcher)
{
    if (batcher == NULL)
        return;
    free(batcher->order);
    free(batcher->places);
    free(batcher->rows);
    free(batcher->numbers);
    free(batcher);
}

/* Row of the file at a position of the endless sequence of epochs. */
static int64_t row_at(struct sw_batcher *batcher, int64_t position)
{
    int64_t epoch = position / batcher->rows_count, within = position % batcher->rows_count;
    if (batcher->order == NULL)
        return within;
    if (batcher->order_epoch != epoch) {
        sw_batcher_permutation(batcher->rows_count, batcher->options.seed, epoch, batcher->order);
        batcher->order_epoch = epoch;
    }
    return batcher->order[within];
}

/* Does `a` come before `b`? A total order, so the result does not depend on the way of sorting. */
static bool longer(const struct place *a, const struct place *b)
{
    if (a->row.source_length != b->row.source_length)
        return a->row.source_length > b->row.source_length;
    if (a->row.target_length != b->row.target_length)
        return a->row.target_length > b->row.target_length;
    return a->number < b->number;
}

static void sift_down(struct place *places, int64_t at, int64_t count)
{
    struct place held = places[at];
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && longer(&places[child], &places[child + 1]))
            child++;
        if (!longer(&held, &places[child]))
            break;
        places[at] = places[child];
        at = child;
    }
    places[at] = held;
}

/* Heap sort: in place, where the C library's may allocate, which a step must not. */
static void sort_by_length(struct place *places, int64_t count)
{
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        sift_down(places, i, count);
    for (int64_t end = count - 1; end > 0; end--) {
        struct place held = places[0];
        places[0] = places[end];
        places[end] = held;
        sift_down(places, 0, end);
    }
}

/* The first `count` places as a batch. */
static struct sw_batch hand_out(struct sw_batcher *batcher, int64_t count)
{
    struct sw_batch batch = {batcher->rows, batcher->numbers, count, 0};
    for (int64_t i = 0; i < count; i++) {
        batcher->rows[i] = batcher->places[i].row;
        batcher->numbers[i] = batcher->places[i].number;
        batch.target_tokens += batcher->rows[i].target_length;
    }
    return batch;
}

struct sw_batch sw_batcher_step(struct sw_batcher *batcher, int64_t step)
{
    const int64_t count = batcher->options.global_batch;
    int64_t first;
    sw_assert(step >= 0 && sw_size_mul(step, count, &first) && first <= INT64_MAX - count);
    for (int64_t i = 0; i < count; i++)
        batcher->places[i] = (struct place){
            .row = sw_dataset_row(batcher->dataset, row_at(batcher, first + i)),
            .number = (int32_t)i,
        };
    if (batcher->options.group_by_length)
        sort_by_length(batcher->places, count);
    return hand_out(batcher, count);
}

struct sw_batch sw_batcher_in_order(struct sw_batcher *batcher, int64_t first, int64_t count)
{
    sw_assert(first >= 0 && first <= batcher->rows_count && count >= 0 &&
              count <= batcher->options.global_batch);
    if (count > batcher->rows_count - first)
        count = batcher->rows_count - first;
    for (int64_t i = 0; i < count; i++)
        batcher->places[i] = (struct place){
            .row = sw_dataset_row(batcher->dataset, first + i),
            .number = (int32_t)i,
        };
    return hand_out(batcher, count);
}

int64_t sw_batcher_steps(int64_t rows, int64_t epochs, int64_t global_batch)
{
    int64_t total;
    sw_assert(rows >= 0 && epochs >= 0 && global_batch >= 1);
    if (!sw_size_mul(rows, epochs, &total))
        return -1;
    return total / global_batch + (total % global_batch != 0 ? 1 : 0);
}

struct sw_batch sw_micro_batch(const struct sw_batch *batch, int64_t micro_batch, int64_t index)
{
    int64_t first = index * micro_batch, count = batch->count - first;
    sw_assert(micro_batch >= 1 && index >= 0 && count > 0);
    if (count > micro_batch)
        count = micro_batch;
    struct sw_batch part = {batch->rows + first, batch->global_rows + first, count, 0};
    for (int64_t i = 0; i < count; i++)
        part.target_tokens += part.rows[i].target_length;
    return part;
}

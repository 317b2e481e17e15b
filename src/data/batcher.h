/* Which rows make up the global batch of a step: a pure function of the options and the step
 * number, so that a resumed run, another layout or another micro-batch sees the same rows.
 *
 * Epochs follow one another without a gap: step k (from 0) takes positions k * global_batch ..
 * k * global_batch + global_batch - 1 of the endless sequence epoch 0, epoch 1, ... A batch may
 * span the end of an epoch. Without shuffling an epoch is the file's order; with it, a Fisher-Yates
 * permutation (Durstenfeld, CACM 7 (1964), algorithm 235) of the rows by Philox numbers keyed by
 * seed, with the epoch in the counter. */
#ifndef SPILLWAY_DATA_BATCHER_H
#define SPILLWAY_DATA_BATCHER_H

#include "base/err.h"
#include "data/dataset.h"
#include "data/row.h"

#include <stdint.h>

struct sw_batcher;

struct sw_batcher_options {
    int64_t global_batch; /* rows of an optimizer step, >= 1; may exceed the rows there are */
    bool shuffle;
    uint64_t seed;
    /* Within a global batch, rows by decreasing source length (then target length, then number):
     * micro-batches get rows of like length. Which rows a step has, and their global_rows, stay. */
    bool group_by_length;
};

/* The data set is borrowed while the batcher lives. Everything is allocated here. */
sw_code sw_batcher_open(const struct sw_dataset *dataset, const struct sw_batcher_options *options,
                        struct sw_batcher **out, struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_batcher_close(struct sw_batcher *batcher);

/* The global batch of `step` (from 0), whatever was asked for before. Borrowed until the next call;
 * one thread at a time. Steps in order are cheap; a step of another epoch costs a permutation. */
struct sw_batch sw_batcher_step(struct sw_batcher *batcher, int64_t step);
/* Rows first .. first + count - 1 of the file (count is cut at the end), for evaluation and
 * generation; at most global_batch of them. Borrowed until the next call. */
struct sw_batch sw_batcher_in_order(struct sw_batcher *batcher, int64_t first, int64_t count);

/* Steps of train.epochs: ceil(rows * epochs / global_batch), so that every row is seen at least
 * `epochs` times; the last step is filled up from the next epoch. -1 on overflow. */
int64_t sw_batcher_steps(int64_t rows, int64_t epochs, int64_t global_batch);

/* The order of an epoch: out[i] is the row at position i. Pure. */
void sw_batcher_permutation(int64_t rows, uint64_t seed, int64_t epoch, int64_t *out);

/* Micro-batches cut a global batch `micro_batch` rows at a time; the last may be smaller. */
static inline int64_t sw_micro_batches(int64_t count, int64_t micro_batch)
{
    return (count + micro_batch - 1) / micro_batch;
}

/* Micro-batch `index` of a batch; target_tokens are its own. Borrowed from the batch. */
struct sw_batch sw_micro_batch(const struct sw_batch *batch, int64_t micro_batch, int64_t index);

#endif

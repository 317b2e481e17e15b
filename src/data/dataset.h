/* All rows of a file as ids, in memory: 4 bytes a token and 16 a row. */
#ifndef SPILLWAY_DATA_DATASET_H
#define SPILLWAY_DATA_DATASET_H

#include "base/err.h"
#include "base/pool.h"
#include "data/row.h"
#include "data/tokenizer.h"

#include <stdint.h>

struct sw_dataset;

struct sw_dataset_options {
    const char *source_field, *target_field; /* NULL: "source", "target" */
    bool source_only;                        /* no target is read: its length is 0 */
    int64_t max_source_length;               /* tokens, EOS included, >= 1; 0: no limit */
    int64_t max_target_length;
    bool skip_bad; /* count bad rows and go on, instead of stopping at the first */
    /* Called now and then on the caller's thread; may be NULL. file_bytes -1: a pipe. */
    void (*progress)(void *context, int64_t rows, int64_t bytes_read, int64_t file_bytes);
    void *progress_context;
    /* Asked now and then: true ends the reading with SW_E_STOPPED. May be NULL. */
    bool (*stop_requested)(void);
};

struct sw_dataset_statistics {
    int64_t rows, skipped;                        /* rows kept, bad rows left out */
    int64_t truncated_sources, truncated_targets; /* rows whose text was longer than the limit */
    int64_t longest_source, longest_target;       /* tokens after truncation */
    int64_t source_tokens, target_tokens;
};

/* Read and tokenize `path` (any format of data/rows.h) on the pool's threads; rows keep the order
 * of the file. Empty texts give a lone EOS. SW_E_FORMAT naming file and line for a bad row, and
 * when there is no row at all. */
sw_code sw_dataset_load(const char *path, const struct sw_tokenizer *tokenizer,
                        struct sw_pool *pool, const struct sw_dataset_options *options,
                        struct sw_dataset **out, struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_dataset_free(struct sw_dataset *dataset);

int64_t sw_dataset_rows(const struct sw_dataset *dataset);
/* Row `index`; its ids are borrowed from the data set. */
struct sw_row sw_dataset_row(const struct sw_dataset *dataset, int64_t index);
const struct sw_dataset_statistics *sw_dataset_statistics(const struct sw_dataset *dataset);
/* What was wrong with the first row that was skipped; "" when none was. Borrowed. */
const char *sw_dataset_first_skipped(const struct sw_dataset *dataset);

#endif

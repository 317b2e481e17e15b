/* What `spillway tokenize` prints: the ids of every row of a file, as JSON lines. */
#ifndef SPILLWAY_DATA_TOKENIZE_H
#define SPILLWAY_DATA_TOKENIZE_H

#include "data/tokenizer.h"

#include <stdint.h>
#include <stdio.h>

struct sw_tokenize_options {
    const char *source_field, *target_field; /* NULL: "source", "target" */
    int64_t max_source_length;               /* tokens, EOS included, >= 1; 0: no limit */
    int64_t max_target_length;
    bool skip_bad; /* count bad rows and go on, instead of stopping at the first */
};

struct sw_tokenize_counts {
    int64_t rows, skipped;
};

/* Write {"source_ids": [...], "target_ids": [...]} for every row of `path` ("-": standard input) to
 * `out`, in order, in bounded memory. SW_E_FORMAT for a bad row, naming file and line: the rows
 * before it have been written. SW_E_IO when `out` cannot be written. */
sw_code sw_tokenize_file(const char *path, const struct sw_tokenizer *tokenizer,
                         const struct sw_tokenize_options *options, FILE *out,
                         struct sw_tokenize_counts *out_counts, struct sw_err *err) SW_WARN_UNUSED;

#endif

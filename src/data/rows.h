/* Row files: JSONL, TSV and CSV, read one row at a time in bounded memory (docs/DATA.md).
 *
 * What is handed out is valid UTF-8 without NUL, exactly the wanted fields, in the order asked for.
 * A bad row is named by file and physical line. */
#ifndef SPILLWAY_DATA_ROWS_H
#define SPILLWAY_DATA_ROWS_H

#include "base/err.h"

#include <stdint.h>

struct sw_rows;

enum sw_rows_format {
    SW_ROWS_BY_NAME, /* .tsv and .csv by the file's name, anything else and "-" JSONL */
    SW_ROWS_JSONL,
    SW_ROWS_TSV,
    SW_ROWS_CSV
};

enum { SW_ROWS_FIELDS_MAX = 4 };

struct sw_rows_options {
    enum sw_rows_format format;
    const char *fields[SW_ROWS_FIELDS_MAX]; /* wanted; borrowed while the file is open */
    int fields_count;
    bool skip_bad;                /* count bad rows and go on, instead of stopping at the first */
    int64_t max_row_bytes;        /* a longer row is bad; 0: 64 MiB */
    bool (*stop_requested)(void); /* asked while a pipe is silent: SW_E_STOPPED; NULL: never */
};

struct sw_rows_field {
    const char *text; /* NUL-terminated; borrowed until the next call */
    int64_t bytes;    /* without the NUL */
};

/* Open a file, or standard input for "-". A header line (TSV, CSV) is read and checked here. */
sw_code sw_rows_open(const char *path, const struct sw_rows_options *options, struct sw_rows **out,
                     struct sw_err *err) SW_WARN_UNUSED;
/* The same from memory, borrowed; `what` names it in messages, and BY_NAME goes by it. */
sw_code sw_rows_open_memory(const char *bytes, int64_t count, const char *what,
                            const struct sw_rows_options *options, struct sw_rows **out,
                            struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_rows_close(struct sw_rows *rows);

/* The next row's fields [fields_count]; *out_end instead when there is none left. SW_E_FORMAT for a
 * bad row (unless they are skipped), SW_E_IO when reading fails. */
sw_code sw_rows_next(struct sw_rows *rows, struct sw_rows_field *fields, bool *out_end,
                     struct sw_err *err) SW_WARN_UNUSED;

/* Wait until a line, or the end, may be read without waiting: at most so many milliseconds, -1:
 * without limit. False when the time is over or a signal came. Files never wait. */
bool sw_rows_wait(struct sw_rows *rows, int milliseconds);

int64_t sw_rows_line(const struct sw_rows *rows);       /* where the last row began, from 1 */
int64_t sw_rows_bytes_read(const struct sw_rows *rows); /* for progress */
int64_t sw_rows_file_bytes(const struct sw_rows *rows); /* -1: a pipe */
int64_t sw_rows_skipped(const struct sw_rows *rows);    /* bad rows so far */
/* What was wrong with the first row that was skipped; "" when none was. Borrowed. */
const char *sw_rows_first_skipped(const struct sw_rows *rows);

#endif

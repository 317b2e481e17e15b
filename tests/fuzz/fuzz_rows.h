/* Reads all rows of the input, both ways of treating bad ones, and checks what comes out. */
#ifndef SPILLWAY_TESTS_FUZZ_ROWS_H
#define SPILLWAY_TESTS_FUZZ_ROWS_H

#include "data/rows.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

static inline void sw_fuzz_rows(const uint8_t *data, size_t size, enum sw_rows_format format,
                                bool skip_bad)
{
    struct sw_rows *rows;
    struct sw_err err = {0};
    struct sw_rows_options options = {.format = format,
                                      .fields = {"source", "target"},
                                      .fields_count = 2,
                                      .skip_bad = skip_bad,
                                      .max_row_bytes = 300};
    if (sw_rows_open_memory((const char *)data, (int64_t)size, "input", &options, &rows, &err) !=
        SW_OK)
        return;
    for (int64_t taken = 0;;) {
        struct sw_rows_field fields[2];
        bool end;
        sw_code code = sw_rows_next(rows, fields, &end, &err);
        /* nothing in memory is worse than a bad row, but a file that is none of rows, told at its
         * start */
        if (code != SW_OK && skip_bad && (taken > 0 || sw_rows_skipped(rows) > 0))
            abort();
        if (code != SW_OK || end)
            break;
        taken++;
        for (int i = 0; i < 2; i++)
            if ((int64_t)strlen(fields[i].text) != fields[i].bytes ||
                sw_utf8_check(fields[i].text, fields[i].bytes) >= 0)
                abort();
    }
    sw_rows_close(rows);
}

#endif

/* The cells of one record of a TSV or CSV file.
 *
 * TSV: cells are what stands between tabs, nothing is quoted or escaped. CSV is RFC 4180: a cell
 * may be quoted, holds commas, line breaks and doubled quotes then; a quote anywhere else is an
 * error. */
#ifndef SPILLWAY_DATA_CELLS_H
#define SPILLWAY_DATA_CELLS_H

#include "base/err.h"
#include "base/text.h"

#include <stdint.h>

/* Start with {.separator = ...}; end with sw_cells_free(). */
struct sw_cells {
    char separator;
    bool quotes;         /* CSV */
    struct sw_text text; /* all cells, each ended by a NUL */
    int64_t *ends;       /* [count], where each cell's NUL is in text */
    int64_t count, capacity;
    bool in_quotes;     /* a quoted cell goes on in the next line */
    int64_t quote_line; /* where that cell began */
};

void sw_cells_free(struct sw_cells *cells);
/* Forget the record, keep the memory. */
void sw_cells_clear(struct sw_cells *cells);
/* Take one more physical line of the record. While in_quotes is set afterwards, the record is not
 * whole. NULL, or what is wrong with the line. *out_failed: no memory. */
const char *sw_cells_add_line(struct sw_cells *cells, const char *line, int64_t bytes,
                              int64_t line_number, bool *out_failed) SW_WARN_UNUSED;
const char *sw_cells_text(const struct sw_cells *cells, int64_t index);
int64_t sw_cells_bytes(const struct sw_cells *cells, int64_t index);

#endif

#include "data/cells.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void sw_cells_free(struct sw_cells *cells)
{
    free(cells->text.bytes);
    free(cells->ends);
}

void sw_cells_clear(struct sw_cells *cells)
{
    cells->text.used_bytes = 0;
    cells->count = 0;
    cells->in_quotes = false;
}

/* Close the cell that was being written. */
static bool end_cell(struct sw_cells *cells)
{
    void *array = cells->ends;
    if (!sw_array_reserve(&array, &cells->capacity, cells->count, sizeof *cells->ends))
        return false;
    cells->ends = array;
    cells->ends[cells->count++] = cells->text.used_bytes;
    sw_text_add_bytes(&cells->text, "", 1);
    return !cells->text.failed;
}

/* The quoted part of a cell from line[at] on; returns where it ends, behind the closing quote, or
 * at the line's end with in_quotes set. */
static int64_t take_quoted(struct sw_cells *cells, const char *line, int64_t bytes, int64_t at)
{
    while (at < bytes) {
        const char *quote = memchr(line + at, '"', (size_t)(bytes - at));
        int64_t end = quote != NULL ? quote - line : bytes;
        sw_text_add_bytes(&cells->text, line + at, end - at);
        at = end;
        if (quote == NULL)
            break;
        if (at + 1 < bytes && line[at + 1] == '"') {
            sw_text_add_bytes(&cells->text, "\"", 1);
            at += 2;
            continue;
        }
        cells->in_quotes = false;
        return at + 1;
    }
    sw_text_add_bytes(&cells->text, "\n", 1);
    return bytes;
}

/* A cell without quotes from line[at] on; returns where it ends. */
static int64_t take_plain(struct sw_cells *cells, const char *line, int64_t bytes, int64_t at)
{
    const char *separator = memchr(line + at, cells->separator, (size_t)(bytes - at));
    int64_t end = separator != NULL ? separator - line : bytes;
    bool carriage_return = separator == NULL && end > at && line[end - 1] == '\r';
    sw_text_add_bytes(&cells->text, line + at, end - at - (carriage_return ? 1 : 0));
    return end;
}

const char *sw_cells_add_line(struct sw_cells *cells, const char *line, int64_t bytes,
                              int64_t line_number, bool *out_failed)
{
    int64_t at = 0;
    bool quoted = cells->in_quotes;
    *out_failed = false;
    for (;;) {
        if (!quoted && cells->quotes && at < bytes && line[at] == '"') {
            quoted = cells->in_quotes = true;
            cells->quote_line = line_number;
            at++;
        }
        int64_t begin = at;
        at = quoted ? take_quoted(cells, line, bytes, at) : take_plain(cells, line, bytes, at);
        if (cells->in_quotes) {
            *out_failed = cells->text.failed;
            return NULL;
        }
        if (!quoted && cells->quotes && memchr(line + begin, '"', (size_t)(at - begin)) != NULL)
            return "a quote in a field that does not begin with one (quote the whole field, and "
                   "double the quotes in it)";
        if (quoted && at + 1 == bytes && line[at] == '\r')
            at++;
        if (at < bytes && line[at] != cells->separator)
            return "something other than a comma behind a closing quote (quotes inside a quoted "
                   "field are doubled)";
        if (!end_cell(cells)) {
            *out_failed = true;
            return NULL;
        }
        if (at == bytes)
            return NULL;
        at++;
        quoted = false;
    }
}

const char *sw_cells_text(const struct sw_cells *cells, int64_t index)
{
    return cells->text.bytes + (index > 0 ? cells->ends[index - 1] + 1 : 0);
}

int64_t sw_cells_bytes(const struct sw_cells *cells, int64_t index)
{
    return cells->ends[index] - (index > 0 ? cells->ends[index - 1] + 1 : 0);
}

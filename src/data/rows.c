#include "data/rows.h"

#include "base/json.h"
#include "base/mem.h"
#include "data/cells.h"
#include "data/line_input.h"
#include "data/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ROW_BYTES_MAX = 64 << 20 };

/* Which settings say what fields there are. */
static const char FIELD_KEYS[] = " (data.source_field, data.target_field)";

struct sw_rows {
    struct sw_rows_options options;
    struct sw_line_input *input;
    struct sw_text line;
    struct sw_json *json;               /* the last JSONL row: its strings are borrowed */
    bool begun;                         /* a JSONL row was there */
    struct sw_cells cells;              /* the last TSV or CSV row */
    int64_t columns;                    /* of the header line */
    int64_t wanted[SW_ROWS_FIELDS_MAX]; /* column of each field */
    int64_t row_line;                   /* where the last row began */
    int64_t skipped;
    char first_skipped[SW_ERR_TEXT_BYTES];
};

/* What taking a row came to. */
enum taken { ROW, BLANK, END, BAD /* err says why; others may follow */, FAILED };

/* --- messages ------------------------------------------------------------------------ */

static enum taken bad_row(const struct sw_rows *rows, struct sw_err *err, int64_t line,
                          const char *format, ...) SW_PRINTF(4, 5);
static enum taken bad_row(const struct sw_rows *rows, struct sw_err *err, int64_t line,
                          const char *format, ...)
{
    char text[SW_ERR_TEXT_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    SW_FAIL(err, SW_E_FORMAT, "%s, line %lld: %s", sw_line_input_name(rows->input), (long long)line,
            text);
    return BAD;
}

/* Names for a message, cut when there are many. */
struct names {
    char text[300];
};

static void names_add(struct names *names, const char *name)
{
    size_t used = strlen(names->text), room = sizeof names->text - used;
    if (strlen(name) + 8 < room)
        snprintf(names->text + used, room, "%s%s", used > 0 ? ", " : "", name);
    else if (used > 0 && names->text[used - 1] != '.')
        snprintf(names->text + used, room, ", ...");
}

/* --- lines --------------------------------------------------------------------------- */

/* The next physical line into rows->line, in place of what was there. */
static enum taken take_line(struct sw_rows *rows, int64_t used_bytes, struct sw_err *err)
{
    struct sw_text *line = &rows->line;
    line->used_bytes = 0;
    enum sw_line taken =
        sw_line_input_take(rows->input, line, rows->options.max_row_bytes - used_bytes, err);
    int64_t number = sw_line_input_line(rows->input), wrong;
    switch (taken) {
    case SW_LINE_FAILED:
        return FAILED;
    case SW_LINE_END:
        return END;
    case SW_LINE_TOO_LONG:
        return bad_row(rows, err, number, "the row is longer than %lld bytes%s",
                       (long long)rows->options.max_row_bytes,
                       number == 1 && rows->options.format == SW_ROWS_JSONL
                           ? " (every row has to stand on a line of its own)"
                           : "");
    case SW_LINE_TAKEN:
        break;
    }
    if (line->used_bytes > 0 && (wrong = sw_utf8_check(line->bytes, line->used_bytes)) >= 0)
        return bad_row(rows, err, number, "byte %lld is not UTF-8", (long long)wrong + 1);
    return ROW;
}

static bool is_blank(const struct sw_text *line, const char *blanks)
{
    for (int64_t i = 0; i < line->used_bytes; i++)
        if (line->bytes[i] == '\0' || strchr(blanks, line->bytes[i]) == NULL)
            return false;
    return true;
}

/* --- JSONL --------------------------------------------------------------------------- */

static enum taken missing_key(const struct sw_rows *rows, const char *key, struct sw_err *err)
{
    struct names names = {""};
    void *cursor = NULL;
    const char *name;
    const struct sw_json *value;
    while (sw_json_next(rows->json, &cursor, &name, &value))
        names_add(&names, name);
    return bad_row(rows, err, rows->row_line, "no field \"%s\"; %s%s%s", key,
                   names.text[0] != '\0' ? "the row has " : "the row has no field at all",
                   names.text, names.text[0] != '\0' ? FIELD_KEYS : "");
}

/* The line's text without blanks around it is `text`, or with `begins` begins so. */
static bool line_is(const struct sw_text *line, const char *text, bool begins)
{
    static const char blanks[] = " \t\r";
    int64_t at = 0, bytes = (int64_t)strlen(text);
    while (at < line->used_bytes && memchr(blanks, line->bytes[at], sizeof blanks - 1) != NULL)
        at++;
    if (line->used_bytes - at < bytes || memcmp(line->bytes + at, text, (size_t)bytes) != 0)
        return false;
    const struct sw_text rest = {.bytes = line->bytes + at + bytes,
                                 .used_bytes = line->used_bytes - at - bytes};
    return begins || is_blank(&rest, blanks);
}

/* The first row is (the beginning of) a list of objects: the file is one JSON value. No row of it
 * can be taken, so it is not passed over as a bad row either. */
static enum taken whole_list(const struct sw_rows *rows, struct sw_err *err)
{
    const char *name = sw_line_input_name(rows->input);
    SW_FAIL(err, SW_E_FORMAT,
            "%s is one JSON list, where every line has to be an object of its own (JSONL): "
            "jq -c '.[]' makes it so",
            name);
    return FAILED;
}

/* rows->line holds a line: its value into rows->json. */
static enum taken parse_line(struct sw_rows *rows, struct sw_err *err)
{
    struct sw_err problem;
    bool list = !rows->begun && line_is(&rows->line, "[", true);
    rows->begun = true;
    sw_err_init(&problem);
    if (sw_json_parse(rows->line.bytes, rows->line.used_bytes, "it", &rows->json, &problem) !=
        SW_OK) {
        const char *column = strstr(problem.text, "column "); /* the line is the file's, not 1 */
        if (problem.code == SW_E_MEMORY) {
            SW_FAIL(err, SW_E_MEMORY, "%s", problem.text);
            return FAILED;
        }
        if (list)
            return whole_list(rows, err);
        return bad_row(rows, err, rows->row_line, "not valid JSON: %s%s",
                       column != NULL ? column : problem.text,
                       line_is(&rows->line, "{", false)
                           ? "; an object has to stand on one line (jq -c . makes it so)"
                           : "");
    }
    if (list && sw_json_count(rows->json) > 0 &&
        sw_json_kind(sw_json_at(rows->json, 0)) == SW_JSON_OBJECT)
        return whole_list(rows, err);
    if (sw_json_kind(rows->json) != SW_JSON_OBJECT)
        return bad_row(rows, err, rows->row_line, "%s, where an object with fields is expected",
                       sw_json_kind_name(rows->json));
    return ROW;
}

static enum taken take_json(struct sw_rows *rows, struct sw_rows_field *fields, struct sw_err *err)
{
    if (rows->json != NULL)
        sw_json_free(rows->json);
    rows->json = NULL;
    enum taken taken = take_line(rows, 0, err);
    rows->row_line = sw_line_input_line(rows->input);
    rows->begun = rows->begun || taken == BAD;
    if (taken != ROW)
        return taken;
    if (is_blank(&rows->line, " \t\r"))
        return BLANK;
    taken = parse_line(rows, err);
    if (taken != ROW)
        return taken;
    for (int i = 0; i < rows->options.fields_count; i++) {
        const struct sw_json *value = sw_json_get(rows->json, rows->options.fields[i]);
        if (value == NULL)
            return missing_key(rows, rows->options.fields[i], err);
        const char *text = sw_json_to_string(value);
        if (text == NULL)
            return bad_row(rows, err, rows->row_line, "field \"%s\" is %s, not a string",
                           rows->options.fields[i], sw_json_kind_name(value));
        fields[i] = (struct sw_rows_field){text, (int64_t)strlen(text)};
    }
    return ROW;
}

/* --- TSV and CSV --------------------------------------------------------------------- */

/* One record: as many lines as its quotes ask for. */
static enum taken take_record(struct sw_rows *rows, struct sw_err *err)
{
    struct sw_cells *cells = &rows->cells;
    sw_cells_clear(cells);
    do {
        bool failed;
        enum taken taken = take_line(rows, cells->text.used_bytes, err);
        int64_t number = sw_line_input_line(rows->input);
        if (!cells->in_quotes)
            rows->row_line = number;
        if (taken == END && cells->in_quotes)
            return bad_row(rows, err, cells->quote_line,
                           "a quoted field begins here and is never closed");
        if (taken != ROW)
            return taken;
        if (!cells->in_quotes && is_blank(&rows->line, " \r"))
            return BLANK;
        if (memchr(rows->line.bytes, '\0', (size_t)rows->line.used_bytes) != NULL)
            return bad_row(rows, err, number, "it holds a NUL byte");
        const char *wrong =
            sw_cells_add_line(cells, rows->line.bytes, rows->line.used_bytes, number, &failed);
        if (failed) {
            SW_FAIL(err, SW_E_MEMORY, "no memory for a row of %s", sw_line_input_name(rows->input));
            return FAILED;
        }
        if (wrong != NULL)
            return bad_row(rows, err, number, "%s", wrong);
    } while (cells->in_quotes);
    return ROW;
}

static enum taken take_cells(struct sw_rows *rows, struct sw_rows_field *fields, struct sw_err *err)
{
    enum taken taken = take_record(rows, err);
    if (taken != ROW)
        return taken;
    if (rows->cells.count != rows->columns)
        return bad_row(rows, err, rows->row_line, "%lld fields, but the header line names %lld",
                       (long long)rows->cells.count, (long long)rows->columns);
    for (int i = 0; i < rows->options.fields_count; i++)
        fields[i] = (struct sw_rows_field){sw_cells_text(&rows->cells, rows->wanted[i]),
                                           sw_cells_bytes(&rows->cells, rows->wanted[i])};
    return ROW;
}

static sw_code find_column(struct sw_rows *rows, int field, struct sw_err *err)
{
    const char *wanted = rows->options.fields[field];
    struct names names = {""};
    int64_t found = -1;
    for (int64_t column = 0; column < rows->columns; column++) {
        const char *name = sw_cells_text(&rows->cells, column);
        names_add(&names, name);
        if (strcmp(name, wanted) != 0)
            continue;
        if (found >= 0)
            return SW_FAIL(err, SW_E_FORMAT, "%s, line %lld: the header names \"%s\" twice",
                           sw_line_input_name(rows->input), (long long)rows->row_line, wanted);
        found = column;
    }
    if (found < 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s, line %lld: no field \"%s\"; the header line names %s%s",
                       sw_line_input_name(rows->input), (long long)rows->row_line, wanted,
                       names.text, FIELD_KEYS);
    rows->wanted[field] = found;
    return SW_OK;
}

static sw_code read_header(struct sw_rows *rows, struct sw_err *err)
{
    enum taken taken;
    do
        taken = take_record(rows, err);
    while (taken == BLANK);
    if (taken == END)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is empty: its first line has to name the fields of the rows",
                       sw_line_input_name(rows->input));
    if (taken == FAILED)
        return err->code;
    if (taken != ROW)
        return sw_err_while(err, "reading the header line");
    rows->columns = rows->cells.count;
    for (int i = 0; i < rows->options.fields_count; i++) {
        sw_code code = find_column(rows, i, err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

/* --- the file ------------------------------------------------------------------------ */

static enum sw_rows_format format_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dot != NULL && strcasecmp(dot, ".tsv") == 0)
        return SW_ROWS_TSV;
    if (dot != NULL && strcasecmp(dot, ".csv") == 0)
        return SW_ROWS_CSV;
    return SW_ROWS_JSONL;
}

/* Takes over `input`. */
static sw_code start(struct sw_line_input *input, const char *name,
                     const struct sw_rows_options *options, struct sw_rows **out,
                     struct sw_err *err)
{
    sw_code code = SW_OK;
    sw_assert(options->fields_count >= 1 && options->fields_count <= SW_ROWS_FIELDS_MAX);
    struct sw_rows *rows = sw_calloc(1, sizeof *rows);
    if (rows == NULL) {
        sw_line_input_close(input);
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", name);
    }
    rows->input = input;
    rows->options = *options;
    sw_line_input_heed(input, options->stop_requested);
    if (rows->options.format == SW_ROWS_BY_NAME)
        rows->options.format = format_of(name);
    if (rows->options.max_row_bytes == 0)
        rows->options.max_row_bytes = ROW_BYTES_MAX;
    rows->cells.quotes = rows->options.format == SW_ROWS_CSV;
    rows->cells.separator = rows->cells.quotes ? ',' : '\t';
    if (rows->options.format != SW_ROWS_JSONL)
        code = read_header(rows, err);
    if (code != SW_OK) {
        sw_rows_close(rows);
        return code;
    }
    *out = rows;
    return SW_OK;
}

sw_code sw_rows_open(const char *path, const struct sw_rows_options *options, struct sw_rows **out,
                     struct sw_err *err)
{
    struct sw_line_input *input;
    sw_code code = sw_line_input_open(path, &input, err);
    return code != SW_OK ? code : start(input, path, options, out, err);
}

sw_code sw_rows_open_memory(const char *bytes, int64_t count, const char *what,
                            const struct sw_rows_options *options, struct sw_rows **out,
                            struct sw_err *err)
{
    struct sw_line_input *input;
    sw_code code = sw_line_input_open_memory(bytes, count, what, &input, err);
    return code != SW_OK ? code : start(input, what, options, out, err);
}

void sw_rows_close(struct sw_rows *rows)
{
    if (rows == NULL)
        return;
    if (rows->json != NULL)
        sw_json_free(rows->json);
    sw_cells_free(&rows->cells);
    sw_line_input_close(rows->input);
    free(rows->line.bytes);
    free(rows);
}

static sw_code pass_on(const struct sw_err *problem, struct sw_err *err)
{
    if (err != NULL && err->code == SW_OK)
        *err = *problem;
    return problem->code;
}

sw_code sw_rows_next(struct sw_rows *rows, struct sw_rows_field *fields, bool *out_end,
                     struct sw_err *err)
{
    for (;;) {
        struct sw_err problem;
        sw_err_init(&problem);
        enum taken taken = rows->options.format == SW_ROWS_JSONL
                               ? take_json(rows, fields, &problem)
                               : take_cells(rows, fields, &problem);
        switch (taken) {
        case ROW:
        case END:
            *out_end = taken == END;
            return SW_OK;
        case BLANK:
            break;
        case BAD:
            if (!rows->options.skip_bad)
                return pass_on(&problem, err);
            if (rows->skipped++ == 0)
                memcpy(rows->first_skipped, problem.text, sizeof rows->first_skipped);
            break;
        case FAILED:
            return pass_on(&problem, err);
        }
    }
}

bool sw_rows_wait(struct sw_rows *rows, int milliseconds)
{
    return sw_line_input_wait(rows->input, milliseconds);
}

int64_t sw_rows_line(const struct sw_rows *rows)
{
    return rows->row_line;
}

int64_t sw_rows_bytes_read(const struct sw_rows *rows)
{
    return sw_line_input_bytes_read(rows->input);
}

int64_t sw_rows_file_bytes(const struct sw_rows *rows)
{
    return sw_line_input_file_bytes(rows->input);
}

int64_t sw_rows_skipped(const struct sw_rows *rows)
{
    return rows->skipped;
}

const char *sw_rows_first_skipped(const struct sw_rows *rows)
{
    return rows->first_skipped;
}

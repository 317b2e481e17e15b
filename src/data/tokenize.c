#include "data/tokenize.h"

#include "data/jsonl_out.h"
#include "data/rows.h"

#include <errno.h>
#include <stdlib.h>

/* One line for a row's two fields. */
static sw_code write_row(const struct sw_tokenizer *tokenizer,
                         const struct sw_tokenize_options *options,
                         const struct sw_rows_field *fields, struct sw_ids *ids,
                         struct sw_text *line, struct sw_err *err)
{
    const int64_t limits[] = {options->max_source_length, options->max_target_length};
    static const char *const keys[] = {"{\"source_ids\": ", ", \"target_ids\": "};
    line->used_bytes = 0;
    for (int i = 0; i < 2; i++) {
        ids->count = 0;
        sw_code code = sw_tokenizer_encode(tokenizer, fields[i].text, fields[i].bytes, limits[i],
                                           ids, NULL, err);
        if (code != SW_OK)
            return code;
        sw_text_add(line, "%s", keys[i]);
        sw_jsonl_add_ids(line, ids->ids, ids->count);
    }
    sw_text_add(line, "}\n");
    return sw_text_check(line, "a line of ids", err);
}

static sw_code write_all(struct sw_rows *rows, const char *name,
                         const struct sw_tokenizer *tokenizer,
                         const struct sw_tokenize_options *options, FILE *out,
                         struct sw_tokenize_counts *counts, struct sw_err *err)
{
    struct sw_ids ids = {0};
    struct sw_text line = {0};
    sw_code code = SW_OK;
    while (code == SW_OK) {
        struct sw_rows_field fields[2];
        struct sw_err problem;
        bool end;
        sw_err_init(&problem);
        code = sw_rows_next(rows, fields, &end, err);
        if (code != SW_OK || end)
            break;
        code = write_row(tokenizer, options, fields, &ids, &line, &problem);
        if (code == SW_E_FORMAT && options->skip_bad) {
            counts->skipped++;
            code = SW_OK;
        } else if (code != SW_OK)
            code = SW_FAIL(err, code, "%s, line %lld: %s", name, (long long)sw_rows_line(rows),
                           problem.text);
        else if (fwrite(line.bytes, 1, (size_t)line.used_bytes, out) != (size_t)line.used_bytes)
            code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot write the ids");
        else
            counts->rows++;
    }
    counts->skipped += sw_rows_skipped(rows);
    if (code == SW_OK && fflush(out) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot write the ids");
    free(ids.ids);
    free(line.bytes);
    return code;
}

sw_code sw_tokenize_file(const char *path, const struct sw_tokenizer *tokenizer,
                         const struct sw_tokenize_options *options, FILE *out,
                         struct sw_tokenize_counts *out_counts, struct sw_err *err)
{
    const struct sw_rows_options fields = {
        .fields = {options->source_field != NULL ? options->source_field : "source",
                   options->target_field != NULL ? options->target_field : "target"},
        .fields_count = 2,
        .skip_bad = options->skip_bad,
    };
    struct sw_tokenize_counts counts = {0, 0};
    struct sw_rows *rows;
    sw_code code = sw_rows_open(path, &fields, &rows, err);
    if (code != SW_OK)
        return code;
    code = write_all(rows, path, tokenizer, options, out, &counts, err);
    sw_rows_close(rows);
    if (code == SW_OK)
        *out_counts = counts;
    return code;
}

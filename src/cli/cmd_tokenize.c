/* spillway tokenize */
#include "cli/back_end.h"
#include "data/jsonl_out.h"
#include "data/rows.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

struct columns {
    struct sw_rows *input;
    struct sw_tokenizer *tokenizer;

    int64_t lengths[2];
};

static sw_code print_row(const struct columns *columns, const struct sw_rows_field *fields,
                         struct sw_err *err)
{
    static const char *const keys[] = {"{\"source_ids\": ", ", \"target_ids\": "};
    struct sw_text line = {0};
    struct sw_ids ids = {0};
    sw_code code = SW_OK;
    for (int i = 0; i < 2 && code == SW_OK; i++) {
        ids.count = 0;
        code = sw_tokenizer_encode(columns->tokenizer, fields[i].text, fields[i].bytes,
                                   columns->lengths[i], &ids, NULL, err);
        sw_text_add(&line, "%s", keys[i]);
        sw_jsonl_add_ids(&line, ids.ids, ids.count);
    }
    sw_text_add(&line, "}");
    if (code == SW_OK)
        code = sw_text_check(&line, "a row of output", err);
    if (code == SW_OK && puts(line.bytes) < 0)
        code = SW_FAIL(err, SW_E_IO, "cannot write to standard output");
    free(ids.ids);
    free(line.bytes);
    return code;
}

static sw_code print_all(struct columns *columns, struct sw_err *err)
{
    for (;;) {
        struct sw_rows_field fields[2];
        bool end = false;
        sw_code code = sw_rows_next(columns->input, fields, &end, err);
        if (code == SW_OK && !end)
            code = print_row(columns, fields, err);
        if (code != SW_OK || end)
            return code;
    }
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_command *command = &sw_command_tokenize;
    const char *model = sw_cli_value(command, args, "model");
    const char *input = sw_cli_value(command, args, "input");
    struct sw_config config;
    struct columns columns = {0};
    sw_code code = sw_cli_config(args, NULL, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_cli_integer(command, args, "max-source-length", 1, 32768,
                          config.data.max_source_length, &columns.lengths[0], err);
    if (code == SW_OK)
        code = sw_cli_integer(command, args, "max-target-length", 1, 32768,
                              config.data.max_target_length, &columns.lengths[1], err);
    if (code == SW_OK)
        code = sw_tokenizer_open(model, 0, &columns.tokenizer, err);
    if (code == SW_OK) {
        const struct sw_rows_options rows = {
            .fields = {config.data.source_field, config.data.target_field},
            .fields_count = 2,
            .skip_bad = config.data.on_bad_row == SW_CFG_SKIP};
        code = sw_rows_open(input, &rows, &columns.input, err);
    }
    if (code == SW_OK)
        code = print_all(&columns, err);
    sw_rows_close(columns.input);
    sw_tokenizer_close(columns.tokenizer);
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_tokenize = {
    .name = "tokenize",
    .summary = "show the ids of rows as training sees them",
    .takes_set = true,
    .options = {{"model", "DIR", "the model directory, for its tokenizer"},
                {"input", "FILE|-", "rows: JSONL (or .tsv, .csv); -: standard input"},
                {"max-source-length", "N", "tokens of a source; longer ones are cut (512)"},
                {"max-target-length", "N", "tokens of a target (128)"}},
    .help = "One JSON object a row on standard output: {\"source_ids\": [...], \"target_ids\": "
            "[...]}.\n",
    .needed = {"model", "input"},
    .run = run,
};

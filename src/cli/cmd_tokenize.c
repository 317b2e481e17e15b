/* spillway tokenize */
#include "base/file.h"
#include "base/json.h"
#include "cli/back_end.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "train/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 1 << 24 };

/* vocab_size of the directory's config.json; 0 when there is none: a tokenizer alone will do. */
static sw_code read_vocabulary(const char *model, int64_t *out, struct sw_err *err)
{
    struct sw_json *json = NULL;
    char *path = sw_path_join(model, "config.json");
    sw_code code = path != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    *out = 0;
    if (code == SW_OK && sw_file_exists(path)) {
        code = sw_json_read_file(path, CONFIG_MAX_BYTES, &json, err);
        const struct sw_json *size = code == SW_OK ? sw_json_get(json, "vocab_size") : NULL;
        if (size != NULL && (!sw_json_to_integer(size, out) || *out < 1))
            code = SW_FAIL(err, SW_E_FORMAT, "vocab_size of %s is no number of ids", path);
    }
    if (json != NULL)
        sw_json_free(json);
    free(path);
    return code;
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_command *command = &sw_command_tokenize;
    const char *model = sw_cli_value(command, args, "model");
    const char *input = sw_cli_value(command, args, "input");
    struct sw_tokenizer *tokenizer = NULL;
    struct sw_tokenize_counts counts = {0};
    struct sw_config config;
    int64_t vocabulary = 0;
    sw_code code = sw_cli_config(args, NULL, &config, err);
    if (code != SW_OK)
        return code;
    struct sw_tokenize_options options = {.source_field = config.data.source_field,
                                          .target_field = config.data.target_field,
                                          .skip_bad = config.data.on_bad_row == SW_CFG_SKIP};
    code = sw_cli_integer(command, args, "max-source-length", 1, 32768,
                          config.data.max_source_length, &options.max_source_length, err);
    if (code == SW_OK)
        code = sw_cli_integer(command, args, "max-target-length", 1, 32768,
                              config.data.max_target_length, &options.max_target_length, err);
    if (code == SW_OK && strcmp(input, "-") != 0)
        code = sw_preflight_input("--input", input, err);
    if (code == SW_OK && (read_vocabulary(model, &vocabulary, err) != SW_OK ||
                          sw_tokenizer_open(model, vocabulary, &tokenizer, err) != SW_OK))
        code = sw_err_blame(err, "--model");
    if (code == SW_OK)
        code = sw_tokenize_file(input, tokenizer, &options, stdout, &counts, err);
    if (code == SW_OK && counts.skipped > 0)
        fprintf(stderr, "%lld bad row%s skipped\n", (long long)counts.skipped,
                counts.skipped == 1 ? " was" : "s were");
    sw_tokenizer_close(tokenizer);
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

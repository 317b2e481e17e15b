/* spillway generate */
#include "base/mem.h"
#include "cli/back_end.h"
#include "cli/stop.h"
#include "data/jsonl_out.h"
#include "data/rows.h"
#include "train/generate.h"
#include "train/preflight.h"
#include "train/search.h"
#include "train/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hypotheses computed at once: their logits are vocabulary floats each. */
enum { HYPOTHESES_AT_ONCE = 64, MAX_TOKENS = 4096 };
/* How long a row of a pipe waits for others to be computed with. */
enum { PATIENCE_MILLISECONDS = 100, LISTEN_MILLISECONDS = 500 };

struct generation {
    struct sw_session session;
    struct sw_generator *generator;
    struct sw_rows *input;
    struct sw_ids *sources; /* [rows_at_once] */
    struct sw_row *rows;
    int64_t rows_at_once, max_source_length, done;
    const char *input_name;
    bool skip_bad;
    int64_t skipped; /* for tokens that the model has not */
};

/* Take the next row's source; *taken false when the row is bad and passed over. */
static sw_code take_source(struct generation *g, const struct sw_rows_field *field,
                           struct sw_ids *ids, bool *taken, struct sw_err *err)
{
    struct sw_err problem;
    sw_err_init(&problem);
    ids->count = 0;
    sw_code code = sw_tokenizer_encode(g->session.tokenizer, field->text, field->bytes,
                                       g->max_source_length, ids, NULL, &problem);
    *taken = code == SW_OK;
    if (code == SW_OK)
        return SW_OK;
    if (code == SW_E_FORMAT && g->skip_bad) {
        g->skipped++;
        return SW_OK;
    }
    return SW_FAIL(err, code, "%s, line %lld: %s", g->input_name, (long long)sw_rows_line(g->input),
                   problem.text);
}

/* Read up to rows_at_once sources; of a pipe those that are there, once it has had a moment to
 * bring more. Those before a bad row are handed out with the failure. */
static sw_code read_sources(struct generation *g, int64_t *count, struct sw_err *err)
{
    *count = 0;
    while (*count < g->rows_at_once && !sw_stop_asked()) {
        struct sw_rows_field field;
        bool end = false, taken;
        if (!sw_rows_wait(g->input, *count > 0 ? PATIENCE_MILLISECONDS : LISTEN_MILLISECONDS)) {
            if (*count > 0)
                return SW_OK;
            continue;
        }
        sw_code code = sw_rows_next(g->input, &field, &end, err);
        if (code != SW_OK || end)
            return code;
        struct sw_ids *ids = &g->sources[*count];
        code = take_source(g, &field, ids, &taken, err);
        if (code != SW_OK)
            return code;
        g->rows[*count] = (struct sw_row){.source = ids->ids, .source_length = (int32_t)ids->count};
        *count += taken ? 1 : 0;
    }
    return SW_OK;
}

static sw_code print_row(struct generation *g, int64_t row, struct sw_err *err)
{
    struct sw_text line = {0}, text = {0};
    int64_t count;
    const int32_t *ids = sw_generator_ids(g->generator, row, &count);
    sw_code code = sw_tokenizer_decode(g->session.tokenizer, ids, count, &text, err);
    if (code == SW_OK) {
        sw_text_add(&line, "{\"ids\": ");
        sw_jsonl_add_ids(&line, ids, count);
        sw_text_add(&line, ", \"text\": ");
        sw_jsonl_add_string(&line, text.bytes != NULL ? text.bytes : "", text.used_bytes);
        sw_text_add(&line, "}\n");
        code = sw_text_check(&line, "a row of output", err);
    }
    if (code == SW_OK &&
        fwrite(line.bytes, 1, (size_t)line.used_bytes, stdout) != (size_t)line.used_bytes)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot write to standard output");
    free(line.bytes);
    free(text.bytes);
    return code;
}

/* Answer the rows that were read. */
static sw_code answer(struct generation *g, int64_t count, struct sw_err *err)
{
    sw_code code = sw_generator_run(g->generator, g->rows, count, err);
    for (int64_t row = 0; row < count && code == SW_OK; row++)
        code = print_row(g, row, err);
    if (code == SW_OK && fflush(stdout) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot write to standard output");
    if (code != SW_OK)
        return code;
    g->done += count;
    g->session.progress.what = "generating, bytes of input";
    sw_progress_share(&g->session.progress, sw_rows_bytes_read(g->input),
                      sw_rows_file_bytes(g->input) > 0 ? sw_rows_file_bytes(g->input) : 0);
    return SW_OK;
}

static sw_code generate_all(struct generation *g, struct sw_err *err)
{
    for (;;) {
        struct sw_err bad;
        int64_t count;
        sw_err_init(&bad);
        sw_code code = read_sources(g, &count, &bad);
        if (sw_stop_asked())
            return SW_FAIL(err, SW_E_STOPPED, "stopped: %lld row%s answered, those behind are not",
                           (long long)g->done, g->done == 1 ? " is" : "s are");
        if (count > 0 && answer(g, count, err) != SW_OK)
            return err->code;
        if (code != SW_OK)
            return SW_FAIL_OS(err, code, bad.os_errno, "%s", bad.text);
        if (count == 0)
            break;
    }
    g->skipped += sw_rows_skipped(g->input);
    if (g->skipped > 0)
        sw_progress_say(&g->session.progress, "skipped %lld bad row%s%s%s", (long long)g->skipped,
                        sw_text_plural(g->skipped),
                        sw_rows_skipped(g->input) > 0 ? ", the first: " : "",
                        sw_rows_first_skipped(g->input));
    return SW_OK;
}

/* A plan for as many rows at once as fit. */
static sw_code plan(struct generation *g, int64_t beams, int64_t tokens, struct sw_err *err)
{
    struct sw_plan_request request;
    sw_code code = sw_session_request(&g->session, SW_FOR_GENERATION, &request, err);
    if (code != SW_OK)
        return code;
    request.source_length = g->max_source_length;
    request.generation_beams = beams;
    request.generation_length = tokens;
    for (;; g->rows_at_once = (g->rows_at_once + 1) / 2) {
        struct sw_err problem;
        sw_err_init(&problem);
        request.generation_rows = g->rows_at_once;
        code = sw_session_plan(&g->session, &request, &problem);
        if (code != SW_E_FIT || g->rows_at_once == 1) {
            if (code != SW_OK)
                *err = problem;
            return code;
        }
    }
}

static sw_code prepare(struct generation *g, int64_t beams, int64_t tokens, struct sw_err *err)
{
    struct sw_session *session = &g->session;
    sw_code code = plan(g, beams, tokens, err);
    if (code == SW_OK)
        code = sw_session_load(session, err);
    if (code != SW_OK)
        return code;
    const struct sw_generator_config config = {
        .engine = session->engine,
        .rows = g->rows_at_once,
        .beams = beams,
        .max_tokens = tokens,
        .vocabulary = session->model->t5.vocab_size,
        .start = session->model->t5.decoder_start_id,
        .eos = session->model->t5.eos_id,
    };
    code = sw_generator_open(&g->generator, &config, err);
    g->sources = sw_calloc(g->rows_at_once, sizeof *g->sources);
    g->rows = sw_calloc(g->rows_at_once, sizeof *g->rows);
    if (code == SW_OK && (g->sources == NULL || g->rows == NULL))
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to generate");
    return code == SW_OK ? sw_engine_start(session->engine, err) : code;
}

static void close_all(struct generation *g)
{
    for (int64_t i = 0; g->sources != NULL && i < g->rows_at_once; i++)
        free(g->sources[i].ids);
    free(g->sources);
    free(g->rows);
    sw_generator_close(g->generator);
    sw_rows_close(g->input);
    sw_session_close(&g->session);
}

static sw_code run_with(const struct sw_cli_args *args, const struct sw_config *config,
                        struct sw_err *err)
{
    const struct sw_command *command = &sw_command_generate;
    const char *model = sw_cli_value(command, args, "model");
    const char *input = sw_cli_value(command, args, "input");
    const struct sw_device_ops *device;
    struct generation g = {0};
    int64_t beams = 1, tokens = 0;
    sw_code code = sw_cli_integer(command, args, "beams", 1, SW_SEARCH_BEAMS_MAX, 1, &beams, err);
    if (code == SW_OK)
        code = sw_cli_integer(command, args, "max-new-tokens", 1, MAX_TOKENS, 128, &tokens, err);
    if (code == SW_OK)
        code = sw_cli_integer(command, args, "max-source-length", 1, 32768,
                              config->data.max_source_length, &g.max_source_length, err);
    if (code == SW_OK && strcmp(input, "-") != 0)
        code = sw_preflight_input("--input", input, err);
    if (code == SW_OK)
        code = sw_back_end_choose(config, &device, err);
    if (code != SW_OK)
        return code;
    g.rows_at_once = HYPOTHESES_AT_ONCE / beams;
    g.input_name = strcmp(input, "-") == 0 ? "standard input" : input;
    g.skip_bad = config->data.on_bad_row == SW_CFG_SKIP;
    const struct sw_rows_options rows = {.fields = {config->data.source_field},
                                         .fields_count = 1,
                                         .skip_bad = g.skip_bad,
                                         .stop_requested = sw_stop_asked};
    code = sw_session_open(&g.session, config, device, model, "--model", err);
    if (code == SW_OK)
        code = sw_rows_open(input, &rows, &g.input, err);
    if (code == SW_OK)
        code = prepare(&g, beams, tokens, err);
    if (code == SW_OK) {
        sw_memory_unseal(); /* rows are read and written between the steps */
        sw_stop_watch("\nstopping after these rows; again: at once\n");
        code = generate_all(&g, err);
    }
    close_all(&g);
    return code;
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_config config;
    sw_code code = sw_cli_config(args, NULL, &config, err);
    if (code != SW_OK)
        return code;
    code = run_with(args, &config, err);
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_generate = {
    .name = "generate",
    .summary = "generate target text for the sources of a file",
    .takes_set = true,
    .options = {{"model", "DIR", "the model directory (or a checkpoint)"},
                {"input", "FILE|-",
                 "rows with a source field: JSONL (or .tsv, .csv); -: standard "
                 "input"},
                {"max-new-tokens", "N", "tokens generated at most (128)"},
                {"beams", "K", "beam search over K hypotheses; 1: greedy (1)"},
                {"max-source-length", "N", "tokens of a source; longer ones are cut (512)"}},
    .help = "One JSON object a row on standard output: {\"ids\": [...], \"text\": \"...\"}; ids "
            "without the "
            "start\ntoken, with EOS where it was reached. Rows are answered in their order, those "
            "of a pipe "
            "as they\ncome. Ctrl-C stops between rows with exit status 75.\n",
    .needed = {"model", "input"},
    .run = run,
};

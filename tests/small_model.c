#include "tests/small_model.h"

#include "base/text.h"
#include "data/tokenizer.h"

enum { PIECES = 32 };

#define SHAPE                                                                                      \
    "\"model_type\": \"t5\", \"d_model\": 28, \"d_kv\": 6, \"d_ff\": 50, \"num_heads\": 3, "       \
    "\"num_layers\": 2, \"num_decoder_layers\": 3, \"vocab_size\": 211, \"dropout_rate\": 0.1, "   \
    "\"decoder_start_token_id\": 0, \"pad_token_id\": 0, \"eos_token_id\": 1, "

const struct kind kinds[KINDS] = {
    {"v10", "{" SHAPE "\"feed_forward_proj\": \"relu\", \"tie_word_embeddings\": true}",
     "name: adafactor, lr: 1e-2, scale_parameter: false"},
    {"v11", "{" SHAPE "\"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false}",
     "name: adamw, lr: 5e-3, weight_decay: 0.01, schedule: inverse_sqrt, warmup_steps: 2"},
};

/* ---- the world: rows, a tokenizer, models ---- */

static const char *const numbers[] = {"one", "two",   "three", "four", "five",
                                      "six", "seven", "eight", "nine", "ten"};

static const char *source_of(int row, char text[128])
{
    int first = row % 5, second = row / 5 % 5;
    snprintf(text, 128, "%s %s and %s", row % 3 == 0 ? "the sum of" : "add", numbers[first],
             numbers[second]);
    return text;
}

static const char *target_of(int row)
{
    return numbers[row % 5 + row / 5 % 5 + 1];
}

static bool next_text(void *context, const char **text, int64_t *bytes)
{
    static char source[128];
    int *at = context;
    if (*at == 2 * ROWS)
        return false;
    *text = *at % 2 == 0 ? source_of(*at / 2, source) : target_of(*at / 2);
    *bytes = (int64_t)strlen(*text);
    (*at)++;
    return true;
}

void run(const struct world *world, int status, const char *in, const char *format, ...)
{
    char words[8192];
    va_list list;
    va_start(list, format);
    int bytes = vsnprintf(words, sizeof words, format, list);
    va_end(list);
    assert_true(bytes > 0 && bytes < (int)sizeof words);
    int got = spillway_words(world->out, world->log, in, words);
    if (got != status)
        fail_msg("spillway %s: status %d: %s", words, got, read_text(world->log));
}

static void make_model(const struct world *world, const struct kind *kind)
{
    char name[64], *config;
    snprintf(name, sizeof name, "%s.json", kind->name);
    config = at(world->directory, name);
    write_text(config, kind->config);
    run(world, 0, NULL, "init --config %s --tokenizer %s/spiece.model --out %s/%s --seed 3", config,
        world->directory, world->directory, kind->name);
    free(config);
}

static void write_job(const struct world *world, const struct kind *kind)
{
    struct sw_text text = {0};
    char name[64], *path;
    snprintf(name, sizeof name, "%s.yaml", kind->name);
    path = at(world->directory, name);
    sw_text_add(&text,
                "model: {path: \"%s/%s\"}\n"
                "data: {train: \"%s\", eval: \"%s\", max_source_length: 24, max_target_length: 8}\n"
                "train: {steps: 7, global_batch: 8, micro_batch: 3}\n"
                "optimizer: {%s}\n"
                "devices: {kind: cpu, threads: 1}\n"
                "output: {dir: \"%s/unnamed\", save_every: 3, keep_last: 0}\n",
                world->directory, kind->name, world->rows, world->rows, kind->optimizer,
                world->directory);
    assert_non_null(text.bytes);
    write_text(path, text.bytes);
    free(text.bytes);
    free(path);
}

int make_world(void **state)
{
    struct sw_err err = {0};
    struct world *world = calloc(1, sizeof *world);
    struct sw_text text = {0};
    char source[128];
    int at_text = 0;
    assert_non_null(world);
    *state = world;
    world->directory = sw_test_scratch();
    world->rows = at(world->directory, "rows.jsonl");
    world->out = at(world->directory, "out");
    world->log = at(world->directory, "log");
    for (int row = 0; row < ROWS; row++)
        sw_text_add(&text, "{\"source\": \"%s\", \"target\": \"%s\"}\n", source_of(row, source),
                    target_of(row));
    write_text(world->rows, text.bytes);
    free(text.bytes);
    const struct sw_tokenizer_training training = {
        .next = next_text, .context = &at_text, .pieces = PIECES};
    char *spiece = at(world->directory, "spiece.model");
    assert_ok(sw_tokenizer_train(&training, spiece, &err), &err);
    free(spiece);
    for (int i = 0; i < KINDS; i++) {
        make_model(world, &kinds[i]);
        write_job(world, &kinds[i]);
    }
    return 0;
}

int remove_world(void **state)
{
    struct world *world = *state;
    free(world->rows);
    free(world->out);
    free(world->log);
    sw_test_scratch_remove(world->directory);
    free(world);
    return 0;
}

void expect_in_log(const struct world *world, const char *part)
{
    char *log = read_text(world->log);
    if (strstr(log, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, log);
    free(log);
}

void expect_no_output(const struct world *world)
{
    char *out = read_text(world->out);
    assert_string_equal(out, "");
    free(out);
}

/* A scratch directory with a model of a few thousand parameters, rows and a job, for tests that run
 * command lines on them. */
#ifndef SPILLWAY_TESTS_WORLD_H
#define SPILLWAY_TESTS_WORLD_H

#include "tests/command.h"

#include "base/json.h"
#include "data/tokenizer.h"

struct world {
    char *at; /* a scratch directory: model, rows.jsonl, eval.jsonl, job.yaml */
};

#define CONFIG(MODEL, FEED)                                                                        \
    "{\"model_type\": \"t5\", \"d_model\": " #MODEL ", \"d_kv\": 4, \"d_ff\": " #FEED              \
    ", \"num_layers\": 1, \"num_decoder_layers\": 1, \"num_heads\": 2, \"vocab_size\": 128,"       \
    " \"relative_attention_num_buckets\": 8, \"feed_forward_proj\": \"relu\","                     \
    " \"decoder_start_token_id\": 0, \"pad_token_id\": 0, \"eos_token_id\": 1,"                    \
    " \"dropout_rate\": 0.1, \"is_encoder_decoder\": true, \"tie_word_embeddings\": true}\n"

enum { ROWS = 24 };

static inline char *in(const struct world *world, const char *name)
{
    char *path = sw_path_join(world->at, name);
    assert_non_null(path);
    return path;
}

static inline bool has(const struct world *world, const char *name)
{
    char *path = in(world, name);
    bool exists = sw_file_exists(path);
    free(path);
    return exists;
}

static inline void put(const struct world *world, const char *name, const char *text)
{
    struct sw_err err;
    char *path = in(world, name);
    sw_err_init(&err);
    assert_ok(sw_file_write_atomic(path, text, (int64_t)strlen(text), &err), &err);
    free(path);
}

static inline char *get(const struct world *world, const char *name)
{
    char *path = in(world, name), *text = sw_test_slurp(path);
    free(path);
    return text;
}

static inline void drop(const struct world *world, const char *name)
{
    struct sw_err err;
    char *path = in(world, name);
    sw_err_init(&err);
    assert_ok(sw_directory_remove(path, &err), &err);
    free(path);
}

/* Number `key` of line `line` (from 0) of a JSONL file. */
static inline double field(const struct world *world, const char *name, int line, const char *key)
{
    struct sw_err err;
    struct sw_json *json;
    double value = 0;
    char *path = in(world, name), *text = sw_test_slurp(path), *at = text;
    sw_err_init(&err);
    for (; line > 0; line--) {
        at = strchr(at, '\n');
        assert_non_null(at);
        at++;
    }
    assert_ok(sw_json_parse(at, (int64_t)strcspn(at, "\n"), path, &json, &err), &err);
    if (!sw_json_to_double(sw_json_get(json, key), &value))
        fail_msg("%s has no number %s: %s", path, key, at);
    sw_json_free(json);
    free(text);
    free(path);
    return value;
}

/* A command; "@" is the scratch directory. */
static inline void expect(const struct world *world, const char *line, int status, const char *part)
{
    struct sw_test_output output = sw_test_expect(world->at, line, status, part);
    sw_test_output_free(&output);
}

static inline bool next_text(void *context, const char **text, int64_t *bytes)
{
    static const char *const texts[] = {"a b c", "a a a", "b c a", "x y z"};
    int *at = context;
    if (*at == 200)
        return false;
    *text = texts[(*at)++ % 4];
    *bytes = 5;
    return true;
}

static inline void make_model(const struct world *world)
{
    struct sw_err err;
    int at = 0;
    char *spiece = in(world, "spiece.model");
    sw_err_init(&err);
    struct sw_tokenizer_training training = {
        .next = next_text, .context = &at, .pieces = 12, .character_coverage = 1};
    assert_ok(sw_tokenizer_train(&training, spiece, &err), &err);
    free(spiece);
    put(world, "config.json", CONFIG(16, 32));
    expect(world, "init --config @/config.json --tokenizer @/spiece.model --out @/model", 0,
           "parameters");
}

static inline void make_job(const struct world *world)
{
    char text[8192];
    size_t used = 0;
    for (int i = 0; i < ROWS; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"source\": \"a %s %s\", \"target\": \"%s\"}\n",
                                 i % 2 ? "b" : "c", i % 3 ? "x" : "y z", i % 2 ? "b a" : "c");
    put(world, "rows.jsonl", text);
    text[used / 2] = '\0';
    *(strrchr(text, '\n') + 1) = '\0';
    put(world, "eval.jsonl", text);
    snprintf(text, sizeof text,
             "model: {path: \"%s/model\"}\n"
             "data: {train: \"%s/rows.jsonl\", max_source_length: 12, max_target_length: 6}\n"
             "train: {steps: 4, global_batch: 4}\n"
             "devices: {kind: cpu}\n"
             "output: {dir: \"%s/run\"}\n",
             world->at, world->at, world->at);
    put(world, "job.yaml", text);
}

static inline int sw_test_world_open(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    world->at = sw_test_scratch();
    make_model(world);
    make_job(world);
    *state = world;
    return 0;
}

static inline int sw_test_world_close(void **state)
{
    struct world *world = *state;
    sw_test_scratch_remove(world->at);
    free(world);
    return 0;
}

#endif

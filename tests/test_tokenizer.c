#include "support.h"

#include "base/json.h"
#include "data/rows.h"
#include "data/spm_check.h"
#include "data/tokenizer.h"

#include <dirent.h>

/* --- with a tokenizer that the test trains ------------------------------------------- */

static bool next_text(void *context, const char **text, int64_t *bytes)
{
    static const char *const texts[] = {
        "the quick brown fox jumps over the lazy dog 0123456789",
        "pack my box with five dozen liquor jugs",
        "how vexingly quick daft zebras jump",
        "caf\303\251 na\303\257ve \303\274ber",
    };
    int *at = context;
    if (*at == 400)
        return false;
    *text = texts[(*at)++ % 4];
    *bytes = (int64_t)strlen(*text);
    return true;
}

struct world {
    char *directory, *path;
    struct sw_tokenizer *tokenizer;
};

enum { PIECES = 60 };

static sw_code train(const char *path, int64_t pieces, struct sw_err *err)
{
    int at = 0;
    struct sw_tokenizer_training training = {.next = next_text,
                                             .context = &at,
                                             .pieces = pieces,
                                             .split_digits = true,
                                             .character_coverage = 1};
    return sw_tokenizer_train(&training, path, err);
}

static int setup(void **state)
{
    struct sw_err err = {0};
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    world->directory = sw_test_scratch();
    world->path = sw_path_join(world->directory, "spiece.model");
    assert_ok(train(world->path, PIECES, &err), &err);
    assert_ok(sw_tokenizer_open(world->directory, 0, &world->tokenizer, &err), &err);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    sw_tokenizer_close(world->tokenizer);
    free(world->path);
    sw_test_scratch_remove(world->directory);
    free(world);
    return 0;
}

/* The ids of a text as text: "1 2 3". */
static const char *ids_of(const struct sw_tokenizer *tokenizer, const char *text,
                          int64_t max_length, bool *out_truncated)
{
    static char out[1 << 16];
    struct sw_err err = {0};
    struct sw_ids ids = {0};
    size_t used = 0;
    assert_ok(sw_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), max_length, &ids,
                                  out_truncated, &err),
              &err);
    out[0] = '\0';
    for (int64_t i = 0; i < ids.count && used < sizeof out; i++)
        used +=
            (size_t)snprintf(out + used, sizeof out - used, i > 0 ? " %d" : "%d", (int)ids.ids[i]);
    free(ids.ids);
    return out;
}

static void assert_round_trip(const struct sw_tokenizer *tokenizer, const char *text,
                              const char *wanted)
{
    struct sw_err err = {0};
    struct sw_ids ids = {0};
    struct sw_text out = {0};
    assert_ok(sw_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), 0, &ids, NULL, &err),
              &err);
    assert_int_equal(ids.ids[ids.count - 1], sw_tokenizer_eos(tokenizer));
    assert_ok(sw_tokenizer_decode(tokenizer, ids.ids, ids.count, &out, &err), &err);
    assert_string_equal(out.bytes != NULL ? out.bytes : "", wanted);
    free(ids.ids);
    free(out.bytes);
}

static void test_training_is_repeatable(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    char *again = sw_path_join(world->directory, "again.model"), *a, *b;
    int64_t a_bytes, b_bytes;
    assert_ok(train(again, PIECES, &err), &err);
    assert_ok(sw_file_read(world->path, 1 << 20, &a, &a_bytes, &err), &err);
    assert_ok(sw_file_read(again, 1 << 20, &b, &b_bytes, &err), &err);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, (size_t)a_bytes);
    assert_refused(train(again, 5000, &err), SW_E_USAGE, "5000 pieces cannot be trained: Vocab",
                   &err);
    assert_refused(train(again, 3, &err), SW_E_USAGE, "give 4 or more", &err);
    free(a);
    free(b);
    free(again);
}

static void test_ids_are_those_of_t5(void **state)
{
    struct world *world = *state;
    assert_int_equal(sw_tokenizer_vocabulary(world->tokenizer), PIECES + 100);
    assert_int_equal(sw_tokenizer_eos(world->tokenizer), 1);
    assert_string_equal(ids_of(world->tokenizer, "", 0, NULL), "1");
    assert_string_equal(ids_of(world->tokenizer, " \t\r\n ", 0, NULL), "1");
    assert_string_equal(ids_of(world->tokenizer, "<pad></s><unk>", 0, NULL), "0 1 2 1");
    assert_string_equal(ids_of(world->tokenizer, "<extra_id_0><extra_id_7> <extra_id_99>", 0, NULL),
                        "159 152 60 1");
    assert_round_trip(world->tokenizer, "the  quick \n brown fox", "the quick brown fox");
    assert_round_trip(world->tokenizer, "caf\xC3\xA9</s>over<extra_id_3> 0042 <pad>",
                      "caf\xC3\xA9 over 0042");
    assert_round_trip(world->tokenizer, "fox\xC2\x85jumps", "fox jumps");
    assert_round_trip(world->tokenizer, "fox\xF0\x9F\x99\x82jumps", "foxjumps"); /* unknown */
}

static void test_truncation_keeps_eos(void **state)
{
    struct world *world = *state;
    bool truncated;
    char all[256];
    strcpy(all, ids_of(world->tokenizer, "0123", 0, &truncated));
    assert_false(truncated);
    assert_string_equal(ids_of(world->tokenizer, "0123", 1, &truncated), "1");
    assert_true(truncated);
    assert_string_equal(ids_of(world->tokenizer, "", 1, &truncated), "1");
    assert_false(truncated);
    /* space, four digits and EOS: 6 fit, 5 do not */
    assert_string_equal(ids_of(world->tokenizer, "0123", 6, &truncated), all);
    assert_false(truncated);
    const char *cut = ids_of(world->tokenizer, "0123", 5, &truncated);
    assert_true(truncated);
    assert_memory_equal(cut, all, strlen(cut) - 2);
    assert_string_equal(cut + strlen(cut) - 2, " 1");
}

static void test_long_and_strange_texts(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    enum { BYTES = 400000 };
    struct sw_ids ids = {0};
    bool truncated;
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (int i = 0; i < BYTES; i++)
        text[i] = "fox </s>"[i % 8];
    assert_ok(sw_tokenizer_encode(world->tokenizer, text, BYTES, 0, &ids, &truncated, &err), &err);
    assert_true(ids.count > BYTES / 8 * 2 && !truncated);
    ids.count = 0;
    assert_ok(sw_tokenizer_encode(world->tokenizer, text, BYTES, 512, &ids, &truncated, &err),
              &err);
    assert_true(ids.count == 512 && truncated);
    ids.count = 1; /* appends, and keeps what was there */
    assert_ok(sw_tokenizer_encode(world->tokenizer, "a\0b", 3, 0, &ids, NULL, &err), &err);
    assert_true(ids.count > 4);
    free(text);
    free(ids.ids);
}

static void test_sentinels_of_the_directory(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer;
    char *config = sw_path_join(world->directory, "tokenizer_config.json");
    assert_ok(sw_file_write_atomic(config, "{\"extra_ids\": 0}", 16, &err), &err);
    assert_ok(sw_tokenizer_open(world->directory, PIECES, &tokenizer, &err), &err);
    assert_int_equal(sw_tokenizer_vocabulary(tokenizer), PIECES);
    sw_tokenizer_close(tokenizer);
    assert_ok(sw_file_write_atomic(config, "{\"extra_ids\": -1}", 17, &err), &err);
    assert_refused(sw_tokenizer_open(world->directory, 0, &tokenizer, &err), SW_E_FORMAT,
                   "extra_ids of", &err);
    assert_int_equal(unlink(config), 0);
    free(config);
}

static void test_model_vocabulary(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer;
    struct sw_ids ids = {0};
    assert_refused(sw_tokenizer_open(world->directory, PIECES - 1, &tokenizer, &err), SW_E_FORMAT,
                   "has 60 pieces, but vocab_size of the model's config.json is 59", &err);
    assert_ok(sw_tokenizer_open(world->directory, PIECES + 50, &tokenizer, &err), &err);
    assert_ok(sw_tokenizer_encode(tokenizer, "<extra_id_50>", 13, 0, &ids, NULL, &err), &err);
    assert_refused(sw_tokenizer_encode(tokenizer, "fox <extra_id_49>", 17, 0, &ids, NULL, &err),
                   SW_E_FORMAT, "<extra_id_49>, whose id 110 is beyond", &err);
    assert_int_equal(ids.count, 2); /* as before */
    free(ids.ids);
    sw_tokenizer_close(tokenizer);
}

static void test_damaged_files(void **state)
{
    struct world *world = *state;
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer = NULL;
    char *bytes;
    int64_t count;
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    assert_ok(sw_file_read(world->path, 1 << 20, &bytes, &count, &err), &err);
    assert_refused(sw_tokenizer_open_memory(bytes, 0, "x", -1, 0, &tokenizer, &err), SW_E_FORMAT,
                   "x is no SentencePiece model", &err);
    assert_refused(sw_tokenizer_open_memory(bytes, count / 2, "x", -1, 0, &tokenizer, &err),
                   SW_E_FORMAT, "half a download", &err);
    assert_refused(sw_tokenizer_open_memory(lfs, sizeof lfs, "x", -1, 0, &tokenizer, &err),
                   SW_E_FORMAT, "x is a Git LFS pointer", &err);
    assert_refused(sw_tokenizer_open_memory("{\"a\": 1}", 8, "x", -1, 0, &tokenizer, &err),
                   SW_E_FORMAT, "x is no SentencePiece model", &err);
    /* a file of which single bytes are wrong is refused or works, and never crashes */
    int64_t refused = 0;
    for (int64_t at = 0; at < count; at += 1999) {
        struct sw_ids ids = {0};
        char held = bytes[at];
        bytes[at] = (char)~held;
        if (sw_tokenizer_open_memory(bytes, count, "x", -1, 0, &tokenizer, &err) != SW_OK)
            refused++;
        else {
            assert_ok(sw_tokenizer_encode(tokenizer, "caf\xC3\xA9 \xEF\xAC\x81ne \xE2\x85\xAB", 13,
                                          0, &ids, NULL, &err),
                      &err);
            sw_tokenizer_close(tokenizer);
        }
        sw_err_init(&err);
        bytes[at] = held;
        free(ids.ids);
    }
    assert_true(refused > 0);
    assert_refused(sw_tokenizer_open("/nowhere/spiece.model", 0, &tokenizer, &err), SW_E_IO,
                   "/nowhere/spiece.model", &err);
    assert_int_equal(unlink(world->path), 0);
    assert_refused(sw_tokenizer_open(world->directory, 0, &tokenizer, &err), SW_E_IO,
                   "spiece.model is not there", &err);
    assert_ok(sw_file_write_atomic(world->path, bytes, count, &err), &err);
    free(bytes);
}

/* Wherever a download ends, between two pieces too, what is there of the file is refused. */
static void test_cut_files(void **state)
{
    const struct world *world = *state;
    struct sw_err err = {0};
    char *bytes;
    int64_t count;
    assert_ok(sw_file_read(world->path, 1 << 20, &bytes, &count, &err), &err);
    assert_ok(sw_spm_check(bytes, count, "x", &err), &err);
    for (int64_t cut = 0; cut < count; cut++) {
        if (sw_spm_check(bytes, cut, "x", &err) != SW_E_FORMAT)
            fail_msg("%lld bytes of %lld are accepted", (long long)cut, (long long)count);
        sw_err_init(&err);
    }
    free(bytes);
}

/* A model of one piece whose normalizer has a table for "a", "aa", ... up to `depth` letters, each
 * with a rule. The last unit's children are said to be at `last_base`. */
static sw_code check_table(int depth, uint32_t last_base, struct sw_err *err)
{
    enum { BLOCK = 256, LETTER = 'a' };
    const uint32_t units = (uint32_t)(depth + 2) * BLOCK, blob = 4 + units * 4 + 2;
    unsigned char *model = calloc(1, blob + 64), *at = model, *table;
    assert_non_null(model);
    /* pieces { piece: "a" }, an empty trainer_spec, then the normalizer's tag */
    const unsigned char head[] = {0x0A, 3, 0x0A, 1, 'a', 0x12, 0, 0x1A};
    memcpy(at, head, sizeof head);
    at += sizeof head;
    /* two lengths as varints of four bytes: the normalizer's and, as its field 2, the table's */
    for (int i = 0; i < 2; i++) {
        uint32_t bytes = i == 0 ? blob + 5 : blob;
        if (i == 1)
            *at++ = 0x12;
        for (int k = 0; k < 4; k++)
            *at++ = (unsigned char)((bytes >> 7 * k & 0x7F) | (k < 3 ? 0x80 : 0));
    }
    uint32_t trie_bytes = units * 4;
    memcpy(at, &trie_bytes, 4);
    table = at + 4;
    for (uint32_t k = 0, index = 0; k <= (uint32_t)depth; k++) {
        /* unit k is letter k of the way; its children are in block k + 1 */
        uint32_t base = k == (uint32_t)depth ? last_base : (k + 1) * BLOCK;
        uint32_t leaf = k > 0 ? 0x100 : 0, value = 0x80000000u;
        uint32_t unit = (index ^ base) << 10 | leaf | (k > 0 ? LETTER : 0);
        memcpy(table + index * 4, &unit, 4);
        if (base < units) /* without a value: what no byte matches */
            memcpy(table + base * 4, &value, 4);
        index = base + LETTER;
    }
    memcpy(table + trie_bytes, "b", 2);
    sw_code code = sw_spm_check(model, table + trie_bytes + 2 - model, "x", err);
    free(model);
    return code;
}

/* The library keeps what it finds on one way in an array of 32, and never looks where it ends. */
static void test_damaged_tables(void **state)
{
    (void)state;
    struct sw_err err = {0};
    assert_ok(check_table(1, 2 * 256, &err), &err);
    assert_ok(check_table(32, 33 * 256, &err), &err);
    assert_refused(check_table(33, 34 * 256, &err), SW_E_FORMAT, "table is damaged", &err);
    assert_refused(check_table(3, 5 * 256, &err), SW_E_FORMAT, "table is damaged", &err); /* end */
    assert_refused(check_table(3, 1 * 256, &err), SW_E_FORMAT, "table is damaged",
                   &err); /* circle */
}

/* --- against what transformers 5.24 computes ----------------------------------------- */

static const struct {
    const char *text, *ids, *decoded;
} as_transformers[] = {
    {"", "1", ""},
    {"   ", "1", ""},
    {"hello </s> world", "71 166 202 202 135 1 75 1", "hello world"},
    {"hello</s>world", "71 166 202 202 135 1 75 1", "hello world"},
    {"</s>", "1 1", ""},
    {"a <extra_id_0>  b", "132 304 128 1", "a b"},
    {"<extra_id_0>", "304 1", ""},
    {"<extra_id_99>x", "205 14 2 1", ""},
    {"<extra_id_100>", "14 2 166 2 10 31 170 2 168 174 2 192 2 1", "etraid1"},
    {"<extra_id_00>", "14 2 166 2 10 31 170 2 168 174 2 1", "etraid"},
    {" <pad>x<unk>y <unk>", "0 14 2 2 165 2 1", " y"},
    {"kid  teacher\n\tlife", "81 22 37 1", "kid teacher life"},
    {"na\303\257ve caf\303\251 Gr\303\266\303\237e \342\205\253 \357\254\201ne",
     "154 150 155 147 159 1", "na\303\257ve caf\303\251 Gr\303\266\303\237e XII fine"},
    {"\346\227\245\346\234\254\350\252\236 kid", "14 2 81 1", " kid"},
    {"a\302\205b", "132 128 1", "a b"},
    {"x\343\200\200\302\240y", "14 2 165 1", " y"},
    {"</s", "14 2 167 1", "s"},
    {"<<extra_id_1>>", "14 2 303 14 2 1", " "},
    {"\342\200\213ab", "132 197 1", "ab"},
    {"<s>", "14 2 167 2 1", "s"},
};

static void test_as_transformers(void **state)
{
    (void)state;
    static const struct {
        int64_t max_length;
        const char *ids;
    } cuts[] = {{1, "1"},
                {2, "81 1"},
                {4, "81 22 37 1"},
                {5, "81 22 37 82 1"},
                {6, "81 22 37 82 1 1"},
                {7, "81 22 37 82 1 89 1"},
                {20, "81 22 37 82 1 89 1"}};
    const char *golden = sw_test_golden_dir();
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer;
    if (golden == NULL)
        skip();
    char *path = sw_path_join(golden, "t5v10-relu-tied/model");
    assert_ok(sw_tokenizer_open(path, 512, &tokenizer, &err), &err);
    assert_int_equal(sw_tokenizer_vocabulary(tokenizer), 305);
    for (size_t i = 0; i < sizeof as_transformers / sizeof *as_transformers; i++) {
        assert_string_equal(ids_of(tokenizer, as_transformers[i].text, 0, NULL),
                            as_transformers[i].ids);
        assert_round_trip(tokenizer, as_transformers[i].text, as_transformers[i].decoded);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        assert_string_equal(
            ids_of(tokenizer, "kid teacher life home </s> people", cuts[i].max_length, NULL),
            cuts[i].ids);
    sw_tokenizer_close(tokenizer);
    free(path);
}

/* The ids of the first rows of one reference case. Returns the number of texts compared. */
static int64_t compare_case(const char *directory)
{
    static const char *const fields[] = {"source", "target"};
    struct sw_err err = {0};
    struct sw_json *expect;
    struct sw_tokenizer *tokenizer;
    struct sw_rows *rows;
    struct sw_rows_options options = {.fields = {"source", "target"}, .fields_count = 2};
    struct sw_ids ids = {0};
    int64_t limits[2] = {0}, compared = 0;
    char *path = sw_path_join(directory, "expect.json");
    assert_ok(sw_json_read_file(path, 1 << 26, &expect, &err), &err);
    free(path);
    assert_true(sw_json_to_integer(sw_json_get(expect, "max_source_length"), &limits[0]));
    assert_true(sw_json_to_integer(sw_json_get(expect, "max_target_length"), &limits[1]));
    path = sw_path_join(directory, "model");
    assert_ok(sw_tokenizer_open(path, 0, &tokenizer, &err), &err);
    free(path);
    path = sw_path_join(directory, "train.jsonl");
    assert_ok(sw_rows_open(path, &options, &rows, &err), &err);
    free(path);
    const struct sw_json *wanted = sw_json_get(expect, "token_ids");
    for (int64_t row = 0; row < sw_json_count(wanted); row++) {
        struct sw_rows_field texts[2];
        bool end;
        assert_ok(sw_rows_next(rows, texts, &end, &err), &err);
        assert_false(end);
        for (int i = 0; i < 2; i++, compared++) {
            const struct sw_json *list = sw_json_at(sw_json_at(wanted, row), i);
            ids.count = 0;
            assert_ok(sw_tokenizer_encode(tokenizer, texts[i].text, texts[i].bytes, limits[i], &ids,
                                          NULL, &err),
                      &err);
            bool equal = ids.count == sw_json_count(list);
            for (int64_t k = 0; equal && k < ids.count; k++) {
                int64_t id = -1;
                equal = sw_json_to_integer(sw_json_at(list, k), &id) && id == ids.ids[k];
            }
            if (!equal)
                fail_msg("%s, row %d: other ids for its %s", directory, (int)row + 1, fields[i]);
        }
    }
    free(ids.ids);
    sw_rows_close(rows);
    sw_tokenizer_close(tokenizer);
    sw_json_free(expect);
    return compared;
}

static void test_reference_cases(void **state)
{
    (void)state;
    const char *golden = sw_test_golden_dir();
    if (golden == NULL)
        skip();
    DIR *directory = opendir(golden);
    const struct dirent *entry;
    int64_t compared = 0;
    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL) {
        char *path = sw_path_join(golden, entry->d_name);
        char *model = sw_path_join(path, "model/spiece.model");
        if (sw_file_exists(model))
            compared += compare_case(path);
        free(model);
        free(path);
    }
    closedir(directory);
    assert_true(compared > 0);
}

/* A model with other ids of its own: <unk> 0, <s> 1, </s> 2, and no <pad>. */
static void test_foreign_model(void **state)
{
    (void)state;
    const char *golden = sw_test_golden_dir();
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer;
    if (golden == NULL)
        skip();
    char *path = sw_path_join(golden, "../tokenizers/test_sentencepiece.model");
    if (!sw_file_exists(path)) {
        printf("skipped: no %s\n", path);
        free(path);
        skip();
    }
    assert_ok(sw_tokenizer_open(path, 0, &tokenizer, &err), &err);
    assert_int_equal(sw_tokenizer_vocabulary(tokenizer), 1100);
    assert_int_equal(sw_tokenizer_eos(tokenizer), 2);
    assert_round_trip(tokenizer, "This is a test", "This is a test");
    assert_string_equal(ids_of(tokenizer, "<unk><extra_id_0>", 0, NULL), "0 1099 2");
    sw_tokenizer_close(tokenizer);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_is_repeatable),
        cmocka_unit_test(test_ids_are_those_of_t5),
        cmocka_unit_test(test_truncation_keeps_eos),
        cmocka_unit_test(test_long_and_strange_texts),
        cmocka_unit_test(test_sentinels_of_the_directory),
        cmocka_unit_test(test_model_vocabulary),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_damaged_tables),
        cmocka_unit_test(test_as_transformers),
        cmocka_unit_test(test_reference_cases),
        cmocka_unit_test(test_foreign_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

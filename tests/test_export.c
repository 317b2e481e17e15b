/* Writing model directories. */
#include "support.h"

#include "base/json.h"
#include "ckpt/config_text.h"
#include "ckpt/export.h"
#include "io/model_dir.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

static char *scratch, *source, *target;
static struct sw_err err;

static const struct sw_export_tensor tensors[] = {
    {"shared.weight", 2, {10, 4}}, {"a.weight", 1, {7}},    {"scalar", 0, {0}},
    {"empty", 2, {0, 3}},          {"b.weight", 2, {3, 5}},
};
enum { TENSOR_COUNT = 5, ELEMENTS = 40 + 7 + 1 + 15 };

static void put(const char *directory, const char *name, const char *text)
{
    char *path = sw_path_join(directory, name);
    assert_non_null(path);
    assert_ok(sw_file_write_atomic(path, text, (int64_t)strlen(text), &err), &err);
    free(path);
}

static void assert_text(const char *directory, const char *name, const char *expected)
{
    char *path = sw_path_join(directory, name), *text = NULL;
    assert_non_null(path);
    assert_ok(sw_file_read(path, 1 << 20, &text, NULL, &err), &err);
    assert_string_equal(text, expected);
    free(text);
    free(path);
}

static bool exists(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    bool answer = path != NULL && sw_file_exists(path);
    free(path);
    return answer;
}

static int entries(const char *directory)
{
    int count = 0;
    DIR *open = opendir(directory);
    assert_non_null(open);
    while (readdir(open) != NULL)
        count++;
    closedir(open);
    return count - 2;
}

static float element(int64_t index)
{
    return (float)index * 0.3f - 7;
}

/* Write all elements in pieces of `piece`, which cross tensors. */
static void write_all(struct sw_export *export, int64_t piece)
{
    float values[ELEMENTS];
    for (int64_t i = 0; i < ELEMENTS; i++)
        values[i] = element(i);
    for (int64_t done = 0; done < ELEMENTS; done += piece)
        assert_ok(sw_export_write(export, values + done,
                                  ELEMENTS - done < piece ? ELEMENTS - done : piece, &err),
                  &err);
}

static struct sw_export *begin(enum sw_dtype dtype, int64_t max_shard_bytes)
{
    struct sw_export *export;
    const struct sw_export_options options = {
        .directory = target, .source = source, .dtype = dtype, .max_shard_bytes = max_shard_bytes};
    assert_ok(sw_export_begin(&export, &options, tensors, TENSOR_COUNT, &err), &err);
    return export;
}

static float rounded(float value, enum sw_dtype dtype)
{
    return dtype == SW_F32    ? value
           : dtype == SW_BF16 ? sw_bf16_to_float(sw_float_to_bf16(value))
                              : sw_f16_to_float(sw_float_to_f16(value));
}

static void check_weights(enum sw_dtype dtype, int64_t files)
{
    struct sw_model_dir *model;
    int64_t at = 0;
    float values[64];
    assert_ok(sw_model_dir_open(target, &model, &err), &err);
    assert_int_equal(model->tensor_count, TENSOR_COUNT);
    assert_int_equal(model->file_count, files);
    for (int i = 0; i < TENSOR_COUNT; i++) {
        const struct sw_tensor *tensor = sw_model_dir_find(model, tensors[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, dtype);
        assert_int_equal(tensor->dims, tensors[i].dims);
        for (int32_t d = 0; d < tensor->dims; d++)
            assert_int_equal(tensor->shape[d], tensors[i].shape[d]);
        assert_ok(sw_tensor_read_float(tensor, 0, tensor->elements, values, &err), &err);
        for (int64_t e = 0; e < tensor->elements; e++) {
            float expected = rounded(element(at++), dtype);
            assert_memory_equal(&values[e], &expected, sizeof expected);
        }
    }
    assert_int_equal(at, ELEMENTS);
    sw_model_dir_close(model);
}

static void test_one_file(void **state)
{
    (void)state;
    static const enum sw_dtype dtypes[] = {SW_F32, SW_BF16, SW_F16};
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    char config[256];
    put(source, "spiece.model", "tokens");
    put(source, "tokenizer_config.json", "{\"x\": 1}");
    put(source, "generation_config.json", "{}");
    put(source, "README.md", "not copied");
    for (int i = 0; i < 3; i++) {
        struct sw_export *export = begin(dtypes[i], 0);
        assert_true(sw_file_is_directory(sw_export_directory(export)));
        put(sw_export_directory(export), "state.json", "{}");
        write_all(export, 11);
        assert_false(i == 0 && sw_file_exists(target));
        assert_ok(sw_export_commit(export, &err), &err);
        check_weights(dtypes[i], 1);
        snprintf(
            config, sizeof config,
            "{\n  \"d_model\": 4,\n  \"torch_dtype\": \"%s\",\n  \"x\": [1, {\"dtype\": 2}]\n}\n",
            names[i]);
        assert_text(target, "config.json", config);
        assert_text(target, "spiece.model", "tokens");
        assert_text(target, "tokenizer_config.json", "{\"x\": 1}");
        assert_true(exists(target, "generation_config.json"));
        assert_true(exists(target, "state.json"));
        assert_true(exists(target, "model.safetensors"));
        assert_int_equal(entries(target), 6);
        /* nothing is left beside it: source and target only */
        assert_int_equal(entries(scratch), 2);
    }
}

static void test_shards(void **state)
{
    (void)state;
    struct sw_json *root;
    int64_t total = 0;
    struct sw_export *export = begin(SW_F32, 100);
    write_all(export, 1);
    assert_ok(sw_export_commit(export, &err), &err);
    /* 160 bytes alone, 28 + 4 + 0 + 60 together */
    check_weights(SW_F32, 2);
    assert_true(exists(target, "model-00001-of-00002.safetensors"));
    assert_false(exists(target, "model.safetensors"));
    char *index = sw_path_join(target, "model.safetensors.index.json");
    assert_ok(sw_json_read_file(index, 1 << 20, &root, &err), &err);
    assert_true(
        sw_json_to_integer(sw_json_get(sw_json_get(root, "metadata"), "total_size"), &total));
    assert_int_equal(total, ELEMENTS * 4);
    assert_string_equal(sw_json_to_string(sw_json_get(sw_json_get(root, "weight_map"), "b.weight")),
                        "model-00002-of-00002.safetensors");
    sw_json_free(root);
    free(index);
    /* shards as small as can be, in place of the two, which go */
    export = begin(SW_F32, 1);
    write_all(export, 63);
    assert_ok(sw_export_commit(export, &err), &err);
    /* the empty tensor finds room in the shard of the next one */
    check_weights(SW_F32, 4);
    assert_false(exists(target, "model-00001-of-00002.safetensors"));
    /* exactly full */
    export = begin(SW_F32, 92);
    write_all(export, 63);
    assert_ok(sw_export_commit(export, &err), &err);
    check_weights(SW_F32, 2);
}

static void test_failures_leave_nothing(void **state)
{
    (void)state;
    const float zeros[4] = {0};
    struct sw_export *export = begin(SW_F32, 0);
    write_all(export, 63);
    assert_ok(sw_export_commit(export, &err), &err);
    export = begin(SW_BF16, 0);
    assert_ok(sw_export_write(export, zeros, 4, &err), &err);
    sw_export_abort(export);
    check_weights(SW_F32, 1);
    export = begin(SW_BF16, 0);
    assert_ok(sw_export_write(export, zeros, 4, &err), &err);
    assert_refused(sw_export_commit(export, &err), SW_E_FAILED, "4 of 63 elements", &err);
    check_weights(SW_F32, 1);
    assert_int_equal(entries(scratch), 2);
    const struct sw_export_options options = {.directory = target, .source = source};
    const struct sw_export_tensor huge = {"w", 2, {INT64_C(1) << 40, 1 << 18}};
    assert_refused(sw_export_begin(&export, &options, &huge, 1, &err), SW_E_IO,
                   "its file system has", &err);
    const struct sw_export_tensor overflow = {"w", 2, {INT64_C(1) << 40, 1 << 30}};
    assert_refused(sw_export_begin(&export, &options, &overflow, 1, &err), SW_E_FAILED,
                   "the size of tensor w overflows", &err);
    put(source, "config.json", "[]");
    assert_refused(sw_export_begin(&export, &options, tensors, TENSOR_COUNT, &err), SW_E_FORMAT,
                   "is not a JSON object", &err);
    check_weights(SW_F32, 1);
    assert_int_equal(entries(scratch), 2);
    put(scratch, "file", "x");
    char *file = sw_path_join(scratch, "file");
    const struct sw_export_options onto_file = {.directory = file, .source = source};
    assert_refused(sw_export_begin(&export, &onto_file, tensors, TENSOR_COUNT, &err), SW_E_IO,
                   "is a file: a model is written as a directory", &err);
    free(file);
}

/* A write that fails half way, as on a full disk: here a limit on the size of a file. */
static void test_failing_write(void **state)
{
    (void)state;
    static const float zeros[ELEMENTS];
    struct rlimit before, small;
    struct sw_export *export = begin(SW_F32, 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 600; /* the header fits, the data does not */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    sw_code code = sw_export_write(export, zeros, ELEMENTS, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(code, SW_E_IO);
    assert_non_null(strstr(err.text, "cannot write"));
    assert_non_null(strstr(err.text, "while writing 252 bytes of tensors to a file system with"));
    sw_err_init(&err);
    sw_export_abort(export);
    assert_false(sw_file_exists(target));
    assert_int_equal(entries(scratch), 1);
}

/* A killed export leaves its directory; the next one removes it, and none that is in use. */
static void test_stale_directories_go(void **state)
{
    (void)state;
    put(scratch, "target-2", "not mine");
    char *stale = sw_path_join(scratch, "target.tmp-4711-0"),
         *kept = sw_path_join(scratch, "target.tm");
    assert_ok(sw_directory_make(stale, &err), &err);
    assert_ok(sw_directory_make(kept, &err), &err);
    put(stale, "model.safetensors", "half");
    struct sw_export *first = begin(SW_F32, 0);
    assert_false(sw_file_exists(stale));
    struct sw_export *second = begin(SW_F32, 0);
    write_all(first, 63);
    assert_ok(sw_export_commit(first, &err), &err);
    check_weights(SW_F32, 1);
    write_all(second, 63);
    assert_ok(sw_export_commit(second, &err), &err);
    check_weights(SW_F32, 1);
    assert_int_equal(entries(scratch), 4);
    free(stale);
    free(kept);
}

/* Parents are made, slashes at the end and links are fine, the source may be the target. */
static void test_targets(void **state)
{
    (void)state;
    struct sw_export *export;
    char *link = sw_path_join(scratch, "link");
    char *deep = sw_path_join(scratch, "x/y/z///");
    assert_int_equal(symlink(source, link), 0);
    free(target);
    target = deep;
    export = begin(SW_F32, 0);
    write_all(export, 63);
    assert_ok(sw_export_commit(export, &err), &err);
    check_weights(SW_F32, 1);
    target = link;
    put(source, "spiece.model", "tokens");
    export = begin(SW_F32, 0);
    write_all(export, 63);
    assert_ok(sw_export_commit(export, &err), &err);
    struct stat status;
    assert_int_equal(lstat(link, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    check_weights(SW_F32, 1);
    assert_text(source, "spiece.model", "tokens");
    free(deep);
}

static void test_without_weights(void **state)
{
    (void)state;
    struct sw_export *export;
    struct sw_model_dir *model;
    const struct sw_export_options options = {
        .directory = target, .config_text = "{\"dtype\":null}", .dtype = SW_BF16};
    assert_ok(sw_export_begin(&export, &options, NULL, 0, &err), &err);
    assert_ok(sw_export_commit(export, &err), &err);
    assert_text(target, "config.json", "{\"dtype\":\"bfloat16\"}");
    assert_int_equal(entries(target), 1);
    assert_refused(sw_model_dir_open(target, &model, &err), SW_E_FORMAT, "has no weights", &err);
}

static void test_config_text(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{}", "{}"},
        {" {\"a\" : 1 }\n", " {\"a\" : 1 }\n"},
        {"{\"torch_dtype\":\"float16\"}", "{\"torch_dtype\":\"F\"}"},
        {"{\"dtype\" : null, \"a\": \"\\\"dtype\\\": \\\\\"}", "{\"dtype\" : \"F\", \"a\": "
                                                               "\"\\\"dtype\\\": \\\\\"}"},
        {"{\"x\":{\"dtype\":\"k\"},\"y\":[\"dtype\",[{}]],\"dtype\":\"k\",\"z\":-1.5e3}",
         "{\"x\":{\"dtype\":\"k\"},\"y\":[\"dtype\",[{}]],\"dtype\":\"F\",\"z\":-1.5e3}"},
        {"{\"torch_dtype\":\"a}\",\"dtype\":[1,{\"b\":2}]}",
         "{\"torch_dtype\":\"F\",\"dtype\":\"F\"}"},
    };
    struct sw_text text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        text.used_bytes = 0;
        assert_ok(sw_config_text_set_dtype(cases[i].before, "c", "F", &text, &err), &err);
        assert_string_equal(text.bytes, cases[i].after);
    }
    assert_refused(sw_config_text_set_dtype("{", "c", "F", &text, &err), SW_E_FORMAT, "c is not",
                   &err);
    free(text.bytes);
}

static int set_up(void **state)
{
    (void)state;
    sw_err_init(&err);
    scratch = sw_test_scratch();
    source = sw_path_join(scratch, "source");
    target = sw_path_join(scratch, "target");
    assert_ok(sw_directory_make(source, &err), &err);
    put(source, "config.json",
        "{\n  \"d_model\": 4,\n  \"torch_dtype\": \"float16\",\n"
        "  \"x\": [1, {\"dtype\": 2}]\n}\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(source);
    free(target);
    sw_test_scratch_remove(scratch);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_one_file),
        TEST(test_shards),
        TEST(test_failures_leave_nothing),
        TEST(test_targets),
        TEST(test_without_weights),
        TEST(test_config_text),
        TEST(test_failing_write),
        TEST(test_stale_directories_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

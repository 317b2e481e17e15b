#include "support.h"

#include "base/json.h"
#include "base/text.h"

#include <math.h>

static sw_code parse(const char *text, struct sw_json **out, struct sw_err *err)
{
    return sw_json_parse(text, (int64_t)strlen(text), "x.json", out, err);
}

static void test_values(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_json *root;
    assert_ok(parse("{\"a\": [1, 2.5, true, null, \"s\"], \"b\": {}}", &root, &err), &err);
    const struct sw_json *a = sw_json_get(root, "a");
    int64_t integer = 0;
    double real = 0;
    bool flag = false;
    assert_int_equal(sw_json_count(root), 2);
    assert_int_equal(sw_json_count(a), 5);
    assert_true(sw_json_to_integer(sw_json_at(a, 0), &integer));
    assert_int_equal(integer, 1);
    assert_true(sw_json_to_double(sw_json_at(a, 0), &real));
    assert_true(sw_json_to_double(sw_json_at(a, 1), &real));
    assert_true(real >= 2.5 && real <= 2.5);
    assert_false(sw_json_to_integer(sw_json_at(a, 1), &integer));
    assert_true(sw_json_to_bool(sw_json_at(a, 2), &flag));
    assert_true(flag);
    assert_int_equal(sw_json_kind(sw_json_at(a, 3)), SW_JSON_NULL);
    assert_string_equal(sw_json_to_string(sw_json_at(a, 4)), "s");
    assert_null(sw_json_to_string(sw_json_at(a, 0)));
    assert_null(sw_json_at(a, 5));
    assert_null(sw_json_at(a, -1));
    assert_null(sw_json_get(root, "c"));
    assert_null(sw_json_get(a, "c"));
    assert_null(sw_json_get(NULL, "c"));
    assert_false(sw_json_to_integer(NULL, &integer));
    assert_string_equal(sw_json_kind_name(a), "a list");
    sw_json_free(root);
    sw_json_free(NULL);
}

static void test_walk_keeps_order(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_json *root;
    assert_ok(parse("{\"z\": 1, \"a\": 2, \"m\": 3}", &root, &err), &err);
    void *cursor = NULL;
    const char *key;
    const struct sw_json *value;
    char seen[8] = "";
    while (sw_json_next(root, &cursor, &key, &value))
        strcat(seen, key);
    assert_string_equal(seen, "zam");
    sw_json_free(root);
}

static void test_refused(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_json *root = NULL;
    static const char *const bad[] = {
        "",
        "7",
        "{",
        "{} {}",
        "{\"a\": 1, \"a\": 1}",
        "{\"a\": \"\\u0000\"}",
        "{\"a\": \"\xff\"}",
        "{\"a\": 99999999999999999999}",
        "{\"a\": NaN}",
        "[1,]",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(parse(bad[i], &root, &err), SW_E_FORMAT, "x.json is not valid JSON: line",
                       &err);
    assert_refused(parse("{\"a\": \"\\u0000\"}", &root, &err), SW_E_FORMAT,
                   "\\u0000 in a string is not taken", &err);
    assert_null(root);
    char *deep = malloc(1000001);
    assert_non_null(deep);
    memset(deep, '[', 1000000);
    deep[1000000] = '\0';
    assert_refused(parse(deep, &root, &err), SW_E_FORMAT, "depth", &err);
    free(deep);
    assert_refused(sw_json_read_file("/nowhere.json", 10, &root, &err), SW_E_IO,
                   "cannot open /nowhere.json", &err);
}

static void test_text_is_json(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_text text = {0};
    struct sw_json *root;
    static const char *const strange = "q\" b\\ n\n t\t e\x1b d\x7f é";
    static const double numbers[] = {0, 0.1, 1e-6, -1.0 / 3, 1e300, 5e-324, 123456789012345678.0};
    sw_text_add(&text, "[");
    sw_text_add_json_string(&text, strange);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sw_text_add(&text, ",");
        sw_text_add_json_double(&text, numbers[i]);
    }
    sw_text_add(&text, ",");
    sw_text_add_json_double(&text, (double)INFINITY);
    sw_text_add(&text, "]%2000s", "");
    assert_ok(sw_text_check(&text, "a test", &err), &err);
    assert_int_equal(strlen(text.bytes), text.used_bytes);
    assert_non_null(strstr(text.bytes, ",0.1,1e-06,"));
    assert_ok(sw_json_parse(text.bytes, text.used_bytes, "text", &root, &err), &err);
    assert_string_equal(sw_json_to_string(sw_json_at(root, 0)), strange);
    for (int64_t i = 0; i < (int64_t)(sizeof numbers / sizeof numbers[0]); i++) {
        double value;
        assert_true(sw_json_to_double(sw_json_at(root, i + 1), &value));
        assert_memory_equal(&value, &numbers[i], sizeof value);
    }
    assert_int_equal(sw_json_kind(sw_json_at(root, 8)), SW_JSON_NULL);
    sw_json_free(root);
    free(text.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_walk_keeps_order),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_text_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

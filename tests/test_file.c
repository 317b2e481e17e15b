#include "support.h"

#include <errno.h>
#include <fcntl.h>

static char *scratch;

static char *in_scratch(const char *name)
{
    char *path = sw_path_join(scratch, name);
    assert_non_null(path);
    return path;
}

static void test_paths(void **state)
{
    (void)state;
    static const struct {
        const char *directory, *name, *joined;
    } joins[] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}};
    for (size_t i = 0; i < sizeof joins / sizeof joins[0]; i++) {
        char *path = sw_path_join(joins[i].directory, joins[i].name);
        assert_string_equal(path, joins[i].joined);
        free(path);
    }
    static const char *const parents[][2] = {{"a/b", "a"}, {"a", "."}, {"/a", "/"}, {"/a/b", "/a"}};
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++) {
        char *path = sw_path_parent(parents[i][0]);
        assert_string_equal(path, parents[i][1]);
        free(path);
    }
    assert_string_equal(sw_path_name("a/b.c"), "b.c");
    assert_string_equal(sw_path_name("b.c"), "b.c");
}

static void test_write_then_read(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *path = in_scratch("file"), *text;
    int64_t bytes;
    assert_ok(sw_file_write_atomic(path, "one\0two", 7, &err), &err);
    assert_ok(sw_file_read(path, 7, &text, &bytes, &err), &err);
    assert_int_equal(bytes, 7);
    assert_memory_equal(text, "one\0two", 8);
    free(text);
    assert_refused(sw_file_read(path, 6, &text, &bytes, &err), SW_E_FORMAT, "larger than the 6",
                   &err);
    assert_ok(sw_file_write_atomic(path, "", 0, &err), &err);
    assert_ok(sw_file_read(path, 0, &text, NULL, &err), &err);
    assert_string_equal(text, "");
    free(text);
    assert_refused(sw_file_read(scratch, 9, &text, &bytes, &err), SW_E_IO, "directory", &err);
    free(path);
}

/* A failed write leaves the old file and nothing beside it. */
static void test_failed_write_keeps_old(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *path = in_scratch("target"), *inside = in_scratch("target/x");
    assert_ok(sw_directory_make(inside, &err), &err);
    assert_refused(sw_file_write_atomic(path, "new", 3, &err), SW_E_IO, "cannot rename", &err);
    assert_true(sw_file_is_directory(inside));
    char *temporary = malloc(4096);
    assert_non_null(temporary);
    snprintf(temporary, 4096, "%s.tmp-%ld", path, (long)getpid());
    assert_false(sw_file_exists(temporary));
    free(temporary);
    free(inside);
    free(path);
}

static void test_pread_past_end(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *path = in_scratch("short"), buffer[8];
    int descriptor;
    int64_t bytes;
    assert_ok(sw_file_write_atomic(path, "12345", 5, &err), &err);
    assert_ok(sw_file_open(path, &descriptor, &bytes, &err), &err);
    assert_int_equal(bytes, 5);
    assert_ok(sw_file_pread(descriptor, buffer, 3, 2, path, &err), &err);
    assert_memory_equal(buffer, "345", 3);
    assert_refused(sw_file_pread(descriptor, buffer, 4, 2, path, &err), SW_E_FORMAT,
                   "ends at byte 5, 1 bytes too early", &err);
    close(descriptor);
    free(path);
}

static void test_open_refuses_pipes_without_waiting(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *path = in_scratch("pipe");
    int descriptor;
    int64_t bytes;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(sw_file_open(path, &descriptor, &bytes, &err), SW_E_FORMAT, "not a regular file",
                   &err);
    free(path);
}

static void test_copy(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *from = in_scratch("from"), *to = in_scratch("to"), *got;
    int64_t bytes = (1 << 20) + 17, got_bytes;
    char *data = malloc((size_t)bytes);
    assert_non_null(data);
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (char)(i * 31 % 251);
    assert_ok(sw_file_write_atomic(from, data, bytes, &err), &err);
    assert_ok(sw_file_copy(from, to, &err), &err);
    assert_ok(sw_file_read(to, bytes, &got, &got_bytes, &err), &err);
    assert_int_equal(got_bytes, bytes);
    assert_memory_equal(got, data, (size_t)bytes);
    assert_refused(sw_file_copy(from, to, &err), SW_E_IO, "File exists", &err);
    assert_true(sw_file_exists(to));
    free(got);
    free(data);
    free(from);
    free(to);
}

static void test_directories(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *deep = in_scratch("a/b/c"), *top = in_scratch("a"), *file = in_scratch("a/b/f");
    char *below = in_scratch("a/b/f/d"), *link = in_scratch("a/link"), *kept = in_scratch("kept");
    assert_ok(sw_directory_make(deep, &err), &err);
    assert_ok(sw_directory_make(deep, &err), &err);
    assert_ok(sw_file_write_atomic(file, "x", 1, &err), &err);
    assert_refused(sw_directory_make(below, &err), SW_E_IO, "a/b/f: File exists", &err);
    assert_ok(sw_file_write_atomic(kept, "x", 1, &err), &err);
    assert_int_equal(symlink(kept, link), 0);
    assert_ok(sw_directory_remove(top, &err), &err);
    assert_false(sw_file_exists(top));
    assert_true(sw_file_exists(kept));
    assert_ok(sw_directory_remove(top, &err), &err);
    assert_true(sw_directory_free_bytes(scratch) > 0);
    free(deep);
    free(top);
    free(file);
    free(below);
    free(link);
    free(kept);
}

static int setup(void **state)
{
    (void)state;
    scratch = sw_test_scratch();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sw_test_scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_write_then_read),
        cmocka_unit_test(test_failed_write_keeps_old),
        cmocka_unit_test(test_pread_past_end),
        cmocka_unit_test(test_open_refuses_pipes_without_waiting),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_directories),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

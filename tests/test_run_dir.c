/* The run directory: refusals, the lock, newest and pruned checkpoints. */
#include "tests/support.h"

#include "ckpt/run_dir.h"

static void make_entry(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(sw_directory_make(path, &err), &err);
    free(path);
}

static bool has_entry(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    bool found = sw_file_exists(path);
    free(path);
    return found;
}

static void a_run_is_refused_unless_resuming(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    char *scratch = sw_test_scratch();
    struct sw_run_dir *run;
    assert_ok(sw_run_dir_open(&run, scratch, false, &err), &err);
    assert_int_equal(sw_run_dir_newest(run), -1);
    sw_run_dir_close(run);
    make_entry(scratch, "checkpoint-7");
    assert_refused(sw_run_dir_open(&run, scratch, false, &err), SW_E_USAGE, "--resume auto", &err);
    assert_ok(sw_run_dir_open(&run, scratch, true, &err), &err);
    assert_int_equal(sw_run_dir_newest(run), 7);
    sw_run_dir_close(run);
    sw_test_scratch_remove(scratch);
}

static void one_process_at_a_time(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    char *scratch = sw_test_scratch();
    struct sw_run_dir *first, *second;
    assert_ok(sw_run_dir_open(&first, scratch, false, &err), &err);
    assert_refused(sw_run_dir_open(&second, scratch, true, &err), SW_E_FAILED, "another process",
                   &err);
    sw_run_dir_close(first);
    assert_ok(sw_run_dir_open(&second, scratch, true, &err), &err);
    sw_run_dir_close(second);
    sw_test_scratch_remove(scratch);
}

static void old_checkpoints_go_and_others_stay(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    char *scratch = sw_test_scratch();
    static const char *const names[] = {"checkpoint-5",  "checkpoint-40", "checkpoint-300",
                                        "checkpoint-x9", "checkpoint-",   "checkpoint-7.tmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make_entry(scratch, names[i]);
    struct sw_run_dir *run;
    assert_ok(sw_run_dir_open(&run, scratch, true, &err), &err);
    assert_int_equal(sw_run_dir_newest(run), 300);
    assert_ok(sw_run_dir_prune(run, 0, &err), &err);
    assert_true(has_entry(scratch, "checkpoint-5"));
    assert_ok(sw_run_dir_prune(run, 2, &err), &err);
    assert_false(has_entry(scratch, "checkpoint-5"));
    for (size_t i = 1; i < sizeof names / sizeof *names; i++)
        assert_true(has_entry(scratch, names[i]));
    sw_run_dir_close(run);
    sw_test_scratch_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_refused_unless_resuming),
        cmocka_unit_test(one_process_at_a_time),
        cmocka_unit_test(old_checkpoints_go_and_others_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

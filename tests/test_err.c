/* The first failure wins, callers add to it, long texts are cut, and codes have the exit statuses
 * of DESIGN. */
#include "tests/support.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

static void first_failure_wins(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    assert_int_equal(err.code, SW_OK);
    assert_int_equal(SW_FAIL(&err, SW_E_FORMAT, "%s: byte %d is odd", "a.bin", 7), SW_E_FORMAT);
    int line = __LINE__ - 1;
    assert_int_equal(SW_FAIL(&err, SW_E_USAGE, "later"), SW_E_FORMAT);
    assert_string_equal(err.text, "a.bin: byte 7 is odd");
    assert_string_equal(err.file, __FILE__);
    assert_int_equal(err.line, line);
    assert_int_equal(err.os_errno, 0);
    assert_int_equal(SW_FAIL(NULL, SW_E_IO, "nobody listens"), SW_E_IO);
}

static void the_systems_reason_is_added(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    assert_int_equal(SW_FAIL_OS(&err, SW_E_IO, ENOENT, "cannot open x"), SW_E_IO);
    assert_int_equal(err.os_errno, ENOENT);
    assert_string_equal(err.text, "cannot open x: No such file or directory");
}

static void callers_say_what_they_did(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    assert_int_equal(sw_err_while(&err, "doing nothing"), SW_OK);
    assert_string_equal(err.text, "");
    (void)SW_FAIL(&err, SW_E_MEMORY, "no memory");
    assert_int_equal(sw_err_while(&err, "reading %s", "m"), SW_E_MEMORY);
    assert_int_equal(sw_err_while(&err, "loading"), SW_E_MEMORY);
    assert_string_equal(err.text, "no memory, while reading m, while loading");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct sw_err err;
    char text[2 * SW_ERR_TEXT_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sw_err_init(&err);
    (void)SW_FAIL_OS(&err, SW_E_IO, EIO, "%s", text);
    (void)sw_err_while(&err, "%s", text);
    assert_int_equal(strlen(err.text), SW_ERR_TEXT_BYTES - 1);
}

static void exit_statuses(void **state)
{
    (void)state;
    assert_int_equal(sw_code_exit_status(SW_OK), 0);
    assert_int_equal(sw_code_exit_status(SW_E_USAGE), 2);
    assert_int_equal(sw_code_exit_status(SW_E_FIT), 3);
    assert_int_equal(sw_code_exit_status(SW_E_STOPPED), 75);
    static const sw_code others[] = {SW_E_FAILED, SW_E_IO,     SW_E_FORMAT,
                                     SW_E_MEMORY, SW_E_DEVICE, SW_E_NONFINITE};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(sw_code_exit_status(others[i]), 1);
}

static void assertions_stay_on(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(9);
        sw_assert(getpid() > 0);
        sw_assert(getpid() < 0);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),
        cmocka_unit_test(the_systems_reason_is_added),
        cmocka_unit_test(callers_say_what_they_did),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(exit_statuses),
        cmocka_unit_test(assertions_stay_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

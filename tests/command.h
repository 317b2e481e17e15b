/* Command lines in tests, with their status and output. */
#ifndef SPILLWAY_TESTS_COMMAND_H
#define SPILLWAY_TESTS_COMMAND_H

#include "tests/support.h"

#include "cli/command.h"

enum { SW_TEST_TEXT_MAX = 1 << 24, SW_TEST_WORDS = 48 };

struct sw_test_output {
    int status;
    char *out, *log; /* owned */
};

static inline char *sw_test_slurp(const char *path)
{
    struct sw_err err;
    char *text;
    sw_err_init(&err);
    assert_ok(sw_file_read(path, SW_TEST_TEXT_MAX, &text, NULL, &err), &err);
    return text;
}

static inline void sw_test_output_free(struct sw_test_output *output)
{
    free(output->out);
    free(output->log);
}

/* Run the command line `argv` with its output caught. */
static inline struct sw_test_output sw_test_command(int argc, char **argv)
{
    char *work = sw_test_scratch();
    char *out = sw_path_join(work, "out"), *log = sw_path_join(work, "log");
    fflush(NULL);
    int keep[2] = {dup(1), dup(2)};
    assert_non_null(freopen(out, "w", stdout));
    assert_non_null(freopen(log, "w", stderr));
    struct sw_test_output output = {.status = sw_main(argc, argv)};
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(keep[i], i + 1);
        close(keep[i]);
    }
    output.out = sw_test_slurp(out);
    output.log = sw_test_slurp(log);
    free(out);
    free(log);
    sw_test_scratch_remove(work);
    return output;
}

/* Run the words of `line`, "@" in them standing for `place` (NULL: nothing). The status must be as
 * wanted, and `part` be in the output or the log. */
static inline struct sw_test_output sw_test_expect(const char *place, const char *line, int status,
                                                   const char *part)
{
    char *argv[SW_TEST_WORDS] = {strdup("spillway")}, *copy = strdup(line), *save = NULL;
    int argc = 1;
    for (char *word = strtok_r(copy, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        char text[8192], *at = place != NULL ? strchr(word, '@') : NULL;
        if (at != NULL)
            snprintf(text, sizeof text, "%.*s%s%s", (int)(at - word), word, place, at + 1);
        else
            snprintf(text, sizeof text, "%s", word);
        assert_true(argc < SW_TEST_WORDS - 1);
        argv[argc++] = strdup(text);
    }
    struct sw_test_output output = sw_test_command(argc, argv);
    if (output.status != status)
        fail_msg("spillway %s: status %d: %s", line, output.status, output.log);
    if (strstr(output.out, part) == NULL && strstr(output.log, part) == NULL)
        fail_msg("spillway %s: \"%s\" is neither in \"%s\" nor in \"%s\"", line, part, output.out,
                 output.log);
    while (argc > 0)
        free(argv[--argc]);
    free(copy);
    return output;
}

#endif

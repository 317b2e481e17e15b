#include "tests/cli_run.h"

#include "cli/command.h"

#include <math.h>
#include <signal.h>

enum { TEXT_MAX = 1 << 26, ROWS_MAX = 256, WORDS_MAX = 64 };

int spillway(const char *out, const char *log, const char *in, char **arguments)
{
    int argc = 0;
    fflush(NULL);
    int keep[3] = {dup(0), dup(1), dup(2)};
    while (arguments[argc] != NULL)
        argc++;
    assert_non_null(freopen(in != NULL ? in : "/dev/null", "r", stdin));
    assert_non_null(freopen(out, "w", stdout));
    assert_non_null(freopen(log, "w", stderr));
    int status = sw_main(argc, arguments);
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        dup2(keep[i], i);
        close(keep[i]);
    }
    return status;
}

/* The words of `copy`, which is cut up, as a command line that ends with NULL. */
static void split(char *copy, char *argv[WORDS_MAX])
{
    char *save = NULL;
    int argc = 0;
    assert_non_null(copy);
    argv[argc++] = (char[]){"spillway"};
    for (char *word = strtok_r(copy, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        assert_true(argc < WORDS_MAX - 1);
        argv[argc++] = word;
    }
    argv[argc] = NULL;
}

int spillway_words(const char *out, const char *log, const char *in, const char *words)
{
    char *argv[WORDS_MAX], *copy = strdup(words);
    split(copy, argv);
    int status = spillway(out, log, in, argv);
    free(copy);
    return status;
}

pid_t spillway_start(const char *log, const char *words, int *in, int *out)
{
    int inner[2], outer[2];
    assert_true(pipe(inner) == 0 && pipe(outer) == 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) {
        close(inner[0]);
        close(outer[1]);
        *in = inner[1];
        *out = outer[0];
        return child;
    }
    char *argv[WORDS_MAX], *copy = strdup(words);
    int argc = 0;
    /* Under nohup the tests ignore it, and so would the command, for ever. */
    (void)signal(SIGHUP, SIG_DFL);
    split(copy, argv);
    while (argv[argc] != NULL)
        argc++;
    dup2(inner[0], STDIN_FILENO);
    dup2(outer[1], STDOUT_FILENO);
    close(inner[0]);
    close(inner[1]);
    close(outer[0]);
    close(outer[1]);
    if (freopen(log, "w", stderr) == NULL)
        _exit(99);
    int status = sw_main(argc, argv);
    free(copy);
    fflush(NULL);
    _exit(status);
}

char *at(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    assert_non_null(path);
    return path;
}

char *read_text(const char *path)
{
    struct sw_err err;
    char *text;
    sw_err_init(&err);
    assert_ok(sw_file_read(path, TEXT_MAX, &text, NULL, &err), &err);
    return text;
}

void write_text(const char *path, const char *text)
{
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(sw_file_write_atomic(path, text, (int64_t)strlen(text), &err), &err);
}

struct sw_json *read_json(const char *path)
{
    struct sw_err err;
    struct sw_json *json;
    sw_err_init(&err);
    assert_ok(sw_json_read_file(path, TEXT_MAX, &json, &err), &err);
    return json;
}

double number(const struct sw_json *object, const char *key)
{
    double value = (double)NAN;
    if (!sw_json_to_double(sw_json_get(object, key), &value))
        fail_msg("no number %s", key);
    return value;
}

struct sw_json **read_lines(const char *path, int64_t *count)
{
    struct sw_err err;
    char *text = read_text(path);
    struct sw_json **lines = calloc(ROWS_MAX, sizeof *lines);
    *count = 0;
    sw_err_init(&err);
    for (char *line = text; *line != '\0';) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_true(*count < ROWS_MAX);
        assert_ok(sw_json_parse(line, end - line, path, &lines[(*count)++], &err), &err);
        line = end + 1;
    }
    free(text);
    return lines;
}

void free_lines(struct sw_json **lines, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sw_json_free(lines[i]);
    free(lines);
}

void same_file(const char *a, const char *b, const char *name)
{
    struct sw_err err;
    char *x = at(a, name), *y = at(b, name), *p, *q;
    int64_t m, n;
    sw_err_init(&err);
    assert_ok(sw_file_read(x, TEXT_MAX, &p, &m, &err), &err);
    assert_ok(sw_file_read(y, TEXT_MAX, &q, &n, &err), &err);
    assert_int_equal(m, n);
    assert_memory_equal(p, q, (size_t)m);
    char *owned[] = {x, y, p, q};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

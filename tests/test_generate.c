/* spillway generate between other programs: pipes that bring rows late, readers that leave early,
 * interrupts, bad rows, memory that is short. */
#include "tests/small_model.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { LINE_BYTES = 4096, PATIENCE_MILLISECONDS = 120000 };

/* The next line of a pipe; the test fails when it does not come. */
static void read_line(int from, char line[LINE_BYTES])
{
    for (int used = 0; used < LINE_BYTES - 1; used++) {
        struct pollfd descriptor = {.fd = from, .events = POLLIN};
        assert_true(poll(&descriptor, 1, PATIENCE_MILLISECONDS) == 1);
        assert_true(read(from, line + used, 1) == 1);
        if (line[used] == '\n') {
            line[used] = '\0';
            return;
        }
    }
    fail_msg("a line without end");
}

static void write_row(int to, int row)
{
    char line[128];
    int bytes = snprintf(line, sizeof line, "{\"source\": \"add one and %d\"}\n", row);
    assert_true(write(to, line, (size_t)bytes) == bytes);
}

static int wait_for(pid_t child)
{
    int status;
    assert_true(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status))
        fail_msg("ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static pid_t start(const struct world *world, const char *more, int *to, int *from)
{
    char words[LINE_BYTES];
    snprintf(words, sizeof words, "generate --model %s/v10 --input - --max-new-tokens 4%s",
             world->directory, more);
    return spillway_start(world->log, words, to, from);
}

/* Whoever writes a row and waits for its answer before the next gets it. */
static void a_pipe_is_answered_as_it_brings_rows(void **state)
{
    const struct world *world = *state;
    int to, from;
    char line[LINE_BYTES];
    pid_t child = start(world, "", &to, &from);
    for (int row = 0; row < 3; row++) {
        write_row(to, row);
        read_line(from, line);
        assert_non_null(strstr(line, "{\"ids\": ["));
    }
    /* some at a time, the last without a line's end */
    for (int row = 0; row < 5; row++)
        write_row(to, row);
    assert_true(write(to, "{\"source\": \"the end\"}", 21) == 21);
    close(to);
    for (int row = 0; row < 6; row++)
        read_line(from, line);
    assert_true(read(from, line, 1) == 0);
    assert_int_equal(wait_for(child), 0);
    close(from);
}

static void a_reader_that_leaves_is_no_failure(void **state)
{
    static const char *const commands[] = {
        /* 4 rows at once */
        "generate --max-new-tokens 4 --beams 16",
        "generate --max-new-tokens 4",
        "tokenize",
    };
    const struct world *world = *state;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (int lines = 0; lines < 2; lines++) {
            int to, from;
            char words[LINE_BYTES], line[LINE_BYTES], *log;
            snprintf(words, sizeof words, "%s --model %s/v10 --input %s", commands[i],
                     world->directory, world->rows);
            pid_t child = spillway_start(world->log, words, &to, &from);
            if (lines > 0)
                read_line(from, line);
            close(from);
            assert_int_equal(wait_for(child), 0);
            close(to);
            log = read_text(world->log);
            if (strstr(log, "cannot write") != NULL || strstr(log, "spillway:") != NULL)
                fail_msg("%s: %s", words, log);
            free(log);
        }
    /* a drive that is full is one */
    if (access("/dev/full", W_OK) == 0) {
        char words[LINE_BYTES];
        snprintf(words, sizeof words, "%s --model %s/v10 --input %s", commands[1], world->directory,
                 world->rows);
        assert_int_equal(spillway_words("/dev/full", world->log, NULL, words), 1);
        expect_in_log(world, "cannot write to standard output: No space left");
    }
}

static void an_interrupt_stops_between_rows(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct world *world = *state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        int to, from;
        char line[LINE_BYTES];
        pid_t child = start(world, "", &to, &from);
        write_row(to, 1);
        read_line(from, line);
        assert_true(kill(child, signals[i]) == 0);
        assert_int_equal(wait_for(child), 75);
        assert_true(read(from, line, 1) == 0);
        close(to);
        close(from);
        expect_in_log(world, "stopped: 1 row is answered, those behind are not");
    }
}

/* Half a line, and then nothing: Ctrl-C is heard all the same. */
static void an_interrupt_is_heard_in_the_middle_of_a_line(void **state)
{
    const struct world *world = *state;
    int to, from;
    char line[LINE_BYTES];
    pid_t child = start(world, "", &to, &from);
    write_row(to, 1);
    read_line(from, line); /* it listens to signals now */
    assert_true(write(to, "{\"source\": ", 11) == 11);
    assert_true(kill(child, SIGINT) == 0);
    assert_int_equal(wait_for(child), 75);
    close(to);
    close(from);
}

/* A run that waits for rows of a silent pipe stops at once, and leaves nothing. */
static void an_interrupt_is_heard_while_a_pipe_is_silent(void **state)
{
    const struct world *world = *state;
    char *pipe = at(world->directory, "pipe"), *run = at(world->directory, "silent");
    char words[LINE_BYTES];
    int to, from;
    assert_true(mkfifo(pipe, 0600) == 0);
    snprintf(words, sizeof words, "train %s/v10.yaml --set data.train=%s --set output.dir=%s",
             world->directory, pipe, run);
    pid_t child = spillway_start(world->log, words, &to, &from);
    int writer = open(pipe, O_WRONLY); /* waits until it is read */
    assert_true(writer >= 0);
    assert_true(kill(child, SIGINT) == 0);
    assert_int_equal(wait_for(child), 75);
    expect_in_log(world, "stopped before the first step; nothing was written");
    assert_false(sw_file_exists(run));
    close(writer);
    close(to);
    close(from);
    free(pipe);
    free(run);
}

static bool is_there(const char *pattern)
{
    glob_t found;
    int status = glob(pattern, 0, NULL, &found);
    if (status == 0)
        globfree(&found);
    return status == 0;
}

/* A model that is being made leaves no part of it. */
static void an_interrupted_init_leaves_nothing(void **state)
{
    const struct world *world = *state;
    char words[LINE_BYTES], pattern[LINE_BYTES];
    int to, from;
    snprintf(pattern, sizeof pattern, "%s/made*", world->directory);
    snprintf(words, sizeof words,
             "init --preset t5-small --tokenizer %s/spiece.model --out %s/made", world->directory,
             world->directory);
    pid_t child = spillway_start(world->log, words, &to, &from);
    for (int i = 0; i < 1000 && !is_there(pattern); i++)
        usleep(10000);
    assert_true(kill(child, SIGINT) == 0);
    assert_int_equal(wait_for(child), 75);
    assert_false(is_there(pattern));
    close(to);
    close(from);
}

static int64_t count_lines(const char *path)
{
    int64_t count;
    struct sw_json **lines = read_lines(path, &count);
    free_lines(lines, count);
    return count;
}

static void rows_before_a_bad_one_are_answered(void **state)
{
    const struct world *world = *state;
    char *path = at(world->directory, "bad.jsonl");
    write_text(path, "{\"source\": \"add one and two\"}\n\n{\"source\": \"add\"}\n{\"source\": 7}\n"
                     "{\"source\": \"add five\"}\n");
    run(world, 1, NULL, "generate --model %s/v10 --input %s", world->directory, path);
    expect_in_log(world, "bad.jsonl, line 4: field \"source\" is a whole number, not a string");
    assert_int_equal(count_lines(world->out), 2);
    run(world, 0, NULL, "generate --model %s/v10 --input %s --set data.on_bad_row=skip",
        world->directory, path);
    expect_in_log(world, "skipped 1 bad row, the first: ");
    assert_int_equal(count_lines(world->out), 3);
    free(path);
}

/* Fewer rows at a time where memory is short; a refusal that names what generate has. */
static void memory_decides_how_many_rows_at_once(void **state)
{
    const struct world *world = *state;
    const char *shape = "--max-new-tokens 4 --max-source-length 24 --beams 4";
    run(world, 0, NULL, "generate --model %s/v10 --input %s %s", world->directory, world->rows,
        shape);
    char *usual = read_text(world->out);
    run(world, 3, NULL, "generate --model %s/v10 --input %s %s --set devices.memory=64KiB",
        world->directory, world->rows, shape);
    expect_no_output(world);
    expect_in_log(world, "does not fit");
    expect_in_log(world, "--max-source-length (now 24)");
    char *log = read_text(world->log);
    assert_null(strstr(log, "train."));
    free(log);
    run(world, 0, NULL, "generate --model %s/v10 --input %s %s --set devices.memory=480KiB",
        world->directory, world->rows, shape);
    char *tight = read_text(world->out);
    assert_string_equal(usual, tight);
    free(usual);
    free(tight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_is_answered_as_it_brings_rows),
        cmocka_unit_test(a_reader_that_leaves_is_no_failure),
        cmocka_unit_test(an_interrupt_stops_between_rows),
        cmocka_unit_test(an_interrupt_is_heard_in_the_middle_of_a_line),
        cmocka_unit_test(an_interrupt_is_heard_while_a_pipe_is_silent),
        cmocka_unit_test(an_interrupted_init_leaves_nothing),
        cmocka_unit_test(rows_before_a_bad_one_are_answered),
        cmocka_unit_test(memory_decides_how_many_rows_at_once),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}

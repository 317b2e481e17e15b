/* metrics.jsonl, and the lines a person sees. */
#include "support.h"

#include "base/json.h"
#include "train/metrics.h"
#include "train/progress.h"

#include <fcntl.h>
#include <math.h>
#include <sys/ioctl.h>

static void write_steps(const char *path, int64_t keep, int64_t first, int64_t last, double loss)
{
    struct sw_err err = {0};
    struct sw_metrics *metrics;
    assert_ok(sw_metrics_open(&metrics, path, keep, &err), &err);
    for (int64_t step = first; step <= last; step++) {
        const struct sw_step_result result = {
            .loss = loss,
            .grad_norm = 1.0 / 3.0,
            .finite = isfinite(loss),
            .seconds = 0.25,
            .busy_seconds = {[SW_LANE_COMPUTE] = 0.125},
        };
        assert_ok(sw_metrics_step(metrics, step, 1e-4, 77, 308, &result, &err), &err);
    }
    sw_metrics_close(metrics);
}

/* Lines of the file, parsed; the caller frees them. */
static int64_t read_lines(const char *path, struct sw_json **lines, int64_t most)
{
    struct sw_err err = {0};
    char *text;
    int64_t count = 0;
    assert_ok(sw_file_read(path, 1 << 20, &text, NULL, &err), &err);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        assert_true(count < most);
        assert_ok(sw_json_parse(line, end - line, path, &lines[count++], &err), &err);
    }
    free(text);
    return count;
}

static double number(const struct sw_json *line, const char *key)
{
    double value;
    if (!sw_json_to_double(sw_json_get(line, key), &value))
        fail_msg("%s is no number", key);
    return value;
}

static void test_keys(void **state)
{
    (void)state;
    char *work = sw_test_scratch(), *path = sw_path_join(work, "metrics.jsonl");
    struct sw_json *lines[2];
    const double loss = 0.1 + 0.2, third = 1.0 / 3.0; /* 17 digits each */
    write_steps(path, 0, 1, 1, loss);
    assert_int_equal(read_lines(path, lines, 2), 1);
    double got = number(lines[0], "loss"), norm = number(lines[0], "grad_norm");
    assert_memory_equal(&got, &loss, sizeof got);
    assert_memory_equal(&norm, &third, sizeof norm);
    assert_true(number(lines[0], "step") <= 1 && number(lines[0], "lr") > 0);
    assert_int_equal((int)number(lines[0], "target_tokens"), 77);
    assert_int_equal((int)(4 * number(lines[0], "step_seconds")), 1);
    assert_int_equal((int)number(lines[0], "tokens_per_second"), 308);
    assert_int_equal((int)(8 * number(sw_json_get(lines[0], "busy_seconds"), "compute")), 1);
    assert_null(sw_json_get(lines[0], "skipped"));
    sw_json_free(lines[0]);
    free(path);
    sw_test_scratch_remove(work);
}

static void test_nonfinite_is_null(void **state)
{
    (void)state;
    char *work = sw_test_scratch(), *path = sw_path_join(work, "metrics.jsonl");
    struct sw_json *lines[2];
    bool skipped = false;
    write_steps(path, 0, 1, 1, (double)NAN);
    assert_int_equal(read_lines(path, lines, 2), 1);
    assert_int_equal(sw_json_kind(sw_json_get(lines[0], "loss")), SW_JSON_NULL);
    assert_true(sw_json_to_bool(sw_json_get(lines[0], "skipped"), &skipped) && skipped);
    sw_json_free(lines[0]);
    free(path);
    sw_test_scratch_remove(work);
}

/* A resumed run goes on behind the checkpoint's step, whatever an interrupted one left. */
static void test_resume(void **state)
{
    (void)state;
    char *work = sw_test_scratch(), *path = sw_path_join(work, "metrics.jsonl");
    struct sw_json *lines[8];
    write_steps(path, 0, 1, 5, 1.0);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs("{\"step\": 6, \"lo", file); /* torn */
    fclose(file);
    write_steps(path, 3, 4, 6, 2.0);
    assert_int_equal(read_lines(path, lines, 8), 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal((int)number(lines[i], "step"), i + 1);
        assert_int_equal((int)number(lines[i], "loss"), i < 3 ? 1 : 2);
        sw_json_free(lines[i]);
    }
    write_steps(path, 0, 1, 1, 3.0); /* from the start */
    assert_int_equal(read_lines(path, lines, 8), 1);
    sw_json_free(lines[0]);
    free(path);
    sw_test_scratch_remove(work);
}

static void test_unwritable(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_metrics *metrics;
    assert_refused(sw_metrics_open(&metrics, "/nowhere/metrics.jsonl", 0, &err), SW_E_IO,
                   "/nowhere/metrics.jsonl", &err);
    if (!sw_file_exists("/dev/full"))
        return;
    const struct sw_step_result result = {.finite = true};
    if (sw_metrics_open(&metrics, "/dev/full", 0, &err) == SW_OK) {
        assert_refused(sw_metrics_step(metrics, 1, 0, 1, 1, &result, &err), SW_E_IO, "/dev/full",
                       &err);
        sw_metrics_close(metrics);
    }
}

/* Put `descriptor` in stderr's place; returns what was there. */
static int replace_stderr(int descriptor)
{
    fflush(stderr);
    int keep = dup(2);
    dup2(descriptor, 2);
    return keep;
}

static void test_plain_lines(void **state)
{
    (void)state;
    char *work = sw_test_scratch(), *path = sw_path_join(work, "log");
    int file = open(path, O_RDWR | O_CREAT, 0600), keep = replace_stderr(file);
    struct sw_progress progress;
    sw_progress_init(&progress);
    sw_progress_line(&progress, false, "not due");
    sw_progress_line(&progress, true, "step %d", 10);
    sw_progress_say(&progress, "said");
    sw_progress_end(&progress);
    replace_stderr(keep);
    char text[256] = "";
    assert_true(pread(file, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, "step 10\nsaid\n");
    close(file);
    close(keep);
    free(path);
    sw_test_scratch_remove(work);
}

static void test_terminal(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        print_message("skipped: there are no pseudo-terminals\n");
        skip();
    }
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    const struct winsize size = {.ws_col = 40, .ws_row = 10};
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
    setenv("TERM", "xterm", 1);
    int keep = replace_stderr(terminal);
    struct sw_progress progress;
    sw_progress_init(&progress);
    sw_progress_line(&progress, true, "%060d|", 1);
    sw_progress_line(&progress, false, "too soon");
    sw_progress_line(&progress, true, "second");
    sw_progress_end(&progress);
    replace_stderr(keep);
    char text[512] = "";
    for (size_t used = 0; strchr(text, '\n') == NULL;) { /* it comes in any pieces */
        ssize_t got = read(master, text + used, sizeof text - 1 - used);
        assert_true(got > 0);
        used += (size_t)got;
    }
    assert_null(strchr(text, '|')); /* cut to the width */
    assert_null(strstr(text, "too soon"));
    const char *second = strstr(text, "\r\033[Ksecond"), *end = strrchr(text, '\n');
    assert_non_null(second);
    assert_true(end > second && strchr(text, '\n') == end); /* one line, rewritten */
    close(keep);
    close(terminal);
    close(master);
}

static void test_durations(void **state)
{
    (void)state;
    char text[SW_DURATION_BYTES];
    assert_string_equal(sw_duration_text(41.4, text), "41 s");
    assert_string_equal(sw_duration_text(125, text), "2 min 05 s");
    assert_string_equal(sw_duration_text(7380, text), "2 h 03 min");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),        cmocka_unit_test(test_nonfinite_is_null),
        cmocka_unit_test(test_resume),      cmocka_unit_test(test_unwritable),
        cmocka_unit_test(test_plain_lines), cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_durations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

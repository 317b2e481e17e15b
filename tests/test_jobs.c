/* What a person meets around a run, by the command line: what is refused and when, what is left
 * behind, going on. On a model of a few thousand parameters that the test makes itself. */
#include "tests/world.h"

#include "base/text.h"
#include "cli/back_end.h"
#include "train/loop.h"
#include "train/space.h"

#include <fcntl.h>
#include <math.h>
#include <time.h>

/* ---- refusals ---- */

/* Each names what is wrong, before a row is tokenized, and leaves no output.dir behind. */
static void settings_are_refused_before_anything_is_done(void **state)
{
    const struct world *world = *state;
    static const struct {
        const char *set;
        int status;
        const char *part;
    } cases[] = {
        {"--set optimizer.where=stream --set optimizer.name=adafactor", 2,
         "optimizer.where: stream clashes with optimizer.name: adafactor"},
        {"--set optimizer.where=device", 2, "optimizer.where: on the cpu"},
        {"--set precision.compute=fp16", 2, "precision.compute"},
        {"--set data.train=@/none.jsonl", 2, "data.train: there is no file"},
        {"--set data.eval=@/none.jsonl", 2, "data.eval: there is no file"},
        {"--set data.eval=@/model", 2, "data.eval: "},
        {"--set data.train=/dev/null", 1, "/dev/null holds no rows"},
        {"--set data.train=@/empty.jsonl", 2, "empty.jsonl is empty: it holds no rows"},
        {"--trace @/none/trace.json", 2, "--trace: there is no folder"},
        {"--trace @/model", 2, "is a directory"},
        {"--set model.path=@/none", 2, "--set: model.path: no model directory"},
        {"--set output.dir=@/rows.jsonl/run", 2, "output.dir"},
        {"--set output.dir=@/model", 2, "output.dir: "},
        {"--set output.dir=@/model/../model/a/b", 2, "inside the model directory"},
        {"--set train.freeze=nothing.like.it", 2, "train.freeze"},
        {"--set optimizer.relative_step=true", 2, "optimizer.relative_step"},
        {"--set optimizer.warmup_steps=9 --set optimizer.schedule=linear", 2, "warmup_steps"},
        {"--set offload.nvme=@/none", 2, "offload.nvme"},
        {"--set offload.nvme=@/rows.jsonl", 2, "offload.nvme"},
        {"--set devices.list=[0,0]", 2, "devices.list names 2 devices"},
        {"--set devices.memory=64KiB", 3, "device"},
    };
    put(world, "empty.jsonl", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512];
        snprintf(line, sizeof line, "train @/job.yaml %s", cases[i].set);
        struct sw_test_output output =
            sw_test_expect(world->at, line, cases[i].status, cases[i].part);
        if (strstr(output.log, "rows,") != NULL)
            fail_msg("%s: rows were read first: %s", cases[i].set, output.log);
        sw_test_output_free(&output);
        assert_false(has(world, "run"));
        assert_false(has(world, "model/a"));
    }
    const struct sw_device_ops *gpus;
    const char *why;
    struct sw_err err;
    sw_err_init(&err);
    if (sw_back_end_cuda(&gpus, &why, &err) == SW_OK && gpus == NULL)
        expect(world, "train @/job.yaml --set devices.kind=cuda", 2, "--set: devices.kind: cuda: ");
}

/* What a setting or an option names and cannot be used: status 2, and named. What fails on the way
 * is 1. */
static void what_cannot_be_used_is_named_by_its_setting(void **state)
{
    const struct world *world = *state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    static const char *const files[] = {"config.json", "model.safetensors", "spiece.model"};
    struct sw_err err;
    sw_err_init(&err);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int way = 0; way < 3; way++) {
            char name[64], *path;
            snprintf(name, sizeof name, "broken/%s", files[i]);
            path = in(world, name);
            expect(world, "init --config @/config.json --tokenizer @/spiece.model --out @/broken",
                   0, "");
            if (way == 0)
                assert_int_equal(unlink(path), 0);
            else
                put(world, name, way == 1 ? pointer : "{");
            expect(world, "train @/job.yaml --set model.path=@/broken", 2, "model.path: ");
            expect(world, "train @/job.yaml --set model.path=@/broken", 2,
                   way < 2 || i > 0 ? "/broken" : "config.json");
            expect(world, "plan @/job.yaml --set model.path=@/broken", 2, "model.path: ");
            expect(world, "eval @/job.yaml --model @/broken --set data.eval=@/eval.jsonl", 2,
                   "--model: ");
            free(path);
            drop(world, "broken");
        }
    put(world, "pointer.jsonl", pointer);
    expect(world, "train @/job.yaml --set data.train=@/pointer.jsonl", 2, "data.train: ");
    expect(world, "plan @/job.yaml --machine @/none", 2, "--machine: ");
    expect(world, "inspect @/none", 2, "none");
    expect(world, "train @/job.yaml --resume @/none", 2, "no checkpoint");
    expect(world, "init --config @/none --tokenizer @/spiece.model --out @/new", 2, "--config: ");
    expect(world, "init --config @/config.json --tokenizer @/none --out @/new", 2, "--tokenizer: ");
    expect(world, "init --config @/config.json --tokenizer @/spiece.model --out @/job.yaml/new", 2,
           "--out: ");
    assert_false(has(world, "new"));
}

/* An empty directory may be there already. */
static void init_takes_an_empty_directory(void **state)
{
    const struct world *world = *state;
    static const char line[] =
        "init --config @/config.json --tokenizer @/spiece.model --out @/empty";
    struct sw_err err;
    sw_err_init(&err);
    char *path = in(world, "empty");
    assert_ok(sw_directory_make(path, &err), &err);
    free(path);
    expect(world, line, 0, "parameters");
    assert_true(has(world, "empty/model.safetensors"));
    expect(world, line, 2, "--out: ");
    drop(world, "empty");
}

/* One message has all that must be changed, whether pieces or sentinels are too many. */
static void init_says_once_how_many_ids_there_must_be(void **state)
{
    const struct world *world = *state;
    static const int sizes[] = {8, 110};
    char text[1024], size[32];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(text, sizeof text, "%s", CONFIG(16, 32));
        char *at = strstr(text, "\"vocab_size\": 128");
        snprintf(size, sizeof size, "\"vocab_size\": %3d", sizes[i]);
        memcpy(at, size, strlen(size));
        put(world, "few.json", text);
        expect(world, "init --config @/few.json --tokenizer @/spiece.model --out @/few", 2,
               "12 pieces and 100 extra ids, that is 112 ids; ");
        expect(world, "init --config @/few.json --tokenizer @/spiece.model --out @/few", 2,
               "make vocab_size 112 or more, or take");
    }
    assert_false(has(world, "few"));
    drop(world, "few.json");
}

/* What only the rows tell is refused without leaving an output.dir, too. */
static void bad_rows_leave_no_output(void **state)
{
    const struct world *world = *state;
    put(world, "bad.jsonl", "{\"source\": \"a\"}\n");
    expect(world, "train @/job.yaml --set data.train=@/bad.jsonl", 1, "bad.jsonl");
    expect(world, "train @/job.yaml --resume auto --set data.train=@/bad.jsonl", 1, "bad.jsonl");
    assert_false(has(world, "run"));
    expect(world, "eval @/job.yaml --model @/model", 2, "data.eval is not set");
    expect(world, "eval @/job.yaml --model @/model --set data.eval=@/no.jsonl", 2, "data.eval: ");
}

/* A trace may go into the output.dir that the run makes. */
static void a_trace_goes_into_the_run_directory(void **state)
{
    const struct world *world = *state;
    expect(world, "train @/job.yaml --set output.dir=@/traced --trace @/traced/trace.json", 0,
           "step 4/4");
    assert_true(has(world, "traced/trace.json"));
}

/* The cpu computes in bf16 as well, whether it was asked for by name or taken: about the loss of
 * fp32, whose 8 bits are off by 2^-9 at each of some 20 roundings on the way. */
static void bf16_is_taken_on_the_cpu(void **state)
{
    const struct world *world = *state;
    expect(world, "train @/job.yaml --set output.dir=@/single", 0, "fp32 on cpu");
    expect(world, "train @/job.yaml --set output.dir=@/half --set precision.compute=bf16", 0,
           "bf16 on cpu");
    expect(world,
           "train @/job.yaml --set output.dir=@/auto --set precision.compute=bf16 "
           "--set devices.kind=auto",
           0, "bf16 on");
    for (int i = 0; i < 4; i++) {
        double single = field(world, "single/metrics.jsonl", i, "loss");
        double half = field(world, "half/metrics.jsonl", i, "loss");
        assert_true(fabs(single - half) < 20.0 / 512 * single);
        assert_true(single > half || single < half);
    }
}

/* ---- going on ---- */

/* --resume auto over a run that is done: nothing happens, whether a checkpoint was kept or not. */
static void a_finished_run_is_left_alone(void **state)
{
    const struct world *world = *state;
    static const char *const runs[] = {"", " --set output.save_every=2"};
    for (int i = 0; i < 2; i++) {
        char line[512];
        snprintf(line, sizeof line, "train @/job.yaml --set output.dir=@/done%s", runs[i]);
        expect(world, line, 0, "the model is in");
        put(world, "done/final/marker", "still here");
        char *metrics = get(world, "done/metrics.jsonl");
        expect(world, "train @/job.yaml --resume auto --set output.dir=@/done", 0, "is finished");
        expect(world, "train @/job.yaml --resume auto --set output.dir=@/done --set train.steps=3",
               2, "train.steps asks for 3 steps");
        if (i == 0)
            expect(world,
                   "train @/job.yaml --resume auto --set output.dir=@/done --set train.steps=5", 2,
                   "kept no checkpoint");
        char *after = get(world, "done/metrics.jsonl");
        assert_string_equal(metrics, after);
        assert_true(has(world, "done/final/marker"));
        free(metrics);
        free(after);
        if (i == 1) { /* a final model from before the checkpoint is not this run's */
            char *path = in(world, "done/checkpoint-4");
            const struct timespec later[2] = {{.tv_sec = time(NULL) + 60},
                                              {.tv_sec = time(NULL) + 60}};
            assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
            expect(world, "train @/job.yaml --resume auto --set output.dir=@/done", 0,
                   "the model is in");
            assert_false(has(world, "done/final/marker"));
            free(path);
        }
        drop(world, "done");
    }
    /* Where epochs say how long a run is, its rows do. */
    expect(world, "train @/job.yaml --set train.steps=0 --set output.dir=@/done", 0, "step 6/6");
    expect(world, "train @/job.yaml --set train.steps=0 --set output.dir=@/done --resume auto", 0,
           "is finished");
    drop(world, "done");
}

/* Each key that is set otherwise has its line; what was left open stays as it was. */
static void a_resumed_run_says_what_is_set_otherwise(void **state)
{
    const struct world *world = *state;
    expect(world,
           "train @/job.yaml --set output.dir=@/first --set output.save_every=2 "
           "--set train.micro_batch=2",
           0, "step 4/4");
    char *text = get(world, "first/checkpoint-4/state.json");
    assert_non_null(strstr(text, "\"global_batch\": 4"));
    free(text);
    struct sw_test_output output = sw_test_expect(
        world->at,
        "train @/job.yaml --resume auto --set output.dir=@/first --set train.steps=6 "
        "--set optimizer.lr=0.01 --set train.global_batch=8 --set train.seed=5 "
        "--set model.path=elsewhere --set output.keep_last=1",
        0, "note: optimizer.lr is 0.01 now, the run had 0.0001\n");
    static const char *const notes[] = {
        "note: train.global_batch is 8 now, the run had 4\n",
        "note: train.seed is 5 now, the run had 0\n",
        "note: train.steps is 6 now, the run had 4\n",
        "note: train.micro_batch is 0 now, the run had 2\n",
        "note: model.path is \"elsewhere\" now, the run had ",
        "micro-batches of 2",
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strstr(output.log, notes[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", notes[i], output.log);
    int count = 0;
    for (const char *at = output.log; (at = strstr(at, "note: ")) != NULL; at++)
        count++;
    assert_int_equal(count, 6);
    sw_test_output_free(&output);
    drop(world, "first");
}

static void cut(const struct world *world, const char *name, off_t bytes)
{
    char *path = in(world, name);
    assert_int_equal(truncate(path, bytes), 0);
    free(path);
}

/* A damaged checkpoint is named with its file, and what to go on from; then it is out of the way.
 */
static void a_damaged_checkpoint_is_not_the_end(void **state)
{
    const struct world *world = *state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64], part[64];
        expect(world, "train @/job.yaml --set output.dir=@/hurt --set output.save_every=2", 0, "");
        drop(world, "hurt/final");
        snprintf(name, sizeof name, "hurt/checkpoint-4/%s", files[i]);
        cut(world, name, 40);
        snprintf(part, sizeof part, "checkpoint-4/%s", files[i]);
        struct sw_test_output output = sw_test_expect(
            world->at, "train @/job.yaml --set output.dir=@/hurt --resume auto", 1, part);
        assert_non_null(strstr(output.log, "is damaged: "));
        assert_non_null(strstr(output.log, "; --resume "));
        assert_non_null(strstr(output.log, "/hurt/checkpoint-2 goes on"));
        assert_null(strstr(output.log, "ownload"));
        sw_test_output_free(&output);
        expect(world, "train @/job.yaml --set output.dir=@/hurt --resume @/hurt/checkpoint-2", 0,
               "checkpoint-4.damaged");
        assert_true(has(world, "hurt/checkpoint-4.damaged"));
        assert_true(has(world, "hurt/final/model.safetensors"));
        drop(world, "hurt");
    }
    /* A whole later one is another history. */
    expect(world, "train @/job.yaml --set output.dir=@/hurt --set output.save_every=2", 0, "");
    expect(world, "train @/job.yaml --set output.dir=@/hurt --resume @/hurt/checkpoint-2", 2,
           "two histories");
    cut(world, "hurt/checkpoint-4/model.safetensors", 1000);
    cut(world, "hurt/checkpoint-2/model.safetensors", 1000);
    expect(world, "train @/job.yaml --set output.dir=@/hurt --resume auto", 1,
           "has no other checkpoint");
    drop(world, "hurt");
}

/* ---- room for what is written ---- */

static void room_is_counted(void **state)
{
    (void)state;
    /* every checkpoint of the last ones kept, one more while it is written, and the final model */
    struct sw_space space = {
        .checkpoint_bytes = 100, .final_bytes = 30, .saves = 10, .keep = 2, .existing = 0};
    assert_int_equal(sw_space_needed(&space), 300);
    space.keep = 1;
    assert_int_equal(sw_space_needed(&space), 200);
    space.saves = 1;
    assert_int_equal(sw_space_needed(&space), 130);
    space.keep = 3;
    space.saves = 2;
    assert_int_equal(sw_space_needed(&space), 230);
    space.existing = 3; /* takes the place of two */
    assert_int_equal(sw_space_needed(&space), 100);
    space.keep = 0;
    assert_int_equal(sw_space_needed(&space), 130);
    space.saves = 0;
    assert_int_equal(sw_space_needed(&space), 30);
    space.stops = true;
    assert_int_equal(sw_space_needed(&space), 100);
    space.final_bytes = 0;
    space.stops = false;
    assert_int_equal(sw_space_needed(&space), 0);
}

static void too_little_room_is_refused_with_numbers(void **state)
{
    const struct world *world = *state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_space space = {.checkpoint_bytes = INT64_C(3) << 30,
                             .final_bytes = INT64_C(1) << 30,
                             .final_is_fp32 = true,
                             .saves = 9,
                             .keep = 2};
    assert_ok(sw_space_check(&space, "run", INT64_C(9) << 30, &err), &err);
    assert_ok(sw_space_check(&space, "run", -1, &err), &err);
    assert_refused(sw_space_check(&space, "run", INT64_C(8) << 30, &err), SW_E_FIT,
                   "output.dir run needs up to 9.0 GiB (a checkpoint is 3.0 GiB, the final model "
                   "1.0 GiB), its file system has 8.0 GiB free; output.keep_last: 1 would do",
                   &err);
    space.saves = 0;
    assert_refused(sw_space_check(&space, "run", INT64_C(600) << 20, &err), SW_E_FIT,
                   "output.dtype: bf16 would do", &err);
    assert_refused(sw_space_check(&space, "run", 1000, &err), SW_E_FIT,
                   "1000 bytes free; choose an output.dir", &err);
    /* No machine has room for a model of 10^13 parameters. */
    put(world, "huge.json", CONFIG(1048576, 16777216));
    expect(world, "init --config @/huge.json --tokenizer @/spiece.model --out @/huge", 3,
           "does not fit: the weights take");
    assert_false(has(world, "huge"));
}

/* ---- evaluation ---- */

/* Every evaluation is a line of eval.jsonl; those of steps that are done again are dropped. */
static void evaluations_are_kept_in_a_file(void **state)
{
    const struct world *world = *state;
    static const char set[] = "--set output.dir=@/judged --set data.eval=@/eval.jsonl "
                              "--set output.eval_every=1 --set output.save_every=2";
    char line[512];
    snprintf(line, sizeof line, "train @/job.yaml %s", set);
    expect(world, line, 0, "step 4: loss");
    char *whole = get(world, "judged/eval.jsonl");
    for (int i = 0; i < 4; i++) {
        assert_true(field(world, "judged/eval.jsonl", i, "step") == i + 1);
        assert_true(field(world, "judged/eval.jsonl", i, "loss") > 0);
        assert_true(field(world, "judged/eval.jsonl", i, "seconds") > 0);
    }
    struct sw_test_output output = sw_test_expect(
        world->at, "eval @/job.yaml --set data.eval=@/eval.jsonl --model @/judged/final", 0,
        "\"loss\"");
    put(world, "eval.out", output.out);
    assert_true(fabs(field(world, "eval.out", 0, "loss") -
                     field(world, "judged/eval.jsonl", 3, "loss")) < 1e-6);
    assert_true(field(world, "eval.out", 0, "tokens") ==
                field(world, "judged/eval.jsonl", 3, "tokens"));
    sw_test_output_free(&output);
    drop(world, "judged/checkpoint-4");
    drop(world, "judged/final");
    snprintf(line, sizeof line, "train @/job.yaml --resume auto %s", set);
    expect(world, line, 0, "step 4: loss");
    char *again = get(world, "judged/eval.jsonl");
    for (int i = 0; i < 4; i++)
        assert_true(field(world, "judged/eval.jsonl", i, "step") == i + 1);
    size_t kept = 0; /* two lines */
    for (int lines = 0; lines < 2; kept++)
        lines += whole[kept] == '\n';
    assert_memory_equal(whole, again, kept);
    free(whole);
    free(again);
    drop(world, "judged");
}

/* ---- stopping ---- */

static const char *stop_file; /* stop once it holds so many lines; NULL: at once */
static int stop_lines;

static bool stop_now(void)
{
    int lines = 0;
    if (stop_file == NULL)
        return true;
    if (!sw_file_exists(stop_file))
        return false;
    char *text = sw_test_slurp(stop_file);
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    free(text);
    return lines >= stop_lines;
}

/* The job with evaluations, into output.dir `name`, until stop_now() says so. */
static sw_code train_until_stopped(const struct world *world, const char *name, struct sw_err *err)
{
    struct sw_config config;
    char *job = in(world, "job.yaml"), set[3][4096];
    const struct sw_train_options options = {
        .config = &config, .device = &sw_cpu_device_ops, .stop_requested = stop_now};
    snprintf(set[0], sizeof set[0], "output.dir=%s/%s", world->at, name);
    snprintf(set[1], sizeof set[1], "data.eval=%s/eval.jsonl", world->at);
    snprintf(set[2], sizeof set[2], "output.eval_every=2");
    assert_ok(sw_config_init(&config, err), err);
    assert_ok(sw_config_read(&config, job, err), err);
    for (int i = 0; i < 3; i++)
        assert_ok(sw_config_set(&config, set[i], err), err);
    sw_code code = sw_train(&options, err);
    sw_config_deinit(&config);
    free(job);
    return code;
}

/* While rows are read nothing is there to be kept. */
static void a_stop_before_the_first_step_leaves_nothing(void **state)
{
    const struct world *world = *state;
    struct sw_err err;
    sw_err_init(&err);
    stop_file = NULL;
    assert_int_equal(train_until_stopped(world, "early", &err), SW_E_STOPPED);
    assert_non_null(strstr(err.text, "rows.jsonl was read"));
    assert_int_equal(sw_code_exit_status(SW_E_STOPPED), 75);
    assert_false(has(world, "early"));
}

/* In an evaluation, in the middle and at the end: a checkpoint, and going on evaluates. */
static void a_stop_while_evaluating_keeps_everything(void **state)
{
    const struct world *world = *state;
    static const char set[] = "--set data.eval=@/eval.jsonl --set output.eval_every=2";
    char line[512];
    snprintf(line, sizeof line, "train @/job.yaml --set output.dir=@/whole %s", set);
    expect(world, line, 0, "step 4: loss");
    char *metrics = in(world, "late/metrics.jsonl");
    for (stop_lines = 2; stop_lines <= 4; stop_lines += 2) {
        struct sw_err err;
        char name[64];
        sw_err_init(&err);
        stop_file = metrics;
        assert_int_equal(train_until_stopped(world, "late", &err), SW_E_STOPPED);
        assert_non_null(strstr(err.text, "--resume auto goes on"));
        snprintf(name, sizeof name, "late/checkpoint-%d/state.json", stop_lines);
        assert_true(has(world, name));
        assert_false(has(world, "late/final"));
        snprintf(line, sizeof line, "train @/job.yaml --resume auto --set output.dir=@/late %s",
                 set);
        expect(world, line, 0, "step 4: loss");
        for (int i = 0; i < 2; i++) {
            assert_true(field(world, "late/eval.jsonl", i, "step") == 2 * (i + 1));
            assert_true(field(world, "late/eval.jsonl", i, "loss") ==
                        field(world, "whole/eval.jsonl", i, "loss"));
        }
        assert_true(has(world, "late/final/model.safetensors"));
        drop(world, "late");
    }
    free(metrics);
    drop(world, "whole");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_refused_before_anything_is_done),
        cmocka_unit_test(what_cannot_be_used_is_named_by_its_setting),
        cmocka_unit_test(init_takes_an_empty_directory),
        cmocka_unit_test(init_says_once_how_many_ids_there_must_be),
        cmocka_unit_test(bad_rows_leave_no_output),
        cmocka_unit_test(bf16_is_taken_on_the_cpu),
        cmocka_unit_test(a_finished_run_is_left_alone),
        cmocka_unit_test(a_resumed_run_says_what_is_set_otherwise),
        cmocka_unit_test(a_damaged_checkpoint_is_not_the_end),
        cmocka_unit_test(evaluations_are_kept_in_a_file),
        cmocka_unit_test(a_stop_before_the_first_step_leaves_nothing),
        cmocka_unit_test(a_stop_while_evaluating_keeps_everything),
        cmocka_unit_test(room_is_counted),
        cmocka_unit_test(too_little_room_is_refused_with_numbers),
        cmocka_unit_test(a_trace_goes_into_the_run_directory),
    };
    return cmocka_run_group_tests(tests, sw_test_world_open, sw_test_world_close);
}

/* Whole runs by the command line: the reference cases (losses, norms, learning rates, weights,
 * evaluation, generations), also from other tiers, bit for bit; a run that is stopped and resumed
 * against one that is not, refusals. */
#include "tests/cli_run.h"

#include "base/text.h"
#include "io/safetensors.h"

#include <math.h>

/* Room for what fp32 in another order changes, as in the reference's own check: a wrong formula
 * lands far outside. Differences grow as training goes on. */
static const double LOSS = 2e-4, NORM = 1e-3, EVALUATION = 5e-4, CHANGE = 2e-2;

/* ---- the reference cases ---- */

struct reference {
    const char *name;
    char *directory, *model, *rows, *work, *run, *config, *out, *log;
    struct sw_json *want;
};

static void add_optimizer(struct sw_text *text, const struct sw_json *optimizer)
{
    static const char *const adamw[] = {"name",          "lr",       "weight_decay",
                                        "max_grad_norm", "schedule", "warmup_steps",
                                        "betas",         "eps",      "scale_parameter"};
    const char *comma = "";
    sw_text_add(text, "\"optimizer\": {");
    for (size_t i = 0; i < sizeof adamw / sizeof *adamw; i++) {
        const struct sw_json *value = sw_json_get(optimizer, adamw[i]);
        double real;
        bool truth;
        if (value == NULL)
            continue;
        sw_text_add(text, "%s\"%s\": ", comma, adamw[i]);
        comma = ", ";
        if (sw_json_to_string(value) != NULL)
            sw_text_add_json_string(text, sw_json_to_string(value));
        else if (sw_json_to_bool(value, &truth))
            sw_text_add(text, "%s", truth ? "true" : "false");
        else if (sw_json_to_double(value, &real))
            sw_text_add_json_double(text, real);
        else {
            double beta[2];
            assert_true(sw_json_to_double(sw_json_at(value, 0), &beta[0]));
            assert_true(sw_json_to_double(sw_json_at(value, 1), &beta[1]));
            sw_text_add(text, "[%.17g, %.17g]", beta[0], beta[1]);
        }
    }
    sw_text_add(text, "}");
}

static void write_config(const struct reference *r)
{
    struct sw_text text = {0};
    sw_text_add(&text,
                "{\"model\": {\"path\": \"%s\"}, \"data\": {\"train\": \"%s\", \"eval\": \"%s\", "
                "\"shuffle\": false, \"max_source_length\": %.0f, \"max_target_length\": %.0f}, "
                "\"train\": {\"steps\": %.0f, \"global_batch\": %.0f, \"dropout\": 0.0}, ",
                r->model, r->rows, r->rows, number(r->want, "max_source_length"),
                number(r->want, "max_target_length"), number(r->want, "steps"),
                number(r->want, "batch_rows"));
    add_optimizer(&text, sw_json_get(r->want, "optimizer"));
    sw_text_add(&text, ", \"devices\": {\"kind\": \"cpu\"}, \"output\": {\"dir\": \"%s\"}}\n",
                r->run);
    write_text(r->config, text.bytes);
    free(text.bytes);
}

static void close_to(const char *what, int64_t step, double have, double want, double tolerance)
{
    if (!(fabs(have - want) <= tolerance * fmax(1e-6, fabs(want))))
        fail_msg("%s, step %lld: %.9g, reference %.9g", what, (long long)step, have, want);
}

static double element(const struct sw_json *object, const char *key, int64_t index)
{
    double value = (double)NAN;
    assert_true(sw_json_to_double(sw_json_at(sw_json_get(object, key), index), &value));
    return value;
}

static void check_metrics(const struct reference *r)
{
    int64_t count, steps = (int64_t)number(r->want, "steps");
    char *path = at(r->run, "metrics.jsonl");
    struct sw_json **lines = read_lines(path, &count);
    assert_int_equal(count, steps);
    for (int64_t k = 0; k < steps; k++) {
        double grown = 1 + (double)k / 3;
        close_to("loss", k + 1, number(lines[k], "loss"), element(r->want, "loss_per_step", k),
                 LOSS * grown);
        close_to("grad_norm", k + 1, number(lines[k], "grad_norm"),
                 element(r->want, "grad_norm_per_step_before_clipping", k), NORM * grown);
        close_to("lr", k + 1, number(lines[k], "lr"), element(r->want, "lr_per_step", k), 1e-5);
    }
    free_lines(lines, count);
    free(path);
}

static const struct sw_tensor *find(const struct sw_tensor_file *file, const char *name)
{
    for (int64_t i = 0; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

static float *read_tensor(const struct sw_tensor *tensor)
{
    struct sw_err err;
    sw_err_init(&err);
    float *values = malloc((size_t)tensor->elements * sizeof *values + 1);
    assert_ok(sw_tensor_read_float(tensor, 0, tensor->elements, values, &err), &err);
    return values;
}

/* What training changed, tensor by tensor, against what it changed in the reference. */
static void check_weights(const struct reference *r)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_tensor_file *have, *want, *start;
    char *final = at(r->run, "final/model.safetensors");
    char *reference = at(r->directory, "final.safetensors");
    char *initial = at(r->model, "model.safetensors");
    assert_ok(sw_safetensors_open(final, &have, &err), &err);
    assert_ok(sw_safetensors_open(reference, &want, &err), &err);
    assert_ok(sw_safetensors_open(initial, &start, &err), &err);
    for (int64_t i = 0; i < want->tensor_count; i++) {
        const struct sw_tensor *w = &want->tensors[i], *h = find(have, w->name);
        const struct sw_tensor *s = find(start, w->name);
        assert_non_null(h);
        assert_non_null(s);
        float *a = read_tensor(h), *b = read_tensor(w), *c = read_tensor(s);
        double off = 0, change = 0, size = 0;
        for (int64_t j = 0; j < w->elements; j++) {
            off += pow((double)a[j] - (double)b[j], 2);
            change += pow((double)b[j] - (double)c[j], 2);
            size += pow((double)b[j], 2);
        }
        double room = CHANGE * sqrt(change) + 2e-7 * sqrt(size) + 1e-7 * sqrt((double)w->elements);
        if (sqrt(off) > room)
            fail_msg("%s: off by %.3g, room for %.3g", w->name, sqrt(off), room);
        free(a);
        free(b);
        free(c);
    }
    sw_tensor_file_close(have);
    sw_tensor_file_close(want);
    sw_tensor_file_close(start);
    free(final);
    free(reference);
    free(initial);
}

static void check_evaluation(const struct reference *r)
{
    char *final = at(r->run, "final");
    int64_t count;
    assert_int_equal(
        RUN(r->out, r->log, NULL, (char[]){"eval"}, r->config, (char[]){"--model"}, final), 0);
    struct sw_json **lines = read_lines(r->out, &count);
    assert_int_equal(count, 1);
    close_to("evaluation", 0, number(lines[0], "loss"), number(r->want, "eval_loss_after"),
             EVALUATION);
    assert_true(number(lines[0], "tokens") == number(r->want, "eval_target_tokens"));
    free_lines(lines, count);
    free(final);
}

/* Greedy ids of the first rows; the reference's begin with the start token. */
static void check_generation(const struct reference *r, char *model, const char *key, int64_t least)
{
    int64_t count, equal = 0;
    char length[32];
    snprintf(length, sizeof length, "%.0f", number(r->want, "max_source_length"));
    assert_int_equal(RUN(r->out, r->log, NULL, (char[]){"generate"}, (char[]){"--model"}, model,
                         (char[]){"--input"}, r->rows, (char[]){"--max-new-tokens"}, (char[]){"16"},
                         (char[]){"--max-source-length"}, length),
                     0);
    struct sw_json **lines = read_lines(r->out, &count);
    const struct sw_json *want = sw_json_get(r->want, key);
    for (int64_t i = 0; i < sw_json_count(want); i++) {
        const struct sw_json *a = sw_json_at(want, i), *b = sw_json_get(lines[i], "ids");
        bool same = sw_json_count(a) == sw_json_count(b) + 1;
        for (int64_t j = 0; same && j < sw_json_count(b); j++) {
            int64_t x = -1, y = -2;
            same = sw_json_to_integer(sw_json_at(a, j + 1), &x) &&
                   sw_json_to_integer(sw_json_at(b, j), &y) && x == y;
        }
        equal += same;
    }
    if (equal < least)
        fail_msg("%s: %lld generations equal, of %lld", key, (long long)equal,
                 (long long)sw_json_count(want));
    free_lines(lines, count);
}

/* ---- the same from other tiers ---- */

#define ALL(tier)                                                                                  \
    "--set offload.params=" tier " --set offload.optimizer=" tier " --set offload.grads=" tier     \
    " --set offload.activations=" tier " "

static const char *const TIERS[] = {
    ALL("host") "--set devices.threads=2",
    ALL("host") "--set offload.prefetch_depth=1 --set devices.threads=1",
    ALL("nvme"),
    ALL("nvme") "--set offload.prefetch_depth=1 --set io.method=sync --set run.overlap=false",
    ALL("nvme") "--set offload.prefetch_depth=6 --set io.verify=true --set devices.threads=2",
    ALL("nvme") "--set precision.master=split",
};

/* Run a command with settings; the spill directory is the case's. */
static int run_with(const struct reference *r, const char *command, const char *settings)
{
    struct sw_text words = {0};
    sw_text_add(&words, "%s --set offload.nvme=%s %s", command, r->work, settings);
    assert_false(words.failed);
    int status = spillway_words(r->out, r->log, NULL, words.bytes);
    free(words.bytes);
    return status;
}

/* The exit status of training with settings; done, it is compared with the resident run. */
static int train_from(const struct reference *r, const char *settings)
{
    char command[4096], *other = at(r->work, "other");
    struct sw_err err;
    sw_err_init(&err);
    snprintf(command, sizeof command, "train %s --set output.dir=%s", r->config, other);
    int status = run_with(r, command, settings);
    if (status != 0 && status != 3)
        fail_msg("%s, %s: %d: %s", r->name, settings, status, read_text(r->log));
    if (status == 0) {
        same_file(r->run, other, "final/model.safetensors");
        assert_ok(sw_directory_remove(other, &err), &err);
    }
    free(other);
    return status;
}

/* In the device memory that a refusal says would do, and the micro-batches of the resident run (all
 * rows, which the result depends on); the rest on the drive. */
static void check_training_in_little(const struct reference *r)
{
    static const char key[] = "devices.memory of ";
    char settings[256], memory[64] = "64KiB";
    for (int want = 3; want >= 0; want -= 3) {
        snprintf(settings, sizeof settings,
                 "--set train.micro_batch=%.0f --set devices.memory=%s --set offload.params=nvme",
                 number(r->want, "batch_rows"), memory);
        assert_int_equal(train_from(r, settings), want);
        char *log = read_text(r->log), *says = strstr(log, key);
        if (want == 3 && (says == NULL || sscanf(says + sizeof key - 1, "%63[^ ]", memory) != 1))
            fail_msg("%s: no %s in: %s", r->name, key, log);
        free(log);
    }
}

/* Evaluation and generation: what they print, word by word. */
static void check_answers_from(const struct reference *r, const char *settings)
{
    char commands[2][4096];
    snprintf(commands[0], sizeof commands[0], "eval %s --model %s/final", r->config, r->run);
    snprintf(commands[1], sizeof commands[1],
             "generate --model %s/final --input %s --beams 2 --max-new-tokens 6", r->run, r->rows);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run_with(r, commands[i], "--set devices.kind=cpu"), 0);
        char *want = read_text(r->out);
        int status = run_with(r, commands[i], settings);
        if (status != 0)
            fail_msg("%s, %s: %d: %s", r->name, settings, status, read_text(r->log));
        char *have = read_text(r->out);
        assert_string_equal(have, want);
        free(want);
        free(have);
    }
}

static void check_tiers(const struct reference *r)
{
    for (size_t i = 0; i < sizeof TIERS / sizeof *TIERS; i++)
        assert_int_equal(train_from(r, TIERS[i]), 0);
    check_training_in_little(r);
    check_answers_from(r, "--set devices.kind=cpu --set offload.params=host");
    check_answers_from(r, "--set devices.kind=cpu --set offload.params=nvme "
                          "--set offload.prefetch_depth=1");
}

/* ---- the same over pipelines and replicas ---- */

/* Number `index` of all grids, schedules, stages of ZeRO and homes of states; false: more stages
 * than the model has blocks. */
static bool describe_grid(const struct reference *r, int index, char *out, size_t bytes)
{
    static const char *const schedules[] = {"layered", "1f1b", "gpipe"};
    static const char *const homes[] = {"device", "host", "nvme"};
    static const int replicas[] = {1, 2, 4};
    int pipeline = 1 + index % 4, data = replicas[index / 4 % 3], zero = index / 12 % 4;
    snprintf(out, bytes,
             "--set parallel.pipeline=%d --set parallel.data=%d --set parallel.zero=%d "
             "--set parallel.schedule=%s --set offload.optimizer=%s",
             pipeline, data, zero, schedules[index / 48 % 3], homes[index / 144]);
    char *path = at(r->model, "config.json");
    struct sw_json *config = read_json(path);
    double blocks = number(config, "num_layers") + number(config, "num_decoder_layers");
    sw_json_free(config);
    free(path);
    return pipeline <= blocks;
}

/* A covering set of the 432; with SPILLWAY_GRIDS=all, all. */
static void check_grids(const struct reference *r, int number_of_case)
{
    enum { GRIDS = 432, STRIDE = 61, SAMPLES = 10 };
    bool all = getenv("SPILLWAY_GRIDS") != NULL && strcmp(getenv("SPILLWAY_GRIDS"), "all") == 0;
    char settings[512], command[4096], *other = at(r->work, "grid");
    struct reference moved = *r;
    moved.run = other;
    for (int i = 0; i < (all ? GRIDS : SAMPLES); i++) {
        struct sw_err err;
        sw_err_init(&err);
        int index = all ? i : (number_of_case * SAMPLES + i) * STRIDE % GRIDS;
        bool possible = describe_grid(r, index, settings, sizeof settings);
        snprintf(command, sizeof command, "train %s --set output.dir=%s", r->config, other);
        int status = run_with(r, command, settings);
        if (status != (possible ? 0 : 2))
            fail_msg("%s, %s: %d: %s", r->name, settings, status, read_text(r->log));
        if (!possible)
            continue;
        check_metrics(&moved);
        check_weights(&moved);
        assert_ok(sw_directory_remove(other, &err), &err);
    }
    free(other);
}

static void check_case(const char *golden, int number_of_case, const char *name)
{
    struct reference r = {.name = name, .directory = at(golden, name), .work = sw_test_scratch()};
    char *expect = at(r.directory, "expect.json");
    r.model = at(r.directory, "model");
    r.rows = at(r.directory, "train.jsonl");
    r.run = at(r.work, "run");
    r.config = at(r.work, "job.yaml");
    r.out = at(r.work, "out");
    r.log = at(r.work, "log");
    r.want = read_json(expect);
    write_config(&r);
    int status = RUN(r.out, r.log, NULL, (char[]){"train"}, r.config);
    if (status != 0)
        fail_msg("%s: train: %d: %s", name, status, read_text(r.log));
    check_metrics(&r);
    check_weights(&r);
    check_evaluation(&r);
    check_tiers(&r);
    check_grids(&r, number_of_case);
    /* What does not fit is refused, before anything is loaded. */
    char *tiny = at(r.work, "tiny"), place[4096];
    snprintf(place, sizeof place, "output.dir=%s", tiny);
    assert_int_equal(RUN(r.out, r.log, NULL, (char[]){"train"}, r.config, (char[]){"--set"}, place,
                         (char[]){"--set"}, (char[]){"devices.memory=64KiB"}),
                     3);
    free(tiny);
    char *final = at(r.run, "final");
    check_generation(&r, r.model, "greedy_ids_before", 6);
    check_generation(&r, final, "greedy_ids_after", 5); /* one may differ where logits nearly tie */
    sw_json_free(r.want);
    char *owned[] = {expect, r.directory, r.model, r.rows, r.run, r.config, r.out, r.log, final};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    sw_test_scratch_remove(r.work);
}

static void reference_cases_hold(void **state)
{
    (void)state;
    const char *golden = sw_test_golden_dir();
    if (golden == NULL)
        skip();
    check_case(golden, 0, "t5v10-relu-tied");
    check_case(golden, 1, "t5v10-strong-decay");
    check_case(golden, 2, "t5v11-gated-untied");
    check_case(golden, 3, "t5v11-adamw-linear");
}

/* ---- stopping and resuming ---- */

/* A run of the first reference case's model, cut short by --set or not. */
static char *train_in(const char *golden, const char *work, const char *name, const char *steps,
                      const char *resume, int want)
{
    char *model = at(golden, "t5v10-relu-tied/model");
    char *rows = at(golden, "t5v10-relu-tied/train.jsonl");
    char *run = at(work, name), *config = at(work, "resume.yaml"), *out = at(work, "out");
    char *log = at(work, "log"), set[64];
    struct sw_text text = {0};
    sw_text_add(&text,
                "model: {path: \"%s\"}\ndata: {train: \"%s\", max_source_length: 28, "
                "max_target_length: 14}\ntrain: {global_batch: 8, micro_batch: 3, dropout: 0.1}\n"
                "optimizer: {lr: 1e-3, schedule: constant}\ndevices: {kind: cpu}\n"
                "output: {dir: \"%s\", save_every: 3, keep_last: 0}\n",
                model, rows, run);
    write_text(config, text.bytes);
    snprintf(set, sizeof set, "train.steps=%s", steps);
    int status = resume == NULL
                     ? RUN(out, log, NULL, (char[]){"train"}, config, (char[]){"--set"}, set)
                     : RUN(out, log, NULL, (char[]){"train"}, config, (char[]){"--set"}, set,
                           (char[]){"--resume"}, (char[]){"auto"});
    if (status != want)
        fail_msg("train: %d: %s", status, read_text(log));
    char *owned[] = {model, rows, config, out, log, text.bytes};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    return run;
}

/* With dropout, and saved in the middle of things: the same files, bit for bit. */
static void a_resumed_run_ends_as_an_uninterrupted_one(void **state)
{
    (void)state;
    const char *golden = sw_test_golden_dir();
    if (golden == NULL)
        skip();
    char *work = sw_test_scratch();
    char *whole = train_in(golden, work, "whole", "7", NULL, 0);
    char *half = train_in(golden, work, "half", "6", NULL, 0);
    /* Without --resume a directory that holds a run is refused. */
    free(train_in(golden, work, "half", "7", NULL, 2));
    char *checkpoint = at(half, "checkpoint-6"), *final = at(half, "final");
    struct sw_err err;
    sw_err_init(&err);
    /* As if it had been stopped after step 3, with a line of metrics too many. */
    assert_ok(sw_directory_remove(checkpoint, &err), &err);
    assert_ok(sw_directory_remove(final, &err), &err);
    free(train_in(golden, work, "half", "7", "auto", 0));
    same_file(whole, half, "final/model.safetensors");
    same_file(whole, half, "checkpoint-7/optimizer.safetensors");
    same_file(whole, half, "checkpoint-7/state.json");
    /* The checkpoint that a run came from may be rotated out. */
    char *config = at(work, "resume.yaml"), *out = at(work, "out"), *log = at(work, "log");
    char dir[4096];
    snprintf(dir, sizeof dir, "output.dir=%s", half);
    assert_int_equal(RUN(out, log, NULL, (char[]){"train"}, config, (char[]){"--set"}, dir,
                         (char[]){"--set"}, (char[]){"output.keep_last=1"}, (char[]){"--set"},
                         (char[]){"train.steps=13"}, (char[]){"--resume"}, (char[]){"auto"}),
                     0);
    free(config);
    free(out);
    free(log);
    int64_t count;
    char *metrics = at(half, "metrics.jsonl");
    struct sw_json **lines = read_lines(metrics, &count);
    assert_int_equal(count, 13);
    for (int64_t i = 0; i < count; i++)
        assert_true(number(lines[i], "step") == (double)(i + 1));
    free_lines(lines, count);
    char *owned[] = {whole, half, checkpoint, final, metrics};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    sw_test_scratch_remove(work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_cases_hold),
        cmocka_unit_test(a_resumed_run_ends_as_an_uninterrupted_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

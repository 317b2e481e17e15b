/* Whole runs by the command line on small models that the test makes itself: what must not change a
 * result does not, and what a run leaves can be used. */
#include "tests/small_model.h"

#include "base/text.h"
#include "data/tokenizer.h"
#include "io/safetensors.h"

#include <fcntl.h>
#include <math.h>

/* ---- equal runs ---- */

/* Train into directory `name` with more arguments; its path. */
static char *train(const struct world *world, const struct kind *kind, const char *name,
                   const char *more)
{
    char full[64];
    snprintf(full, sizeof full, "%s-%s", kind->name, name);
    run(world, 0, NULL, "train %s/%s.yaml --set output.dir=%s/%s %s", world->directory, kind->name,
        world->directory, full, more);
    return at(world->directory, full);
}

/* Losses, norms and rates of two runs: the same doubles; `steps` of them. */
static void same_metrics(const char *a, const char *b, int64_t steps)
{
    static const char *const keys[] = {"step", "loss", "grad_norm", "lr", "target_tokens"};
    char *paths[2] = {at(a, "metrics.jsonl"), at(b, "metrics.jsonl")};
    struct sw_json **lines[2];
    int64_t count[2];
    for (int i = 0; i < 2; i++)
        lines[i] = read_lines(paths[i], &count[i]);
    assert_true(count[0] == steps && count[1] == steps);
    for (int64_t step = 0; step < steps; step++)
        for (size_t key = 0; key < sizeof keys / sizeof *keys; key++)
            if (!(number(lines[0][step], keys[key]) == number(lines[1][step], keys[key])))
                fail_msg("%s, step %lld: %s is %.17g and %.17g", b, (long long)step + 1, keys[key],
                         number(lines[0][step], keys[key]), number(lines[1][step], keys[key]));
    for (int i = 0; i < 2; i++) {
        free_lines(lines[i], count[i]);
        free(paths[i]);
    }
}

static void same_run(const char *a, const char *b)
{
    same_metrics(a, b, 7);
    same_file(a, b, "final/model.safetensors");
    same_file(a, b, "checkpoint-6/model.safetensors");
    same_file(a, b, "checkpoint-6/optimizer.safetensors");
    same_file(a, b, "checkpoint-6/state.json");
}

/* Did every step read from and write to drives? */
static bool moved_by_drives(const char *directory)
{
    char *path = at(directory, "metrics.jsonl");
    int64_t count, steps = 0;
    struct sw_json **lines = read_lines(path, &count);
    for (int64_t i = 0; i < count; i++)
        steps += sw_json_get(lines[i], "nvme_read_bytes") != NULL &&
                 number(lines[i], "nvme_read_bytes") > 0 &&
                 number(lines[i], "nvme_written_bytes") > 0;
    free_lines(lines, count);
    free(path);
    return steps == count;
}

/* Threads, tiers, overlap, recomputation: each against the resident run on one thread. */
static void where_and_how_does_not_change_a_bit(void **state)
{
    static const char *const others[][2] = {
        {"repeated", ""},
        {"threads", "--set devices.threads=3"},
        {"serial", "--set run.overlap=false --set train.recompute=on"},
        {"host", "--set offload.params=host --set offload.optimizer=host --set offload.grads=host "
                 "--set offload.activations=host --set devices.threads=2"},
        {"nvme", "--set offload.params=nvme --set offload.optimizer=nvme --set offload.grads=nvme "
                 "--set offload.activations=nvme --set offload.nvme="},
    };
    const struct world *world = *state;
    for (int i = 0; i < KINDS; i++) {
        char *base = train(world, &kinds[i], "base", "");
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            bool nvme = strcmp(others[k][0], "nvme") == 0;
            char more[1024];
            snprintf(more, sizeof more, "%s%s", others[k][1], nvme ? world->directory : "");
            char *other = train(world, &kinds[i], others[k][0], more);
            same_run(base, other);
            if (nvme != moved_by_drives(other))
                fail_msg("%s: the drive is%s used", other, nvme ? " not" : "");
            char *log = read_text(world->log);
            assert_non_null(strstr(log, "since the first step began"));
            assert_true(nvme == (strstr(log, "drives: ") != NULL));
            free(log);
            free(other);
        }
        free(base);
    }
}

/* Saved after step 3 and 6, then as if it had been killed in step 5; and the rest of the run with
 * everything on the drive. */
static void a_resumed_run_ends_as_an_uninterrupted_one(void **state)
{
    const struct world *world = *state;
    struct sw_err err = {0};
    for (int i = 0; i < KINDS; i++) {
        char *whole = train(world, &kinds[i], "whole", ""), more[1024];
        char *half = train(world, &kinds[i], "half", "--set train.steps=6");
        char *checkpoint = at(half, "checkpoint-6"), *final = at(half, "final");
        assert_ok(sw_directory_remove(checkpoint, &err), &err);
        assert_ok(sw_directory_remove(final, &err), &err);
        snprintf(more, sizeof more,
                 "--resume auto --set offload.optimizer=nvme --set offload.params=nvme "
                 "--set offload.nvme=%s",
                 world->directory);
        free(train(world, &kinds[i], "half", more));
        same_run(whole, half);
        char *owned[] = {whole, half, checkpoint, final};
        for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
            free(owned[k]);
    }
}

/* ---- what a run leaves ---- */

static double evaluate(const struct world *world, const struct kind *kind, const char *model)
{
    int64_t count;
    run(world, 0, NULL, "eval %s/%s.yaml --model %s", world->directory, kind->name, model);
    struct sw_json **lines = read_lines(world->out, &count);
    assert_true(count == 1 && number(lines[0], "tokens") >= 2 * ROWS);
    double loss = number(lines[0], "loss");
    free_lines(lines, count);
    return loss;
}

/* One line a row, ids and text that go together, EOS last or 8 of them. */
static void check_generation(const struct world *world, const char *model, int beams)
{
    struct sw_err err = {0};
    struct sw_tokenizer *tokenizer;
    int64_t count;
    run(world, 0, NULL, "generate --model %s --input %s --max-new-tokens 8 --beams %d", model,
        world->rows, beams);
    struct sw_json **lines = read_lines(world->out, &count);
    assert_int_equal(count, ROWS);
    assert_ok(sw_tokenizer_open(model, SMALL_VOCABULARY, &tokenizer, &err), &err);
    for (int64_t i = 0; i < count; i++) {
        const struct sw_json *list = sw_json_get(lines[i], "ids");
        int32_t ids[8];
        int64_t ids_count = sw_json_count(list), id = -1;
        assert_true(ids_count >= 1 && ids_count <= 8);
        for (int64_t k = 0; k < ids_count; k++) {
            assert_true(sw_json_to_integer(sw_json_at(list, k), &id) && id >= 0 &&
                        id < SMALL_VOCABULARY);
            ids[k] = (int32_t)id;
        }
        assert_true(id == 1 || ids_count == 8);
        struct sw_text text = {0};
        assert_ok(sw_tokenizer_decode(tokenizer, ids, ids_count, &text, &err), &err);
        const char *decoded = text.bytes != NULL ? text.bytes : "";
        assert_string_equal(sw_json_to_string(sw_json_get(lines[i], "text")), decoded);
        free(text.bytes);
    }
    sw_tokenizer_close(tokenizer);
    free_lines(lines, count);
}

/* Trained, the model is better at its rows; the checkpoint and final are the same model; it can be
 * asked, and trained again. */
static void the_final_model_can_be_used(void **state)
{
    const struct world *world = *state;
    for (int i = 0; i < KINDS; i++) {
        char *initial = at(world->directory, kinds[i].name);
        char *used = train(world, &kinds[i], "used", "--set output.save_every=7");
        char *final = at(used, "final"), *checkpoint = at(used, "checkpoint-7");
        double before = evaluate(world, &kinds[i], initial);
        double after = evaluate(world, &kinds[i], final);
        if (!(after < 0.9 * before))
            fail_msg("%s: loss %g before training, %g after", kinds[i].name, before, after);
        assert_true(evaluate(world, &kinds[i], checkpoint) == after);
        check_generation(world, final, 1);
        check_generation(world, checkpoint, 3);
        run(world, 0, NULL,
            "train %s/%s.yaml --set model.path=%s --set output.dir=%s/%s-again --set train.steps=1",
            world->directory, kinds[i].name, final, world->directory, kinds[i].name);
        char *owned[] = {initial, used, final, checkpoint};
        for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
            free(owned[k]);
    }
}

/* Every rank's device held what was planned for it, as the run says when it ends. */
static void ranks_tell_their_memory(void **state)
{
    const struct world *world = *state;
    char *directory = train(world, &kinds[1], "ranks",
                            "--set parallel.pipeline=2 --set parallel.data=2 --set parallel.zero=2 "
                            "--set parallel.schedule=1f1b --set train.steps=1");
    char *log = read_text(world->log), *line = log;
    for (int rank = 0; rank < 4; rank++) {
        double most, planned;
        int index;
        line = strstr(line, "\nrank ");
        assert_non_null(line);
        assert_int_equal(sscanf(++line, "rank %d: %lf MiB of device memory at most, %lf as planned",
                                &index, &most, &planned),
                         3);
        assert_int_equal(index, rank);
        assert_true(most > 0 && most == planned);
    }
    free(log);
    free(directory);
}

/* ---- a model with a broken weight ---- */

static void break_weight(const char *model, const char *name)
{
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    const float broken = NAN;
    char *path = at(model, "model.safetensors");
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    int64_t offset = -1;
    for (int64_t i = 0; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            offset = file->tensors[i].offset;
    assert_true(offset > 0);
    sw_tensor_file_close(file);
    int descriptor = open(path, O_WRONLY);
    assert_true(descriptor >= 0);
    assert_true(pwrite(descriptor, &broken, sizeof broken, (off_t)offset) == sizeof broken);
    close(descriptor);
    free(path);
}

static void a_broken_weight_is_not_hidden(void **state)
{
    static const char *const weights[][2] = {
        {"encoder.block.1.layer.0.SelfAttention.q.weight", "encoder block 1"},
        {"decoder.block.2.layer.1.EncDecAttention.v.weight", "decoder block 2"},
        {"lm_head.weight", "head"},
    };
    const struct world *world = *state;
    for (int i = 0; i < 3; i++) {
        const char *directory = world->directory;
        char *model;
        run(world, 0, NULL,
            "init --config %s/v11.json --tokenizer %s/spiece.model --out %s/broken%d", directory,
            directory, directory, i);
        char name[32];
        snprintf(name, sizeof name, "broken%d", i);
        model = at(directory, name);
        break_weight(model, weights[i][0]);
        run(world, 1, NULL, "eval %s/v11.yaml --model %s", directory, model);
        expect_no_output(world);
        expect_in_log(world, "the loss is not finite, first in ");
        expect_in_log(world, weights[i][1]);
        for (int beams = 1; beams < 4; beams += 2) {
            run(world, 1, NULL, "generate --model %s --input %s --beams %d", model, world->rows,
                beams);
            expect_no_output(world);
            expect_in_log(world, weights[i][1]);
        }
        run(world, 1, NULL,
            "train %s/v11.yaml --set model.path=%s --set output.dir=%s/broken-run%d --set "
            "train.steps=20",
            directory, model, directory, i);
        expect_in_log(world, "in a row that is not finite, first in ");
        expect_in_log(world, weights[i][1]);
        free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_how_does_not_change_a_bit),
        cmocka_unit_test(a_resumed_run_ends_as_an_uninterrupted_one),
        cmocka_unit_test(the_final_model_can_be_used),
        cmocka_unit_test(ranks_tell_their_memory),
        cmocka_unit_test(a_broken_weight_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}

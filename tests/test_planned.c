/* Plans and predictions by the command line: by which rates, on which machine, what a setting
 * changes. */
#include "tests/world.h"

/* The number behind `words` in a text. */
static double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    if (at == NULL)
        fail_msg("no \"%s\" in: %s", words, text);
    return strtod(at + strlen(words), NULL);
}

/* A step on the virtual clock at rates of 1 GB/s and 1 GFLOP/s, and the same step run. */
static void a_step_is_predicted_and_run(void **state)
{
    const struct world *world = *state;
    expect(world, "bench step", 2, "bench step needs CONFIG.yaml");
    expect(world, "bench io @/job.yaml", 2, "job.yaml for?");
    expect(world, "bench step @/job.yaml --machine @/none.json", 2, "--machine: cannot open");
    put(world, "machine.json",
        "{\"format\": 1, \"cpus\": 2, \"memory_total_bytes\": 17179869184,"
        " \"memory_available_bytes\": 17179869184, \"triad_bytes_per_second\": 1e9,"
        " \"optimizer_bytes_per_second\": 1e9, \"memcpy_bytes_per_second\": 2e9,"
        " \"gemm_flops_per_second\": 1e9}\n");
    struct sw_test_output output = sw_test_expect(
        world->at,
        "bench step @/job.yaml --machine @/machine.json --run 2 --set offload.params=host", 0,
        "median of 2");
    double makespan = number_after(output.out, "makespan    ");
    double serial = number_after(output.out, "without overlap ");
    double busiest = number_after(output.out, "busiest     device, ");
    assert_true(busiest > 0 && busiest <= makespan && makespan <= serial);
    /* Lanes that share the CPUs: all of them take as long together, whatever overlaps. */
    assert_true(makespan >= 0.99 * serial);
    assert_true(number_after(output.out, "run         ") > 0);
    sw_test_output_free(&output);
    /* The same rates by the configuration. */
    output = sw_test_expect(
        world->at,
        "bench step @/job.yaml --set run.machine=@/machine.json --set offload.params=host", 0,
        "products 1.0 GFLOP/s");
    assert_true(number_after(output.out, "makespan    ") == makespan);
    sw_test_output_free(&output);
    expect(world, "plan @/job.yaml --set run.machine=@/machine.json", 0, "machine.json");
    expect(world, "train @/job.yaml --set run.machine=@/none.json", 2, "run.machine");
    expect(world, "train @/job.yaml --set run.machine=@/machine.json --set output.dir=@/planned", 0,
           "done in");
    drop(world, "planned");
    drop(world, "machine.json");
}

/* GPUs that are not here, planned for by their file: every rank's lanes and links. */
static void a_step_on_a_machine_that_is_not_here(void **state)
{
    const struct world *world = *state;
    static const char gpu[] = "{\"memory_bytes\": 25769803776, \"h2d_bytes_per_second\": 25e9,"
                              " \"d2h_bytes_per_second\": 25e9, \"memory_bytes_per_second\": 9e11,"
                              " \"gemm_flops_per_second\": 1e14}";
    char text[1536];
    snprintf(text, sizeof text,
             "{\"format\": 1, \"cpus\": 2, \"memory_total_bytes\": 17179869184,"
             " \"memory_available_bytes\": 17179869184, \"gpus\": [%s, %s, %s, %s]}\n",
             gpu, gpu, gpu, gpu);
    put(world, "gpus.json", text);
    struct sw_test_output output =
        sw_test_expect(world->at,
                       "bench step @/job.yaml --machine @/gpus.json --set devices.kind=cuda --set "
                       "parallel.pipeline=2 --set parallel.data=2 --set parallel.zero=2",
                       0, "products 100000 GFLOP/s");
    double bubble = number_after(output.out, "bubble      ");
    double most = number_after(output.out, "most on rank ");
    assert_true(bubble > 0 && bubble < 100 && most >= 0 && most < 4);
    assert_non_null(strstr(output.out, "\nrank  bubble"));
    double idle = 0;
    for (int rank = 0; rank < 4; rank++) {
        char line[16];
        snprintf(line, sizeof line, "\n%4d ", rank);
        idle += number_after(output.out, line) / 4;
    }
    assert_true(idle > bubble - 0.2 && idle < bubble + 0.2); /* as printed, to a tenth */
    sw_test_output_free(&output);
    expect(world, "plan @/job.yaml --machine @/gpus.json --set devices.kind=cuda", 0, "s a step");
    expect(world,
           "plan @/job.yaml --machine @/gpus.json --set parallel.data=5 --set train.global_batch=8 "
           "--set devices.kind=auto",
           2, "5 ranks, but 4 GPUs");
    put(world, "none.json", "{\"format\": 1, \"cpus\": 2, \"memory_total_bytes\": 17179869184}\n");
    expect(world, "plan @/job.yaml --machine @/none.json --set devices.kind=cuda", 2,
           "--machine: it has no GPU");
    drop(world, "none.json");
    drop(world, "gpus.json");
}

/* The schedules' times are by the same rates as the prediction: the one that was chosen has its. */
static void check_schedule_times(const char *out)
{
    char chosen[16], part[80];
    const char *line = strstr(out, "schedule   "), *predicted = strstr(out, "predicted  ");
    assert_true(line != NULL && predicted != NULL);
    assert_int_equal(sscanf(line, "schedule %15[^:]", chosen), 1);
    predicted += strlen("predicted  ");
    snprintf(part, sizeof part, " %s %.*s", chosen, (int)(strstr(predicted, " a step") - predicted),
             predicted);
    if (strstr(line, part) == NULL)
        fail_msg("the schedules lack \"%s\":\n%s", part, out);
}

/* With and without a machine file a step is predicted, and it is said by what. */
static void a_plan_says_how_long_a_step_takes_and_by_what(void **state)
{
    const struct world *world = *state;
    struct sw_test_output output =
        sw_test_expect(world->at, "plan @/job.yaml", 0, "s a step; bound by ");
    assert_non_null(strstr(output.out, "rates                  measured just now: products "));
    assert_null(strstr(output.out, "(nominal)"));
    sw_test_output_free(&output);
    output = sw_test_expect(world->at, "plan @/job.yaml --set parallel.pipeline=2", 0, "1f1b ");
    check_schedule_times(output.out);
    sw_test_output_free(&output);
    expect(world, "plan @/job.yaml --set offload.optimizer=nvme --set offload.nvme=[@]", 0,
           "drives' reads 2.5 GB/s (nominal), writes 1.5 GB/s (nominal)\n");
    put(world, "slow.json",
        "{\"format\": 1, \"cpus\": 2, \"memory_total_bytes\": 17179869184,"
        " \"memory_available_bytes\": 17179869184, \"gemm_flops_per_second\": 1e6}\n");
    output = sw_test_expect(world->at, "plan @/job.yaml --json --machine @/slow.json", 0, "");
    put(world, "slow.out", output.out);
    double flops = field(world, "slow.out", 0, "step_flops");
    assert_true(field(world, "slow.out", 0, "step_seconds") >= 0.9 * flops / 1e6);
    assert_non_null(strstr(output.out, "/slow.json\", \"gemm_flops\": 1e+06"));
    assert_non_null(
        strstr(output.out, "\"nominal\": [\"host_bytes\", \"optimizer_bytes\", \"h2d_bytes\"]"));
    sw_test_output_free(&output);
    /* what a file does not tell is nominal, and marked */
    expect(
        world, "bench step @/job.yaml --machine @/slow.json", 0,
        "products 0.001 GFLOP/s, host memory 20.0 GB/s (nominal), optimizer 20.0 GB/s (nominal)");
}

/* Adds what a refusal says would do to a command line; the number of settings. `less`: MiB below.
 */
static int take_advice(const char *log, int less, char *line, size_t bytes)
{
    static const char *const keys[] = {"devices.memory", "offload.host_memory",
                                       "offload.nvme_capacity"};
    int count = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *says = strstr(log, keys[i]), *of = says != NULL ? strstr(says, " of ") : NULL;
        size_t used = strlen(line);
        if (of == NULL)
            continue;
        snprintf(line + used, bytes - used, " --set %s=%ldMiB", keys[i],
                 strtol(of + strlen(" of "), NULL, 10) - less);
        count++;
    }
    return count;
}

/* The change that a refusal prints lets it fit, and where it is one, a MiB less does not. */
static void a_refusal_names_the_least_that_would_do(void **state)
{
    const struct world *world = *state;
    static const char *const cases[] = {
        "devices.memory=64KiB", "devices.memory=64KiB --set offload.params=host",
        "devices.memory=64KiB --set train.recompute=off --set train.micro_batch=4",
        "devices.memory=64KiB --set parallel.pipeline=2 --set offload.optimizer=nvme",
        "devices.memory=64KiB --set parallel.data=2 --set parallel.zero=3",
        "offload.host_memory=64KiB --set offload.grads=host --set offload.optimizer=nvme",
        "offload.nvme_capacity=64KiB --set offload.optimizer=nvme",
        /* kept activations need not be there, too */
        "offload.nvme_capacity=64KiB --set offload.optimizer=nvme --set data.max_source_length=512",
        "offload.nvme_capacity=64KiB --set offload.activations=nvme --set train.global_batch=24",
        "offload.nvme_capacity=64KiB --set devices.memory=1MiB --set offload.host_memory=1MiB"};
    put(world, "rates.json", "{\"cpus\": 2, \"memory_total_bytes\": 1.7e10}\n");
    put(world, "wide.json", CONFIG(256, 2048));
    expect(world, "init --config @/wide.json --tokenizer @/spiece.model --out @/wide --no-weights",
           0, "M");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[1024], again[1024];
        snprintf(line, sizeof line,
                 "plan @/job.yaml --machine @/rates.json --set model.path=@/wide "
                 "--set model.random_init=true --set offload.nvme=@ --set %s",
                 cases[i]);
        struct sw_test_output output = sw_test_expect(world->at, line, 3, "would do");
        strcpy(again, line);
        int count = take_advice(output.log, 0, again, sizeof again);
        assert_true(count > 0);
        expect(world, again, 0, "a step");
        strcpy(again, line);
        if (take_advice(output.log, 1, again, sizeof again) == 1 && strstr(again, "=0MiB") == NULL)
            expect(world, again, 3, "would do");
        sw_test_output_free(&output);
    }
}

/* Directories that nothing spills to are named; where something does, nothing is said. */
static void settings_without_effect_are_named(void **state)
{
    const struct world *world = *state;
    static const char note[] = "nothing spills; unused: offload.nvme, io.verify\n";
    expect(world,
           "train @/job.yaml --set output.dir=@/idle --set offload.nvme=[@] --set io.verify=true",
           0, note);
    drop(world, "idle");
    struct sw_test_output output =
        sw_test_expect(world->at,
                       "train @/job.yaml --set output.dir=@/busy --set offload.nvme=[@] "
                       "--set offload.optimizer=nvme",
                       0, "the model is in");
    assert_null(strstr(output.log, "unused"));
    sw_test_output_free(&output);
    drop(world, "busy");
    expect(world, "plan @/job.yaml --set parallel.zero=2", 0, "note: parallel.zero has no effect");
    expect(world, "plan @/job.yaml --set devices.list=[3]", 0, "note: devices.list has no effect");
    output =
        sw_test_expect(world->at, "plan @/job.yaml --set parallel.data=2 --set parallel.zero=2", 0,
                       "ZeRO stage 2");
    assert_null(strstr(output.log, "no effect"));
    sw_test_output_free(&output);
    /* nominal rates that decided, and those of a file, or none to decide */
    static const char rates[] = "note: placed by nominal rates; `spillway probe --out";
    expect(world, "plan @/job.yaml --set offload.optimizer=host", 0, rates);
    put(world, "rates.json", "{\"cpus\": 2, \"memory_total_bytes\": 1.7e10}\n");
    static const char *const quiet[] = {
        "plan @/job.yaml --set offload.optimizer=host --machine @/rates.json",
        "plan @/job.yaml --set offload.optimizer=host --set run.machine=@/rates.json",
        "plan @/job.yaml"};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
        output = sw_test_expect(world->at, quiet[i], 0, "s a step");
        assert_null(strstr(output.log, rates));
        sw_test_output_free(&output);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_predicted_and_run),
        cmocka_unit_test(a_step_on_a_machine_that_is_not_here),
        cmocka_unit_test(a_plan_says_how_long_a_step_takes_and_by_what),
        cmocka_unit_test(a_refusal_names_the_least_that_would_do),
        cmocka_unit_test(settings_without_effect_are_named),
    };
    return cmocka_run_group_tests(tests, sw_test_world_open, sw_test_world_close);
}

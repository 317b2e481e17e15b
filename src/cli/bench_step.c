/* spillway bench step */
#include "cli/bench_step.h"

#include "base/mem.h"
#include "base/random.h"
#include "cli/back_end.h"
#include "cli/measure_args.h"
#include "cli/probe.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_STEPS = 1000,
    PROBE_BYTES = 512 << 20, /* file to measure a drive with */
};

/* ---- rates ---- */

static sw_code measure(const struct sw_config *config, struct sw_machine *machine,
                       struct sw_err *err)
{
    struct sw_cli_progress progress = {.percent = -1};
    const struct sw_strings *names = &config->offload.nvme;
    const struct sw_probe_options options = {.directories = (const char *const *)names->items,
                                             .directory_count = (int)names->count,
                                             .file_bytes = PROBE_BYTES,
                                             .progress = sw_cli_progress_show,
                                             .progress_context = &progress};
    sw_code code = sw_probe_machine(&options, machine, err);
    sw_cli_progress_end(&progress);
    return code;
}

/* `planned`: with those of run.machine, where that is set. */
static sw_code find_rates(const struct sw_session *session, const char *path,
                          const struct sw_plan_rates *planned, struct sw_plan_rates *out,
                          struct sw_err *err)
{
    if (path == NULL && planned->origin != NULL) {
        *out = *planned;
        return SW_OK;
    }
    struct sw_machine *machine = calloc(1, sizeof *machine);
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    sw_code code =
        path != NULL ? sw_machine_read(path, machine, err) : measure(session->config, machine, err);
    if (code != SW_OK && path != NULL)
        code = sw_err_blame(err, "--machine");
    bool gpu = session->device->asynchronous;
    if (code == SW_OK && gpu && machine->gpu_count == 0)
        code = SW_FAIL(err, SW_E_USAGE,
                       "there are no rates of a GPU: --machine FILE with those of `spillway probe "
                       "--out FILE`, or devices.kind: cpu");
    if (code == SW_OK)
        sw_plan_rates_of_machine(machine, gpu, out);
    free(machine);
    return code;
}

/* ---- real steps ---- */

struct rows {
    int32_t *ids, *numbers;
    struct sw_row *rows;
    struct sw_batch batch;
};

static void free_rows(struct rows *rows)
{
    free(rows->ids);
    free(rows->numbers);
    free(rows->rows);
}

/* A global batch of random ids, every row as long as the plan's bounds. End with free_rows(), after
 * a failure too. */
static sw_code make_rows(const struct sw_plan *plan, struct rows *out, struct sw_err *err)
{
    int64_t count = plan->request.global_batch, vocabulary = plan->request.model->t5.vocab_size;
    int64_t source = plan->bounds.source_length, target = plan->bounds.target_length;
    const uint32_t key[2] = {1, 0};
    out->ids = sw_calloc(count * (source + target), sizeof *out->ids);
    out->numbers = sw_calloc(count, sizeof *out->numbers);
    out->rows = sw_calloc(count, sizeof *out->rows);
    if (out->ids == NULL || out->numbers == NULL || out->rows == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %lld rows", (long long)count);
    for (int64_t i = 0; i < count * (source + target); i++) {
        uint32_t words[4];
        sw_philox(key, (const uint32_t[4]){(uint32_t)i, (uint32_t)(i >> 32), 0, 0}, words);
        out->ids[i] = (int32_t)(words[0] % (uint32_t)vocabulary);
    }
    for (int64_t i = 0; i < count; i++) {
        const int32_t *row = out->ids + i * (source + target);
        out->rows[i] = (struct sw_row){row, row + source, (int32_t)source, (int32_t)target};
        out->numbers[i] = (int32_t)i;
    }
    out->batch = (struct sw_batch){out->rows, out->numbers, count, count * target};
    return SW_OK;
}

struct measured {
    double seconds;                /* median of a step */
    double busy_seconds[SW_LANES]; /* mean of a step */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first step has no gradients to apply: it does not count. */
static sw_code run_steps(struct sw_session *session, const struct sw_batch *batch, int64_t steps,
                         struct measured *out, struct sw_err *err)
{
    double seconds[MAX_STEPS] = {0};
    for (int64_t step = 0; step <= steps; step++) {
        struct sw_step_result result;
        sw_code code = sw_engine_step(session->engine, step + 1, 1e-6, batch, &result, err);
        if (code != SW_OK)
            return code;
        sw_progress_line(&session->progress, true, "step %lld of %lld: %.3f s", (long long)step,
                         (long long)steps, result.seconds);
        if (step == 0)
            continue;
        seconds[step - 1] = result.seconds;
        for (int lane = 0; lane < SW_LANES; lane++)
            out->busy_seconds[lane] += result.busy_seconds[lane] / (double)steps;
    }
    qsort(seconds, (size_t)steps, sizeof *seconds, compare);
    out->seconds = (seconds[(steps - 1) / 2] + seconds[steps / 2]) / 2;
    sw_progress_end(&session->progress);
    return SW_OK;
}

static sw_code run(struct sw_session *session, int64_t steps, struct measured *out,
                   struct sw_err *err)
{
    struct rows rows = {0};
    sw_code code = make_rows(session->plan, &rows, err);
    if (code == SW_OK)
        code = sw_session_load(session, err);
    if (code == SW_OK)
        code = sw_engine_start(session->engine, err);
    if (code == SW_OK)
        code = run_steps(session, &rows.batch, steps, out, err);
    free_rows(&rows);
    return code;
}

/* ---- saying it ---- */

static void print_plan(const struct sw_plan *plan)
{
    const struct sw_plan_rates *rates = &plan->request.rates;
    printf("plan        %lld rows as %lld micro-batches of %lld; weights %s, optimizer %s, "
           "gradients %s, activations %s\n",
           (long long)plan->request.global_batch, (long long)plan->microbatches,
           (long long)plan->bounds.rows, sw_tier_name(plan->params), sw_tier_name(plan->optimizer),
           sw_tier_name(plan->grads), sw_tier_name(plan->activations));
    printf("rates       products %.1f GFLOP/s, host memory %.2f GB/s, optimizer %.2f GB/s, copies "
           "%.2f GB/s, drives read %.2f and write %.2f GB/s\n",
           rates->gemm_flops / 1e9, rates->host_bytes / 1e9, rates->optimizer_bytes / 1e9,
           rates->h2d_bytes / 1e9, rates->nvme_read_bytes / 1e9, rates->nvme_write_bytes / 1e9);
}

static void print_prediction(const struct sw_simulation *simulation, double serial_seconds)
{
    enum sw_resource busiest = sw_simulation_busiest(simulation);
    double busy = simulation->resource_seconds[busiest];
    printf("makespan    %.4f s; without overlap %.4f s\n", simulation->makespan_seconds,
           serial_seconds);
    printf("busiest     %s, %.4f s; makespan / busiest %.3f\n", sw_resource_name(busiest), busy,
           simulation->makespan_seconds / busy);
    for (int i = 0; i < SW_RESOURCES; i++)
        if (simulation->resource_seconds[i] > 0)
            printf("resource    %-12s %10.4f s %5.1f %%\n", sw_resource_name((enum sw_resource)i),
                   simulation->resource_seconds[i],
                   100 * simulation->resource_seconds[i] / simulation->makespan_seconds);
}

static void print_lanes(const struct sw_plan *plan, const struct sw_simulation *simulation,
                        const struct measured *measured)
{
    int64_t bytes[SW_LANES];
    sw_plan_lane_bytes(plan, plan->step, bytes);
    printf("\n%-12s %12s %10s %12s%s\n", "lane", "seconds", "occupancy", "MB",
           measured != NULL ? "      run, s  occupancy" : "");
    for (int lane = 0; lane < SW_LANES; lane++) {
        double busy = simulation->busy_seconds[lane];
        printf("%-12s %12.4f %9.1f%% %12.3f", sw_lane_name((enum sw_lane)lane), busy,
               100 * busy / simulation->makespan_seconds, (double)bytes[lane] / 1e6);
        if (measured != NULL)
            printf(" %11.4f %9.1f%%", measured->busy_seconds[lane],
                   100 * measured->busy_seconds[lane] / measured->seconds);
        printf("\n");
    }
}

static sw_code bench(struct sw_session *session, const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_plan_request request;
    struct sw_plan_rates rates;
    struct sw_simulation simulation = {0}, serial = {0};
    struct measured measured = {0};
    int64_t steps = 0;
    sw_code code = sw_cli_integer(&sw_command_bench, args, "run", 1, MAX_STEPS, 0, &steps, err);
    if (code == SW_OK)
        code = sw_session_optimizer(session->config, session->config->train.steps, &session->optim,
                                    err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code == SW_OK)
        code = sw_session_plan(session, &request, err); /* as train plans */
    if (code == SW_OK)
        code = find_rates(session, sw_cli_value(&sw_command_bench, args, "machine"), &request.rates,
                          &rates, err);
    if (code == SW_OK)
        code = sw_plan_price(session->plan, &rates, err);
    if (code == SW_OK)
        code = sw_plan_simulate(session->plan, request.overlap, &simulation, err);
    if (code == SW_OK)
        code = sw_plan_simulate(session->plan, false, &serial, err);
    if (code == SW_OK && steps > 0)
        code = run(session, steps, &measured, err);
    if (code != SW_OK)
        return code;
    print_plan(session->plan);
    print_prediction(&simulation, serial.makespan_seconds);
    if (steps > 0)
        printf("run         %.4f s a step, median of %lld; %.3f of the makespan\n",
               measured.seconds, (long long)steps, measured.seconds / simulation.makespan_seconds);
    print_lanes(session->plan, &simulation, steps > 0 ? &measured : NULL);
    return SW_OK;
}

sw_code sw_cli_bench_step(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_device_ops *device;
    struct sw_config config;
    struct sw_session session;
    if (args->second == NULL)
        return SW_FAIL(err, SW_E_USAGE, "bench step needs CONFIG.yaml (spillway bench --help)");
    sw_code code = sw_cli_config(args, args->second, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_config_require(&config, "model.path", err);
    if (code == SW_OK)
        code = sw_back_end_choose(&config, &device, err);
    if (code == SW_OK)
        code = sw_session_open(&session, &config, device, config.model.path, "model.path", err);
    if (code == SW_OK) {
        code = bench(&session, args, err);
        sw_session_close(&session);
    }
    sw_config_deinit(&config);
    return code;
}

/* spillway bench step */
#include "cli/bench_step.h"

#include "base/mem.h"
#include "base/random.h"
#include "cli/back_end.h"
#include "cli/described.h"
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

/* `machine`: of --machine, or NULL; `planned`: with those of run.machine, where that is set. */
static sw_code find_rates(const struct sw_session *session, const struct sw_machine *machine,
                          const struct sw_plan_rates *planned, struct sw_plan_rates *out,
                          struct sw_err *err)
{
    bool gpu = session->device->asynchronous;
    if (machine == NULL && planned->origin != NULL) {
        *out = *planned;
        return SW_OK;
    }
    struct sw_machine *measured = calloc(1, sizeof *measured);
    if (measured == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    sw_code code = machine == NULL ? measure(session->config, measured, err) : SW_OK;
    if (machine == NULL)
        machine = measured;
    if (code == SW_OK && gpu && machine->gpu_count == 0)
        code = SW_FAIL(err, SW_E_USAGE,
                       "there are no rates of a GPU: --machine FILE with those of `spillway probe "
                       "--out FILE`, or devices.kind: cpu");
    if (code == SW_OK)
        sw_plan_rates_of_machine(machine, gpu, out);
    free(measured);
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
    struct sw_text rates = {0};
    printf("plan        %lld row%s as %lld micro-batch%s of %lld; weights %s, optimizer %s, "
           "gradients %s, activations %s\n",
           (long long)plan->request.global_batch, sw_text_plural(plan->request.global_batch),
           (long long)plan->microbatches, plan->microbatches == 1 ? "" : "es",
           (long long)plan->bounds.rows, sw_tier_name(plan->params), sw_tier_name(plan->optimizer),
           sw_tier_name(plan->grads), sw_tier_name(plan->activations));
    sw_plan_print_rates(plan, &rates);
    printf("rates       %s\n", rates.bytes != NULL ? rates.bytes : "");
    free(rates.bytes);
}

static void print_prediction(const struct sw_simulation *simulation, double serial_seconds)
{
    enum sw_resource busiest = sw_simulation_busiest(simulation);
    double busy = simulation->resource_seconds[busiest];
    printf("makespan    %.6f s; without overlap %.6f s\n", simulation->makespan_seconds,
           serial_seconds);
    printf("busiest     %s, %.6f s; makespan / busiest %.3f\n", sw_resource_name(busiest), busy,
           simulation->makespan_seconds / busy);
    for (int i = 0; i < SW_RESOURCES; i++)
        if (simulation->resource_seconds[i] > 0)
            printf("resource    %-12s %10.6f s %5.1f %%\n", sw_resource_name((enum sw_resource)i),
                   simulation->resource_seconds[i],
                   100 * simulation->resource_seconds[i] / simulation->makespan_seconds);
}

/* Of a lane: what every rank has one of is in the mean. */
static void print_lanes(const struct sw_plan *plan, const struct sw_simulation *simulation,
                        const struct measured *measured)
{
    int64_t bytes[SW_LANES];
    sw_plan_lane_bytes(plan, plan->step, bytes);
    printf("\n%-12s %12s %10s %12s%s\n", "lane", "seconds", "occupancy", "MB",
           measured != NULL ? "      run, s  occupancy" : "");
    for (int lane = 0; lane < SW_LANES; lane++) {
        double lanes = lane < SW_LANE_OPTIMIZER ? (double)plan->ranks : 1;
        double busy = simulation->busy_seconds[lane] / lanes;
        printf("%-12s %12.6f %9.1f%% %12.3f", sw_lane_name((enum sw_lane)lane), busy,
               100 * busy / simulation->makespan_seconds, (double)bytes[lane] / 1e6);
        if (measured != NULL)
            printf(" %11.6f %9.1f%%", measured->busy_seconds[lane] / lanes,
                   100 * measured->busy_seconds[lane] / lanes / measured->seconds);
        printf("\n");
    }
}

/* Share of the makespan in which a rank computes nothing. */
static double idle_share(const struct sw_simulation *simulation, int32_t rank)
{
    const double *seconds = simulation->queue_seconds + (int64_t)rank * SW_LANES;
    double busy = seconds[SW_LANE_COMPUTE] + seconds[SW_LANE_ENDS];
    return busy < simulation->makespan_seconds ? 1 - busy / simulation->makespan_seconds : 0;
}

static void print_bubble(const struct sw_plan *plan, const struct sw_simulation *simulation)
{
    double sum = 0;
    int32_t most = 0;
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        sum += idle_share(simulation, rank);
        if (idle_share(simulation, rank) > idle_share(simulation, most))
            most = rank;
    }
    printf("bubble      %.1f %% of the makespan, mean of the ranks; most on rank %d: %.1f %%\n",
           100 * sum / plan->ranks, (int)most, 100 * idle_share(simulation, most));
}

/* Of every rank: how long its lanes are busy, and what its links carry. What a group of replicas
 * does is with each of them. `bytes`: [queue_count]. */
static void print_ranks(const struct sw_plan *plan, const struct sw_simulation *simulation,
                        const int64_t *bytes)
{
    static const enum sw_lane lanes[] = {SW_LANE_COMPUTE,    SW_LANE_ENDS,     SW_LANE_H2D,
                                         SW_LANE_D2H,        SW_LANE_SEND,     SW_LANE_RECV,
                                         SW_LANE_COLLECTIVE, SW_LANE_STATE_UP, SW_LANE_STATE_DOWN};
    enum { COUNT = sizeof lanes / sizeof *lanes, FIRST_LINK = 2 };
    printf("\nrank  bubble");
    for (int i = 0; i < COUNT; i++)
        printf(" %10s", sw_lane_name(lanes[i]));
    for (int i = FIRST_LINK; i < COUNT; i++)
        printf(" %10s MB", sw_lane_name(lanes[i]));
    printf("\n");
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        printf("%4d %6.1f%%", (int)rank, 100 * idle_share(simulation, rank));
        for (int i = 0; i < COUNT; i++) {
            int32_t of = lanes[i] == SW_LANE_COLLECTIVE ? rank % plan->stages : rank;
            printf(" %9.1f%%", 100 * simulation->queue_seconds[of * SW_LANES + (int)lanes[i]] /
                                   simulation->makespan_seconds);
        }
        for (int i = FIRST_LINK; i < COUNT; i++) {
            int32_t of = lanes[i] == SW_LANE_COLLECTIVE ? rank % plan->stages : rank;
            printf(" %13.3f", (double)bytes[of * SW_LANES + (int)lanes[i]] / 1e6);
        }
        printf("\n");
    }
}

/* What is planned, on the virtual clock, and `steps` real ones. */
static sw_code predict(struct sw_session *session, int64_t steps, double *queue_seconds,
                       int64_t *queue_bytes, struct sw_err *err)
{
    struct sw_simulation simulation = {.queue_seconds = queue_seconds}, serial = {0};
    struct measured measured = {0};
    const struct sw_plan *plan = session->plan;
    sw_code code = sw_plan_simulate(plan, plan->request.overlap, &simulation, err);
    if (code == SW_OK)
        code = sw_plan_simulate(plan, false, &serial, err);
    if (code == SW_OK && steps > 0)
        code = run(session, steps, &measured, err);
    if (code != SW_OK)
        return code;
    sw_plan_queue_bytes(plan, plan->step, queue_bytes);
    print_plan(plan);
    print_prediction(&simulation, serial.makespan_seconds);
    print_bubble(plan, &simulation);
    if (steps > 0)
        printf("run         %.6f s a step, median of %lld; %.3f of the makespan\n",
               measured.seconds, (long long)steps, measured.seconds / simulation.makespan_seconds);
    print_lanes(plan, &simulation, steps > 0 ? &measured : NULL);
    if (plan->ranks > 1)
        print_ranks(plan, &simulation, queue_bytes);
    return SW_OK;
}

/* Planned as train plans on this machine, or, where no step is to run, as for `machine`. */
static sw_code bench(struct sw_session *session, const struct sw_machine *machine, int64_t steps,
                     struct sw_err *err)
{
    struct sw_plan_request request;
    struct sw_plan_rates rates;
    sw_code code =
        sw_session_optimizer(session->config, session->config->train.steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code == SW_OK && machine != NULL && steps == 0)
        sw_cli_machine_use(machine, session->config, &request);
    if (code == SW_OK)
        code = sw_session_plan(session, &request, err);
    if (code == SW_OK)
        code = find_rates(session, machine, &request.rates, &rates, err);
    if (code == SW_OK)
        code = sw_plan_price(session->plan, &rates, err);
    if (code != SW_OK)
        return code;
    int64_t queues = session->plan->step->queue_count;
    double *queue_seconds = sw_calloc(queues, sizeof *queue_seconds);
    int64_t *queue_bytes = sw_calloc(queues, sizeof *queue_bytes);
    if (queue_seconds == NULL || queue_bytes == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to simulate a step");
    else
        code = predict(session, steps, queue_seconds, queue_bytes, err);
    free(queue_seconds);
    free(queue_bytes);
    return code;
}

sw_code sw_cli_bench_step(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_config config;
    struct sw_session session;
    struct sw_machine *machine;
    const char *path = sw_cli_value(&sw_command_bench, args, "machine");
    int64_t steps = 0;
    if (args->second == NULL)
        return SW_FAIL(err, SW_E_USAGE, "bench step needs CONFIG.yaml (spillway bench --help)");
    sw_code code = sw_cli_integer(&sw_command_bench, args, "run", 1, MAX_STEPS, 0, &steps, err);
    if (code == SW_OK)
        code = sw_cli_config(args, args->second, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_cli_planning_open(&session, &config, path, steps > 0, &machine, err);
    if (code == SW_OK) {
        code = bench(&session, machine, steps, err);
        sw_session_close(&session);
    }
    free(machine);
    sw_config_deinit(&config);
    return code;
}

/* Programs of plans over many shapes: every op sees what it would see serially, whatever the lanes
 * do (I1, I2), and nothing waits for ever (I3). */
#include "tests/support.h"

#include "base/json.h"
#include "base/random.h"
#include "model/config.h"
#include "plan/search.h"

#include <math.h>

static struct sw_model *make_wide_model(int encoder, int decoder, bool tied, int inner)
{
    struct sw_err err;
    sw_err_init(&err);
    char text[512];
    int bytes = snprintf(text, sizeof text,
                         "{\"model_type\": \"t5\", \"d_model\": 16, \"d_kv\": 8, \"d_ff\": %d, "
                         "\"num_heads\": 2, \"num_layers\": %d, \"num_decoder_layers\": %d, "
                         "\"vocab_size\": 50, \"tie_word_embeddings\": %s}",
                         inner, encoder, decoder, tied ? "true" : "false");
    struct sw_json *json;
    struct sw_model *model;
    assert_ok(sw_json_parse(text, bytes, "config", &json, &err), &err);
    assert_ok(sw_model_open(json, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    return model;
}

static struct sw_model *make_model(int encoder, int decoder, bool tied)
{
    return make_wide_model(encoder, decoder, tied, 24);
}

static struct sw_plan *make_plan(const struct sw_model *model,
                                 const struct sw_optim_settings *optim, enum sw_purpose purpose,
                                 int64_t micro_batch, bool recompute)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_plan *plan;
    const struct sw_plan_request request = {
        .model = model,
        .optim = optim,
        .kernels = &sw_cpu_kernels,
        .purpose = purpose,
        .compute = SW_F32,
        .global_batch = 6,
        .micro_batch = micro_batch,
        .source_length = 12,
        .target_length = 7,
        .generation_rows = 3,
        .generation_beams = 2,
        .generation_length = 5,
        .recompute = recompute ? SW_RECOMPUTE_ON : SW_RECOMPUTE_OFF,
        .overlap = true,
    };
    assert_ok(sw_plan_make(&plan, &request, &err), &err);
    return plan;
}

/* Of a use of a resource: how many ops had written it, and how many had added to it since. */
struct version {
    int32_t written, added;
};

/* Use `u` of an op; its number within the program. */
static const struct sw_use *use_of(const struct sw_program *program, const struct sw_op *op,
                                   int32_t u)
{
    return &program->uses[op->first_use + u];
}

/* What an op does to the versions of what it uses: adds first, for a write ends what was before. */
static void note_adds(const struct sw_program *program, const struct sw_op *op, struct version *now)
{
    for (int32_t u = 0; u < op->use_count; u++)
        if (use_of(program, op, u)->kind == SW_USE_ADD)
            now[use_of(program, op, u)->resource].added++;
}

static void note_writes(const struct sw_program *program, const struct sw_op *op,
                        struct version *now)
{
    for (int32_t u = 0; u < op->use_count; u++) {
        struct version *of = &now[use_of(program, op, u)->resource];
        if (use_of(program, op, u)->kind == SW_USE_WRITE)
            *of = (struct version){of->written + 1, 0};
    }
}

/* Serial versions: what each use sees. */
static void serial_versions(const struct sw_program *program, struct version *seen)
{
    struct version *now = calloc((size_t)program->resource_count + 1, sizeof *now);
    for (int64_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->ops[i];
        for (int32_t u = 0; u < op->use_count; u++)
            seen[op->first_use + u] = now[use_of(program, op, u)->resource];
        note_adds(program, op, now);
        note_writes(program, op, now);
    }
    free(now);
}

/* A run in progress. */
struct run {
    const struct sw_program *program;
    const struct version *seen;
    struct version *now;                /* as ops have begun; adds count when they are done */
    int32_t *under_way[SW_USE_ADD + 1]; /* ops by what they do to each resource */
    int32_t *started, *done;            /* [queue_count] */
};

static void begin_op(struct run *run, const struct sw_op *op)
{
    for (int32_t u = 0; u < op->use_count; u++) {
        const struct sw_use *use = use_of(run->program, op, u);
        struct version want = run->seen[op->first_use + u], have = run->now[use->resource];
        assert_int_equal(run->under_way[SW_USE_WRITE][use->resource], 0); /* I2 */
        assert_int_equal(have.written, want.written);                     /* I1 */
        if (use->kind != SW_USE_ADD) {
            assert_int_equal(run->under_way[SW_USE_ADD][use->resource], 0);
            assert_int_equal(have.added, want.added);
        }
        if (use->kind != SW_USE_READ)
            assert_int_equal(run->under_way[SW_USE_READ][use->resource], 0);
    }
    for (int32_t u = 0; u < op->use_count; u++)
        run->under_way[use_of(run->program, op, u)->kind][use_of(run->program, op, u)->resource]++;
    note_writes(run->program, op, run->now);
}

static void end_op(struct run *run, const struct sw_op *op)
{
    for (int32_t u = 0; u < op->use_count; u++)
        run->under_way[use_of(run->program, op, u)->kind][use_of(run->program, op, u)->resource]--;
    note_adds(run->program, op, run->now);
}

static bool is_ready(const struct run *run, const struct sw_op *op)
{
    for (int32_t i = 0; i < op->wait_count; i++) {
        const struct sw_wait *wait = &run->program->waits[op->first_wait + i];
        if (run->done[wait->queue] < wait->count)
            return false;
    }
    return true;
}

/* One turn: a queue ends an op or starts one. False: it can do neither. */
static bool turn_queue(struct run *run, int32_t index, bool prefer_end)
{
    const struct sw_queue *queue = &run->program->queues[index];
    int32_t flying = run->started[index] - run->done[index];
    int32_t lane = index % SW_LANES;
    bool deep =
        lane >= SW_LANE_STATE_READ || lane == SW_LANE_STATE_UP || lane == SW_LANE_STATE_DOWN;
    int32_t depth = deep ? 4 : 1;
    const struct sw_op *next = run->started[index] < queue->count && flying < depth
                                   ? &run->program->ops[queue->ops[run->started[index]]]
                                   : NULL;
    bool starts = next != NULL && is_ready(run, next);
    if (flying > 0 && (prefer_end || !starts)) {
        end_op(run, &run->program->ops[queue->ops[run->done[index]++]]);
        return true;
    }
    if (!starts)
        return false;
    begin_op(run, next);
    run->started[index]++;
    return true;
}

/* Start and finish ops in a random order that waits and lanes allow; several are in flight, of the
 * drives' lanes and those of states up to 4 each. */
static void run_randomly(const struct sw_program *program, const struct version *seen,
                         uint32_t seed)
{
    size_t resources = (size_t)program->resource_count + 1;
    struct run run = {.program = program,
                      .seen = seen,
                      .now = calloc(resources, sizeof *run.now),
                      .started = calloc((size_t)program->queue_count, sizeof *run.started),
                      .done = calloc((size_t)program->queue_count, sizeof *run.done)};
    for (int kind = 0; kind <= SW_USE_ADD; kind++)
        run.under_way[kind] = calloc(resources, sizeof(int32_t));
    const uint32_t key[2] = {seed, 7};
    int64_t left = 2 * program->op_count; /* begins and ends */
    for (uint32_t turn = 0; left > 0; turn++) {
        uint32_t words[4];
        sw_philox(key, (const uint32_t[4]){turn, 0, 0, 0}, words);
        int32_t first = (int32_t)(words[0] % (uint32_t)program->queue_count);
        int32_t tried = 0;
        while (tried < program->queue_count &&
               !turn_queue(&run, (first + tried) % program->queue_count, words[1] % 2 == 0))
            tried++;
        assert_true(tried < program->queue_count); /* I3 */
        left--;
    }
    free(run.now);
    free(run.started);
    free(run.done);
    for (int kind = 0; kind <= SW_USE_ADD; kind++)
        free(run.under_way[kind]);
}

static void check_program(const struct sw_program *program)
{
    struct version *seen = calloc((size_t)program->use_count + 1, sizeof *seen);
    serial_versions(program, seen);
    for (uint32_t seed = 0; seed < 4; seed++)
        run_randomly(program, seen, seed);
    free(seen);
}

static void programs_hold_their_invariants(void **state)
{
    (void)state;
    static const struct {
        int encoder, decoder;
        bool tied;
        int64_t micro_batch;
        bool recompute;
    } cases[] = {{1, 1, true, 6, false},
                 {2, 3, true, 2, false},
                 {3, 1, false, 4, true},
                 {1, 4, false, 1, true},
                 {2, 2, true, 1, false}};
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sw_model *model = make_model(cases[i].encoder, cases[i].decoder, cases[i].tied);
        struct sw_plan *plan =
            make_plan(model, &optim, SW_FOR_TRAINING, cases[i].micro_batch, cases[i].recompute);
        check_program(plan->step);
        check_program(plan->drain);
        check_program(plan->evaluation);
        sw_plan_free(plan);
        plan = make_plan(model, NULL, SW_FOR_GENERATION, 0, false);
        check_program(plan->begin);
        check_program(plan->decode);
        sw_plan_free(plan);
        sw_model_close(model);
    }
}

/* The same over grids, schedules, stages of ZeRO and homes, chosen at random. */
static void so_they_do_over_grids(void **state)
{
    (void)state;
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(4, 4, true);
    static const enum sw_tier tiers[] = {SW_TIER_AUTO, SW_TIER_HOST, SW_TIER_NVME};
    for (uint32_t seed = 0; seed < 32; seed++) {
        uint32_t words[4];
        sw_philox((const uint32_t[2]){seed, 3}, (const uint32_t[4]){0, 0, 0, 0}, words);
        struct sw_plan *plan;
        struct sw_err err;
        sw_err_init(&err);
        bool layered = words[0] % 3 == 0;
        struct sw_plan_request request = {
            .model = model,
            .optim = &optim,
            .kernels = &sw_cpu_kernels,
            .purpose = SW_FOR_TRAINING,
            .compute = SW_F32,
            .global_batch = 12,
            .micro_batch = 1 + words[0] / 3 % 3,
            .source_length = 12,
            .target_length = 7,
            .pipeline = 1 + (int32_t)(words[1] % 8),
            .data = 1 + (int32_t)(words[1] / 8 % 4),
            .zero = (int)(words[2] % 4),
            .schedule = (enum sw_schedule)(SW_SCHEDULE_LAYERED + words[0] % 3),
            .params = layered ? tiers[words[2] / 4 % 3] : SW_TIER_AUTO,
            .optimizer = tiers[words[2] / 12 % 3],
            .grads = layered ? tiers[words[2] / 36 % 3] : SW_TIER_AUTO,
            .activations = tiers[words[3] % 3],
            .chunk_bytes = 4096,
            .nvme_bytes = 1 << 30,
            .nvme_directories = 1,
            .mailbox = words[3] / 3 % 2 == 0,
            .device_is_remote = words[3] / 12 % 2 == 0,
            .where = words[3] / 6 % 2 == 0 ? SW_STEP_STREAM : SW_STEP_AUTO,
            .overlap = true,
        };
        assert_ok(sw_plan_make(&plan, &request, &err), &err);
        check_program(plan->step);
        check_program(plan->drain);
        check_program(plan->evaluation);
        sw_plan_free(plan);
    }
    sw_model_close(model);
}

static void one_a_block(const struct sw_op *op, void *context, struct sw_op_cost *out)
{
    const struct sw_model *model = context;
    bool layer = op->block >= 0 && (model->blocks[op->block].kind == SW_BLOCK_ENCODER ||
                                    model->blocks[op->block].kind == SW_BLOCK_DECODER);
    out->seconds = !layer ? 0 : op->kind == SW_OP_FORWARD ? 1 : op->kind == SW_OP_BACKWARD ? 2 : 0;
}

/* With equal blocks a pass of `layered` idles (stages - 1) blocks of a micro-batch; `gpipe` and
 * `1f1b` the share (stages - 1) / (micro-batches + stages - 1). */
static void the_bubble_is_as_it_should(void **state)
{
    (void)state;
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(6, 6, true);
    for (int32_t stages = 1; stages <= 6; stages++) {
        if (12 % stages != 0)
            continue;
        for (int64_t m = stages; m <= 12; m += 3)
            for (int s = SW_SCHEDULE_LAYERED; s <= SW_SCHEDULE_GPIPE; s++) {
                struct sw_err err;
                sw_err_init(&err);
                struct sw_plan *plan;
                const struct sw_plan_request request = {.model = model,
                                                        .optim = &optim,
                                                        .kernels = &sw_cpu_kernels,
                                                        .purpose = SW_FOR_TRAINING,
                                                        .compute = SW_F32,
                                                        .global_batch = m,
                                                        .micro_batch = 1,
                                                        .source_length = 12,
                                                        .target_length = 8,
                                                        .pipeline = stages,
                                                        .schedule = (enum sw_schedule)s,
                                                        .overlap = true};
                assert_ok(sw_plan_make(&plan, &request, &err), &err);
                for (int32_t stage = 0; stage < stages; stage++)
                    assert_int_equal(plan->stage[stage].layers, 12 / stages);
                struct sw_simulation simulation = {0};
                assert_ok(
                    sw_program_simulate(plan->step, one_a_block, model, true, &simulation, &err),
                    &err);
                double layers = 12.0 / stages, work = 3 * layers * (double)m;
                double bubble =
                    s == SW_SCHEDULE_LAYERED ? 3.0 * (stages - 1) : 3.0 * layers * (stages - 1);
                if (simulation.makespan_seconds != work + bubble)
                    fail_msg("%s, %d stages, %d micro-batches: %g, not %g + %g",
                             sw_schedule_name((enum sw_schedule)s), (int)stages, (int)m,
                             simulation.makespan_seconds, work, bubble);
                sw_plan_free(plan);
            }
    }
    sw_model_close(model);
}

/* A unit is stepped once a step, and every micro-batch passes every block both ways. */
static void a_step_has_the_ops_it_should(void **state)
{
    (void)state;
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(2, 3, true);
    struct sw_plan *plan = make_plan(model, &optim, SW_FOR_TRAINING, 2, false);
    int64_t counts[SW_OP_KINDS] = {0};
    for (int64_t i = 0; i < plan->step->op_count; i++)
        counts[plan->step->ops[i].kind]++;
    assert_int_equal(counts[SW_OP_STEP], model->unit_count);
    assert_int_equal(counts[SW_OP_PARTIALS], model->unit_count);
    assert_int_equal(counts[SW_OP_FORWARD], 3 * (model->block_count - 1));
    assert_int_equal(counts[SW_OP_BACKWARD], 3 * (model->block_count - 1));
    assert_int_equal(counts[SW_OP_HEAD], 3);
    assert_int_equal(counts[SW_OP_NORM], 1);
    sw_plan_free(plan);
    sw_model_close(model);
}

/* Weights come to replicas by the way that is faster on the machine's links: whole where those are
 * all that there is, in ranges where host memory is slower than all links together and devices
 * reach each other, where these have links of their own, or where ranks share a device's link. */
static void the_faster_way_of_uploading_is_taken(void **state)
{
    (void)state;
    static const int32_t apart[] = {0, 1, 2, 3}, shared[] = {0, 0, 0, 0};
    static const struct {
        const int32_t *devices;
        bool mailbox;
        double host_bytes, peer_bytes;
        bool ranges;
    } cases[] = {{apart, true, 2e11, 0, false},    {apart, false, 2e11, 5e9, false},
                 {apart, true, 2e10, 0, false},    {apart, false, 2e10, 1e10, true},
                 {apart, false, 2e11, 1e11, true}, {shared, true, 2e11, 0, true}};
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_wide_model(4, 4, true, 1 << 14); /* 8 ranges a unit */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sw_err err;
        sw_err_init(&err);
        struct sw_plan *plan;
        const struct sw_plan_request request = {.model = model,
                                                .optim = &optim,
                                                .kernels = &sw_cpu_kernels,
                                                .purpose = SW_FOR_TRAINING,
                                                .compute = SW_F32,
                                                .global_batch = 8,
                                                .source_length = 12,
                                                .target_length = 8,
                                                .data = 4,
                                                .params = SW_TIER_HOST,
                                                .devices = cases[i].devices,
                                                .mailbox = cases[i].mailbox,
                                                .device_is_remote = true,
                                                .overlap = true,
                                                .rates = {.gemm_flops = 1e18,
                                                          .device_bytes = 1e13,
                                                          .optimizer_bytes = 1e13,
                                                          .host_bytes = cases[i].host_bytes,
                                                          .h2d_bytes = 1e10,
                                                          .d2h_bytes = 1e10,
                                                          .peer_bytes = cases[i].peer_bytes}};
        assert_ok(sw_plan_make(&plan, &request, &err), &err);
        if (plan->uploads_ranges != cases[i].ranges)
            fail_msg("case %d: %s", (int)i, plan->uploads_ranges ? "ranges" : "whole");
        sw_plan_free(plan);
    }
    sw_model_close(model);
}

/* Seconds of all backward passes and heads at 1 byte a second, products for nothing. */
static double backward_seconds(const struct sw_model *model, int64_t rows)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_plan *plan;
    const struct sw_plan_request request = {.model = model,
                                            .optim = &optim,
                                            .kernels = &sw_cpu_kernels,
                                            .purpose = SW_FOR_TRAINING,
                                            .compute = SW_F32,
                                            .global_batch = 8,
                                            .micro_batch = rows,
                                            .source_length = 12,
                                            .target_length = 8};
    assert_ok(sw_plan_make(&plan, &request, &err), &err);
    struct sw_plan_costing costing = {
        .plan = plan, .rates = {.gemm_flops = 1e300, .device_bytes = 1.0}, .overlap = true};
    double seconds = 0.0;
    for (int64_t i = 0; i < plan->step->op_count; i++) {
        const struct sw_op *op = &plan->step->ops[i];
        struct sw_op_cost cost = {0};
        if (op->kind != SW_OP_BACKWARD && op->kind != SW_OP_HEAD)
            continue;
        const struct sw_block_sizes *sizes = &plan->sizes[op->block];
        int64_t kept = sizes->context_bytes + sizes->output_bytes;
        sw_plan_op_cost(op, &costing, &cost);
        seconds += cost.seconds;
        if (op->kind == SW_OP_BACKWARD)
            seconds -= (double)((plan->recompute ? 6 : 4) * kept);
    }
    sw_plan_free(plan);
    return seconds;
}

/* One op after another waits for each transfer as long as one alone takes; overlap hides that. */
static void lone_transfers_take_longer(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(2, 2, true);
    struct sw_plan *plan;
    const struct sw_plan_request request = {.model = model,
                                            .optim = &optim,
                                            .kernels = &sw_cpu_kernels,
                                            .purpose = SW_FOR_TRAINING,
                                            .compute = SW_F32,
                                            .global_batch = 4,
                                            .micro_batch = 2,
                                            .source_length = 12,
                                            .target_length = 8,
                                            .params = SW_TIER_NVME,
                                            .optimizer = SW_TIER_NVME,
                                            .grads = SW_TIER_NVME,
                                            .nvme_bytes = 1 << 30,
                                            .overlap = true};
    assert_ok(sw_plan_make(&plan, &request, &err), &err);
    int64_t transfers = 0;
    for (int64_t i = 0; i < plan->step->op_count; i++)
        transfers += plan->step->ops[i].lane >= SW_LANE_STATE_READ;
    assert_true(transfers > 0);
    struct sw_simulation before[2] = {{0}}, after[2] = {{0}};
    for (int overlap = 0; overlap < 2; overlap++)
        assert_ok(sw_plan_simulate(plan, overlap == 1, &before[overlap], &err), &err);
    plan->request.rates.nvme_transfer_seconds = 0.25;
    for (int overlap = 0; overlap < 2; overlap++)
        assert_ok(sw_plan_simulate(plan, overlap == 1, &after[overlap], &err), &err);
    double longer = after[0].makespan_seconds - before[0].makespan_seconds;
    assert_true(fabs(longer - 0.25 * (double)transfers) < 1e-6 * longer); /* sums of doubles */
    assert_true(after[1].makespan_seconds == before[1].makespan_seconds);
    sw_plan_free(plan);
    sw_model_close(model);
}

/* A micro-batch more is one more reading and writing of all fp32 gradients of blocks and the head;
 * those of what is frozen are not made. */
static void small_microbatches_are_dear(void **state)
{
    (void)state;
    struct sw_model *model = make_model(2, 3, true);
    int64_t elements = model->units[model->head_unit].elements;
    for (int64_t i = 0; i < model->block_count; i++)
        if (model->blocks[i].kind == SW_BLOCK_ENCODER || model->blocks[i].kind == SW_BLOCK_DECODER)
            elements += model->units[model->blocks[i].units[0]].elements;
    assert_true(backward_seconds(model, 8) == 8.0 * (double)elements);
    assert_true(backward_seconds(model, 1) == 64.0 * (double)elements);
    struct sw_unit *frozen = &model->units[model->blocks[1].units[0]];
    frozen->trainable = false;
    assert_true(backward_seconds(model, 8) == 8.0 * (double)(elements - frozen->elements));
    sw_model_close(model);
}

static void one_second(const struct sw_op *op, void *context, struct sw_op_cost *out)
{
    (void)context;
    out->seconds = op->lane == SW_LANE_COMPUTE || op->lane == SW_LANE_OPTIMIZER ? 1.0 : 0.0;
}

/* Without overlap a simulation takes the sum of all ops; with it, no less than the busiest lane. */
static void simulation_adds_up(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(2, 2, true);
    struct sw_plan *plan = make_plan(model, &optim, SW_FOR_TRAINING, 2, false);
    struct sw_simulation serial = {0}, overlapped = {0};
    assert_ok(sw_program_simulate(plan->step, one_second, NULL, false, &serial, &err), &err);
    assert_ok(sw_program_simulate(plan->step, one_second, NULL, true, &overlapped, &err), &err);
    double sum = serial.busy_seconds[SW_LANE_COMPUTE] + serial.busy_seconds[SW_LANE_OPTIMIZER];
    assert_true(serial.makespan_seconds == sum);
    assert_true(overlapped.makespan_seconds < sum);
    assert_true(overlapped.makespan_seconds >= overlapped.busy_seconds[SW_LANE_COMPUTE]);
    sw_plan_free(plan);
    sw_model_close(model);
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_optim_settings optim;
    sw_optim_settings_init(&optim, SW_OPTIM_ADAMW);
    struct sw_model *model = make_model(2, 2, true);
    struct sw_plan *plan;
    struct sw_plan_request request = {.model = model,
                                      .optim = &optim,
                                      .kernels = &sw_cpu_kernels,
                                      .purpose = SW_FOR_TRAINING,
                                      .global_batch = 4,
                                      .source_length = 16,
                                      .target_length = 16,
                                      .device_memory_bytes = 64 << 10};
    assert_refused(sw_plan_make(&plan, &request, &err), SW_E_FIT, "devices.memory of", &err);
    sw_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_hold_their_invariants),
        cmocka_unit_test(so_they_do_over_grids),
        cmocka_unit_test(the_bubble_is_as_it_should),
        cmocka_unit_test(the_faster_way_of_uploading_is_taken),
        cmocka_unit_test(a_step_has_the_ops_it_should),
        cmocka_unit_test(lone_transfers_take_longer),
        cmocka_unit_test(small_microbatches_are_dear),
        cmocka_unit_test(simulation_adds_up),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

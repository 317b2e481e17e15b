/* Programs of plans over many shapes: every op sees what it would see serially, whatever the lanes
 * do (I1, I2), and nothing waits for ever (I3). */
#include "tests/support.h"

#include "base/json.h"
#include "base/random.h"
#include "model/config.h"
#include "plan/plan.h"

static struct sw_model *make_model(int encoder, int decoder, bool tied)
{
    struct sw_err err;
    sw_err_init(&err);
    char text[512];
    int bytes = snprintf(text, sizeof text,
                         "{\"model_type\": \"t5\", \"d_model\": 16, \"d_kv\": 8, \"d_ff\": 24, "
                         "\"num_heads\": 2, \"num_layers\": %d, \"num_decoder_layers\": %d, "
                         "\"vocab_size\": 50, \"tie_word_embeddings\": %s}",
                         encoder, decoder, tied ? "true" : "false");
    struct sw_json *json;
    struct sw_model *model;
    assert_ok(sw_json_parse(text, bytes, "config", &json, &err), &err);
    assert_ok(sw_model_open(json, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    return model;
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

enum { USES = 2 * SW_OP_USES };

/* Uses of an op: reads, then writes, then adds. */
static int32_t uses_of(const struct sw_op *op, int32_t *resources)
{
    int32_t count = 0;
    for (int32_t r = 0; r < op->read_count; r++)
        resources[count++] = op->reads[r];
    for (int32_t w = 0; w < op->write_count; w++)
        resources[count++] = op->writes[w];
    for (int32_t a = 0; a < op->add_count; a++)
        resources[count++] = op->adds[a];
    return count;
}

static bool is_add(const struct sw_op *op, int32_t use)
{
    return use >= op->read_count + op->write_count;
}

/* Serial versions: what op i sees at its use u. */
static void serial_versions(const struct sw_program *program, struct version *seen)
{
    struct version *now = calloc((size_t)program->resource_count, sizeof *now);
    for (int64_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->ops[i];
        int32_t resources[USES], count = uses_of(op, resources);
        for (int32_t u = 0; u < count; u++)
            seen[i * USES + u] = now[resources[u]];
        for (int32_t w = 0; w < op->write_count; w++)
            now[op->writes[w]] = (struct version){now[op->writes[w]].written + 1, 0};
        for (int32_t a = 0; a < op->add_count; a++)
            now[op->adds[a]].added++;
    }
    free(now);
}

/* A run in progress. */
struct run {
    const struct sw_program *program;
    const struct version *seen;
    struct version *now;                 /* as ops have begun; adds count when they are done */
    int32_t *writing, *reading, *adding; /* ops under way, by resource */
    int32_t started[SW_LANES], done[SW_LANES];
};

static void begin_op(struct run *run, int64_t index)
{
    const struct sw_op *op = &run->program->ops[index];
    int32_t resources[USES], count = uses_of(op, resources);
    for (int32_t u = 0; u < count; u++) {
        struct version want = run->seen[index * USES + u], have = run->now[resources[u]];
        assert_int_equal(run->writing[resources[u]], 0); /* I2 */
        assert_int_equal(have.written, want.written);    /* I1 */
        if (!is_add(op, u)) {
            assert_int_equal(run->adding[resources[u]], 0);
            assert_int_equal(have.added, want.added);
        }
        if (u >= op->read_count)
            assert_int_equal(run->reading[resources[u]], 0);
    }
    for (int32_t r = 0; r < op->read_count; r++)
        run->reading[op->reads[r]]++;
    for (int32_t w = 0; w < op->write_count; w++) {
        run->writing[op->writes[w]]++;
        run->now[op->writes[w]] = (struct version){run->now[op->writes[w]].written + 1, 0};
    }
    for (int32_t a = 0; a < op->add_count; a++)
        run->adding[op->adds[a]]++;
}

static void end_op(struct run *run, int64_t index)
{
    const struct sw_op *op = &run->program->ops[index];
    for (int32_t r = 0; r < op->read_count; r++)
        run->reading[op->reads[r]]--;
    for (int32_t w = 0; w < op->write_count; w++)
        run->writing[op->writes[w]]--;
    for (int32_t a = 0; a < op->add_count; a++) {
        run->adding[op->adds[a]]--;
        run->now[op->adds[a]].added++;
    }
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

/* Start and finish ops in a random order that waits and lanes allow; several are in flight, of the
 * drives' lanes up to 4 each. */
static void run_randomly(const struct sw_program *program, const struct version *seen,
                         uint32_t seed)
{
    size_t resources = (size_t)program->resource_count;
    struct run run = {.program = program,
                      .seen = seen,
                      .now = calloc(resources, sizeof *run.now),
                      .writing = calloc(resources, sizeof *run.writing),
                      .reading = calloc(resources, sizeof *run.reading),
                      .adding = calloc(resources, sizeof *run.adding)};
    int64_t left = program->op_count;
    const uint32_t key[2] = {seed, 7};
    assert_int_equal(program->queue_count, SW_LANES);
    for (uint32_t turn = 0; left > 0; turn++) {
        assert_true(turn < 10000000); /* I3 */
        uint32_t words[4];
        sw_philox(key, (const uint32_t[4]){turn, 0, 0, 0}, words);
        int lane = (int)(words[0] % SW_LANES);
        int32_t flying = run.started[lane] - run.done[lane];
        if (flying > 0 && words[1] % 2 == 0) {
            end_op(&run, program->queues[lane].ops[run.done[lane]++]);
            left--;
            continue;
        }
        if (run.started[lane] == program->queues[lane].count ||
            flying >= (lane >= SW_LANE_STATE_READ ? 4 : 1))
            continue;
        int64_t index = program->queues[lane].ops[run.started[lane]];
        if (!is_ready(&run, &program->ops[index]))
            continue;
        begin_op(&run, index);
        run.started[lane]++;
    }
    free(run.now);
    free(run.writing);
    free(run.reading);
    free(run.adding);
}

static void check_program(const struct sw_program *program)
{
    struct version *seen = calloc((size_t)program->op_count * USES + 1, sizeof *seen);
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
    struct sw_simulation serial, overlapped;
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
        cmocka_unit_test(a_step_has_the_ops_it_should),
        cmocka_unit_test(simulation_adds_up),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

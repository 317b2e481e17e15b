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

/* Serial versions: for op i and its use u, which op had written the resource last. */
static void serial_versions(const struct sw_program *program, int64_t *seen)
{
    int64_t *writer = calloc((size_t)program->resource_count, sizeof *writer);
    memset(writer, -1, (size_t)program->resource_count * sizeof *writer);
    for (int64_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->ops[i];
        for (int32_t r = 0; r < op->read_count; r++)
            seen[i * 2 * SW_OP_USES + r] = writer[op->reads[r]];
        for (int32_t w = 0; w < op->write_count; w++) {
            seen[i * 2 * SW_OP_USES + SW_OP_USES + w] = writer[op->writes[w]];
            writer[op->writes[w]] = i;
        }
    }
    free(writer);
}

/* Start and finish ops in a random order that waits and lanes allow; several are in flight. */
static void run_randomly(const struct sw_program *program, const int64_t *seen, uint32_t seed)
{
    int64_t *writer = calloc((size_t)program->resource_count, sizeof *writer);
    int32_t *writing = calloc((size_t)program->resource_count, sizeof *writing);
    int32_t *reading = calloc((size_t)program->resource_count, sizeof *reading);
    memset(writer, -1, (size_t)program->resource_count * sizeof *writer);
    int32_t started[SW_LANES] = {0}, done[SW_LANES] = {0};
    int64_t left = program->op_count;
    const uint32_t key[2] = {seed, 7};
    for (uint32_t turn = 0; left > 0; turn++) {
        assert_true(turn < 1000000); /* I3 */
        uint32_t words[4];
        sw_philox(key, (const uint32_t[4]){turn, 0, 0, 0}, words);
        int lane = (int)(words[0] % SW_LANES);
        if (started[lane] > done[lane]) { /* finish what runs, or leave it running */
            if (words[1] % 2 == 0)
                continue;
            const struct sw_op *op = &program->ops[program->lane_ops[lane][done[lane]]];
            for (int32_t r = 0; r < op->read_count; r++)
                reading[op->reads[r]]--;
            for (int32_t w = 0; w < op->write_count; w++)
                writing[op->writes[w]]--;
            done[lane]++;
            left--;
            continue;
        }
        if (started[lane] == program->lane_count[lane])
            continue;
        int64_t index = program->lane_ops[lane][started[lane]];
        const struct sw_op *op = &program->ops[index];
        bool ready = true;
        for (int l = 0; l < SW_LANES; l++)
            ready = ready && done[l] >= op->waits[l];
        if (!ready)
            continue;
        for (int32_t r = 0; r < op->read_count; r++) {
            assert_int_equal(writing[op->reads[r]], 0);                               /* I2 */
            assert_int_equal(writer[op->reads[r]], seen[index * 2 * SW_OP_USES + r]); /* I1 */
            reading[op->reads[r]]++;
        }
        for (int32_t w = 0; w < op->write_count; w++) {
            assert_int_equal(writing[op->writes[w]], 0);
            assert_int_equal(reading[op->writes[w]], 0);
            assert_int_equal(writer[op->writes[w]], seen[index * 2 * SW_OP_USES + SW_OP_USES + w]);
        }
        for (int32_t w = 0; w < op->write_count; w++) {
            writing[op->writes[w]]++;
            writer[op->writes[w]] = index;
        }
        started[lane]++;
    }
    free(writer);
    free(writing);
    free(reading);
}

static void check_program(const struct sw_program *program)
{
    int64_t *seen = calloc((size_t)program->op_count * 2 * SW_OP_USES, sizeof *seen);
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

static double one_second(const struct sw_op *op, void *context)
{
    (void)context;
    return op->lane == SW_LANE_COMPUTE || op->lane == SW_LANE_OPTIMIZER ? 1.0 : 0.0;
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

#include "tests/engine_rig.h"

#include "base/json.h"
#include "base/pool.h"
#include "model/config.h"
#include "model/init.h"

enum { VOCABULARY = 509 };

struct shape {
    int encoder, decoder, width, inner;
};

static struct sw_model *make(const struct shape *shape, bool untied)
{
    char text[512];
    int bytes = snprintf(
        text, sizeof text,
        "{\"model_type\": \"t5\", \"d_model\": %d, \"d_kv\": 8, \"d_ff\": %d, \"num_heads\": 2, "
        "\"num_layers\": %d, \"num_decoder_layers\": %d, \"vocab_size\": 509, "
        "\"feed_forward_proj\": \"gated-gelu\", \"decoder_start_token_id\": 0, "
        "\"tie_word_embeddings\": %s}",
        shape->width, shape->inner, shape->encoder, shape->decoder, untied ? "false" : "true");
    struct sw_err err;
    sw_err_init(&err);
    struct sw_json *json;
    struct sw_model *model;
    assert_ok(sw_json_parse(text, bytes, "config", &json, &err), &err);
    assert_ok(sw_model_open(json, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    return model;
}

static const struct shape TINY = {1, 1, 24, 97}, SMALL = {2, 3, 24, 97}, WIDE = {2, 3, 160, 400};

struct sw_model *make_model(bool untied)
{
    return make(&SMALL, untied);
}

static sw_code write_initial(struct rig *rig)
{
    sw_code code = SW_OK;
    for (int64_t i = 0; i < rig->model->param_count && code == SW_OK; i++) {
        int64_t count = rig->model->params[i].elements;
        float *values = malloc((size_t)count * sizeof *values);
        sw_init_fill(rig->model, 5, i, 0, count, values);
        code = sw_engine_write_param(rig->engine, i, 0, count, values, &rig->err);
        free(values);
    }
    return code;
}

static void set_optimizer(struct rig *rig, const struct setup *setup)
{
    sw_optim_settings_init(&rig->optim, setup->adafactor ? SW_OPTIM_ADAFACTOR : SW_OPTIM_ADAMW);
    rig->optim.max_grad_norm = setup->no_clipping || setup->early ? 0.0 : 1.0;
    rig->optim.weight_decay = 0.01;
    rig->optim.master = setup->split ? SW_MASTER_SPLIT : SW_MASTER_FP32;
    rig->optim.grads = setup->bf16_grads ? SW_BF16 : SW_F32;
    rig->optim.moments = setup->bf16_moments ? SW_BF16 : SW_F32;
    rig->optim.early_step = setup->early;
    rig->optim.scale_parameter = setup->adafactor && setup->scale_parameter;
}

static struct sw_plan_request make_request(const struct rig *rig, const struct setup *setup)
{
    static const struct sw_plan_rates none;
    return (struct sw_plan_request){
        .model = rig->model,
        .optim = setup->purpose == SW_FOR_TRAINING ? &rig->optim : NULL,
        .kernels = &sw_cpu_kernels,
        .purpose = setup->purpose,
        .compute = setup->bf16 ? SW_BF16 : SW_F32,
        .dropout = setup->dropout,
        .global_batch = ROWS,
        .micro_batch = setup->micro_batch,
        .source_length = SOURCE,
        .target_length = TARGET,
        .generation_rows = ROWS,
        .generation_beams = BEAMS,
        .generation_length = TOKENS,
        .recompute = setup->recompute ? SW_RECOMPUTE_ON : SW_RECOMPUTE_OFF,
        .params = setup->params,
        .optimizer = setup->optimizer,
        .grads = setup->grads,
        .activations = setup->activations,
        .device_memory_bytes = setup->device_memory_bytes,
        .host_memory_bytes = setup->host_memory_bytes,
        .nvme_bytes = 1 << 30,
        .nvme_directories = 1,
        .prefetch_depth = setup->prefetch_depth,
        .chunk_bytes = setup->chunk_bytes,
        .checksums = setup->verify,
        .overlap = !setup->serial,
        .pipeline = setup->pipeline,
        .data = setup->data,
        .zero = setup->zero,
        .schedule = setup->schedule,
        .uploads = setup->uploads,
        .mailbox = setup->mailbox,
        .device_is_remote = setup->remote,
        .where = setup->where,
        .rates = setup->rates != NULL ? *setup->rates : none,
    };
}

sw_code try_plan_rig(struct rig *rig, const struct setup *setup)
{
    memset(rig, 0, sizeof *rig);
    sw_err_init(&rig->err);
    struct shape shape = setup->tiny ? TINY : setup->wide ? WIDE : SMALL;
    if (setup->encoder > 0)
        shape.encoder = setup->encoder;
    if (setup->decoder > 0)
        shape.decoder = setup->decoder;
    rig->model = make(&shape, setup->untied);
    if (setup->freeze != NULL)
        assert_ok(sw_model_freeze(rig->model, &setup->freeze, 1, &rig->err), &rig->err);
    set_optimizer(rig, setup);
    const struct sw_plan_request request = make_request(rig, setup);
    return sw_plan_make(&rig->plan, &request, &rig->err);
}

sw_code try_open_rig(struct rig *rig, const struct setup *setup)
{
    sw_code code = try_plan_rig(rig, setup);
    if (code != SW_OK)
        return code;
    assert_ok(sw_pool_open(&rig->pool, setup->threads, &rig->err), &rig->err);
    if (setup->directory == NULL)
        rig->directory = sw_test_scratch();
    const struct sw_spill_directory directory = {.path = setup->directory != NULL ? setup->directory
                                                                                  : rig->directory};
    const struct sw_spill_config spill = {.directories = &directory,
                                          .directory_count = 1,
                                          .method = setup->method,
                                          .verify = setup->verify,
                                          .fault = setup->fault};
    const struct sw_engine_config config = {.plan = rig->plan,
                                            .model = rig->model,
                                            .optim = rig->plan->request.optim,
                                            .device = setup->device != NULL ? setup->device
                                                                            : &sw_cpu_device_ops,
                                            .pool = rig->pool,
                                            .seed = 11,
                                            .dropout = setup->dropout,
                                            .overlap = !setup->serial,
                                            .near = setup->near,
                                            .spill = &spill};
    code = sw_engine_open(&rig->engine, &config, &rig->err);
    if (code == SW_OK)
        code = write_initial(rig);
    if (code == SW_OK)
        code = sw_engine_start(rig->engine, &rig->err);
    return code;
}

void open_rig(struct rig *rig, const struct setup *setup)
{
    assert_ok(try_open_rig(rig, setup), &rig->err);
}

void close_rig(struct rig *rig)
{
    sw_engine_close(rig->engine);
    sw_pool_close(rig->pool);
    sw_plan_free(rig->plan);
    sw_model_close(rig->model);
    if (rig->directory != NULL)
        sw_test_scratch_remove(rig->directory);
}

void make_rows(struct rows *rows, int step)
{
    static const int32_t sources[ROWS] = {12, 3, 7, 1, 12, 5, 9, 2};
    static const int32_t targets[ROWS] = {9, 1, 3, 4, 1, 6, 9, 2};
    rows->batch = (struct sw_batch){rows->rows, rows->numbers, ROWS, 0};
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < SOURCE + TARGET; i++)
            rows->ids[r][i] = 2 + (step * 31 + r * 17 + i * 7) % (VOCABULARY - 2);
        rows->rows[r] =
            (struct sw_row){rows->ids[r], rows->ids[r] + SOURCE, sources[r], targets[r]};
        rows->numbers[r] = r;
        rows->batch.target_tokens += targets[r];
    }
}

float *read_all(struct rig *rig, int64_t *count)
{
    float *values = malloc((size_t)rig->model->elements * sizeof *values);
    *count = 0;
    for (int64_t i = 0; i < rig->model->param_count; i++) {
        int64_t n = rig->model->params[i].elements;
        assert_ok(sw_engine_read_param(rig->engine, i, 0, n, values + *count, &rig->err),
                  &rig->err);
        *count += n;
    }
    return values;
}

char *read_states(struct rig *rig, int64_t *bytes)
{
    char *values = malloc((size_t)rig->model->elements * 8);
    *bytes = 0;
    for (int64_t i = 0; i < rig->model->param_count; i++) {
        const struct sw_param *param = &rig->model->params[i];
        const struct sw_optim_unit *unit = &rig->plan->optim_units[param->unit];
        int64_t index = i - rig->model->units[param->unit].first_param;
        int count = sw_optim_state_count(&rig->optim, &unit->params[index]);
        for (int state = 0; state < count; state++) {
            struct sw_optim_state described;
            sw_optim_state_describe(&rig->optim, unit, index, state, &described);
            assert_ok(sw_engine_read_state(rig->engine, i, state, 0, described.elements,
                                           values + *bytes, &rig->err),
                      &rig->err);
            *bytes += described.elements * sw_dtype_bytes(described.dtype);
        }
    }
    return values;
}

static struct outcome run(struct rig *rig)
{
    struct outcome outcome;
    struct rows rows;
    for (int step = 0; step < STEPS; step++) {
        struct sw_step_result result;
        make_rows(&rows, step);
        assert_ok(sw_engine_step(rig->engine, step + 1, 1e-3, &rows.batch, &result, &rig->err),
                  &rig->err);
        assert_true(result.finite);
        outcome.loss[step] = result.loss;
        outcome.norm[step] = result.grad_norm;
    }
    int64_t tokens;
    assert_ok(
        sw_engine_evaluate(rig->engine, &rows.batch, &outcome.evaluation, &tokens, NULL, &rig->err),
        &rig->err);
    assert_int_equal(tokens, rows.batch.target_tokens);
    assert_int_equal(sw_engine_updates(rig->engine), STEPS);
    outcome.weights = read_all(rig, &outcome.count);
    outcome.states = read_states(rig, &outcome.state_bytes);
    /* The budget is what was allocated. */
    for (int32_t rank = 0; rank < rig->plan->ranks; rank++)
        assert_int_equal(sw_engine_device_bytes(rig->engine, rank),
                         rig->plan->stage[rank % rig->plan->stages].device_bytes);
    outcome.slots = rig->plan->stage[0].weight_pools[SW_POOL_BLOCKS];
    memcpy(outcome.total_bytes, rig->plan->total_bytes, sizeof outcome.total_bytes);
    outcome.params = rig->plan->params;
    outcome.optimizer = rig->plan->optimizer;
    outcome.grads = rig->plan->grads;
    outcome.activations = rig->plan->activations;
    outcome.streamed = 0;
    for (int64_t i = 0; i < rig->model->unit_count; i++)
        outcome.streamed += rig->plan->homes[i].streamed;
    outcome.micro_batch = rig->plan->bounds.rows;
    outcome.schedule = rig->plan->schedule;
    return outcome;
}

sw_code try_train(const struct setup *setup, struct outcome *out, struct sw_err *err)
{
    struct rig rig;
    sw_code code = try_open_rig(&rig, setup);
    if (code == SW_OK)
        *out = run(&rig);
    *err = rig.err;
    close_rig(&rig);
    return code;
}

struct outcome train(const struct setup *setup)
{
    struct sw_err err;
    struct outcome outcome;
    assert_ok(try_train(setup, &outcome, &err), &err);
    return outcome;
}

void free_outcome(struct outcome *outcome)
{
    free(outcome->weights);
    free(outcome->states);
}

void assert_same_outcome(const struct outcome *a, const struct outcome *b, const char *what)
{
    if (memcmp(a->loss, b->loss, sizeof a->loss) != 0)
        fail_msg("%s: losses differ", what);
    if (memcmp(a->norm, b->norm, sizeof a->norm) != 0)
        fail_msg("%s: norms differ", what);
    if (memcmp(a->weights, b->weights, (size_t)a->count * sizeof *a->weights) != 0)
        fail_msg("%s: weights differ", what);
    if (a->state_bytes == b->state_bytes &&
        memcmp(a->states, b->states, (size_t)a->state_bytes) != 0)
        fail_msg("%s: states differ", what);
    if (memcmp(&a->evaluation, &b->evaluation, sizeof a->evaluation) != 0)
        fail_msg("%s: evaluations differ", what);
}

void assert_same_bits(const struct setup *a, const struct setup *b)
{
    struct outcome x = train(a), y = train(b);
    assert_same_outcome(&x, &y, "the two");
    free_outcome(&x);
    free_outcome(&y);
}

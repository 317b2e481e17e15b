/* Bytes that a step moves, lane by lane: what the ops of the program say is what the closed formula
 * of docs/PLAN.md says, over many shapes, homes and optimizers (I4). The formula is written here
 * from the homes alone, without the builder's flows. */
#include "tests/support.h"

#include "base/json.h"
#include "base/random.h"
#include "model/config.h"
#include "plan/plan.h"

enum { CASES = 600, MOST_STAGES = 3 };

static struct sw_model *make_model(const uint32_t *random)
{
    struct sw_err err;
    sw_err_init(&err);
    char text[512];
    int bytes = snprintf(text, sizeof text,
                         "{\"model_type\": \"t5\", \"d_model\": %d, \"d_kv\": 8, \"d_ff\": %d, "
                         "\"num_heads\": 2, \"num_layers\": %d, \"num_decoder_layers\": %d, "
                         "\"vocab_size\": %d, \"tie_word_embeddings\": %s}",
                         (int)(random[0] % 3) * 8 + 16, (int)(random[1] % 60) + 37,
                         (int)(random[2] % 5) + 1, (int)(random[3] % 5) + 1,
                         (int)(random[0] / 7 % 400) + 109, random[1] / 64 % 2 ? "true" : "false");
    struct sw_json *json;
    struct sw_model *model;
    assert_ok(sw_json_parse(text, bytes, "config", &json, &err), &err);
    assert_ok(sw_model_open(json, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    if (random[2] / 8 % 4 == 0) {
        const char *frozen = random[3] % 2 ? "encoder.*" : "decoder.block.0.*";
        assert_ok(sw_model_freeze(model, &frozen, 1, &err), &err);
    }
    return model;
}

static void set_optimizer(const uint32_t *random, struct sw_optim_settings *optim)
{
    bool adafactor = random[0] % 3 == 0;
    sw_optim_settings_init(optim, adafactor ? SW_OPTIM_ADAFACTOR : SW_OPTIM_ADAMW);
    optim->scale_parameter = adafactor && random[1] % 2 == 0;
    optim->master = random[2] % 2 == 0 ? SW_MASTER_SPLIT : SW_MASTER_FP32;
    optim->moments = random[3] % 2 == 0 ? SW_BF16 : SW_F32;
    optim->early_step = random[0] / 4 % 4 == 0;
    optim->grads = random[1] / 4 % 2 == 0 && !optim->early_step ? SW_BF16 : SW_F32;
    optim->max_grad_norm = optim->early_step ? 0 : 1;
}

static struct sw_plan_request make_request(const uint32_t *random, const struct sw_model *model,
                                           const struct sw_optim_settings *optim)
{
    bool grid = random[3] / 4096 % 2 == 0;
    bool layered = !grid || random[2] / 256 % 2 == 0; /* others move no weights nor gradients */
    return (struct sw_plan_request){
        .pipeline = grid ? (int32_t)(random[3] / 8192 % 3) + 1 : 1,
        .data = grid ? (int32_t)(random[1] / 8192 % 3) + 1 : 1,
        .zero = (int)(random[1] / 65536 % 4),
        .schedule = layered                    ? SW_SCHEDULE_LAYERED
                    : random[2] / 512 % 2 == 0 ? SW_SCHEDULE_1F1B
                                               : SW_SCHEDULE_GPIPE,
        .mailbox = random[3] / 32768 % 2 == 0,
        .uploads = random[2] / 1024 % 2 == 0 ? SW_UPLOADS_RANGES : SW_UPLOADS_WHOLE,
        .model = model,
        .optim = optim,
        .kernels = &sw_cpu_kernels,
        .purpose = SW_FOR_TRAINING,
        .compute = random[0] % 2 == 0 ? SW_BF16 : SW_F32,
        .global_batch = random[1] % 7 + 1,
        .micro_batch = random[2] % 4 + 1,
        .source_length = random[3] % 20 + 1,
        .target_length = random[3] / 32 % 20 + 1,
        .recompute = random[0] / 2 % 2 == 0 ? SW_RECOMPUTE_ON : SW_RECOMPUTE_OFF,
        .params = layered ? random[0] / 4 % 4 : SW_TIER_AUTO,
        .optimizer = random[1] / 8 % 4,
        .grads = layered ? random[2] / 4 % 4 : SW_TIER_AUTO,
        .activations = grid ? SW_TIER_DEVICE : random[3] / 1024 % 3 + 1,
        .device_is_remote = random[1] / 32 % 4 == 0,
        .host_memory_bytes = random[2] / 16 % 2 == 0 ? 0 : 4500000,
        .nvme_bytes = 1 << 30,
        .nvme_directories = 1,
        .prefetch_depth = random[2] / 32 % 6 + 1,
        .chunk_bytes = random[0] / 16 % 2 == 0 ? 4096 : 1 << 20,
        .where = random[0] / 32 % 3 == 0 && optim->name == SW_OPTIM_ADAMW ? SW_STEP_STREAM
                                                                          : SW_STEP_AUTO,
        .overlap = true,
    };
}

/* ---- the formula ---- */

struct bytes {
    int64_t lane[SW_LANES];
};

static bool trains(const struct sw_plan *plan, int64_t unit)
{
    return plan->request.model->units[unit].trainable;
}

/* Is an array at home on the device cut into ranges over the replicas, from this stage of ZeRO on?
 */
static bool is_cut(const struct sw_plan *plan, int64_t unit, int from)
{
    return plan->replicas > 1 && plan->request.zero >= from &&
           unit != plan->request.model->common_unit;
}

/* What every replica gets of `bytes` that the others have. */
static int64_t of_the_others(const struct sw_plan *plan, int64_t bytes)
{
    return bytes * (plan->replicas - 1) / plan->replicas;
}

static bool is_layer(const struct sw_block *block)
{
    return block->kind == SW_BLOCK_ENCODER || block->kind == SW_BLOCK_DECODER;
}

/* Is a block's gradient reduced after every micro-batch? */
static bool is_summed(const struct sw_plan *plan, int64_t unit)
{
    bool of_block = false;
    for (int64_t i = 0; i < plan->request.model->block_count; i++)
        of_block |= is_layer(&plan->request.model->blocks[i]) &&
                    plan->request.model->blocks[i].units[0] == unit;
    return of_block && plan->schedule != SW_SCHEDULE_LAYERED && is_cut(plan, unit, 2);
}

/* Weights, once a pass; those in the slots when forward ends are not fetched again. Embeddings are
 * read in the forward pass alone, and what is in one slot serves both sides and a tied head. Other
 * schedules than `layered` have weights in slots with ZeRO 3 only: once a step where there is a
 * slot for each; `most` has what they may move where there is not. */
static void add_weights(const struct sw_plan *plan, struct bytes *want, int64_t *most)
{
    const struct sw_model *model = plan->request.model;
    int64_t width = sw_dtype_bytes(plan->request.compute), later[MOST_STAGES] = {0};
    for (int64_t block = model->block_count - 1; block >= 0; block--) {
        const struct sw_block *at = &model->blocks[block];
        int32_t unit = at->units[0];
        bool layer = is_layer(at), in_turn = plan->schedule == SW_SCHEDULE_LAYERED;
        bool table =
            at->kind == SW_BLOCK_EMBED_SOURCE || (at->kind == SW_BLOCK_HEAD && !model->t5.tied);
        bool device = unit >= 0 && plan->homes[unit].weights == SW_TIER_DEVICE;
        if ((!layer && !table) || (device && !is_cut(plan, unit, 3)))
            continue;
        int32_t stage = plan->block_stage[block];
        int64_t slots = plan->stage[stage].weight_pools[SW_POOL_BLOCKS].slots;
        int64_t passes = layer && later[stage]++ >= slots && in_turn ? 2 : 1;
        int64_t bytes = model->units[unit].elements * width;
        if (device)
            want->lane[SW_LANE_COLLECTIVE] += passes * of_the_others(plan, bytes);
        if (device && layer && !in_turn && plan->stage[stage].layers > slots)
            *most += (2 * plan->microbatches - 1) * of_the_others(plan, bytes);
        if (!device && plan->uploads_ranges)
            want->lane[SW_LANE_COLLECTIVE] += passes * of_the_others(plan, bytes);
        if (!device)
            want->lane[SW_LANE_H2D] += (plan->uploads_ranges ? 1 : plan->replicas) * passes * bytes;
        if (plan->homes[unit].weights == SW_TIER_NVME)
            want->lane[SW_LANE_FETCH] += passes * bytes;
    }
}

/* Kept outputs that lose their slot come back once: all but as many as there are slots, those that
 * are needed last. Of the blocks in order that is, from the first on, its last micro-batch first;
 * the encoder's output is needed all through the decoder's backward pass, so it stays. */
static void add_activations(const struct sw_plan *plan, struct bytes *want)
{
    int64_t m = plan->microbatches, end = sw_plan_encoder_end(plan->request.model);
    int64_t objects = (plan->request.model->block_count - 1) * m;
    int64_t lost = objects - plan->activation_slots;
    if (plan->activations == SW_TIER_DEVICE)
        return;
    for (int64_t block = 0; lost > 0; block++) {
        if (block == end)
            continue;
        int64_t count = lost < m ? lost : m, moved = count * plan->sizes[block].output_bytes;
        lost -= count;
        want->lane[SW_LANE_D2H] += moved;
        want->lane[SW_LANE_H2D] += moved;
        if (plan->activations == SW_TIER_NVME) {
            want->lane[SW_LANE_SPILL] += moved;
            want->lane[SW_LANE_FETCH] += moved;
        }
    }
}

/* Passes of the optimizer over a unit: over its gradient, and over its master weights. */
static void passes_of(const struct sw_optim_settings *optim, int64_t *gradient, int64_t *master)
{
    *gradient = optim->name == SW_OPTIM_ADAFACTOR ? 3 : 1;
    *master = optim->name == SW_OPTIM_ADAFACTOR && optim->scale_parameter ? 2 : 1;
}

/* A gradient on its way to its home, and from there to where it is stepped. */
static void add_gradient(const struct sw_plan *plan, int64_t unit, struct bytes *want)
{
    const struct sw_optim_settings *optim = plan->request.optim;
    enum sw_tier home = plan->homes[unit].gradient, states = plan->homes[unit].states;
    int64_t elements = plan->request.model->units[unit].elements, gradient_passes, master_passes;
    int64_t bytes = elements * (optim->grads == SW_BF16 ? 2 : 4);
    passes_of(optim, &gradient_passes, &master_passes);
    bool everywhere = states == SW_TIER_DEVICE && !is_cut(plan, unit, 1);
    if (plan->replicas > 1)
        want->lane[SW_LANE_COLLECTIVE] += of_the_others(plan, elements * (everywhere ? 8 : 4)) *
                                          (is_summed(plan, unit) ? plan->microbatches : 1);
    bool streamed = plan->homes[unit].streamed; /* then it is stepped where it is */
    if (optim->early_step) {                    /* not held: straight into the rotating buffers */
        if (!streamed && states != SW_TIER_DEVICE)
            want->lane[SW_LANE_D2H] += gradient_passes * elements * 4;
        return;
    }
    bool accumulates_at_home = home == SW_TIER_DEVICE && optim->grads == SW_F32 &&
                               (!is_cut(plan, unit, 2) || is_summed(plan, unit));
    if (!accumulates_at_home)
        want->lane[SW_LANE_D2H] += bytes * (everywhere ? plan->replicas : 1);
    if (states != SW_TIER_DEVICE && home == SW_TIER_DEVICE && !streamed)
        want->lane[SW_LANE_D2H] += gradient_passes * bytes;
    if (home == SW_TIER_NVME) {
        want->lane[SW_LANE_SPILL] += bytes;
        want->lane[SW_LANE_STATE_READ] += gradient_passes * bytes;
    }
}

/* The window: states read and written back, new weights on their way home. */
static void add_states(const struct sw_plan *plan, int64_t unit, struct bytes *want)
{
    const struct sw_plan_request *request = &plan->request;
    const struct sw_optim_settings *optim = request->optim;
    enum sw_tier states = plan->homes[unit].states, weights = plan->homes[unit].weights;
    int64_t elements = request->model->units[unit].elements, gradient_passes, master_passes;
    int64_t width = sw_dtype_bytes(request->compute);
    int64_t moments = optim->name == SW_OPTIM_ADAMW ? 2 * sw_dtype_bytes(optim->moments) : 0;
    bool own =
        weights != states || (request->compute == SW_F32) != (optim->master == SW_MASTER_FP32);
    int64_t copies = unit == request->model->common_unit ? plan->ranks
                     : is_cut(plan, unit, 3)             ? 1
                                                         : plan->replicas;
    passes_of(optim, &gradient_passes, &master_passes);
    bool streamed = plan->homes[unit].streamed;
    if (streamed) { /* up, and down with the new weights, where those are elsewhere */
        bool there = optim->early_step || plan->homes[unit].gradient == SW_TIER_DEVICE;
        int64_t gradient = there ? 0 : optim->grads == SW_BF16 ? 2 : 4;
        want->lane[SW_LANE_STATE_UP] += elements * (4 + moments + gradient);
        want->lane[SW_LANE_STATE_DOWN] +=
            elements * (4 + moments + (own && weights != SW_TIER_DEVICE ? width : 0));
    }
    if (states == SW_TIER_NVME) {
        want->lane[SW_LANE_STATE_READ] += master_passes * elements * (4 + moments);
        want->lane[SW_LANE_STATE_WRITE] += elements * (4 + moments);
    }
    if (states != SW_TIER_DEVICE && own && weights == SW_TIER_NVME)
        want->lane[SW_LANE_STATE_WRITE] += elements * width;
    if (states != SW_TIER_DEVICE && own && weights == SW_TIER_DEVICE)
        want->lane[streamed ? SW_LANE_COLLECTIVE : SW_LANE_H2D] +=
            streamed ? of_the_others(plan, is_cut(plan, unit, 3) ? 0 : elements * width)
                     : copies * elements * width;
    if (states == SW_TIER_DEVICE && weights == SW_TIER_DEVICE && is_cut(plan, unit, 1) &&
        !is_cut(plan, unit, 3))
        want->lane[SW_LANE_COLLECTIVE] += of_the_others(plan, elements * width);
}

/* What passes between stages, of every replica: a block's input where the block before is
 * elsewhere, the encoder's output once to every other stage with decoder blocks; the gradient back,
 * in the decoder with that of the encoder's output beside it; partials of bias tables; what the
 * common unit became. */
static void add_messages(const struct sw_plan *plan, struct bytes *want)
{
    const struct sw_model *model = plan->request.model;
    int64_t end = sw_plan_encoder_end(model), sent = 0;
    int64_t source = plan->class_bytes[SW_SLOTS_SOURCE],
            target = plan->class_bytes[SW_SLOTS_TARGET];
    bool has_decoder[MOST_STAGES] = {false};
    for (int64_t block = 0; block < model->block_count; block++) {
        enum sw_block_kind kind = model->blocks[block].kind;
        int32_t stage = plan->block_stage[block];
        has_decoder[stage] |= kind == SW_BLOCK_DECODER;
        if (kind == SW_BLOCK_EMBED_SOURCE || kind == SW_BLOCK_EMBED_TARGET)
            continue;
        if (stage == plan->block_stage[block - 1])
            continue;
        sent += plan->sizes[block - 1].output_bytes; /* forward */
        if (kind == SW_BLOCK_DECODER)
            sent += target + source;
        else
            sent += kind == SW_BLOCK_HEAD ? target : source;
    }
    for (int32_t stage = 1; stage < plan->stages; stage++)
        sent += has_decoder[stage] ? plan->sizes[end].output_bytes : 0;
    sent *= plan->microbatches;
    int64_t common = model->common_unit;
    for (int32_t stage = 1; stage < plan->stages && trains(plan, common); stage++) {
        sent += plan->stage[stage].layers * model->t5.bias_buckets * model->t5.heads * 4;
        if (plan->homes[common].states == SW_TIER_DEVICE)
            sent += model->units[common].elements * sw_dtype_bytes(plan->request.compute);
    }
    want->lane[SW_LANE_SEND] += plan->replicas * sent;
    want->lane[SW_LANE_RECV] += plan->mailboxes > 0 ? plan->replicas * sent : 0;
}

static void formula(const struct sw_plan *plan, struct bytes *want, int64_t *most)
{
    *want = (struct bytes){0};
    *most = 0;
    want->lane[SW_LANE_H2D] = plan->ranks * plan->microbatches * plan->batch_bytes;
    add_messages(plan, want);
    add_weights(plan, want, most);
    add_activations(plan, want);
    for (int64_t unit = 0; unit < plan->request.model->unit_count; unit++) {
        if (!trains(plan, unit))
            continue;
        add_gradient(plan, unit, want);
        add_states(plan, unit, want);
    }
}

/* ---- */

static void check(const struct sw_plan *plan, int number)
{
    struct bytes want, have;
    int64_t most; /* gathers more than the formula has, where it has no exact number */
    formula(plan, &want, &most);
    sw_plan_lane_bytes(plan, plan->step, have.lane);
    int64_t *gathered = &have.lane[SW_LANE_COLLECTIVE], least = want.lane[SW_LANE_COLLECTIVE];
    if (*gathered >= least && *gathered <= least + most)
        *gathered = least;
    for (int lane = 0; lane < SW_LANES; lane++)
        if (have.lane[lane] != want.lane[lane])
            fail_msg("case %d, lane %s: %lld bytes, the formula says %lld", number,
                     sw_lane_name((enum sw_lane)lane), (long long)have.lane[lane],
                     (long long)want.lane[lane]);
}

static void bytes_moved_equal_the_closed_formula(void **state)
{
    (void)state;
    int checked = 0, summed = 0;
    for (int number = 0; number < CASES; number++) {
        struct sw_err err;
        sw_err_init(&err);
        uint32_t random[3][4];
        const uint32_t key[2] = {(uint32_t)number, 3};
        for (uint32_t i = 0; i < 3; i++)
            sw_philox(key, (const uint32_t[4]){i, 0, 0, 0}, random[i]);
        struct sw_optim_settings optim;
        struct sw_model *model = make_model(random[0]);
        set_optimizer(random[1], &optim);
        const struct sw_plan_request request = make_request(random[2], model, &optim);
        struct sw_plan *plan;
        sw_code code = sw_plan_make(&plan, &request, &err);
        if (code == SW_OK) {
            /* With fewer slots than that, activations come back more than once. */
            bool room = plan->activation_slots >= 3 * plan->microbatches + 2;
            if (plan->activations == SW_TIER_DEVICE || room) {
                check(plan, number);
                checked++;
                summed += is_summed(plan, plan->request.model->blocks[1].units[0]);
            }
            sw_plan_free(plan);
        } else { /* homes that clash, or a host memory that is too small */
            assert_true(code == SW_E_USAGE || code == SW_E_FIT);
        }
        sw_model_close(model);
    }
    assert_true(checked > CASES / 2 && summed > CASES / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_moved_equal_the_closed_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "plan/plan.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* Logits of this many bytes at once: large enough for fast GEMMs, small beside the weights.
     * Results depend on the chunk (in rounding), so it is a function of the vocabulary alone. */
    HEAD_CHUNK_BYTES = 64 << 20,
    HEAD_CHUNK_STEP = 32,
    /* Tokens of a micro-batch beyond which larger ones are no faster. */
    MICRO_BATCH_TOKENS = 8192,
    ALIGNMENT_BYTES = 256,
};

const char *sw_tier_name(enum sw_tier tier)
{
    static const char *const names[SW_TIERS] = {"auto", "device", "host", "nvme"};
    return names[tier];
}

int64_t sw_plan_encoder_end(const struct sw_model *model)
{
    int64_t block = 0;
    while (model->blocks[block].kind != SW_BLOCK_ENCODER_END)
        block++;
    return block;
}

/* Training keeps every block's output (the next block's input). Elsewhere two take turns, and the
 * encoder output has its own. */
int64_t sw_plan_activation_slot(const struct sw_plan *plan, int64_t block)
{
    if (plan->request.purpose == SW_FOR_TRAINING)
        return block;
    return block == sw_plan_encoder_end(plan->request.model) ? 2 : block % 2;
}

int64_t sw_plan_context_slot(const struct sw_plan *plan, int64_t block, int64_t microbatch)
{
    return plan->recompute ? 0 : block * plan->microbatches + microbatch;
}

static int64_t head_chunk(const struct sw_plan_request *request)
{
    int64_t chunk = HEAD_CHUNK_BYTES / ((int64_t)sizeof(float) * request->model->t5.vocab_size);
    chunk -= chunk % HEAD_CHUNK_STEP;
    return chunk < HEAD_CHUNK_STEP ? HEAD_CHUNK_STEP : chunk;
}

/* The largest micro-batch of at most MICRO_BATCH_TOKENS tokens, evened out over the step. */
static int64_t choose_micro_batch(const struct sw_plan_request *request)
{
    int64_t longest = request->source_length > request->target_length ? request->source_length
                                                                      : request->target_length;
    int64_t rows = MICRO_BATCH_TOKENS / longest;
    if (rows < 1)
        rows = 1;
    if (rows > request->global_batch)
        rows = request->global_batch;
    int64_t count = (request->global_batch + rows - 1) / rows;
    return (request->global_batch + count - 1) / count;
}

static void set_bounds(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    bool generating = request->purpose == SW_FOR_GENERATION;
    plan->bounds = (struct sw_bounds){
        .rows = generating ? request->generation_rows : request->micro_batch,
        .source_length = request->source_length,
        .target_length = generating ? request->generation_length : request->target_length,
        .head_chunk_tokens = head_chunk(request),
    };
    if (!generating && plan->bounds.rows == 0)
        plan->bounds.rows = choose_micro_batch(request);
    plan->microbatches =
        generating ? 1 : (request->global_batch + plan->bounds.rows - 1) / plan->bounds.rows;
    plan->reach = sw_model_tables_reach(plan->bounds.source_length, plan->bounds.target_length);
}

static void measure_blocks(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t i = 0; i < model->block_count; i++) {
        struct sw_block_sizes *sizes = &plan->sizes[i];
        sw_block_sizes(model, (int32_t)i, &plan->bounds, plan->request.compute,
                       plan->request.kernels, sizes);
        if (sizes->output_bytes > plan->activation_bytes)
            plan->activation_bytes = sizes->output_bytes;
        if (sizes->context_bytes > plan->context_bytes)
            plan->context_bytes = sizes->context_bytes;
        if (sizes->workspace_bytes > plan->workspace_bytes)
            plan->workspace_bytes = sizes->workspace_bytes;
    }
    /* ids, starts, lengths, row of each token, of both sides; labels; row numbers */
    int64_t source = plan->bounds.rows * plan->bounds.source_length;
    int64_t target = plan->bounds.rows * plan->bounds.target_length;
    int64_t integers = 2 * source + 3 * target + 5 * plan->bounds.rows;
    plan->batch_bytes =
        sw_align_up(integers * (int64_t)sizeof(int32_t), ALIGNMENT_BYTES) + 10 * ALIGNMENT_BYTES;
}

static struct sw_plan_item *add_item(struct sw_plan *plan, const char *name)
{
    sw_assert(plan->item_count < SW_PLAN_ITEMS);
    struct sw_plan_item *item = &plan->items[plan->item_count++];
    item->name = name;
    return item;
}

static void add_bytes(struct sw_plan *plan, const char *name, enum sw_tier tier, int64_t bytes)
{
    if (bytes > 0)
        add_item(plan, name)->bytes[tier] += bytes;
}

static int64_t weight_elements(const struct sw_model *model)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < model->unit_count; i++)
        elements += model->units[i].elements;
    return elements;
}

/* The optimizer's view of a unit's trainable part: elements that have gradients and states. */
static int64_t trainable_elements(const struct sw_model *model)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < model->unit_count; i++)
        if (model->units[i].trainable)
            elements += model->units[i].elements;
    return elements;
}

static int64_t adafactor_elements(const struct sw_model *model)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < model->param_count; i++) {
        const struct sw_param *param = &model->params[i];
        if (param->trainable)
            elements += param->dims == 2 ? param->shape[0] + param->shape[1] : param->elements;
    }
    return elements;
}

static void budget_states(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    const struct sw_optim_settings *optim = plan->request.optim;
    int64_t elements = trainable_elements(model), weights = weight_elements(model);
    bool split = optim->master == SW_MASTER_SPLIT;
    if (split)
        add_bytes(plan, "master, low halves", plan->optimizer,
                  weights * (plan->request.compute == SW_BF16 ? 2 : 4));
    else if (plan->request.compute == SW_BF16)
        add_bytes(plan, "master weights", plan->optimizer, weights * 4);
    if (optim->name == SW_OPTIM_ADAMW)
        add_bytes(plan, "optimizer states", plan->optimizer,
                  elements * sw_optim_parallel_state_bytes(optim));
    else
        add_bytes(plan, "optimizer states", SW_TIER_HOST, adafactor_elements(model) * 4);
    add_bytes(plan, "gradients", plan->grads, elements * 4);
}

static void budget_activations(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    int64_t kept = 0, contexts = 0;
    for (int64_t i = 0; i < model->block_count; i++) {
        kept += plan->sizes[i].output_bytes;
        contexts += plan->sizes[i].context_bytes;
    }
    if (plan->request.purpose != SW_FOR_TRAINING) {
        add_bytes(plan, "activations", SW_TIER_DEVICE,
                  plan->activation_slots * plan->microbatches * plan->activation_bytes);
        return;
    }
    add_bytes(plan, "kept block inputs", plan->activations, kept * plan->microbatches);
    add_bytes(plan, plan->recompute ? "context (recomputed)" : "contexts", SW_TIER_DEVICE,
              plan->recompute ? plan->context_bytes : contexts * plan->microbatches);
    add_bytes(plan, "activation gradients", SW_TIER_DEVICE,
              2 * plan->microbatches * plan->activation_bytes);
}

static void budget_generation(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    const struct sw_decode_bounds bounds = {request->generation_rows, request->generation_beams,
                                            request->source_length, request->generation_length};
    struct sw_decode_sizes sizes;
    sw_decode_sizes(request->model, &bounds, request->compute, request->kernels, &sizes);
    int64_t layers = request->model->t5.decoder_layers;
    add_bytes(plan, "keys and values", SW_TIER_DEVICE,
              (layers + 1) * sizes.cache_bytes + layers * sizes.cross_bytes);
    add_bytes(plan, "decoding", SW_TIER_DEVICE,
              sizes.index_bytes + sizes.bias_bytes + sizes.hidden_bytes +
                  sizes.log_probabilities_bytes + sizes.workspace_bytes);
}

static void make_budget(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    plan->item_count = 0;
    memset(plan->items, 0, sizeof plan->items);
    memset(plan->total_bytes, 0, sizeof plan->total_bytes);
    add_bytes(plan, "weights", plan->params,
              weight_elements(request->model) * sw_dtype_bytes(request->compute));
    if (request->purpose == SW_FOR_TRAINING)
        budget_states(plan);
    budget_activations(plan);
    if (request->purpose == SW_FOR_GENERATION)
        budget_generation(plan);
    add_bytes(plan, "workspace", SW_TIER_DEVICE, plan->workspace_bytes);
    add_bytes(plan, "batches, bias tables", SW_TIER_DEVICE,
              plan->microbatches * plan->batch_bytes + sw_model_tables_bytes(plan->reach) +
                  2 * (2 * plan->reach - 1) * request->model->t5.heads * 4);
    for (int i = 0; i < plan->item_count; i++)
        for (int tier = 0; tier < SW_TIERS; tier++)
            plan->total_bytes[tier] += plan->items[i].bytes[tier];
}

static bool fits(const struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    return (request->device_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_DEVICE] <= request->device_memory_bytes) &&
           (request->host_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_HOST] <= request->host_memory_bytes);
}

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Try what the settings leave open, in the order of what it costs: keep insides, recompute them,
 * smaller micro-batches. */
static void settle(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    plan->recompute = request->recompute == SW_RECOMPUTE_ON;
    make_budget(plan);
    if (fits(plan) || request->purpose != SW_FOR_TRAINING)
        return;
    if (request->recompute == SW_RECOMPUTE_AUTO) {
        plan->recompute = true;
        make_budget(plan);
    }
}

static sw_code refuse(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_plan_request *request = &plan->request;
    int largest = 0;
    for (int i = 1; i < plan->item_count; i++)
        if (plan->items[i].bytes[SW_TIER_DEVICE] > plan->items[largest].bytes[SW_TIER_DEVICE])
            largest = i;
    return SW_FAIL(
        err, SW_E_FIT,
        "does not fit: the device needs %.1f MiB of %.1f (most of it: %s, %.1f MiB), the "
        "host %.1f MiB of %.1f; devices.memory of %.0fMiB would do, or a smaller "
        "train.micro_batch (now %lld) or data.max_source_length",
        mib(plan->total_bytes[SW_TIER_DEVICE]), mib(request->device_memory_bytes),
        plan->items[largest].name, mib(plan->items[largest].bytes[SW_TIER_DEVICE]),
        mib(plan->total_bytes[SW_TIER_HOST]), mib(request->host_memory_bytes),
        mib(plan->total_bytes[SW_TIER_DEVICE]) + 1, (long long)plan->bounds.rows);
}

static sw_code choose_homes(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_plan_request *request = &plan->request;
    const struct {
        const char *key;
        enum sw_tier wanted;
        enum sw_tier *home;
    } homes[] = {{"offload.params", request->params, &plan->params},
                 {"offload.optimizer", request->optimizer, &plan->optimizer},
                 {"offload.grads", request->grads, &plan->grads},
                 {"offload.activations", request->activations, &plan->activations}};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        if (homes[i].wanted == SW_TIER_HOST || homes[i].wanted == SW_TIER_NVME)
            return SW_FAIL(err, SW_E_USAGE, "%s: %s: spilling is not there yet; use auto or device",
                           homes[i].key, sw_tier_name(homes[i].wanted));
        *homes[i].home = SW_TIER_DEVICE;
    }
    return SW_OK;
}

static double seconds_of(const struct sw_op *op, void *context)
{
    const struct sw_plan *plan = context;
    const struct sw_plan_rates *rates = &plan->request.rates;
    switch (op->kind) {
    case SW_OP_FORWARD:
        return plan->sizes[op->block].forward_flops / rates->gemm_flops;
    case SW_OP_HEAD:
        return (plan->sizes[op->block].forward_flops + plan->sizes[op->block].backward_flops) /
               rates->gemm_flops;
    case SW_OP_BACKWARD:
        return (plan->sizes[op->block].backward_flops +
                (plan->recompute ? plan->sizes[op->block].forward_flops : 0)) /
               rates->gemm_flops;
    case SW_OP_STEP:
        return (double)plan->request.model->units[op->unit].elements * 28 / rates->host_bytes;
    case SW_OP_PARTIALS:
        return (double)plan->request.model->units[op->unit].elements * 4 / rates->host_bytes;
    default:
        return 0;
    }
}

static sw_code predict(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t i = 0; i < model->block_count; i++)
        plan->step_flops +=
            (double)plan->microbatches * (plan->sizes[i].forward_flops * (plan->recompute ? 2 : 1) +
                                          plan->sizes[i].backward_flops);
    if (plan->step == NULL || plan->request.rates.gemm_flops <= 0 ||
        plan->request.rates.host_bytes <= 0)
        return SW_OK;
    plan->has_prediction = true;
    return sw_program_simulate(plan->step, seconds_of, plan, plan->request.overlap,
                               &plan->predicted, err);
}

sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err)
{
    struct sw_plan *plan = sw_calloc(1, sizeof *plan);
    if (plan == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    plan->request = *request;
    plan->sizes = sw_calloc(request->model->block_count, sizeof *plan->sizes);
    sw_code code = SW_OK;
    if (plan->sizes == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    if (code == SW_OK)
        code = choose_homes(plan, err);
    if (code == SW_OK) {
        set_bounds(plan);
        measure_blocks(plan);
        plan->activation_slots =
            request->purpose == SW_FOR_TRAINING ? request->model->block_count : 3;
        settle(plan);
        if (!fits(plan))
            code = refuse(plan, err);
    }
    if (code == SW_OK) {
        plan->context_slots =
            plan->recompute ? 1 : request->model->block_count * plan->microbatches;
        code = sw_plan_build_programs(plan, err);
    }
    if (code == SW_OK)
        code = predict(plan, err);
    if (code != SW_OK) {
        sw_plan_free(plan);
        return code;
    }
    *out = plan;
    return SW_OK;
}

void sw_plan_free(struct sw_plan *plan)
{
    if (plan == NULL)
        return;
    sw_program_free(plan->step);
    sw_program_free(plan->drain);
    sw_program_free(plan->evaluation);
    sw_program_free(plan->begin);
    sw_program_free(plan->decode);
    free(plan->sizes);
    free(plan);
}

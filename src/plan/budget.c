/* Bytes of everything that a plan has allocated, by tier. What the engine allocates is the same
 * list, rounded the same way. */
#include "plan/search.h"

#include "base/mem.h"
#include "io/spill.h"

#include <string.h>

enum {
    DEVICE_GRAIN = 256,
    HOST_GRAIN = 4096,
    STATE_BUFFERS = 6, /* one being stepped, the others on their way in or out */
    FETCH_BUFFERS = 4,
    SPILL_BUFFERS = 4,
};

void sw_plan_measure_blocks(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    plan->activation_bytes = plan->context_bytes = plan->workspace_bytes = 0;
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
        sw_align_up(integers * (int64_t)sizeof(int32_t), DEVICE_GRAIN) + 10 * DEVICE_GRAIN;
}

static int64_t grain(enum sw_tier tier)
{
    return tier == SW_TIER_DEVICE ? DEVICE_GRAIN : HOST_GRAIN;
}

/* `count` pieces of `bytes`, under a name that other calls may have begun. */
static void add(struct sw_plan *plan, const char *name, enum sw_tier tier, int64_t count,
                int64_t bytes)
{
    if (count <= 0 || bytes <= 0 || tier == SW_TIER_AUTO)
        return;
    int at = 0;
    while (at < plan->item_count && strcmp(plan->items[at].name, name) != 0)
        at++;
    sw_assert(at < SW_PLAN_ITEMS);
    if (at == plan->item_count)
        plan->items[plan->item_count++] = (struct sw_plan_item){.name = name};
    int64_t sum = count * sw_align_up(bytes, grain(tier));
    plan->items[at].bytes[tier] += sum;
    plan->total_bytes[tier] += sum;
}

/* ---- buffers ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* Whole blocks of the optimizers' sums where those are taken piece by piece. */
static void set_chunks(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    int64_t largest = 0;
    for (int64_t i = 0; i < request->model->unit_count; i++)
        largest = most(largest, request->model->units[i].elements);
    int64_t elements = most(request->chunk_bytes / (int64_t)sizeof(float) / 64 * 64, 64);
    plan->weight_chunk =
        least(most(request->chunk_bytes / sw_dtype_bytes(request->compute) / 64 * 64, 64), largest);
    plan->gradient_chunk = least(round_up(elements, SW_OPTIM_BLOCK), largest);
    bool whole_blocks = request->optim != NULL &&
                        (request->optim->name == SW_OPTIM_ADAFACTOR || request->optim->early_step);
    plan->state_chunk =
        least(whole_blocks ? round_up(elements, SW_OPTIM_BLOCK) : elements, largest);
}

/* Parts that a unit's rotating buffer must hold. */
static uint32_t buffered_parts(const struct sw_plan *plan, int64_t unit)
{
    struct sw_unit_flow flow;
    sw_plan_unit_flow(plan, unit, &flow);
    if (!flow.chunked)
        return 0;
    return flow.read_parts | flow.write_parts | (flow.gradient_down ? 1U << SW_PART_GRADIENT : 0) |
           (flow.weights_up ? 1U << SW_PART_WEIGHTS : 0);
}

static void set_state_buffers(struct sw_plan *plan)
{
    uint32_t parts = 0;
    bool chunked = false;
    if (plan->request.purpose == SW_FOR_TRAINING)
        for (int64_t i = 0; i < plan->request.model->unit_count; i++) {
            struct sw_unit_flow flow;
            sw_plan_unit_flow(plan, i, &flow);
            chunked = chunked || flow.chunked;
            parts |= buffered_parts(plan, i);
        }
    int64_t at = 0;
    for (int part = 0; part < SW_PARTS; part++) {
        plan->state_buffer_offset[part] = -1;
        if ((parts >> part & 1) == 0)
            continue;
        plan->state_buffer_offset[part] = at;
        at += sw_align_up(plan->state_chunk *
                              sw_dtype_bytes(sw_plan_part_dtype(plan, (enum sw_part)part)),
                          HOST_GRAIN);
    }
    plan->state_buffer_bytes = at;
    plan->state_buffers = chunked ? STATE_BUFFERS : 0;
}

static bool any_at(const struct sw_plan *plan, enum sw_part part, enum sw_tier tier)
{
    for (int64_t i = 0; i < plan->request.model->unit_count; i++)
        if (sw_plan_part_tier(plan, i, part) == tier)
            return true;
    return false;
}

static bool any_weights_at(const struct sw_plan *plan, enum sw_tier tier)
{
    for (int64_t i = 0; i < plan->request.model->unit_count; i++)
        if (plan->homes[i].weights == tier)
            return true;
    return false;
}

static void set_staging(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    bool activations = plan->activations == SW_TIER_NVME;
    bool weights = any_weights_at(plan, SW_TIER_NVME);
    bool gradients =
        request->purpose == SW_FOR_TRAINING && any_at(plan, SW_PART_GRADIENT, SW_TIER_NVME);
    int64_t activation_bytes = activations ? plan->activation_bytes : 0;
    plan->fetch_buffers = activations || weights ? FETCH_BUFFERS : 0;
    plan->fetch_buffer_bytes =
        most(activation_bytes, weights ? plan->weight_chunk * sw_dtype_bytes(request->compute) : 0);
    plan->spill_buffers = activations || gradients ? SPILL_BUFFERS : 0;
    plan->spill_buffer_bytes =
        most(activation_bytes,
             gradients
                 ? plan->gradient_chunk * sw_dtype_bytes(sw_plan_part_dtype(plan, SW_PART_GRADIENT))
                 : 0);
}

/* ---- items ---- */

static const char *part_name(const struct sw_plan *plan, int64_t unit, enum sw_part part)
{
    if (part == sw_plan_weights_part(plan, unit))
        return "weights";
    switch (part) {
    case SW_PART_EXP_AVG:
    case SW_PART_EXP_AVG_SQ:
        return "optimizer states";
    case SW_PART_GRADIENT:
        return "held gradients";
    default:
        return "master weights";
    }
}

static void add_parts(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t unit = 0; unit < model->unit_count; unit++)
        for (int i = 0; i < SW_PARTS; i++) {
            enum sw_part part = (enum sw_part)i;
            enum sw_tier tier = sw_plan_part_tier(plan, unit, part);
            if (tier != SW_TIER_AUTO)
                add(plan, part_name(plan, unit, part), tier, 1,
                    model->units[unit].elements * sw_dtype_bytes(sw_plan_part_dtype(plan, part)));
        }
}

static void add_slots(struct sw_plan *plan)
{
    int64_t dtype_bytes = sw_dtype_bytes(plan->request.compute);
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        add(plan, "slots of weights", SW_TIER_DEVICE, plan->weight_pools[pool].slots,
            plan->weight_pools[pool].elements * dtype_bytes);
        add(plan, "slots of gradients", SW_TIER_DEVICE, plan->gradient_pools[pool].slots,
            plan->gradient_pools[pool].elements * (int64_t)sizeof(float));
    }
    const struct sw_model *model = plan->request.model;
    if (plan->request.purpose != SW_FOR_TRAINING)
        return;
    int64_t common = model->common_unit;
    if (model->units[common].trainable && !sw_plan_gradient_stays(plan, common))
        add(plan, "slots of gradients", SW_TIER_DEVICE, 1, model->units[common].elements * 4);
    if (sw_plan_part_dtype(plan, SW_PART_GRADIENT) == SW_BF16)
        add(plan, "slots of gradients", SW_TIER_DEVICE, 1, plan->gradient_chunk * 2);
}

static void add_factors(struct sw_plan *plan)
{
    int64_t scratch = 0;
    if (plan->request.optim->name != SW_OPTIM_ADAFACTOR)
        return;
    for (int64_t i = 0; i < plan->request.model->unit_count; i++) {
        if (!plan->request.model->units[i].trainable)
            continue;
        add(plan, "optimizer states", SW_TIER_HOST, 1,
            sw_adafactor_state_elements(&plan->optim_units[i]) * (int64_t)sizeof(float));
        scratch = most(scratch, sw_adafactor_scratch_bytes(&plan->optim_units[i]));
    }
    add(plan, "optimizer states", SW_TIER_HOST, 1, scratch);
}

static void add_buffers(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    add(plan, "rotating buffers", SW_TIER_HOST, plan->state_buffers, plan->state_buffer_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, plan->fetch_buffers, plan->fetch_buffer_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, plan->spill_buffers, plan->spill_buffer_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, 1, SW_PLAN_BOUNCE_BYTES);
    add(plan, "batches, tables", SW_TIER_HOST, plan->microbatches, plan->batch_bytes);
    add(plan, "batches, tables", SW_TIER_DEVICE, plan->microbatches, plan->batch_bytes);
    add(plan, "batches, tables", SW_TIER_DEVICE, 1, sw_model_tables_bytes(plan->reach));
    add(plan, "batches, tables", SW_TIER_DEVICE, 1, (int64_t)sizeof(double));
    int64_t common = request->model->common_unit;
    if (request->purpose != SW_FOR_TRAINING || !request->model->units[common].trainable)
        return;
    add(plan, "batches, tables", SW_TIER_DEVICE, 1,
        (2 * plan->reach - 1) * request->model->t5.heads * 4);
    add(plan, "batches, tables", SW_TIER_DEVICE,
        request->model->t5.encoder_layers + request->model->t5.decoder_layers,
        request->model->t5.bias_buckets * request->model->t5.heads * 4);
}

static void add_activations(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    int64_t m = plan->microbatches;
    bool training = plan->request.purpose == SW_FOR_TRAINING;
    if (plan->activations != SW_TIER_DEVICE) {
        add(plan, "kept block inputs", SW_TIER_DEVICE, plan->activation_slots,
            plan->activation_bytes);
        for (int64_t i = 0; i + 1 < model->block_count; i++)
            add(plan, "kept block inputs", plan->activations, m, plan->sizes[i].output_bytes);
    } else if (training) {
        for (int64_t i = 0; i < plan->activation_slots; i++)
            add(plan, "kept block inputs", SW_TIER_DEVICE, m, plan->sizes[i].output_bytes);
    } else {
        add(plan, "activations", SW_TIER_DEVICE, plan->activation_slots * m,
            plan->activation_bytes);
    }
    if (!training)
        return;
    add(plan, "activation gradients", SW_TIER_DEVICE, 2 * m, plan->activation_bytes);
    if (plan->recompute) {
        add(plan, "block insides, recomputed", SW_TIER_DEVICE, 1, plan->context_bytes);
        add(plan, "block insides, recomputed", SW_TIER_DEVICE, 1, plan->activation_bytes);
        return;
    }
    for (int64_t i = 0; i < model->block_count; i++)
        add(plan, "block insides, kept", SW_TIER_DEVICE, m, plan->sizes[i].context_bytes);
}

static void add_generation(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    const struct sw_decode_bounds bounds = {request->generation_rows, request->generation_beams,
                                            request->source_length, request->generation_length};
    struct sw_decode_sizes sizes;
    sw_decode_sizes(request->model, &bounds, request->compute, request->kernels, &sizes);
    int64_t layers = request->model->t5.decoder_layers;
    add(plan, "keys and values", SW_TIER_DEVICE, layers + 1, sizes.cache_bytes);
    add(plan, "keys and values", SW_TIER_DEVICE, layers, sizes.cross_bytes);
    const int64_t pieces[] = {sizes.index_bytes, sizes.bias_bytes, sizes.hidden_bytes,
                              sizes.log_probabilities_bytes, sizes.workspace_bytes};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        add(plan, "decoding", SW_TIER_DEVICE, 1, pieces[i]);
    add(plan, "decoding", SW_TIER_HOST, 1, sizes.index_bytes);
}

/* Drives round regions up; the store keeps buffers and checksums in host memory. */
static void add_store(struct sw_plan *plan)
{
    if (plan->total_bytes[SW_TIER_NVME] == 0)
        return;
    struct sw_spill_config config = {.directories = NULL,
                                     .directory_count = plan->request.nvme_directories,
                                     .capacity_bytes = plan->total_bytes[SW_TIER_NVME],
                                     .verify = plan->request.checksums};
    if (config.directory_count < 1)
        config.directory_count = 1;
    add(plan, "store of spilled state", SW_TIER_HOST, 1,
        sw_spill_overhead_bytes(&config, plan->request.model->unit_count * SW_PARTS));
}

void sw_plan_make_budget(struct sw_plan *plan)
{
    plan->item_count = 0;
    memset(plan->items, 0, sizeof plan->items);
    memset(plan->total_bytes, 0, sizeof plan->total_bytes);
    set_chunks(plan);
    set_state_buffers(plan);
    set_staging(plan);
    add_parts(plan);
    add_slots(plan);
    if (plan->request.purpose == SW_FOR_TRAINING)
        add_factors(plan);
    add_activations(plan);
    if (plan->request.purpose == SW_FOR_GENERATION)
        add_generation(plan);
    add(plan, "workspace", SW_TIER_DEVICE, 1, plan->workspace_bytes);
    add_buffers(plan);
    add_store(plan);
}

int64_t sw_plan_process_bytes(const struct sw_plan *plan)
{
    int64_t device = plan->request.rates.device_is_host ? plan->total_bytes[SW_TIER_DEVICE] : 0;
    return SW_PLAN_PROGRAM_BYTES + plan->total_bytes[SW_TIER_HOST] + device;
}

bool sw_plan_fits(const struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    int64_t both = plan->total_bytes[SW_TIER_DEVICE] + plan->total_bytes[SW_TIER_HOST];
    return (request->total_memory_bytes == 0 || both <= request->total_memory_bytes) &&
           (request->device_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_DEVICE] <= request->device_memory_bytes) &&
           (request->host_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_HOST] <= request->host_memory_bytes) &&
           plan->total_bytes[SW_TIER_NVME] <= request->nvme_bytes;
}

/* Bytes of everything that a plan has allocated, by tier. What the engine allocates is the same
 * list, rounded the same way. */
#include "plan/search.h"

#include "plan/agenda.h"

#include "base/mem.h"
#include "io/measure.h"
#include "io/spill.h"

#include <string.h>

enum {
    DEVICE_GRAIN = 256,
    HOST_GRAIN = 4096,
    STATE_BUFFERS = 6, /* one being stepped, the others on their way in or out */
    STEPPING_BUFFERS = 6,
    FETCH_BUFFERS = 4,
    SPILL_BUFFERS = 4,
    MAILBOXES = 4, /* of a rank, for what its neighbours send */
};

void sw_plan_measure_blocks(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    plan->activation_bytes = plan->context_bytes = plan->workspace_bytes = 0;
    plan->ends_workspace_bytes = 0;
    memset(plan->class_bytes, 0, sizeof plan->class_bytes);
    float dropout = plan->request.purpose == SW_FOR_TRAINING ? plan->request.dropout : 0.0f;
    for (int64_t i = 0; i < model->block_count; i++) {
        struct sw_block_sizes *sizes = &plan->sizes[i];
        sw_block_sizes(model, (int32_t)i, &plan->bounds, dropout, plan->request.compute,
                       plan->request.kernels, sizes);
        int64_t *output = &plan->class_bytes[sw_slots_class(plan, (int32_t)i)];
        int64_t *context = &plan->class_bytes[SW_SLOTS_CONTEXT + (int)model->blocks[i].kind];
        if (sizes->output_bytes > *output)
            *output = sizes->output_bytes;
        if (sizes->context_bytes > *context)
            *context = sizes->context_bytes;
        if (sizes->output_bytes > plan->activation_bytes)
            plan->activation_bytes = sizes->output_bytes;
        if (sizes->context_bytes > plan->context_bytes)
            plan->context_bytes = sizes->context_bytes;
        enum sw_block_kind kind = model->blocks[i].kind;
        bool end = kind != SW_BLOCK_ENCODER && kind != SW_BLOCK_DECODER && plan->stages > 1;
        int64_t *workspace = end ? &plan->ends_workspace_bytes : &plan->workspace_bytes;
        if (sizes->workspace_bytes > *workspace)
            *workspace = sizes->workspace_bytes;
    }
    /* ids, starts, lengths, row of each token, of both sides; labels; row numbers */
    int64_t source = plan->bounds.rows * plan->bounds.source_length;
    int64_t target = plan->bounds.rows * plan->bounds.target_length;
    int64_t integers = 2 * source + 3 * target + 5 * plan->bounds.rows;
    plan->batch_bytes =
        sw_align_up(integers * (int64_t)sizeof(int32_t), DEVICE_GRAIN) + 10 * DEVICE_GRAIN;
}

/* The item of a name that other calls may have begun. */
static int item_of(struct sw_plan *plan, const char *name)
{
    int at = 0;
    while (at < plan->item_count && strcmp(plan->items[at].name, name) != 0)
        at++;
    sw_assert(at < SW_PLAN_ITEMS);
    if (at == plan->item_count)
        plan->items[plan->item_count++] = (struct sw_plan_item){.name = name};
    return at;
}

/* `count` pieces of `bytes` in host memory or on drives. */
static void add(struct sw_plan *plan, const char *name, enum sw_tier tier, int64_t count,
                int64_t bytes)
{
    if (count <= 0 || bytes <= 0 || tier == SW_TIER_AUTO)
        return;
    sw_assert(tier != SW_TIER_DEVICE);
    plan->items[item_of(plan, name)].bytes[tier] += count * sw_align_up(bytes, HOST_GRAIN);
}

/* The same in device memory, of each rank of `stage`; of every stage for stage < 0. */
static void add_device(struct sw_plan *plan, const char *name, int32_t stage, int64_t count,
                       int64_t bytes)
{
    if (count <= 0 || bytes <= 0)
        return;
    int item = item_of(plan, name);
    for (int32_t s = 0; s < plan->stages; s++)
        if (stage < 0 || stage == s)
            plan->stage[s].item_bytes[item] += count * sw_align_up(bytes, DEVICE_GRAIN);
}

/* Sums; of device memory, what the stage with the most of it has. */
static void sum_up(struct sw_plan *plan)
{
    for (int32_t s = 0; s < plan->stages; s++) {
        plan->stage[s].device_bytes = 0;
        for (int i = 0; i < plan->item_count; i++)
            plan->stage[s].device_bytes += plan->stage[s].item_bytes[i];
    }
    plan->fullest_stage = 0;
    for (int32_t s = 1; s < plan->stages; s++)
        if (plan->stage[s].device_bytes > plan->stage[plan->fullest_stage].device_bytes)
            plan->fullest_stage = s;
    const struct sw_stage_plan *fullest = &plan->stage[plan->fullest_stage];
    memset(plan->total_bytes, 0, sizeof plan->total_bytes);
    plan->devices_bytes = 0;
    for (int i = 0; i < plan->item_count; i++) {
        plan->items[i].bytes[SW_TIER_DEVICE] = fullest->item_bytes[i];
        for (int tier = 0; tier < SW_TIERS; tier++)
            plan->total_bytes[tier] += plan->items[i].bytes[tier];
    }
    for (int32_t s = 0; s < plan->stages; s++)
        plan->devices_bytes += plan->stage[s].device_bytes * plan->replicas;
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

/* What one piece takes to the device, and what it brings back. */
static void set_stepping(struct sw_plan *plan)
{
    uint32_t parts = 0;
    int64_t at = 0;
    for (int32_t s = 0; s < plan->stages; s++)
        plan->stage[s].stepping_buffers = 0;
    for (int64_t i = 0; i < plan->request.model->unit_count; i++) {
        struct sw_unit_flow flow;
        sw_plan_unit_flow(plan, i, &flow);
        parts |= flow.up_parts | flow.down_parts;
        if (flow.streamed)
            plan->stage[plan->unit_stage[i]].stepping_buffers = STEPPING_BUFFERS;
    }
    for (int part = 0; part < SW_PARTS; part++) {
        plan->stepping_offset[part] = -1;
        if ((parts >> part & 1) == 0)
            continue;
        plan->stepping_offset[part] = at;
        at += sw_align_up(plan->state_chunk *
                              sw_dtype_bytes(sw_plan_part_dtype(plan, (enum sw_part)part)),
                          DEVICE_GRAIN);
    }
    plan->stepping_bytes = at;
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

/* The largest message: both gradients of a micro-batch, bias partials, or what is used all over. */
static void set_mailboxes(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    int64_t bias = (model->t5.encoder_layers + model->t5.decoder_layers) * model->t5.bias_buckets *
                   model->t5.heads * (int64_t)sizeof(float);
    int64_t common =
        model->units[model->common_unit].elements * sw_dtype_bytes(plan->request.compute);
    plan->mailboxes = plan->request.mailbox && plan->stages > 1 ? MAILBOXES : 0;
    plan->mailbox_bytes = plan->class_bytes[SW_SLOTS_SOURCE] + plan->class_bytes[SW_SLOTS_TARGET];
    plan->mailbox_bytes = most(plan->mailbox_bytes, most(bias, common));
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

int64_t sw_plan_part_elements(const struct sw_plan *plan, int64_t unit, enum sw_part part)
{
    int64_t elements = 0;
    for (int32_t d = 0; d < plan->replicas; d++)
        elements = most(elements, sw_plan_part_range(plan, unit, part, d).count);
    return elements;
}

int64_t sw_plan_sum_elements(const struct sw_plan *plan, int64_t unit)
{
    int64_t elements = 0;
    for (int32_t d = 0; d < plan->replicas; d++)
        elements = most(elements, sw_plan_range(plan, unit, d).count);
    return elements;
}

static void add_parts(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    for (int64_t unit = 0; unit < model->unit_count; unit++)
        for (int i = 0; i < SW_PARTS; i++) {
            enum sw_part part = (enum sw_part)i;
            enum sw_tier tier = sw_plan_part_tier(plan, unit, part);
            if (tier == SW_TIER_AUTO)
                continue;
            int64_t bytes = sw_plan_part_elements(plan, unit, part) *
                            sw_dtype_bytes(sw_plan_part_dtype(plan, part));
            if (tier == SW_TIER_DEVICE)
                add_device(plan, part_name(plan, unit, part), plan->unit_stage[unit], 1, bytes);
            else
                add(plan, part_name(plan, unit, part), tier, 1, bytes);
        }
    /* Other stages have copies of what is used all over. */
    for (int32_t s = 1; s < plan->stages; s++)
        add_device(plan, "weights", s, 1,
                   model->units[model->common_unit].elements *
                       sw_dtype_bytes(plan->request.compute));
}

static void add_slots(struct sw_plan *plan)
{
    int64_t dtype_bytes = sw_dtype_bytes(plan->request.compute);
    for (int32_t s = 0; s < plan->stages; s++)
        for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
            const struct sw_slot_pool *weights = &plan->stage[s].weight_pools[pool];
            const struct sw_slot_pool *gradients = &plan->stage[s].gradient_pools[pool];
            add_device(plan, "slots of weights", s, weights->slots,
                       weights->elements * dtype_bytes);
            add_device(plan, "slots of gradients", s, gradients->slots,
                       gradients->elements * (int64_t)sizeof(float));
        }
    const struct sw_model *model = plan->request.model;
    if (plan->request.purpose != SW_FOR_TRAINING)
        return;
    for (int64_t unit = 0; unit < model->unit_count; unit++)
        if (sw_plan_gradient_sums(plan, unit) && !sw_plan_gradient_stays(plan, unit))
            add_device(plan, "slots of gradients", plan->unit_stage[unit], 1,
                       sw_plan_sum_elements(plan, unit) * 4);
    int64_t common = model->common_unit;
    if (model->units[common].trainable && !sw_plan_gradient_stays(plan, common))
        add_device(plan, "slots of gradients", 0, 1, model->units[common].elements * 4);
    if (sw_plan_part_dtype(plan, SW_PART_GRADIENT) == SW_BF16)
        add_device(plan, "slots of gradients", -1, 1, plan->gradient_chunk * 2);
}

static void add_factors(struct sw_plan *plan)
{
    int64_t scratch = 0;
    if (plan->request.optim->name != SW_OPTIM_ADAFACTOR)
        return;
    for (int64_t i = 0; i < plan->request.model->unit_count; i++) {
        if (!plan->request.model->units[i].trainable)
            continue;
        add(plan, "optimizer states", SW_TIER_HOST, sw_plan_factor_sets(plan, i),
            sw_adafactor_state_elements(&plan->optim_units[i]) * (int64_t)sizeof(float));
        scratch = most(scratch, sw_adafactor_scratch_bytes(&plan->optim_units[i]));
    }
    add(plan, "optimizer states", SW_TIER_HOST, 1, scratch);
}

static void add_buffers(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    add(plan, "rotating buffers", SW_TIER_HOST, plan->state_buffers, plan->state_buffer_bytes);
    for (int32_t s = 0; s < plan->stages; s++)
        add_device(plan, "stepping buffers", s, plan->stage[s].stepping_buffers,
                   plan->stepping_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, plan->fetch_buffers, plan->fetch_buffer_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, plan->spill_buffers, plan->spill_buffer_bytes);
    add(plan, "staging buffers", SW_TIER_HOST, 1, SW_PLAN_BOUNCE_BYTES);
    add(plan, "mailboxes", SW_TIER_HOST, plan->ranks * plan->mailboxes, plan->mailbox_bytes);
    add(plan, "batches, tables", SW_TIER_HOST, plan->ranks * plan->microbatches, plan->batch_bytes);
    add_device(plan, "batches, tables", -1, plan->microbatches, plan->batch_bytes);
    add_device(plan, "batches, tables", -1, 1, sw_model_tables_bytes(plan->reach));
    add_device(plan, "batches, tables", -1, 1, (int64_t)sizeof(double));
    add_device(plan, "batches, tables", -1, 1, sw_plan_partials_bytes(plan));
    const struct sw_model *model = request->model;
    if (request->purpose != SW_FOR_TRAINING || !model->units[model->common_unit].trainable)
        return;
    for (int32_t s = 0; s < plan->stages; s++) {
        int64_t layers = plan->stage[s].layers;
        add_device(plan, "batches, tables", s, sw_plan_bias_gradients(plan, s),
                   (2 * plan->reach - 1) * model->t5.heads * 4);
        if (s == 0) /* the others' come here */
            layers = model->t5.encoder_layers + model->t5.decoder_layers;
        add_device(plan, "batches, tables", s, layers,
                   model->t5.bias_buckets * model->t5.heads * 4);
    }
}

/* Layer by layer one buffer serves all blocks in turn; else each has its own. */
int64_t sw_plan_bias_gradients(const struct sw_plan *plan, int32_t stage)
{
    return plan->schedule == SW_SCHEDULE_LAYERED ? 1 : plan->stage[stage].layers;
}

int64_t sw_plan_factor_sets(const struct sw_plan *plan, int64_t unit)
{
    return sw_plan_steps_everywhere(plan, unit) ? plan->replicas : 1;
}

static void add_kept_outputs(struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    const char *name =
        plan->request.purpose == SW_FOR_TRAINING ? "kept block inputs" : "activations";
    for (int32_t s = 0; s < plan->stages; s++) {
        if (plan->activations == SW_TIER_DEVICE) {
            for (int c = SW_SLOTS_SOURCE; c <= SW_SLOTS_TARGET; c++)
                add_device(plan, name, s, plan->stage[s].slots[c], plan->class_bytes[c]);
            continue;
        }
        add_device(plan, name, s, plan->activation_slots, plan->activation_bytes);
        for (int64_t i = 0; i < model->block_count; i++)
            if (plan->stage[s].keeps[i])
                add(plan, name, plan->activations, plan->replicas * plan->microbatches,
                    plan->sizes[i].output_bytes);
    }
}

static void add_activations(struct sw_plan *plan)
{
    add_kept_outputs(plan);
    if (plan->request.purpose != SW_FOR_TRAINING)
        return;
    add_device(plan, "activation gradients", -1, 2 * plan->microbatches, plan->activation_bytes);
    if (plan->recompute) {
        add_device(plan, "block insides, recomputed", -1, 1, plan->context_bytes);
        add_device(plan, "block insides, recomputed", -1, 1, plan->activation_bytes);
        return;
    }
    for (int32_t s = 0; s < plan->stages; s++)
        for (int c = SW_SLOTS_CONTEXT; c < SW_SLOT_CLASSES; c++)
            add_device(plan, "block insides, kept", s, plan->stage[s].slots[c],
                       plan->class_bytes[c]);
}

static void add_generation(struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    const struct sw_decode_bounds bounds = {request->generation_rows, request->generation_beams,
                                            request->source_length, request->generation_length};
    struct sw_decode_sizes sizes;
    sw_decode_sizes(request->model, &bounds, request->compute, request->kernels, &sizes);
    int64_t layers = request->model->t5.decoder_layers;
    add_device(plan, "keys and values", 0, layers + 1, sizes.cache_bytes);
    add_device(plan, "keys and values", 0, layers, sizes.cross_bytes);
    const int64_t pieces[] = {sizes.index_bytes, sizes.bias_bytes, sizes.hidden_bytes,
                              sizes.log_probabilities_bytes, sizes.workspace_bytes};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        add_device(plan, "decoding", 0, 1, pieces[i]);
    add(plan, "decoding", SW_TIER_HOST, 1, sizes.index_bytes);
}

/* Drives round regions up; the store keeps buffers and checksums in host memory. */
static void add_store(struct sw_plan *plan)
{
    int64_t capacity = 0, kept = 0;
    for (int i = 0; i < plan->item_count; i++)
        capacity += plan->items[i].bytes[SW_TIER_NVME];
    if (capacity == 0)
        return;
    for (int32_t s = 0; s < plan->stages; s++)
        kept += plan->request.model->block_count * plan->microbatches * plan->replicas;
    struct sw_spill_config config = {.directories = NULL,
                                     .directory_count = plan->request.nvme_directories,
                                     .capacity_bytes = capacity,
                                     .verify = plan->request.checksums};
    if (config.directory_count < 1)
        config.directory_count = 1;
    if (capacity >= SW_MEASURE_LEAST_BYTES) { /* what timing the drives may choose */
        config.request_bytes = SW_MEASURE_MOST_REQUEST_BYTES;
        config.queue_depth = SW_MEASURE_MOST_DEPTH;
    }
    add(plan, "store of spilled state", SW_TIER_HOST, 1,
        sw_spill_overhead_bytes(&config, plan->request.model->unit_count * SW_PARTS + kept));
}

/* How many places an agenda takes. */
static bool count_slots(struct sw_plan *plan, const struct sw_agenda *agenda)
{
    bool trains = plan->request.purpose == SW_FOR_TRAINING;
    if (agenda == NULL)
        return true;
    struct sw_slots *slots = sw_slots_open(plan, agenda, plan->activations == SW_TIER_DEVICE,
                                           trains && !plan->recompute);
    if (slots == NULL)
        return false;
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    for (int64_t i = 0; i < agenda->count; i++) {
        sw_slots_before(slots, i);
        sw_slots_after(slots, i);
        int count = sw_agenda_accesses(plan, &agenda->ops[i], accesses);
        for (int k = 0; k < count; k++)
            plan->stage[accesses[k].stage].keeps[accesses[k].block] = true;
    }
    for (int32_t s = 0; s < plan->stages; s++)
        for (int c = 0; c < SW_SLOT_CLASSES; c++)
            plan->stage[s].slots[c] = most(plan->stage[s].slots[c], sw_slots_most(slots, s, c));
    sw_slots_close(slots);
    return true;
}

bool sw_plan_count_slots(struct sw_plan *plan)
{
    for (int32_t s = 0; s < plan->stages; s++) {
        memset(plan->stage[s].slots, 0, sizeof plan->stage[s].slots);
        memset(plan->stage[s].keeps, 0,
               (size_t)plan->request.model->block_count * sizeof *plan->stage[s].keeps);
    }
    bool counted = count_slots(plan, plan->step_agenda);
    bool recompute = plan->recompute;
    plan->recompute = true; /* an evaluation keeps no insides */
    counted = count_slots(plan, plan->evaluation_agenda) && counted;
    plan->recompute = recompute;
    return counted && count_slots(plan, plan->begin_agenda);
}

void sw_plan_make_budget(struct sw_plan *plan)
{
    plan->item_count = 0;
    memset(plan->items, 0, sizeof plan->items);
    for (int32_t s = 0; s < plan->stages; s++)
        memset(plan->stage[s].item_bytes, 0, sizeof plan->stage[s].item_bytes);
    set_mailboxes(plan);
    set_chunks(plan);
    set_state_buffers(plan);
    set_stepping(plan);
    set_staging(plan);
    add_parts(plan);
    add_slots(plan);
    if (plan->request.purpose == SW_FOR_TRAINING)
        add_factors(plan);
    add_activations(plan);
    if (plan->request.purpose == SW_FOR_GENERATION)
        add_generation(plan);
    add_device(plan, "workspace", -1, 1, plan->workspace_bytes);
    add_device(plan, "workspace", 0, 1, plan->ends_workspace_bytes);
    add_buffers(plan);
    add_store(plan);
    sum_up(plan);
}

int64_t sw_plan_process_bytes(const struct sw_plan *plan)
{
    int64_t device = plan->request.rates.device_is_host ? plan->devices_bytes : 0;
    return SW_PLAN_PROGRAM_BYTES + plan->total_bytes[SW_TIER_HOST] + device;
}

bool sw_plan_fits_memory(const struct sw_plan *plan)
{
    const struct sw_plan_request *request = &plan->request;
    int64_t both = plan->devices_bytes + plan->total_bytes[SW_TIER_HOST];
    return (request->total_memory_bytes == 0 || both <= request->total_memory_bytes) &&
           (request->device_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_DEVICE] <= request->device_memory_bytes) &&
           (request->host_memory_bytes == 0 ||
            plan->total_bytes[SW_TIER_HOST] <= request->host_memory_bytes);
}

bool sw_plan_fits(const struct sw_plan *plan)
{
    return sw_plan_fits_memory(plan) && plan->total_bytes[SW_TIER_NVME] <= plan->request.nvme_bytes;
}

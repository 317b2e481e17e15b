#include "exec/store.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Pieces in which loading and saving goes: three arrays of it fit the bounce buffer, and their
 * bytes are whole blocks of the spill files, whatever the type. */
enum { PIECE_ELEMENTS = 65536 };

/* ---- memory ---- */

struct touch {
    char *memory;
    int64_t bytes;
};

enum { TOUCH_BYTES = 4 << 20 };

static void touch_piece(void *context, int64_t index, int64_t worker)
{
    const struct touch *touch = context;
    int64_t first = index * TOUCH_BYTES, left = touch->bytes - first;
    (void)worker;
    memset(touch->memory + first, 0, (size_t)(left < TOUCH_BYTES ? left : TOUCH_BYTES));
}

sw_code sw_store_alloc_host(struct sw_store *store, int64_t bytes, void *out, struct sw_err *err)
{
    void *memory = NULL;
    if (!sw_array_reserve((void **)&store->host_blocks, &store->host_block_capacity,
                          store->host_block_count, sizeof *store->host_blocks))
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the store's tables");
    sw_code code = store->ops->host_alloc(store->ranks[0].device, bytes, &memory, err);
    if (code != SW_OK)
        return code;
    store->host_blocks[store->host_block_count++] = (struct sw_host_block){memory, bytes};
    struct touch touch = {memory, bytes};
    sw_pool_run(store->pool, touch_piece, &touch, (bytes + TOUCH_BYTES - 1) / TOUCH_BYTES);
    *(void **)out = memory;
    return SW_OK;
}

sw_code sw_store_alloc_device(struct sw_store *store, int32_t rank, int64_t bytes, void *out,
                              struct sw_err *err)
{
    void *memory = NULL;
    sw_code code = store->ops->alloc(store->ranks[rank].device, bytes, &memory, err);
    if (code != SW_OK && store->plan->ranks > 1)
        return sw_err_while(err, "allocating device memory of rank %d", (int)rank);
    if (code != SW_OK)
        return code;
    store->ops->zero(store->ranks[rank].load_stream, memory, bytes);
    *(void **)out = memory;
    return SW_OK;
}

void sw_store_near(const struct sw_store *store, int32_t rank)
{
    if (store->near != NULL)
        store->near(store->near_context, rank);
}

static sw_code table(void *out, int64_t count, int64_t size_bytes, struct sw_err *err)
{
    void *memory = sw_calloc(count > 0 ? count : 1, size_bytes);
    if (memory == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the store's tables");
    *(void **)out = memory;
    return SW_OK;
}

static sw_code alloc_place(struct sw_store *store, struct sw_place *place, struct sw_err *err)
{
    switch (place->tier) {
    case SW_TIER_HOST:
        return sw_store_alloc_host(store, place->bytes, &place->memory, err);
    case SW_TIER_NVME:
        sw_assert(store->spill != NULL);
        return sw_spill_reserve(store->spill, place->bytes, &place->region, err);
    case SW_TIER_DEVICE: /* of ranks */
    case SW_TIER_AUTO:
    case SW_TIERS:
        break;
    }
    return SW_OK;
}

/* ---- opening ---- */

static bool trains(const struct sw_plan *plan, int64_t unit)
{
    return plan->request.purpose == SW_FOR_TRAINING && plan->request.model->units[unit].trainable;
}

static sw_code alloc_factors(struct sw_store *store, int64_t index, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    struct sw_unit_state *unit = &store->units[index];
    int64_t sets = sw_plan_factor_sets(plan, index);
    sw_code code = table(&unit->factors, sets, sizeof(float *), err);
    for (int64_t i = 0; i < sets && code == SW_OK; i++)
        code =
            sw_store_alloc_host(store, sw_adafactor_state_elements(&plan->optim_units[index]) * 4,
                                &unit->factors[i], err);
    return code;
}

static sw_code alloc_unit(struct sw_store *store, int64_t index, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    struct sw_unit_state *unit = &store->units[index];
    int64_t elements = plan->request.model->units[index].elements;
    sw_code code = SW_OK;
    sw_store_near(store, plan->unit_stage[index]); /* of its stage, the first replica */
    unit->weights_part = sw_plan_weights_part(plan, index);
    sw_plan_unit_flow(plan, index, &unit->flow);
    for (int part = 0; part < SW_PARTS && code == SW_OK; part++) {
        struct sw_place *place = &unit->parts[part];
        place->tier = sw_plan_part_tier(plan, index, (enum sw_part)part);
        if (place->tier == SW_TIER_AUTO)
            continue;
        place->dtype = sw_plan_part_dtype(plan, (enum sw_part)part);
        place->bytes = elements * sw_dtype_bytes(place->dtype);
        code = alloc_place(store, place, err);
    }
    if (code == SW_OK && trains(plan, index) && plan->request.optim->name == SW_OPTIM_ADAFACTOR)
        code = alloc_factors(store, index, err);
    return code;
}

static sw_code alloc_units(struct sw_store *store, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    const struct sw_model *model = plan->request.model;
    int64_t scratch_bytes = 0;
    sw_code code = table(&store->units, model->unit_count, sizeof *store->units, err);
    for (int64_t i = 0; i < model->unit_count && code == SW_OK; i++) {
        code = alloc_unit(store, i, err);
        if (!trains(plan, i))
            continue;
        int64_t bytes = sw_adafactor_scratch_bytes(&plan->optim_units[i]);
        scratch_bytes = bytes > scratch_bytes ? bytes : scratch_bytes;
    }
    if (code == SW_OK && scratch_bytes > 0 && plan->request.optim->name == SW_OPTIM_ADAFACTOR)
        code = sw_store_alloc_host(store, scratch_bytes, &store->factor_scratch, err);
    return code;
}

/* What rank `index` has of a unit. */
static sw_code alloc_rank_unit(struct sw_store *store, int32_t index, int64_t unit,
                               struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    struct sw_rank_unit *own = &store->ranks[index].units[unit];
    sw_code code = SW_OK;
    for (int i = 0; i < SW_PARTS && code == SW_OK; i++) {
        const struct sw_place *place = &store->units[unit].parts[i];
        if (place->tier == SW_TIER_DEVICE)
            code = sw_store_alloc_device(store, index,
                                         sw_plan_part_elements(plan, unit, (enum sw_part)i) *
                                             sw_dtype_bytes(place->dtype),
                                         &own->parts[i], err);
    }
    if (code != SW_OK || !trains(plan, unit))
        return code;
    if (sw_plan_gradient_stays(plan, unit))
        own->accumulator = (float *)(void *)own->parts[SW_PART_GRADIENT];
    else if (sw_plan_gradient_sums(plan, unit))
        code = sw_store_alloc_device(store, index, sw_plan_sum_elements(plan, unit) * 4,
                                     &own->accumulator, err);
    else if (unit == plan->request.model->common_unit)
        code = sw_store_alloc_device(store, index, plan->request.model->units[unit].elements * 4,
                                     &own->accumulator, err);
    return code;
}

static sw_code alloc_slots(struct sw_store *store, int32_t index, enum sw_pool_kind pool,
                           struct sw_err *err)
{
    struct sw_rank_store *rank = &store->ranks[index];
    const struct sw_stage_plan *stage = &store->plan->stage[rank->stage];
    const struct sw_slot_pool *weights = &stage->weight_pools[pool];
    const struct sw_slot_pool *gradients = &stage->gradient_pools[pool];
    int64_t bytes = weights->elements * sw_dtype_bytes(store->plan->request.compute);
    sw_code code =
        table(&rank->weight_slots[pool], weights->slots, sizeof *rank->weight_slots[pool], err);
    for (int64_t i = 0; i < weights->slots && code == SW_OK; i++) {
        rank->weight_slots[pool][i].unit = -1;
        code = sw_store_alloc_device(store, index, bytes, &rank->weight_slots[pool][i].memory, err);
    }
    if (code == SW_OK)
        code = table(&rank->gradient_slots[pool], gradients->slots, sizeof(void *), err);
    for (int64_t i = 0; i < gradients->slots && code == SW_OK; i++)
        code = sw_store_alloc_device(store, index, gradients->elements * 4,
                                     &rank->gradient_slots[pool][i], err);
    return code;
}

static sw_code alloc_activations(struct sw_store *store, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    struct sw_rank_store *rank = &store->ranks[index];
    int64_t m = plan->microbatches, blocks = plan->request.model->block_count;
    if (plan->activations == SW_TIER_DEVICE)
        return SW_OK;
    sw_code code = table(&rank->activations, blocks * m, sizeof *rank->activations, err);
    for (int64_t i = 0; i < blocks * m && code == SW_OK; i++) {
        if (!plan->stage[rank->stage].keeps[i / m])
            continue;
        rank->activations[i].tier = plan->activations;
        rank->activations[i].bytes = plan->sizes[i / m].output_bytes;
        code = alloc_place(store, &rank->activations[i], err);
    }
    return code;
}

static bool converts_gradients(const struct sw_plan *plan)
{
    return plan->request.purpose == SW_FOR_TRAINING &&
           sw_plan_part_dtype(plan, SW_PART_GRADIENT) == SW_BF16;
}

static sw_code open_rank(struct sw_store *store, int32_t index, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    const struct sw_model *model = plan->request.model;
    struct sw_rank_store *rank = &store->ranks[index];
    rank->stage = index % plan->stages;
    rank->replica = index / plan->stages;
    sw_store_near(store, index);
    sw_code code = table(&rank->units, model->unit_count, sizeof *rank->units, err);
    for (int64_t i = 0; i < model->unit_count && code == SW_OK; i++)
        if (plan->unit_stage[i] == rank->stage)
            code = alloc_rank_unit(store, index, i, err);
    if (code == SW_OK && rank->stage > 0)
        code = sw_store_alloc_device(store, index,
                                     model->units[model->common_unit].elements *
                                         sw_dtype_bytes(plan->request.compute),
                                     &rank->units[model->common_unit].parts[SW_PART_WEIGHTS], err);
    for (int pool = 0; pool < SW_POOL_KINDS && code == SW_OK; pool++)
        code = alloc_slots(store, index, (enum sw_pool_kind)pool, err);
    if (code == SW_OK)
        code = alloc_activations(store, index, err);
    if (code == SW_OK && converts_gradients(plan))
        code = sw_store_alloc_device(store, index, plan->gradient_chunk * 2, &rank->convert_buffer,
                                     err);
    int64_t stepping = plan->stage[rank->stage].stepping_buffers;
    if (code == SW_OK && stepping > 0)
        code = sw_store_alloc_device(store, index, stepping * plan->stepping_bytes,
                                     &rank->stepping_buffers, err);
    return code;
}

/* Memory that transfers to and from drives use. */
static sw_code alloc_buffers(struct sw_store *store, char **slab, int64_t count, int64_t bytes,
                             struct sw_err *err)
{
    if (count == 0)
        return SW_OK;
    int64_t total = count * sw_align_up(bytes, SW_AIO_ALIGNMENT_BYTES);
    sw_code code = sw_store_alloc_host(store, total, slab, err);
    if (code == SW_OK && store->spill != NULL)
        code = sw_spill_pin(store->spill, *slab, total, err);
    return code;
}

static sw_code alloc_all_buffers(struct sw_store *store, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    sw_store_near(store, 0);
    sw_code code = alloc_buffers(store, &store->state_buffers, plan->state_buffers,
                                 plan->state_buffer_bytes, err);
    if (code == SW_OK)
        code = alloc_buffers(store, &store->fetch_buffers, plan->fetch_buffers,
                             plan->fetch_buffer_bytes, err);
    if (code == SW_OK)
        code = alloc_buffers(store, &store->spill_buffers, plan->spill_buffers,
                             plan->spill_buffer_bytes, err);
    if (code == SW_OK)
        code = alloc_buffers(store, &store->bounce, 1, SW_PLAN_BOUNCE_BYTES, err);
    return code;
}

static sw_code open_spill(struct sw_store *store, const struct sw_spill_config *config,
                          struct sw_err *err)
{
    int64_t capacity = store->plan->total_bytes[SW_TIER_NVME];
    if (capacity == 0)
        return SW_OK;
    if (config == NULL)
        return SW_FAIL(err, SW_E_USAGE,
                       "the plan spills to drives, but there are no directories "
                       "for it (offload.nvme)");
    struct sw_spill_config sized = *config;
    sized.capacity_bytes = capacity;
    return sw_spill_open(&store->spill, &sized, err);
}

sw_code sw_store_open(struct sw_store *store, const struct sw_spill_config *spill,
                      struct sw_err *err)
{
    sw_code code = open_spill(store, spill, err);
    if (code == SW_OK)
        code = alloc_units(store, err);
    for (int32_t rank = 0; rank < store->plan->ranks && code == SW_OK; rank++)
        code = open_rank(store, rank, err);
    if (code == SW_OK)
        code = alloc_all_buffers(store, err);
    for (int32_t rank = 0; rank < store->plan->ranks && code == SW_OK; rank++)
        code = store->ops->stream_sync(store->ranks[rank].load_stream, err);
    if (code == SW_OK && store->spill != NULL)
        code = sw_spill_seal(store->spill, err);
    return code;
}

void sw_store_close(struct sw_store *store)
{
    sw_spill_close(store->spill);
    for (int64_t i = 0; i < store->host_block_count; i++)
        store->ops->host_free(store->ranks[0].device, store->host_blocks[i].memory,
                              store->host_blocks[i].bytes);
    free(store->host_blocks);
    for (int32_t r = 0; store->ranks != NULL && r < store->plan->ranks; r++) {
        struct sw_rank_store *rank = &store->ranks[r];
        for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
            free(rank->weight_slots[pool]);
            free(rank->gradient_slots[pool]);
        }
        free(rank->activations);
        free(rank->units);
    }
    free(store->ranks);
    for (int64_t i = 0; store->units != NULL && i < store->plan->request.model->unit_count; i++)
        free(store->units[i].factors);
    free(store->units);
}

/* ---- from and to outside ---- */

/* Between host memory and the devices that have elements of a part: to all, or from the first that
 * has them. `whole`: every rank has all of it. */
static sw_code move_device(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                           int64_t count, char *values, bool put, struct sw_err *err)
{
    const struct sw_plan *plan = store->plan;
    int64_t size = sw_dtype_bytes(store->units[unit].parts[part].dtype);
    bool by_range = part == SW_PART_GRADIENT || sw_plan_is_sharded(plan, unit, part);
    sw_code code = SW_OK;
    for (int32_t d = 0; d < plan->replicas && code == SW_OK; d++) {
        int32_t index = sw_plan_rank(plan, plan->unit_stage[unit], d);
        struct sw_stream *stream = store->ranks[index].load_stream;
        struct sw_range own = sw_plan_range(plan, unit, d);
        int64_t begin = by_range && own.first > first ? own.first : first;
        int64_t end = first + count;
        if (by_range && own.first + own.count < end)
            end = own.first + own.count;
        if (begin >= end || (!by_range && !put && d > 0))
            continue;
        char *memory = sw_store_part(store, index, unit, part, begin);
        char *outside = values + (begin - first) * size;
        store->ops->copy(stream, put ? memory : outside, put ? outside : memory,
                         (end - begin) * size);
        code = store->ops->stream_sync(stream, err);
    }
    return code;
}

static sw_code move(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                    int64_t count, void *values, bool put, struct sw_err *err)
{
    const struct sw_place *place = &store->units[unit].parts[part];
    int64_t size = sw_dtype_bytes(place->dtype), offset = first * size, bytes = count * size;
    struct sw_spill_ticket ticket;
    sw_assert(offset >= 0 && bytes >= 0 && offset + bytes <= place->bytes);
    switch (place->tier) {
    case SW_TIER_DEVICE:
        return move_device(store, unit, part, first, count, values, put, err);
    case SW_TIER_HOST:
        if (put)
            memcpy(place->memory + offset, values, (size_t)bytes);
        else
            memcpy(values, place->memory + offset, (size_t)bytes);
        return SW_OK;
    case SW_TIER_NVME:
        if (put)
            sw_spill_write(store->spill, &place->region, offset, values, bytes, &ticket);
        else
            sw_spill_read(store->spill, &place->region, offset, values, bytes, &ticket);
        return sw_spill_wait(&ticket, err);
    case SW_TIER_AUTO:
    case SW_TIERS:
        break;
    }
    return SW_FAIL(err, SW_E_FAILED, "there is no such array");
}

/* End of the piece that begins at `at`. */
static int64_t piece_end(int64_t at, int64_t end)
{
    int64_t stop = (at / PIECE_ELEMENTS + 1) * PIECE_ELEMENTS;
    return stop < end ? stop : end;
}

sw_code sw_store_put(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                     int64_t count, const void *values, struct sw_err *err)
{
    int64_t size = sw_dtype_bytes(store->units[unit].parts[part].dtype), end = first + count;
    for (int64_t at = first; at < end;) {
        int64_t stop = piece_end(at, end);
        memcpy(store->bounce, (const char *)values + (at - first) * size,
               (size_t)((stop - at) * size));
        sw_code code = move(store, unit, part, at, stop - at, store->bounce, true, err);
        if (code != SW_OK)
            return code;
        at = stop;
    }
    return SW_OK;
}

sw_code sw_store_get(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                     int64_t count, void *values, struct sw_err *err)
{
    int64_t size = sw_dtype_bytes(store->units[unit].parts[part].dtype), end = first + count;
    for (int64_t at = first; at < end;) {
        int64_t stop = piece_end(at, end);
        sw_code code = move(store, unit, part, at, stop - at, store->bounce, false, err);
        if (code != SW_OK)
            return code;
        memcpy((char *)values + (at - first) * size, store->bounce, (size_t)((stop - at) * size));
        at = stop;
    }
    return SW_OK;
}

/* Thirds of the bounce buffer. */
static char *bounce_part(const struct sw_store *store, int third)
{
    return store->bounce + (int64_t)third * PIECE_ELEMENTS * 4;
}

/* Copies of what is used all over, on stages that do not step it. */
static sw_code put_common(struct sw_store *store, int64_t at, int64_t count, const void *values,
                          struct sw_err *err)
{
    int64_t size = sw_dtype_bytes(store->plan->request.compute);
    sw_code code = SW_OK;
    for (int32_t r = 0; r < store->plan->ranks && code == SW_OK; r++) {
        const struct sw_rank_store *rank = &store->ranks[r];
        if (rank->stage == 0)
            continue;
        store->ops->copy(rank->load_stream, sw_store_common_weights(store, r) + at * size, values,
                         count * size);
        code = store->ops->stream_sync(rank->load_stream, err);
    }
    return code;
}

static sw_code put_piece(struct sw_store *store, int64_t unit, int64_t at, int64_t count,
                         const float *values, struct sw_err *err)
{
    float *master = (float *)(void *)bounce_part(store, 0);
    uint16_t *high = (uint16_t *)(void *)bounce_part(store, 1);
    uint16_t *low = (uint16_t *)(void *)bounce_part(store, 2);
    const struct sw_place *parts = store->units[unit].parts;
    bool wide = store->plan->request.compute == SW_F32;
    sw_code code = SW_OK;
    memcpy(master, values, (size_t)count * sizeof *master);
    if (parts[SW_PART_MASTER].tier != SW_TIER_AUTO)
        code = move(store, unit, SW_PART_MASTER, at, count, master, true, err);
    if (parts[SW_PART_LOW].tier != SW_TIER_AUTO) {
        sw_weights_split(store->pool, values, high, low, count);
        code = move(store, unit, SW_PART_HIGH, at, count, high, true, err);
        if (code == SW_OK)
            code = move(store, unit, SW_PART_LOW, at, count, low, true, err);
    }
    if (!wide)
        sw_weights_round(store->pool, values, high, count);
    void *weights = wide ? (void *)master : high;
    if (code == SW_OK && parts[SW_PART_WEIGHTS].tier != SW_TIER_AUTO)
        code = move(store, unit, SW_PART_WEIGHTS, at, count, weights, true, err);
    if (code == SW_OK && unit == store->plan->request.model->common_unit)
        code = put_common(store, at, count, weights, err);
    return code;
}

sw_code sw_store_put_master(struct sw_store *store, int64_t unit, int64_t first, int64_t count,
                            const float *values, struct sw_err *err)
{
    sw_assert(3 * PIECE_ELEMENTS * 4 <= SW_PLAN_BOUNCE_BYTES);
    store->units[unit].version++;
    for (int64_t at = first; at < first + count;) {
        int64_t stop = piece_end(at, first + count);
        sw_code code = put_piece(store, unit, at, stop - at, values + (at - first), err);
        if (code != SW_OK)
            return code;
        at = stop;
    }
    return SW_OK;
}

static sw_code get_piece(struct sw_store *store, int64_t unit, int64_t at, int64_t count,
                         float *values, struct sw_err *err)
{
    float *master = (float *)(void *)bounce_part(store, 0);
    uint16_t *high = (uint16_t *)(void *)bounce_part(store, 1);
    uint16_t *low = (uint16_t *)(void *)bounce_part(store, 2);
    const struct sw_place *parts = store->units[unit].parts;
    sw_code code;
    if (parts[SW_PART_LOW].tier != SW_TIER_AUTO) {
        code = move(store, unit, SW_PART_HIGH, at, count, high, false, err);
        if (code == SW_OK)
            code = move(store, unit, SW_PART_LOW, at, count, low, false, err);
        if (code == SW_OK)
            sw_weights_join(store->pool, high, low, values, count);
        return code;
    }
    /* Where nothing is trained, compute weights are all there is. */
    enum sw_part part =
        parts[SW_PART_MASTER].tier != SW_TIER_AUTO ? SW_PART_MASTER : SW_PART_WEIGHTS;
    bool wide = parts[part].dtype == SW_F32;
    code = move(store, unit, part, at, count, wide ? (void *)master : high, false, err);
    if (code != SW_OK)
        return code;
    if (wide)
        memcpy(values, master, (size_t)count * sizeof *values);
    else
        for (int64_t i = 0; i < count; i++)
            values[i] = sw_bf16_to_float(high[i]);
    return SW_OK;
}

sw_code sw_store_get_master(struct sw_store *store, int64_t unit, int64_t first, int64_t count,
                            float *values, struct sw_err *err)
{
    for (int64_t at = first; at < first + count;) {
        int64_t stop = piece_end(at, first + count);
        sw_code code = get_piece(store, unit, at, stop - at, values + (at - first), err);
        if (code != SW_OK)
            return code;
        at = stop;
    }
    return SW_OK;
}

/* ---- residency ---- */

char *sw_store_part(const struct sw_store *store, int32_t rank, int64_t unit, enum sw_part part,
                    int64_t first)
{
    const struct sw_place *place = &store->units[unit].parts[part];
    int64_t size = sw_dtype_bytes(place->dtype);
    if (place->tier == SW_TIER_HOST)
        return place->memory + first * size;
    sw_assert(place->tier == SW_TIER_DEVICE);
    const struct sw_rank_store *own = &store->ranks[rank];
    struct sw_range range = sw_plan_part_range(store->plan, unit, part, own->replica);
    sw_assert(first >= range.first && own->units[unit].parts[part] != NULL);
    return own->units[unit].parts[part] + (first - range.first) * size;
}

char *sw_store_common_weights(const struct sw_store *store, int32_t rank)
{
    int64_t common = store->plan->request.model->common_unit;
    enum sw_part part =
        store->ranks[rank].stage == 0 ? store->units[common].weights_part : SW_PART_WEIGHTS;
    return store->ranks[rank].units[common].parts[part];
}

static struct sw_slot *weight_slot(const struct sw_store *store, int32_t rank, int64_t unit,
                                   int32_t slot)
{
    return &store->ranks[rank].weight_slots[sw_plan_pool(store->plan, unit)][slot];
}

const void *sw_store_weights(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot)
{
    const struct sw_unit_state *state = &store->units[unit];
    if (unit == store->plan->request.model->common_unit)
        return sw_store_common_weights(store, rank);
    if (slot < 0)
        return sw_store_part(store, rank, unit, state->weights_part, 0);
    const struct sw_slot *held = weight_slot(store, rank, unit, slot);
    sw_assert(held->unit == (int32_t)unit);                                       /* S1 */
    sw_assert(held->arrived == store->plan->request.model->units[unit].elements); /* S2 */
    sw_assert(held->version == state->version);                                   /* S3 */
    return held->memory;
}

float *sw_store_gradient(const struct sw_store *store, int32_t rank, int64_t unit, int32_t slot)
{
    if (slot < 0)
        return store->ranks[rank].units[unit].accumulator;
    return store->ranks[rank].gradient_slots[sw_plan_pool(store->plan, unit)][slot];
}

float *sw_store_complete_gradient(const struct sw_store *store, int32_t rank, int64_t unit,
                                  int32_t slot, int64_t first)
{
    const struct sw_rank_store *own = &store->ranks[rank];
    if (!sw_plan_gradient_sums(store->plan, unit))
        return sw_store_gradient(store, rank, unit, slot) + first;
    struct sw_range range = sw_plan_range(store->plan, unit, own->replica);
    sw_assert(first >= range.first && own->units[unit].accumulator != NULL);
    return own->units[unit].accumulator + (first - range.first);
}

/* What arrives in a slot before others' ranges are gathered: of what is not uploaded in ranges, all
 * or nothing. */
static struct sw_range arrivals(const struct sw_store *store, int32_t rank, int64_t unit)
{
    if (sw_plan_uploads_ranges(store->plan, unit))
        return sw_plan_range(store->plan, unit, store->ranks[rank].replica);
    return (struct sw_range){0, 0};
}

static void begin_arrival(const struct sw_store *store, int64_t unit, struct sw_slot *slot)
{
    *slot = (struct sw_slot){slot->memory, (int32_t)unit, 0, store->units[unit].version};
}

char *sw_store_arrive(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot,
                      int64_t first, int64_t count)
{
    struct sw_slot *held = weight_slot(store, rank, unit, slot);
    int64_t begin = arrivals(store, rank, unit).first;
    if (first == begin)
        begin_arrival(store, unit, held);
    sw_assert(held->unit == (int32_t)unit && held->arrived == first - begin); /* S4 */
    held->arrived += count;
    return (char *)held->memory + first * sw_dtype_bytes(store->plan->request.compute);
}

char *sw_store_gather(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot)
{
    struct sw_slot *held = weight_slot(store, rank, unit, slot);
    struct sw_range range = arrivals(store, rank, unit);
    if (range.count == 0)
        begin_arrival(store, unit, held);
    sw_assert(held->unit == (int32_t)unit && held->arrived == range.count); /* S4 */
    held->arrived = store->plan->request.model->units[unit].elements;
    return held->memory;
}

char *sw_store_state_buffer(const struct sw_store *store, int32_t buffer, enum sw_part part)
{
    sw_assert(buffer >= 0 && store->plan->state_buffer_offset[part] >= 0);
    return store->state_buffers +
           buffer * sw_align_up(store->plan->state_buffer_bytes, SW_AIO_ALIGNMENT_BYTES) +
           store->plan->state_buffer_offset[part];
}

char *sw_store_stepping_buffer(const struct sw_store *store, int32_t rank, int32_t buffer,
                               enum sw_part part)
{
    sw_assert(buffer >= 0 && store->plan->stepping_offset[part] >= 0);
    return store->ranks[rank].stepping_buffers + buffer * store->plan->stepping_bytes +
           store->plan->stepping_offset[part];
}

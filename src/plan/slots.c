/* Places along an agenda: each thing from where it is made to where it is last used. */
#include "plan/agenda.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Of one thing (a kept output, or a block's inside) on one stage. */
struct thing {
    int64_t last; /* agenda op that uses it last; -1: none */
    int32_t slot; /* -1: not there */
};

struct pool {
    bool *taken;      /* [capacity] */
    int64_t *free_at; /* [capacity] on the schedule's clock, of those that are not taken */
    int64_t most, capacity;
};

struct sw_slots {
    const struct sw_plan *plan;
    const struct sw_agenda *agenda;
    bool activations, contexts;
    struct thing *things; /* [stages][2][block_count * microbatches] */
    struct pool *pools;   /* [stages][SW_SLOT_CLASSES] */
};

static struct thing *thing_at(const struct sw_slots *s, int32_t stage, bool context, int32_t block,
                              int32_t microbatch)
{
    int64_t objects = s->plan->request.model->block_count * s->plan->microbatches;
    int64_t m = microbatch >= 0 ? microbatch : 0;
    return &s->things[(2 * (int64_t)stage + (context ? 1 : 0)) * objects +
                      sw_plan_activation_index(s->plan, block, m)];
}

int sw_slots_class(const struct sw_plan *plan, int32_t block)
{
    return block > sw_plan_encoder_end(plan->request.model) ? SW_SLOTS_TARGET : SW_SLOTS_SOURCE;
}

static int context_class(const struct sw_slots *s, int32_t block)
{
    return SW_SLOTS_CONTEXT + (int)s->plan->request.model->blocks[block].kind;
}

static bool has_context(const struct sw_slots *s, const struct sw_agenda_op *op)
{
    return s->contexts && (op->kind == SW_OP_FORWARD || op->kind == SW_OP_BACKWARD);
}

static int list_accesses(const struct sw_slots *s, const struct sw_agenda_op *op,
                         struct sw_agenda_access out[SW_AGENDA_ACCESSES])
{
    return s->activations ? sw_agenda_accesses(s->plan, op, out) : 0;
}

static void find_last_uses(struct sw_slots *s)
{
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    for (int64_t i = 0; i < s->agenda->count; i++) {
        const struct sw_agenda_op *op = &s->agenda->ops[i];
        int count = list_accesses(s, op, accesses);
        for (int k = 0; k < count; k++)
            thing_at(s, accesses[k].stage, false, accesses[k].block, op->microbatch)->last = i;
        if (has_context(s, op))
            thing_at(s, op->stage, true, op->block, op->microbatch)->last = i;
    }
}

struct sw_slots *sw_slots_open(const struct sw_plan *plan, const struct sw_agenda *agenda,
                               bool activations, bool contexts)
{
    struct sw_slots *s = sw_calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    int64_t things =
        2 * (int64_t)plan->stages * plan->request.model->block_count * plan->microbatches;
    s->plan = plan;
    s->agenda = agenda;
    s->activations = activations;
    s->contexts = contexts;
    s->things = sw_calloc(things, sizeof *s->things);
    s->pools = sw_calloc((int64_t)plan->stages * SW_SLOT_CLASSES, sizeof *s->pools);
    if (s->things == NULL || s->pools == NULL) {
        sw_slots_close(s);
        return NULL;
    }
    memset(s->things, -1, (size_t)things * sizeof *s->things);
    find_last_uses(s);
    /* Each class can hold everything; memory is touched as far as it is used. */
    int64_t objects = plan->request.model->block_count * plan->microbatches;
    for (int64_t i = 0; i < (int64_t)plan->stages * SW_SLOT_CLASSES; i++) {
        s->pools[i].capacity = objects;
        s->pools[i].taken = sw_calloc(objects, sizeof(bool));
        s->pools[i].free_at = sw_calloc(objects, sizeof(int64_t));
        if (s->pools[i].taken == NULL || s->pools[i].free_at == NULL) {
            sw_slots_close(s);
            return NULL;
        }
    }
    return s;
}

void sw_slots_close(struct sw_slots *s)
{
    if (s == NULL)
        return;
    for (int64_t i = 0; s->pools != NULL && i < (int64_t)s->plan->stages * SW_SLOT_CLASSES; i++) {
        free(s->pools[i].taken);
        free(s->pools[i].free_at);
    }
    free(s->pools);
    free(s->things);
    free(s);
}

static struct pool *pool_at(const struct sw_slots *s, int32_t stage, int slot_class)
{
    return &s->pools[(int64_t)stage * SW_SLOT_CLASSES + slot_class];
}

/* A place whose last user has ended by then, so that nobody waits for a place. */
static void take(struct pool *pool, struct thing *thing, int64_t start)
{
    int64_t slot = 0;
    while (slot < pool->capacity && (pool->taken[slot] || pool->free_at[slot] > start))
        slot++;
    sw_assert(thing->slot < 0 && slot < pool->capacity);
    pool->taken[slot] = true;
    if (pool->most <= slot)
        pool->most = slot + 1;
    thing->slot = (int32_t)slot;
}

void sw_slots_before(struct sw_slots *s, int64_t index)
{
    const struct sw_agenda_op *op = &s->agenda->ops[index];
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    int count = list_accesses(s, op, accesses);
    for (int k = 0; k < count; k++)
        if (accesses[k].makes)
            take(pool_at(s, accesses[k].stage, sw_slots_class(s->plan, accesses[k].block)),
                 thing_at(s, accesses[k].stage, false, accesses[k].block, op->microbatch),
                 op->start);
    if (has_context(s, op) && op->kind == SW_OP_FORWARD)
        take(pool_at(s, op->stage, context_class(s, op->block)),
             thing_at(s, op->stage, true, op->block, op->microbatch), op->start);
}

static void give_back(struct pool *pool, struct thing *thing, int64_t index, int64_t end)
{
    if (thing->last != index || thing->slot < 0)
        return;
    pool->taken[thing->slot] = false;
    pool->free_at[thing->slot] = end;
    thing->slot = -1;
}

void sw_slots_after(struct sw_slots *s, int64_t index)
{
    const struct sw_agenda_op *op = &s->agenda->ops[index];
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    int count = list_accesses(s, op, accesses);
    for (int k = 0; k < count; k++)
        give_back(pool_at(s, accesses[k].stage, sw_slots_class(s->plan, accesses[k].block)),
                  thing_at(s, accesses[k].stage, false, accesses[k].block, op->microbatch), index,
                  op->end);
    if (has_context(s, op))
        give_back(pool_at(s, op->stage, context_class(s, op->block)),
                  thing_at(s, op->stage, true, op->block, op->microbatch), index, op->end);
}

int32_t sw_slots_activation(const struct sw_slots *s, int32_t stage, int32_t block,
                            int32_t microbatch)
{
    int32_t slot = thing_at(s, stage, false, block, microbatch)->slot;
    sw_assert(slot >= 0);
    return slot;
}

int32_t sw_slots_context(const struct sw_slots *s, int32_t stage, int32_t block, int32_t microbatch)
{
    int32_t slot = thing_at(s, stage, true, block, microbatch)->slot;
    sw_assert(slot >= 0);
    return slot;
}

int64_t sw_slots_most(const struct sw_slots *s, int32_t stage, int slot_class)
{
    return pool_at(s, stage, slot_class)->most;
}

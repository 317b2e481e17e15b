#include "plan/residency.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct access {
    int32_t time, object;
    int32_t next; /* index of the object's next access, or -1 */
    bool produces;
};

struct sw_residency {
    int32_t slots, objects;
    int32_t *content; /* [slots] object, or -1 */
    int32_t *slot_of; /* [objects] slot, or -1 */
    int32_t *coming;  /* [objects] index of its first access not before now, or -1 */
    struct access *accesses;
    int64_t count, capacity;
    int64_t ahead; /* all accesses before this one have their slots */
    int32_t now;
    bool failed;
};

struct sw_residency *sw_residency_open(int32_t slots, int32_t objects)
{
    struct sw_residency *r = sw_calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    r->slots = slots;
    r->objects = objects;
    r->content = sw_calloc(slots, sizeof *r->content);
    r->slot_of = sw_calloc(objects, sizeof *r->slot_of);
    r->coming = sw_calloc(objects, sizeof *r->coming);
    if (r->content == NULL || r->slot_of == NULL || r->coming == NULL) {
        sw_residency_close(r);
        return NULL;
    }
    memset(r->content, -1, (size_t)slots * sizeof *r->content);
    memset(r->slot_of, -1, (size_t)objects * sizeof *r->slot_of);
    memset(r->coming, -1, (size_t)objects * sizeof *r->coming);
    return r;
}

void sw_residency_close(struct sw_residency *r)
{
    if (r == NULL)
        return;
    free(r->content);
    free(r->slot_of);
    free(r->coming);
    free(r->accesses);
    free(r);
}

void sw_residency_access(struct sw_residency *r, int32_t time, int32_t object, bool produces)
{
    sw_assert(object >= 0 && object < r->objects);
    sw_assert(r->count == 0 || r->accesses[r->count - 1].time <= time);
    if (r->failed ||
        !sw_array_reserve((void **)&r->accesses, &r->capacity, r->count, sizeof *r->accesses)) {
        r->failed = true;
        return;
    }
    r->accesses[r->count++] = (struct access){time, object, -1, produces};
}

bool sw_residency_ready(struct sw_residency *r)
{
    if (r->failed)
        return false;
    for (int64_t i = r->count - 1; i >= 0; i--) {
        struct access *access = &r->accesses[i];
        access->next = r->coming[access->object];
        r->coming[access->object] = (int32_t)i;
    }
    return true;
}

/* When what is in a slot is needed again; INT32_MAX: never. */
static int32_t next_need(struct sw_residency *r, int32_t slot)
{
    int32_t object = r->content[slot];
    if (object < 0)
        return INT32_MAX;
    int32_t *coming = &r->coming[object];
    while (*coming >= 0 && r->accesses[*coming].time < r->now)
        *coming = r->accesses[*coming].next;
    return *coming >= 0 ? r->accesses[*coming].time : INT32_MAX;
}

/* The slot to give up for an access at `time`, or -1: all are needed by then. Empty ones first. */
static int32_t find_slot(struct sw_residency *r, int32_t time)
{
    int32_t best = -1, best_need = time;
    for (int32_t slot = 0; slot < r->slots; slot++) {
        if (r->content[slot] < 0)
            return slot;
        int32_t need = next_need(r, slot);
        if (need > best_need) {
            best = slot;
            best_need = need;
        }
    }
    return best;
}

bool sw_residency_next(struct sw_residency *r, int32_t now, struct sw_residency_change *out)
{
    r->now = now;
    for (; r->ahead < r->count; r->ahead++) {
        const struct access *access = &r->accesses[r->ahead];
        if (r->slot_of[access->object] >= 0)
            continue;
        /* What an op makes needs its slot no sooner; taken early, it would be one whose content is
         * needed again soon, while those that are needed last have not yet been read. */
        if (access->produces && access->time > now)
            return false;
        int32_t slot = find_slot(r, access->time);
        if (slot < 0) {
            sw_assert(access->time > now); /* else the pool is too small for one op */
            return false;
        }
        int32_t old = r->content[slot];
        bool live = old >= 0 && next_need(r, slot) != INT32_MAX;
        if (old >= 0)
            r->slot_of[old] = -1;
        r->content[slot] = access->object;
        r->slot_of[access->object] = slot;
        *out =
            (struct sw_residency_change){access->object, slot, access->produces, live ? old : -1};
        r->ahead++;
        return true;
    }
    return false;
}

int32_t sw_residency_slot(const struct sw_residency *r, int32_t object)
{
    return r->slot_of[object];
}

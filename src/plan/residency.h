/* Which slots of a pool hold what over a program, decided with the whole future known.
 *
 * Objects (a unit's weights, a kept activation) are accessed at known times. An object that is
 * needed and in no slot takes the slot whose content is needed again last, as early as that is
 * later than its own need: reading ahead as far as slots allow, and never dropping what is needed
 * sooner (Cao, Felten, Karlin, Li, "A study of integrated prefetching and caching strategies",
 * SIGMETRICS 1995: "aggressive"; Belady 1966 for the choice). What an op makes takes its slot when
 * the op's turn comes, not before. */
#ifndef SPILLWAY_PLAN_RESIDENCY_H
#define SPILLWAY_PLAN_RESIDENCY_H

#include "base/err.h"

#include <stdint.h>

struct sw_residency;

/* What a slot change means for the program. */
struct sw_residency_change {
    int32_t object, slot;
    bool produced;   /* the access makes the object: nothing to fetch */
    int32_t evicted; /* object that lost the slot and is needed again; -1: none */
};

/* Slots 0 .. slots-1 are empty. Objects are numbered 0 .. objects-1. NULL: no memory. */
struct sw_residency *sw_residency_open(int32_t slots, int32_t objects);
void sw_residency_close(struct sw_residency *residency);
/* Accesses, in ascending time, before the first change is asked for. The first access of an object
 * may make it. Failures stick until sw_residency_ready(). */
void sw_residency_access(struct sw_residency *residency, int32_t time, int32_t object,
                         bool produces);
bool sw_residency_ready(struct sw_residency *residency) SW_WARN_UNUSED;

/* The next change to make before what happens at `now` (ascending over calls): false when there is
 * none left. Aborts when the slots are too few for the accesses of one time. */
bool sw_residency_next(struct sw_residency *residency, int32_t now,
                       struct sw_residency_change *out);
/* Where an object is; -1: nowhere. */
int32_t sw_residency_slot(const struct sw_residency *residency, int32_t object);

#endif

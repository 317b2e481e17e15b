/* Inside the planner: a candidate is chosen (placement.c), measured (budget.c), and priced
 * (cost.c). */
#ifndef SPILLWAY_PLAN_SEARCH_H
#define SPILLWAY_PLAN_SEARCH_H

#include "plan/build.h"
#include "plan/plan.h"

/* cost.c */
struct sw_plan_costing {
    const struct sw_plan *plan;
    struct sw_plan_rates rates;
    bool overlap; /* other ops are under way */
};
/* Rates with nothing missing. */
struct sw_plan_rates sw_plan_rates_complete(const struct sw_plan_rates *rates);
/* An sw_op_cost_fn; context: struct sw_plan_costing. */
void sw_plan_op_cost(const struct sw_op *op, void *costing, struct sw_op_cost *cost);
/* The step on a virtual clock (or, without training, what there is). */
sw_code sw_plan_predict(const struct sw_plan *plan, struct sw_simulation *out, struct sw_err *err);

/* Bytes that an op moves between tiers; 0 for what computes. */
int64_t sw_plan_op_bytes(const struct sw_plan *plan, const struct sw_op *op);

/* plan.c */
void sw_plan_drop_programs(struct sw_plan *plan);

/* budget.c: sizes of blocks, buffers and everything, for the bounds and homes of `plan`. */
void sw_plan_measure_blocks(struct sw_plan *plan);
void sw_plan_make_budget(struct sw_plan *plan);
/* Fixed places along the agendas. False: no memory. */
bool sw_plan_count_slots(struct sw_plan *plan);
bool sw_plan_fits(const struct sw_plan *plan);
/* In memory, drives apart. */
bool sw_plan_fits_memory(const struct sw_plan *plan);

/* sizes.c */
/* Rows of the global batch that a replica has, and micro-batches of `rows` that they make. */
int64_t sw_plan_replica_rows(const struct sw_plan *plan);
int64_t sw_plan_microbatches(const struct sw_plan *plan, int64_t rows);
/* Bounds of micro-batches of `rows`, and what follows from them. */
void sw_plan_set_bounds(struct sw_plan *plan, int64_t rows);
/* Whether ZeRO cuts what is held of gradients. */
bool sw_plan_cuts_gradients(const struct sw_plan *plan);
/* The pools of all stages, for the homes of the units; weights have `slots` at most. */
void sw_plan_set_pools(struct sw_plan *plan, int64_t slots);

/* placement.c: choose what the request leaves open. SW_E_FIT when nothing fits. */
sw_code sw_plan_place(struct sw_plan *plan, struct sw_err *err);

/* placement.c: whether anything fits, with the chunks that the request has now; the plan is that
 * then. Nothing is priced. */
sw_code sw_plan_find_fit(struct sw_plan *plan, bool *found, struct sw_err *err);

/* refuse.c: settings that clash. */
sw_code sw_plan_check_homes(const struct sw_plan *plan, struct sw_err *err);
/* refuse.c: SW_E_FIT for a plan with the least that any choice needs, with limits that would do:
 * those of the request are changed. */
sw_code sw_plan_refuse(struct sw_plan *plan, bool layered, struct sw_err *err);

#endif

/* The plan: what goes where, how much of it, in what micro-batches; made before anything is
 * allocated, from configuration, model shapes and the machine. If it fits, no step runs out of
 * memory. */
#ifndef SPILLWAY_PLAN_PLAN_H
#define SPILLWAY_PLAN_PLAN_H

#include "base/text.h"
#include "model/block.h"
#include "model/spec.h"
#include "optim/optim.h"

enum sw_tier { SW_TIER_AUTO, SW_TIER_DEVICE, SW_TIER_HOST, SW_TIER_NVME };
enum sw_recompute { SW_RECOMPUTE_AUTO, SW_RECOMPUTE_ON, SW_RECOMPUTE_OFF };
enum sw_purpose { SW_FOR_TRAINING, SW_FOR_EVALUATION, SW_FOR_GENERATION };

/* What the plan is made from. */
struct sw_plan_request {
    const struct sw_model *model;
    const struct sw_optim_settings *optim; /* NULL unless training */
    const struct sw_kernels *kernels;      /* for workspace sizes */
    enum sw_purpose purpose;               /* training plans evaluate, too */
    enum sw_dtype compute;
    int64_t global_batch;                                         /* rows per optimizer step */
    int64_t micro_batch;                                          /* rows; 0: the planner chooses */
    int64_t source_length, target_length;                         /* bounds, tokens */
    int64_t generation_rows, generation_beams, generation_length; /* SW_FOR_GENERATION */
    enum sw_recompute recompute;
    enum sw_tier params, optimizer, grads, activations; /* offload.* */
    int64_t device_memory_bytes;                        /* cap of a rank; 0: what the machine has */
    int64_t host_memory_bytes; /* offload.host_memory; 0: what the machine allows */
    const char *const *nvme_directories;
    int nvme_directory_count;
    int64_t nvme_capacity_bytes; /* 0: free space */
    int64_t prefetch_depth;      /* 0: the planner chooses */
    bool overlap;
};

struct sw_plan;

sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_plan_free(struct sw_plan *plan);

/* The bounds it settled on: micro-batch rows, lengths, head chunk. */
const struct sw_bounds *sw_plan_bounds(const struct sw_plan *plan);
/* Tables for a person. */
void sw_plan_print(const struct sw_plan *plan, struct sw_text *out);
/* One JSON object. */
void sw_plan_print_json(const struct sw_plan *plan, struct sw_text *out);

#endif

/* The plan: what goes where, how much of it, in what micro-batches; made before anything is
 * allocated, from configuration, model shapes and the machine. If it fits, no step runs out of
 * memory. docs/PLAN.md has the formulas. */
#ifndef SPILLWAY_PLAN_PLAN_H
#define SPILLWAY_PLAN_PLAN_H

#include "base/text.h"
#include "model/block.h"
#include "model/decode.h"
#include "optim/optim.h"
#include "plan/program.h"

enum sw_tier { SW_TIER_AUTO, SW_TIER_DEVICE, SW_TIER_HOST, SW_TIER_NVME, SW_TIERS };
enum sw_recompute { SW_RECOMPUTE_AUTO, SW_RECOMPUTE_ON, SW_RECOMPUTE_OFF };
enum sw_purpose { SW_FOR_TRAINING, SW_FOR_EVALUATION, SW_FOR_GENERATION };

/* Measured rates of the machine, for predictions; 0: not known. */
struct sw_plan_rates {
    double gemm_flops;           /* per second, of the compute lane */
    double device_bytes;         /* per second, of element-wise work on the device */
    double host_bytes;           /* per second, of the host optimizer */
    double h2d_bytes, d2h_bytes; /* per second */
    double nvme_read_bytes, nvme_write_bytes;
};

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
    int64_t device_memory_bytes;                        /* cap of a rank; 0: not bounded */
    int64_t host_memory_bytes;                          /* 0: not bounded */
    int64_t nvme_bytes;                                 /* of the spill directories; 0: none */
    int64_t prefetch_depth;                             /* 0: the planner chooses */
    bool overlap;
    struct sw_plan_rates rates;
};

/* One line of the budget. */
struct sw_plan_item {
    const char *name;
    int64_t bytes[SW_TIERS]; /* per tier; [SW_TIER_AUTO] unused */
};
enum { SW_PLAN_ITEMS = 16 };

/* Read only outside src/plan. */
struct sw_plan {
    struct sw_plan_request request;
    struct sw_bounds bounds;
    int64_t microbatches; /* at most, of a step */
    bool recompute;
    enum sw_tier params, optimizer, grads, activations; /* homes */
    struct sw_block_sizes *sizes;                       /* owned [block_count] */
    int64_t activation_slots;                           /* kept block outputs per micro-batch */
    int64_t context_slots;
    int64_t context_bytes, activation_bytes, workspace_bytes; /* of one */
    int64_t batch_bytes;                                      /* ids and rows of a micro-batch */
    int64_t reach;                                            /* of the relative bias tables */
    struct sw_plan_item items[SW_PLAN_ITEMS];
    int item_count;
    int64_t total_bytes[SW_TIERS];
    double step_flops; /* of all micro-batches at their bounds, recomputation included */
    struct sw_simulation predicted;
    bool has_prediction;
    /* SW_FOR_TRAINING: step, drain, evaluation. SW_FOR_EVALUATION: evaluation. SW_FOR_GENERATION:
     * begin, decode. */
    struct sw_program *step, *drain, *evaluation, *begin, *decode;
};

/* SW_E_FIT, with the numbers and the smallest change that fits; SW_E_USAGE for clashing settings.
 */
sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_plan_free(struct sw_plan *plan);

/* Where block `block` keeps its output, of activation_slots. */
int64_t sw_plan_activation_slot(const struct sw_plan *plan, int64_t block);
/* Where block `block` keeps its context for micro-batch `microbatch`, of context_slots. */
int64_t sw_plan_context_slot(const struct sw_plan *plan, int64_t block, int64_t microbatch);
/* Index of the block that makes the encoder output. */
int64_t sw_plan_encoder_end(const struct sw_model *model);

const char *sw_tier_name(enum sw_tier tier);
/* Tables for a person; one JSON object. */
void sw_plan_print(const struct sw_plan *plan, struct sw_text *out);
void sw_plan_print_json(const struct sw_plan *plan, struct sw_text *out);

/* The programs of a plan (programs.c), built by sw_plan_make(). */
sw_code sw_plan_build_programs(struct sw_plan *plan, struct sw_err *err) SW_WARN_UNUSED;

#endif

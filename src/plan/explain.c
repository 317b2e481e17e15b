/* A plan in words: tables for a person, JSON for programs. */
#include "plan/search.h"

#include <stdlib.h>
#include <string.h>

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_budget(const struct sw_plan *plan, struct sw_text *out)
{
    sw_text_add(out, "%-24s %12s %12s %12s\n", "memory, MiB", "device", "host", "nvme");
    for (int i = 0; i < plan->item_count; i++)
        sw_text_add(out, "  %-22s %12.1f %12.1f %12.1f\n", plan->items[i].name,
                    mib(plan->items[i].bytes[SW_TIER_DEVICE]),
                    mib(plan->items[i].bytes[SW_TIER_HOST]),
                    mib(plan->items[i].bytes[SW_TIER_NVME]));
    sw_text_add(out, "  %-22s %12.1f %12.1f %12.1f\n", "sum",
                mib(plan->total_bytes[SW_TIER_DEVICE]), mib(plan->total_bytes[SW_TIER_HOST]),
                mib(plan->total_bytes[SW_TIER_NVME]));
    const int64_t limits[] = {plan->request.device_memory_bytes, plan->request.host_memory_bytes,
                              plan->request.nvme_bytes};
    sw_text_add(out, "  %-22s", "limit");
    for (int i = 0; i < 3; i++)
        if (limits[i] > 0)
            sw_text_add(out, " %12.1f", mib(limits[i]));
        else
            sw_text_add(out, " %12s", "-");
    sw_text_add(out, "\n");
}

/* The rates that the prediction goes by; those of drives where something spills. */
struct rate {
    const char *name, *key;
    double known, used; /* a second; known 0: a nominal one is used */
    bool flops, matters;
};
enum { RATES = 9 };

static int list_rates(const struct sw_plan *plan, struct rate out[RATES])
{
    const struct sw_plan_rates *known = &plan->request.rates;
    const struct sw_plan_rates used = sw_plan_rates_complete(known);
    bool spills = plan->total_bytes[SW_TIER_NVME] > 0;
    const struct rate rates[RATES] = {
        {"products", "gemm_flops", known->gemm_flops, used.gemm_flops, true, true},
        {"device memory", "device_bytes", known->device_bytes, used.device_bytes, false,
         !known->device_is_host},
        {"host memory", "host_bytes", known->host_bytes, used.host_bytes, false, true},
        {"with links", "memory_bytes", known->memory_bytes, used.memory_bytes, false,
         known->memory_bytes > 0},
        {"optimizer", "optimizer_bytes", known->optimizer_bytes, used.optimizer_bytes, false, true},
        {"copies", "h2d_bytes", known->h2d_bytes, used.h2d_bytes, false, true},
        {"drives' reads", "nvme_read_bytes", known->nvme_read_bytes, used.nvme_read_bytes, false,
         spills},
        {"writes", "nvme_write_bytes", known->nvme_write_bytes, used.nvme_write_bytes, false,
         spills},
        {"both at once", "nvme_both_bytes", known->nvme_both_bytes, used.nvme_both_bytes, false,
         spills && known->nvme_both_bytes > 0},
    };
    int count = 0;
    for (int i = 0; i < RATES; i++)
        if (rates[i].matters)
            out[count++] = rates[i];
    return count;
}

void sw_plan_print_rates(const struct sw_plan *plan, struct sw_text *out)
{
    struct rate rates[RATES];
    int count = list_rates(plan, rates);
    for (int i = 0; i < count; i++)
        sw_text_add(out, "%s%s %.*f %s%s", i > 0 ? ", " : "", rates[i].name,
                    rates[i].used < 1e9    ? 3
                    : rates[i].used < 1e11 ? 1
                                           : 0,
                    rates[i].used / 1e9, rates[i].flops ? "GFLOP/s" : "GB/s",
                    rates[i].known > 0 ? "" : " (nominal)");
}

static void json_rates(const struct sw_plan *plan, struct sw_text *out)
{
    struct rate rates[RATES];
    int count = list_rates(plan, rates);
    if (plan->request.rates.origin == NULL)
        return;
    sw_text_add(out, ", \"rates\": {\"origin\": ");
    sw_text_add_json_string(out, plan->request.rates.origin);
    for (int i = 0; i < count; i++) {
        sw_text_add(out, ", \"%s\": ", rates[i].key);
        sw_text_add_json_double(out, rates[i].used);
    }
    sw_text_add(out, ", \"nominal\": [");
    const char *comma = "";
    for (int i = 0; i < count; i++)
        if (!(rates[i].known > 0)) {
            sw_text_add(out, "%s\"%s\"", comma, rates[i].key);
            comma = ", ";
        }
    sw_text_add(out, "]}");
}

/* What the other schedules would take, where they were looked at. */
static void print_schedule(const struct sw_plan *plan, struct sw_text *out)
{
    sw_text_add(out, "schedule   %s", sw_schedule_name(plan->schedule));
    const char *comma = plan->request.schedule == SW_SCHEDULE_AUTO ? ": predicted " : NULL;
    bool passed_by = false;
    for (int i = SW_SCHEDULE_LAYERED; comma != NULL && i <= SW_SCHEDULE_GPIPE; i++) {
        if (plan->schedule_seconds[i] <= 0)
            continue;
        sw_text_add(out, "%s%s ", comma, sw_schedule_name((enum sw_schedule)i));
        sw_text_add_seconds(out, plan->schedule_seconds[i]);
        comma = ", ";
        passed_by =
            passed_by || plan->schedule_seconds[i] < 0.99 * plan->schedule_seconds[plan->schedule];
    }
    if (passed_by)
        sw_text_add(out, "; chosen by nominal rates, as train does without run.machine");
    if (comma != NULL && plan->schedule_seconds[SW_SCHEDULE_1F1B] <= 0)
        sw_text_add(out, "; 1f1b and gpipe keep weights and gradients on the devices, where they "
                         "do not fit or are not wanted");
    sw_text_add(out, "\n");
}

/* Who is where: a line a rank. */
static void print_grid(const struct sw_plan *plan, struct sw_text *out)
{
    if (plan->ranks == 1)
        return;
    sw_text_add(out,
                "grid       %d stage%s x %d replica%s, ZeRO stage %d within a stage's replicas\n",
                (int)plan->stages, sw_text_plural(plan->stages), (int)plan->replicas,
                sw_text_plural(plan->replicas), plan->request.zero);
    print_schedule(plan, out);
    if (plan->params != SW_TIER_DEVICE && plan->replicas > 1)
        sw_text_add(out, "uploads    weights off the devices: %s\n",
                    plan->uploads_ranges ? "each replica its range, then gathered"
                                         : "all of them by each replica");
    sw_text_add(out, "\n%6s %6s %8s %8s %8s %12s\n", "rank", "stage", "replica", "device", "blocks",
                "memory, MiB");
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        const struct sw_stage_plan *stage = &plan->stage[rank % plan->stages];
        sw_text_add(out, "%6d %6d %8d %8d %8lld %12.1f%s\n", (int)rank, (int)(rank % plan->stages),
                    (int)(rank / plan->stages),
                    plan->request.devices != NULL ? (int)plan->request.devices[rank] : 0,
                    (long long)stage->layers, mib(stage->device_bytes),
                    rank % plan->stages == 0 ? "  embeddings and head" : "");
    }
    sw_text_add(out, "\n");
}

static void json_grid(const struct sw_plan *plan, struct sw_text *out)
{
    sw_text_add(out,
                "\"pipeline\": %d, \"data\": %d, \"zero\": %d, \"schedule\": \"%s\", "
                "\"uploads\": \"%s\", \"ranks\": [",
                (int)plan->stages, (int)plan->replicas, plan->request.zero,
                sw_schedule_name(plan->schedule), plan->uploads_ranges ? "ranges" : "whole");
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        const struct sw_stage_plan *stage = &plan->stage[rank % plan->stages];
        sw_text_add(out,
                    "%s{\"rank\": %d, \"stage\": %d, \"replica\": %d, \"device\": %d, "
                    "\"blocks\": %lld, \"device_bytes\": %lld}",
                    rank > 0 ? ", " : "", (int)rank, (int)(rank % plan->stages),
                    (int)(rank / plan->stages),
                    plan->request.devices != NULL ? (int)plan->request.devices[rank] : 0,
                    (long long)stage->layers, (long long)stage->device_bytes);
    }
    sw_text_add(out, "], ");
}

/* The resource in use longest. */
static const char *binding(const struct sw_plan *plan)
{
    return sw_resource_name(sw_simulation_busiest(&plan->predicted));
}

/* Points below each other where units are the same. */
static void print_lanes(const struct sw_plan *plan, struct sw_text *out)
{
    for (int lane = 0; lane < SW_LANES; lane++) {
        struct sw_text time = {0};
        if (plan->predicted.busy_seconds[lane] <= 0)
            continue;
        sw_text_add_seconds(&time, plan->predicted.busy_seconds[lane]);
        int number = time.bytes != NULL ? (int)strcspn(time.bytes, " ") : 0;
        if (number > 0)
            sw_text_add(out, "  %-22s %10.*s%-3s busy\n", sw_lane_name((enum sw_lane)lane), number,
                        time.bytes, time.bytes + number);
        else
            out->failed = true;
        free(time.bytes);
    }
}

/* Units by where they are stepped. */
struct steppers {
    long long host, device, streamed;
};

static struct steppers count_steppers(const struct sw_plan *plan)
{
    struct steppers out = {0};
    for (int64_t i = 0; i < plan->request.model->unit_count; i++) {
        const struct sw_unit_homes *homes = &plan->homes[i];
        if (!plan->request.model->units[i].trainable)
            continue;
        out.streamed += homes->streamed;
        out.device += homes->states == SW_TIER_DEVICE;
        out.host += homes->states != SW_TIER_DEVICE && !homes->streamed;
    }
    return out;
}

static void print_steppers(const struct sw_plan *plan, struct sw_text *out)
{
    const struct steppers units = count_steppers(plan);
    if (plan->request.purpose == SW_FOR_TRAINING)
        sw_text_add(out, "stepped    %lld units by the host, %lld on the device, %lld through it\n",
                    units.host, units.device, units.streamed);
}

static void json_steppers(const struct sw_plan *plan, struct sw_text *out)
{
    const struct steppers units = count_steppers(plan);
    if (plan->request.purpose == SW_FOR_TRAINING)
        sw_text_add(out, "\"stepped\": {\"host\": %lld, \"device\": %lld, \"stream\": %lld}, ",
                    units.host, units.device, units.streamed);
}

void sw_plan_print(const struct sw_plan *plan, struct sw_text *out)
{
    const struct sw_model *model = plan->request.model;
    sw_text_add(out, "model      %lld parameters in %lld unit%s, %lld block%s\n",
                (long long)model->elements, (long long)model->unit_count,
                sw_text_plural(model->unit_count), (long long)model->block_count,
                sw_text_plural(model->block_count));
    if (plan->request.purpose == SW_FOR_TRAINING)
        sw_text_add(out, "step       %lld row%s as %lld micro-batch%s of %lld, %s; %s\n",
                    (long long)plan->request.global_batch,
                    sw_text_plural(plan->request.global_batch), (long long)plan->microbatches,
                    plan->microbatches == 1 ? "" : "es", (long long)plan->bounds.rows,
                    sw_dtype_name(plan->request.compute),
                    plan->recompute ? "blocks' insides recomputed in backward"
                                    : "blocks' insides kept for backward");
    sw_text_add(out, "bounds     %lld source and %lld target token%s a row\n",
                (long long)plan->bounds.source_length, (long long)plan->bounds.target_length,
                sw_text_plural(plan->bounds.target_length));
    sw_text_add(out, "homes      weights %s, optimizer %s, gradients %s, activations %s\n",
                sw_tier_name(plan->params), sw_tier_name(plan->optimizer),
                sw_tier_name(plan->grads), sw_tier_name(plan->activations));
    print_steppers(plan, out);
    sw_text_add(out, "\n");
    print_grid(plan, out);
    print_budget(plan, out);
    sw_text_add(out, "\nprocess    %.1f MiB of memory when the run starts\n",
                mib(sw_plan_process_bytes(plan)));
    if (plan->request.purpose == SW_FOR_TRAINING)
        sw_text_add(out, "work       %.3g floating-point operations a step at the bounds\n",
                    plan->step_flops);
    if (!plan->has_prediction)
        return;
    bool cpus = plan->request.rates.device_is_host &&
                sw_simulation_busiest(&plan->predicted) == SW_RESOURCE_DEVICE;
    sw_text_add(out, "\npredicted  ");
    sw_text_add_seconds(out, plan->predicted.makespan_seconds);
    sw_text_add(out, " a step; bound by %s%s\n", binding(plan), cpus ? " (the CPUs)" : "");
    print_lanes(plan, out);
    if (plan->request.rates.origin == NULL)
        return;
    sw_text_add(out, "  rates                  %s: ", plan->request.rates.origin);
    sw_plan_print_rates(plan, out);
    sw_text_add(out, "\n");
}

static void json_integer(struct sw_text *out, const char *key, int64_t value)
{
    sw_text_add(out, "\"%s\": %lld, ", key, (long long)value);
}

static void json_budget(const struct sw_plan *plan, struct sw_text *out)
{
    sw_text_add(out, "\"memory\": [");
    for (int i = 0; i < plan->item_count; i++)
        sw_text_add(out,
                    "%s{\"name\": \"%s\", \"device_bytes\": %lld, \"host_bytes\": %lld, "
                    "\"nvme_bytes\": %lld}",
                    i > 0 ? ", " : "", plan->items[i].name,
                    (long long)plan->items[i].bytes[SW_TIER_DEVICE],
                    (long long)plan->items[i].bytes[SW_TIER_HOST],
                    (long long)plan->items[i].bytes[SW_TIER_NVME]);
    sw_text_add(out, "], ");
    json_integer(out, "device_bytes", plan->total_bytes[SW_TIER_DEVICE]);
    json_integer(out, "host_bytes", plan->total_bytes[SW_TIER_HOST]);
    json_integer(out, "nvme_bytes", plan->total_bytes[SW_TIER_NVME]);
    json_integer(out, "process_bytes", sw_plan_process_bytes(plan));
}

void sw_plan_print_json(const struct sw_plan *plan, struct sw_text *out)
{
    const struct sw_model *model = plan->request.model;
    sw_text_add(out, "{");
    json_integer(out, "parameters", model->elements);
    json_integer(out, "global_batch", plan->request.global_batch);
    json_integer(out, "micro_batch", plan->bounds.rows);
    json_integer(out, "micro_batches", plan->microbatches);
    json_integer(out, "source_length", plan->bounds.source_length);
    json_integer(out, "target_length", plan->bounds.target_length);
    sw_text_add(out, "\"compute\": \"%s\", \"recompute\": %s, ",
                sw_dtype_name(plan->request.compute), plan->recompute ? "true" : "false");
    sw_text_add(out,
                "\"homes\": {\"params\": \"%s\", \"optimizer\": \"%s\", \"grads\": \"%s\", "
                "\"activations\": \"%s\"}, ",
                sw_tier_name(plan->params), sw_tier_name(plan->optimizer),
                sw_tier_name(plan->grads), sw_tier_name(plan->activations));
    json_steppers(plan, out);
    json_grid(plan, out);
    json_budget(plan, out);
    sw_text_add(out, "\"step_flops\": ");
    sw_text_add_json_double(out, plan->step_flops);
    if (plan->has_prediction) {
        sw_text_add(out, ", \"step_seconds\": ");
        sw_text_add_json_double(out, plan->predicted.makespan_seconds);
        sw_text_add(out, ", \"binds\": \"%s\", \"lanes\": {", binding(plan));
        const char *comma = "";
        for (int lane = 0; lane < SW_LANES; lane++) {
            sw_text_add(out, "%s\"%s\": ", comma, sw_lane_name((enum sw_lane)lane));
            sw_text_add_json_double(out, plan->predicted.busy_seconds[lane]);
            comma = ", ";
        }
        sw_text_add(out, "}");
        json_rates(plan, out);
    }
    sw_text_add(out, "}\n");
}

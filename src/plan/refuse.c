/* What cannot be planned: settings that clash, and when no choice fits, the numbers of one that
 * needs little and the smallest change that lets it fit. */
#include "plan/search.h"

#include <stdlib.h>

enum { LIMITS = 4, MIB = 1 << 20 };

/* Of all units: compute weights, or gradients as held. */
static double megabytes_of(const struct sw_plan_request *request, bool gradients)
{
    enum sw_dtype dtype =
        gradients && request->optim != NULL ? request->optim->grads : request->compute;
    int64_t elements = 0;
    for (int64_t u = 0; u < request->model->unit_count; u++)
        elements += request->model->units[u].elements;
    return (double)elements * (double)sw_dtype_bytes(dtype) / MIB;
}

sw_code sw_plan_check_homes(const struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_plan_request *request = &plan->request;
    static const char *const keys[3] = {"offload.params", "offload.optimizer", "offload.grads"};
    const enum sw_tier wanted[] = {request->params, request->optimizer, request->grads,
                                   request->activations};
    for (int i = 0; i < 4; i++)
        if (wanted[i] == SW_TIER_NVME && request->nvme_bytes <= 0)
            return SW_FAIL(err, SW_E_USAGE, "%s: nvme needs directories to spill to: offload.nvme",
                           i < 3 ? keys[i] : "offload.activations");
    bool layered =
        request->schedule == SW_SCHEDULE_AUTO || request->schedule == SW_SCHEDULE_LAYERED;
    for (int i = 0; i < 3; i += 2)
        if (!layered && (wanted[i] == SW_TIER_HOST || wanted[i] == SW_TIER_NVME))
            return SW_FAIL(err, SW_E_USAGE,
                           "%s: %s clashes with parallel.schedule: %s, with which %.1f MiB would "
                           "cross the bus for every micro-batch (use layered or auto)",
                           keys[i], sw_tier_name(wanted[i]), sw_schedule_name(request->schedule),
                           megabytes_of(request, i == 2));
    if (request->purpose != SW_FOR_TRAINING)
        return SW_OK;
    if (request->optimizer == SW_TIER_DEVICE && !sw_plan_may_step_on_device(request))
        return SW_FAIL(
            err, SW_E_USAGE,
            "offload.optimizer: device clashes with optimizer.name: adafactor, which the "
            "host steps (use auto, host or nvme)");
    if (request->where == SW_STEP_STREAM && request->optim->name != SW_OPTIM_ADAMW)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.where: stream clashes with optimizer.name: adafactor, whose "
                       "sums over rows and columns are the host's (use auto or host, or "
                       "optimizer.name: adamw)");
    for (int i = 0; i < 3; i++)
        if (request->optimizer == SW_TIER_DEVICE && wanted[i] != SW_TIER_AUTO &&
            wanted[i] != SW_TIER_DEVICE)
            return SW_FAIL(err, SW_E_USAGE,
                           "%s: %s clashes with offload.optimizer: device; a unit is stepped on "
                           "the device only when all of it is there (use auto or host)",
                           keys[i], sw_tier_name(wanted[i]));
    return SW_OK;
}

/* ---- what would do ---- */

/* A limit of the request, what it was, and whether it was raised. */
struct limit {
    int64_t *bytes, before;
    bool raised;
};

static double mib(int64_t bytes)
{
    return (double)bytes / MIB;
}

/* Whole MiB, which is what is printed. */
static int64_t round_up(int64_t bytes)
{
    return (bytes + MIB - 1) / MIB * MIB;
}

static int64_t needed_bytes(const struct sw_plan *plan, int limit)
{
    static const enum sw_tier tiers[] = {SW_TIER_DEVICE, SW_TIER_HOST, SW_TIER_AUTO, SW_TIER_NVME};
    return tiers[limit] != SW_TIER_AUTO ? plan->total_bytes[tiers[limit]]
                                        : plan->devices_bytes + plan->total_bytes[SW_TIER_HOST];
}

/* Limits that the plan is over, as high as it needs; false: none. */
static bool raise_limits(const struct sw_plan *plan, struct limit *limits)
{
    bool raised = false;
    for (int i = 0; i < LIMITS; i++) {
        bool bounded = limits[i].before > 0 || i == LIMITS - 1;
        if (!bounded || needed_bytes(plan, i) <= *limits[i].bytes)
            continue;
        *limits[i].bytes = round_up(needed_bytes(plan, i));
        raised = limits[i].raised = true;
    }
    return raised;
}

/* From a plan that does not fit to one that does, in limits that are raised as little as will do:
 * each in turn, the others as they are then. False: none was found. */
static sw_code find_least(struct sw_plan *plan, struct limit *limits, bool *found,
                          struct sw_err *err)
{
    enum { ROUNDS = 4 };
    sw_code code = SW_OK;
    *found = false;
    for (int round = 0; round < ROUNDS && code == SW_OK && !*found; round++) {
        if (!raise_limits(plan, limits))
            break;
        code = sw_plan_find_fit(plan, found, err);
    }
    for (int i = 0; i < LIMITS && *found; i++) {
        int64_t low = limits[i].before / MIB, high = *limits[i].bytes / MIB;
        while (limits[i].raised && high - low > 1 && code == SW_OK) {
            bool fits;
            *limits[i].bytes = (low + high) / 2 * MIB;
            code = sw_plan_find_fit(plan, &fits, err);
            if (fits)
                high = (low + high) / 2;
            else
                low = (low + high) / 2;
        }
        if (limits[i].raised)
            *limits[i].bytes = high * MIB;
    }
    if (code == SW_OK && *found)
        code = sw_plan_find_fit(plan, found, err);
    return code;
}

/* ---- words ---- */

static int64_t largest_item(const struct sw_plan *plan, enum sw_tier tier)
{
    int largest = 0;
    for (int i = 1; i < plan->item_count; i++)
        if (plan->items[i].bytes[tier] > plan->items[largest].bytes[tier])
            largest = i;
    return largest;
}

/* What one tier needs and has, and the setting that helps. `beside`: what a rank takes of its
 * device beside the plan, which the setting counts. */
static void explain_tier(const struct sw_plan *plan, enum sw_tier tier, const struct limit *limit,
                         int64_t beside, const char *key, struct sw_text *out)
{
    const struct sw_plan_item *item = &plan->items[largest_item(plan, tier)];
    if (!limit->raised)
        return;
    sw_text_add(out, "; the %s needs %.1f MiB of %.1f at least (most of it: %s, %.1f MiB): ",
                sw_tier_name(tier), mib(plan->total_bytes[tier] + beside),
                mib(limit->before + beside), item->name, mib(item->bytes[tier]));
    sw_text_add(out, "%s of %lldMiB would do", key,
                (long long)(round_up(*limit->bytes + beside) / MIB));
}

static void explain_total(const struct sw_plan *plan, const struct limit *limit,
                          struct sw_text *out)
{
    if (!limit->raised)
        return;
    sw_text_add(out,
                "; the devices (%.1f MiB) and the host (%.1f MiB) together need more than the "
                "%.1f MiB of memory that may be planned (%d %% of what is available): a machine or "
                "cgroup with %lld MiB available would do",
                mib(plan->devices_bytes), mib(plan->total_bytes[SW_TIER_HOST]), mib(limit->before),
                (int)SW_PLAN_SHARE_PERCENT,
                (long long)(round_up(*limit->bytes / SW_PLAN_SHARE_PERCENT * 100) / MIB));
    if (plan->request.nvme_bytes <= 0)
        sw_text_add(out, ", or directories to spill to (offload.nvme)");
}

static void add_other_ways(const struct sw_plan_request *request, struct sw_text *out)
{
    if (request->purpose == SW_FOR_GENERATION)
        sw_text_add(out,
                    "; fewer --beams (now %lld) or --max-new-tokens (now %lld), or a shorter "
                    "--max-source-length (now %lld) needs less",
                    (long long)request->generation_beams, (long long)request->generation_length,
                    (long long)request->source_length);
    else if (request->micro_batch > 1)
        sw_text_add(out, "; a smaller train.micro_batch (now %lld) needs less",
                    (long long)request->micro_batch);
    if (request->recompute == SW_RECOMPUTE_OFF && request->purpose == SW_FOR_TRAINING)
        sw_text_add(out, "; train.recompute: on needs less");
}

sw_code sw_plan_refuse(struct sw_plan *plan, bool layered, struct sw_err *err)
{
    struct sw_plan_request *request = &plan->request;
    struct limit limits[LIMITS] = {
        {&request->device_memory_bytes, request->device_memory_bytes, false},
        {&request->host_memory_bytes, request->host_memory_bytes, false},
        {&request->total_memory_bytes, request->total_memory_bytes, false},
        {&request->nvme_bytes, request->nvme_bytes, false}};
    struct sw_text text = {0};
    bool found;
    sw_code code = find_least(plan, limits, &found, err);
    if (code != SW_OK)
        return code;
    sw_text_add(&text, "does not fit");
    if (!layered)
        sw_text_add(&text,
                    " with parallel.schedule: %s, which keeps weights and gradients on the "
                    "devices (layered does not)",
                    sw_schedule_name(request->schedule));
    explain_tier(plan, SW_TIER_DEVICE, &limits[0], request->device_extra_bytes, "devices.memory",
                 &text);
    explain_tier(plan, SW_TIER_HOST, &limits[1], 0, "offload.host_memory", &text);
    if (limits[1].raised && request->nvme_bytes <= 0)
        sw_text_add(&text, ", or directories to spill to (offload.nvme)");
    explain_total(plan, &limits[2], &text);
    explain_tier(plan, SW_TIER_NVME, &limits[3], 0, "offload.nvme_capacity (and free space)",
                 &text);
    add_other_ways(request, &text);
    code = SW_FAIL(err, SW_E_FIT, "%s", text.bytes != NULL ? text.bytes : "does not fit");
    free(text.bytes);
    return code;
}

/* What to say when no choice fits: the numbers of the least that one needs, and what would help. */
#include "plan/search.h"

#include <stdlib.h>

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static int64_t largest_item(const struct sw_plan *plan, enum sw_tier tier)
{
    int largest = 0;
    for (int i = 1; i < plan->item_count; i++)
        if (plan->items[i].bytes[tier] > plan->items[largest].bytes[tier])
            largest = i;
    return largest;
}

/* What one tier needs and has, and the setting that helps; nothing for a tier with room. */
static void explain_tier(const struct sw_plan *plan, enum sw_tier tier, int64_t limit,
                         const char *key, struct sw_text *out)
{
    int64_t needed = plan->total_bytes[tier];
    if ((limit == 0 && tier != SW_TIER_NVME) || needed <= limit)
        return;
    const struct sw_plan_item *item = &plan->items[largest_item(plan, tier)];
    sw_text_add(out, "; the %s needs %.1f MiB of %.1f at least (most of it: %s, %.1f MiB): ",
                sw_tier_name(tier), mib(needed), mib(limit), item->name, mib(item->bytes[tier]));
    sw_text_add(out, "%s of %.0fMiB would do", key, mib(needed) + 1);
}

static void explain_total(const struct sw_plan *plan, int64_t limit, struct sw_text *out)
{
    int64_t device = plan->total_bytes[SW_TIER_DEVICE], host = plan->total_bytes[SW_TIER_HOST];
    if (device + host <= limit)
        return;
    sw_text_add(out,
                "; the device (%.1f MiB) and the host (%.1f MiB) together need more than the "
                "%.1f MiB of memory that are available: a machine or cgroup with %.0f MiB would do",
                mib(device), mib(host), mib(limit), mib(device + host) + 1);
    if (plan->request.nvme_bytes <= 0)
        sw_text_add(out, ", or directories to spill to (offload.nvme)");
}

sw_code sw_plan_refuse(const struct sw_plan *plan, bool layered, struct sw_err *err)
{
    const struct sw_plan_request request = plan->request;
    bool trains = request.purpose == SW_FOR_TRAINING;
    struct sw_text text = {0};
    sw_text_add(&text, "does not fit");
    if (!layered)
        sw_text_add(&text,
                    " with parallel.schedule: %s, which keeps weights and gradients on the "
                    "devices (layered does not)",
                    sw_schedule_name(request.schedule));
    explain_tier(plan, SW_TIER_DEVICE, request.device_memory_bytes, "devices.memory", &text);
    explain_tier(plan, SW_TIER_HOST, request.host_memory_bytes, "offload.host_memory", &text);
    if (request.total_memory_bytes > 0)
        explain_total(plan, request.total_memory_bytes, &text);
    explain_tier(plan, SW_TIER_NVME, request.nvme_bytes, "offload.nvme_capacity (and free space)",
                 &text);
    if (request.nvme_bytes <= 0 && request.host_memory_bytes > 0 &&
        plan->total_bytes[SW_TIER_HOST] > request.host_memory_bytes)
        sw_text_add(&text, ", or directories to spill to (offload.nvme)");
    if (request.purpose == SW_FOR_GENERATION)
        sw_text_add(&text,
                    "; fewer --beams (now %lld) or --max-new-tokens (now %lld), or a shorter "
                    "--max-source-length (now %lld) needs less",
                    (long long)request.generation_beams, (long long)request.generation_length,
                    (long long)request.source_length);
    else if (request.micro_batch > 1)
        sw_text_add(&text, "; a smaller train.micro_batch (now %lld) needs less",
                    (long long)request.micro_batch);
    if (request.recompute == SW_RECOMPUTE_OFF && trains)
        sw_text_add(&text, "; train.recompute: on needs less");
    sw_code code = SW_FAIL(err, SW_E_FIT, "%s", text.bytes != NULL ? text.bytes : "does not fit");
    free(text.bytes);
    return code;
}

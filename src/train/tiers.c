#include "train/tiers.h"

#include "base/file.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

static enum sw_tier tier_of(int home)
{
    static const enum sw_tier tiers[] = {SW_TIER_AUTO, SW_TIER_DEVICE, SW_TIER_HOST, SW_TIER_NVME};
    return tiers[home];
}

static int64_t most_of(int64_t bytes)
{
    return bytes / 100 * SW_PLAN_SHARE_PERCENT;
}

static void limit_memory(const struct sw_config *config, bool device_is_host,
                         struct sw_plan_request *request)
{
    int64_t available = sw_topo_memory_available_bytes();
    request->device_memory_bytes = config->devices.memory_bytes;
    request->host_memory_bytes = config->offload.host_memory_bytes;
    if (available <= 0)
        return;
    if (device_is_host)
        request->total_memory_bytes = most_of(available);
    else if (request->host_memory_bytes == 0)
        request->host_memory_bytes = most_of(available);
}

/* Directories on one file system share its space: each file system counts once. */
static sw_code limit_drives(const struct sw_config *config, struct sw_plan_request *request,
                            struct sw_err *err)
{
    struct sw_machine_drive drives[SW_SPILL_MAX_DIRECTORIES];
    const struct sw_strings *names = &config->offload.nvme;
    if (names->count > SW_SPILL_MAX_DIRECTORIES)
        return SW_FAIL(err, SW_E_USAGE, "offload.nvme: %lld directories; at most %d are used",
                       (long long)names->count, (int)SW_SPILL_MAX_DIRECTORIES);
    for (int64_t i = 0; i < names->count; i++) {
        sw_code code = sw_topo_describe_drive(NULL, names->items[i], &drives[i], err);
        if (code == SW_OK)
            code = sw_directory_check(names->items[i], err);
        if (code != SW_OK)
            return sw_err_blame(err, "offload.nvme");
        bool counted = false;
        for (int64_t k = 0; k < i; k++)
            counted = counted || (strcmp(drives[k].device, drives[i].device) == 0 &&
                                  strcmp(drives[k].file_system, drives[i].file_system) == 0);
        if (!counted)
            request->nvme_bytes += drives[i].free_bytes;
    }
    request->nvme_directories = (int)names->count;
    int64_t capacity = config->offload.nvme_capacity_bytes;
    if (capacity > 0 && capacity < request->nvme_bytes)
        request->nvme_bytes = capacity;
    return SW_OK;
}

sw_code sw_tiers_limits(const struct sw_config *config, bool device_is_host,
                        struct sw_plan_request *request, struct sw_err *err)
{
    request->params = tier_of(config->offload.params);
    request->optimizer = tier_of(config->offload.optimizer);
    request->grads = tier_of(config->offload.grads);
    request->activations = tier_of(config->offload.activations);
    request->prefetch_depth = config->offload.prefetch_depth;
    request->overlap = config->run.overlap;
    request->checksums = config->io.verify;
    limit_memory(config, device_is_host, request);
    return limit_drives(config, request, err);
}

void sw_tiers_say(void *progress, const char *text)
{
    sw_progress_say(progress, "%s", text);
}

bool sw_tiers_spill(const struct sw_config *config, const struct sw_numa *numa,
                    struct sw_progress *progress, struct sw_tiers *out)
{
    static const char *const methods[] = {"auto", "io_uring", "sync"};
    int count = (int)config->offload.nvme.count;
    const struct sw_aio_method *method = NULL;
    if (count == 0)
        return false;
    bool known = sw_aio_method_find(methods[config->io.method], &method);
    sw_assert(known && count <= SW_SPILL_MAX_DIRECTORIES);
    for (int i = 0; i < count; i++)
        out->directories[i] = (struct sw_spill_directory){.path = config->offload.nvme.items[i],
                                                          .cpus = numa->ring_cpus[i]};
    out->spill = (struct sw_spill_config){
        .directories = out->directories,
        .directory_count = count,
        .queue_depth = (int)config->io.queue_depth,
        .method = method,
        .verify = config->io.verify,
        .note = sw_tiers_say,
        .note_context = progress,
        .progress = sw_progress_share,
        .progress_context = progress,
    };
    return true;
}

void sw_tiers_note_rates(const struct sw_plan *plan, struct sw_progress *progress)
{
    if (plan->chosen_by_rates && plan->request.rates.origin == NULL)
        sw_progress_say(progress, "note: placed by nominal rates; `spillway probe --out "
                                  "machine.json` and run.machine: machine.json place by those of "
                                  "this machine");
}

/* Settings that another one makes useless, whatever spills. */
static void note_idle(const struct sw_config *config, const struct sw_plan *plan,
                      struct sw_progress *progress)
{
    const struct {
        const char *key, *why;
        bool idle;
    } notes[] = {
        {"parallel.zero", "parallel.data is 1, there are no replicas to cut anything over",
         config->parallel.zero > 0 && plan->replicas == 1},
        {"devices.list", "the CPU back end has one device, which all ranks share",
         config->devices.list.count > 0 && plan->request.rates.device_is_host},
        {"data.seed", "data.shuffle is false", !config->data.shuffle},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (notes[i].idle && sw_config_given(config, notes[i].key))
            sw_progress_say(progress, "note: %s has no effect: %s", notes[i].key, notes[i].why);
}

void sw_tiers_note_unused(const struct sw_config *config, const struct sw_plan *plan,
                          struct sw_progress *progress)
{
    static const char *const keys[] = {"offload.nvme", "offload.nvme_capacity", "io.method",
                                       "io.queue_depth", "io.verify"};
    struct sw_text text = {0};
    note_idle(config, plan, progress);
    if (plan->total_bytes[SW_TIER_NVME] > 0)
        return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (sw_config_given(config, keys[i]))
            sw_text_add(&text, "%s%s", text.used_bytes > 0 ? ", " : "", keys[i]);
    if (text.used_bytes > 0 && !text.failed)
        sw_progress_say(progress, "note: all fits without drives, nothing spills; unused: %s",
                        text.bytes);
    free(text.bytes);
}

#include "cli/described.h"

#include "cli/back_end.h"

#include <stdio.h>
#include <stdlib.h>

sw_code sw_cli_machine_read(const char *path, struct sw_machine **out, struct sw_err *err)
{
    struct sw_machine *machine = calloc(1, sizeof *machine);
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
    if (sw_machine_read(path, machine, err) != SW_OK) {
        free(machine);
        return sw_err_blame(err, "--machine");
    }
    *out = machine;
    return SW_OK;
}

/* ---- GPUs that are not here ---- */

static const struct sw_machine *described; /* whose devices these are: one a process */

static sw_code count(int *out, struct sw_err *err)
{
    (void)err;
    *out = described->gpu_count;
    return SW_OK;
}

static sw_code describe(int index, struct sw_device_info *out, struct sw_err *err)
{
    const struct sw_machine_gpu *gpu = &described->gpus[index];
    (void)err;
    *out = (struct sw_device_info){.total_bytes = gpu->memory_bytes,
                                   .free_bytes =
                                       gpu->free_bytes > 0 ? gpu->free_bytes : gpu->memory_bytes};
    snprintf(out->name, sizeof out->name, "%s", gpu->name);
    return SW_OK;
}

/* The file has how many others each reaches: all, or nobody knows which. */
static bool reaches(int one, int other)
{
    return one == other || (described->gpus[one].peers + 1 >= described->gpu_count &&
                            described->gpus[other].peers + 1 >= described->gpu_count);
}

sw_code sw_cli_machine_device(const struct sw_config *config, const struct sw_machine *machine,
                              const struct sw_device_ops **out, struct sw_err *err)
{
    static struct sw_device_ops gpus;
    const struct sw_device_ops *here = NULL;
    const char *why;
    *out = &sw_cpu_device_ops;
    if (config->devices.kind == SW_CFG_CUDA && machine->gpu_count == 0)
        return SW_FAIL(err, SW_E_USAGE,
                       "--machine: it has no GPU, and devices.kind is cuda; use cpu or auto");
    if (config->devices.kind == SW_CFG_CPU || machine->gpu_count == 0)
        return SW_OK;
    sw_code code = sw_back_end_cuda(&here, &why, err);
    if (code != SW_OK)
        return code;
    described = machine;
    gpus = here != NULL ? *here : sw_cpu_device_ops;
    gpus.name = "cuda";
    gpus.asynchronous = true;
    gpus.count = count;
    gpus.describe = describe;
    gpus.bus_id = NULL;
    gpus.reaches = reaches;
    gpus.comm = NULL;
    *out = &gpus;
    return SW_OK;
}

void sw_cli_machine_use(const struct sw_machine *machine, const struct sw_config *config,
                        struct sw_plan_request *request)
{
    bool gpu = request->device_is_remote;
    int64_t host_bytes = sw_machine_host_bytes(machine) / 100 * SW_PLAN_SHARE_PERCENT;
    sw_plan_rates_of_machine(machine, gpu, &request->rates);
    request->rates.origin = "--machine";
    request->host_memory_bytes = config->offload.host_memory_bytes;
    request->total_memory_bytes = gpu ? 0 : host_bytes;
    if (gpu && request->host_memory_bytes == 0)
        request->host_memory_bytes = host_bytes;
    if (machine->drive_count == 0)
        return;
    request->nvme_bytes = 0;
    request->nvme_directories = machine->drive_count;
    for (int i = 0; i < machine->drive_count; i++)
        request->nvme_bytes += machine->drives[i].free_bytes;
    if (config->offload.nvme_capacity_bytes > 0 &&
        config->offload.nvme_capacity_bytes < request->nvme_bytes)
        request->nvme_bytes = config->offload.nvme_capacity_bytes;
}

sw_code sw_cli_planning_open(struct sw_session *session, const struct sw_config *config,
                             const char *path, bool here, struct sw_machine **machine,
                             struct sw_err *err)
{
    const struct sw_device_ops *device;
    *machine = NULL;
    sw_code code = sw_config_require(config, "model.path", err);
    if (code == SW_OK && path != NULL)
        code = sw_cli_machine_read(path, machine, err);
    if (code == SW_OK)
        code = *machine != NULL && !here ? sw_cli_machine_device(config, *machine, &device, err)
                                         : sw_back_end_choose(config, &device, err);
    if (code == SW_OK)
        code = sw_session_open(session, config, device, config->model.path, "model.path", err);
    return code;
}

/* spillway plan */
#include "cli/back_end.h"
#include "cli/rates.h"
#include "topo/machine.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>

/* The machine of the file in place of this one; limits that were configured stay. */
static void use_machine(const struct sw_machine *machine, const struct sw_config *config,
                        const struct sw_device_ops *device, struct sw_plan_request *request)
{
    bool gpu = device->asynchronous && machine->gpu_count > 0;
    int64_t host_bytes = sw_machine_host_bytes(machine) / 10 * 9;
    sw_plan_rates_of_machine(machine, gpu, &request->rates);
    request->device_memory_bytes = config->devices.memory_bytes;
    request->host_memory_bytes = config->offload.host_memory_bytes;
    request->total_memory_bytes = gpu ? 0 : host_bytes;
    if (gpu && request->device_memory_bytes == 0)
        request->device_memory_bytes = machine->gpus[0].memory_bytes;
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

/* Without a machine file: of this one's CPUs what a second tells, or nothing where memory is short;
 * of a GPU and drives nominal rates. Placement goes by nominal rates, as
 * that of train does: two runs of one job must not differ by what was measured. */
static sw_code price(struct sw_session *session, struct sw_err *err)
{
    enum { ELEMENTS = 4 << 20 };
    bool gpu = session->device->asynchronous;
    struct sw_machine *machine = calloc(1, sizeof *machine);
    struct sw_plan_rates rates = {.device_is_host = !gpu};
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    bool measured = sw_rates_measure(session->pool, ELEMENTS, machine, NULL) == SW_OK;
    if (measured)
        sw_plan_rates_of_machine(machine, false, &rates);
    rates.device_is_host = !gpu;
    if (gpu) { /* a plain one of these years */
        rates.gemm_flops = 1e14;
        rates.device_bytes = 1e12;
        rates.h2d_bytes = rates.d2h_bytes = 2e10;
        rates.origin = "host measured just now, GPU nominal (link 20 GB/s, memory 1000 GB/s)";
    } else {
        rates.origin = measured ? "measured just now" : "nominal";
    }
    free(machine);
    return sw_plan_price(session->plan, &rates, err);
}

/* `origin`: NULL without a machine file. */
static sw_code print_plan(struct sw_session *session, const struct sw_plan_request *request,
                          const char *origin, bool json, struct sw_err *err)
{
    struct sw_text text = {0};
    struct sw_plan_rates rates = request->rates;
    rates.origin = origin;
    sw_code code = sw_session_plan(session, request, err);
    if (code == SW_OK)
        code = origin != NULL ? sw_plan_price(session->plan, &rates, err) : price(session, err);
    if (code != SW_OK)
        return code;
    if (json)
        sw_plan_print_json(session->plan, &text);
    else
        sw_plan_print(session->plan, &text);
    code = sw_text_check(&text, "the plan", err);
    if (code == SW_OK)
        fputs(text.bytes, stdout);
    free(text.bytes);
    return code;
}

static sw_code plan(struct sw_session *session, const struct sw_cli_args *args, struct sw_err *err)
{
    const char *path = sw_cli_value(&sw_command_plan, args, "machine");
    bool json = sw_cli_value(&sw_command_plan, args, "json") != NULL;
    struct sw_plan_request request = {0};
    struct sw_machine *machine = NULL;
    sw_code code =
        sw_session_optimizer(session->config, session->config->train.steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code == SW_OK && path != NULL) {
        machine = calloc(1, sizeof *machine);
        code = machine != NULL ? sw_machine_read(path, machine, err)
                               : SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
        if (code != SW_OK)
            code = sw_err_blame(err, "--machine");
        if (code == SW_OK)
            use_machine(machine, session->config, session->device, &request);
        free(machine);
    }
    if (path == NULL)
        path = request.rates.origin; /* run.machine */
    return code == SW_OK ? print_plan(session, &request, path, json, err) : code;
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_device_ops *device;
    struct sw_config config;
    struct sw_session session;
    sw_code code = sw_cli_config(args, args->positional, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_config_require(&config, "model.path", err);
    if (code == SW_OK)
        code = sw_back_end_choose(&config, &device, err);
    if (code == SW_OK)
        code = sw_session_open(&session, &config, device, config.model.path, "model.path", err);
    if (code == SW_OK) {
        code = plan(&session, args, err);
        sw_session_close(&session);
    }
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_plan = {
    .name = "plan",
    .summary = "what goes where, how long a step takes, what binds it; loads nothing",
    .positional = "CONFIG.yaml",
    .positional_needed = true,
    .takes_set = true,
    .options = {{"machine", "FILE", "plan for the machine of this file (spillway probe --out)"},
                {"json", NULL, "print one JSON object"}},
    .help = "Without --machine the host's rates are measured in a second, those of drives are "
            "nominal;\n"
            "what is nominal is marked. Exit status 3 when it does not fit, with what would.\n",
    .run = run,
};

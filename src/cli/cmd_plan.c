/* spillway plan */
#include "cli/back_end.h"
#include "topo/machine.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>

static void use_machine(const struct sw_machine *machine, const struct sw_device_ops *device,
                        struct sw_plan_request *request)
{
    bool gpu = device->asynchronous && machine->gpu_count > 0;
    request->rates.gemm_flops =
        gpu ? machine->gpus[0].gemm_flops_per_second : machine->gemm_flops_per_second;
    request->rates.host_bytes = machine->optimizer_bytes_per_second;
    if (gpu) {
        request->rates.h2d_bytes = machine->gpus[0].h2d_bytes_per_second;
        request->rates.d2h_bytes = machine->gpus[0].d2h_bytes_per_second;
    }
    if (request->device_memory_bytes == 0)
        request->device_memory_bytes =
            gpu ? machine->gpus[0].memory_bytes : machine->memory_available_bytes / 10 * 9;
}

static sw_code print_plan(struct sw_session *session, const struct sw_plan_request *request,
                          bool json, struct sw_err *err)
{
    struct sw_text text = {0};
    sw_code code = sw_plan_make(&session->plan, request, err);
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
    struct sw_plan_request request;
    struct sw_machine *machine = NULL;
    sw_code code =
        sw_session_optimizer(session->config, session->config->train.steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code == SW_OK && path != NULL) {
        machine = calloc(1, sizeof *machine);
        code = machine != NULL ? sw_machine_read(path, machine, err)
                               : SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
        if (code == SW_OK) {
            request.device_memory_bytes = session->config->devices.memory_bytes;
            use_machine(machine, session->device, &request);
        }
        free(machine);
    }
    return code == SW_OK ? print_plan(session, &request, json, err) : code;
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
        code = sw_session_open(&session, &config, device, config.model.path, err);
    if (code == SW_OK) {
        code = plan(&session, args, err);
        sw_session_close(&session);
    }
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_plan = {
    .name = "plan",
    .summary = "what goes where, how long a step takes, what binds it; allocates nothing",
    .positional = "CONFIG.yaml",
    .positional_needed = true,
    .takes_set = true,
    .options = {{"machine", "FILE", "plan for the machine of this file (spillway probe --out)"},
                {"json", NULL, "print one JSON object"}},
    .help = "Exit status 3 when it does not fit, with what would.\n",
    .run = run,
};

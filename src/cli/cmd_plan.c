/* spillway plan */
#include "cli/back_end.h"
#include "cli/described.h"
#include "cli/rates.h"
#include "topo/topo.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>

/* Without a machine file: of this one's CPUs what a second tells, or nothing where memory is short;
 * of a GPU and drives nominal rates. Placement goes by nominal rates, as
 * that of train does: two runs of one job must not differ by what was measured. */
static sw_code price(struct sw_session *session, const struct sw_plan_request *request,
                     struct sw_err *err)
{
    enum { BYTES_PER_WORKER = 64 << 20 };
    bool gpu = session->device->asynchronous;
    struct sw_machine *machine = calloc(1, sizeof *machine);
    struct sw_plan_rates rates = {.device_is_host = !gpu};
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    int64_t elements =
        sw_rates_elements(session->pool, BYTES_PER_WORKER, sw_topo_memory_available_bytes());
    bool measured = sw_rates_measure(session->pool, elements, machine, NULL) == SW_OK;
    if (measured)
        sw_plan_rates_of_machine(machine, false, &rates);
    rates.device_is_host = !gpu;
    if (gpu) /* nothing is known of it */
        rates.gemm_flops = rates.device_bytes = rates.h2d_bytes = rates.d2h_bytes =
            rates.both_bytes = 0;
    rates.origin = measured ? "measured just now" : "nominal";
    free(machine);
    sw_code code = sw_plan_price(session->plan, &rates, err);
    return code == SW_OK ? sw_plan_price_schedules(session->plan, request, err) : code;
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
        code = origin != NULL ? sw_plan_price(session->plan, &rates, err)
                              : price(session, request, err);
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

/* `machine`: of --machine, or NULL. */
static sw_code plan(struct sw_session *session, const struct sw_cli_args *args,
                    const struct sw_machine *machine, struct sw_err *err)
{
    const char *path = sw_cli_value(&sw_command_plan, args, "machine");
    bool json = sw_cli_value(&sw_command_plan, args, "json") != NULL;
    struct sw_plan_request request = {0};
    sw_code code =
        sw_session_optimizer(session->config, session->config->train.steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code == SW_OK && machine != NULL)
        sw_cli_machine_use(machine, session->config, &request);
    if (path == NULL)
        path = request.rates.origin; /* run.machine */
    return code == SW_OK ? print_plan(session, &request, path, json, err) : code;
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_config config;
    struct sw_session session;
    struct sw_machine *machine;
    const char *path = sw_cli_value(&sw_command_plan, args, "machine");
    sw_code code = sw_cli_config(args, args->positional, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_cli_planning_open(&session, &config, path, false, &machine, err);
    if (code == SW_OK) {
        code = plan(&session, args, machine, err);
        sw_session_close(&session);
    }
    free(machine);
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_plan = {
    .name = "plan",
    .summary = "what goes where, how long a step takes, what binds it; loads nothing",
    .positional = "CONFIG.yaml",
    .positional_needed = true,
    .takes_set = true,
    .options = {{"machine", "FILE",
                 "plan for the machine of this file (spillway probe --out), GPUs included"},
                {"json", NULL, "print one JSON object"}},
    .help = "Without --machine the host's rates are measured in a second, those of drives are "
            "nominal;\n"
            "what is nominal is marked. Exit status 3 when it does not fit, with what would.\n",
    .run = run,
};

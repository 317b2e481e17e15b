/* spillway train, spillway eval */
#include "cli/back_end.h"
#include "cli/stop.h"
#include "train/evaluate.h"
#include "train/loop.h"
#include "train/preflight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void stop_after_the_step(void)
{
    sw_stop_watch("\nstopping after this step, with a checkpoint; again: at once\n");
}

static sw_code run_train(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_config config;
    struct sw_train_options options = {
        .config = &config,
        .resume = sw_cli_value(&sw_command_train, args, "resume"),
        .trace = sw_cli_value(&sw_command_train, args, "trace"),
        .stop_requested = sw_stop_asked,
        .begin_writing = stop_after_the_step,
    };
    sw_code code = sw_cli_config(args, args->positional, &config, err);
    if (code != SW_OK)
        return code;
    sw_stop_end_at_once("\nspillway: stopped before the first step; nothing was written\n");
    code = sw_back_end_choose(&config, &options.device, err);
    if (code == SW_OK)
        code = sw_train(&options, err);
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_train = {
    .name = "train",
    .summary = "fine-tune a model as a configuration says",
    .positional = "CONFIG.yaml",
    .positional_needed = true,
    .takes_set = true,
    .options = {{"resume", "auto|DIR",
                 "go on from the newest checkpoint of output.dir, or from a checkpoint"},
                {"trace", "FILE", "write what every lane did as a Chrome trace"}},
    .help =
        "Ctrl-C (or SIGTERM, or a closed terminal) stops after the step, with a checkpoint and "
        "exit\n"
        "status 75; before the first step at once, with nothing written. A second one waits for\n"
        "nothing. --resume auto goes on, with the same result as if nothing had happened.\n",
    .run = run_train,
};

static sw_code evaluate(struct sw_session *session, const char *rows, struct sw_err *err)
{
    struct sw_plan_request request;
    struct sw_dataset *dataset = NULL;
    double loss;
    int64_t tokens;
    sw_code code = sw_session_request(session, SW_FOR_EVALUATION, &request, err);
    if (code == SW_OK)
        code = sw_session_plan(session, &request, err);
    if (code == SW_OK)
        code = sw_session_dataset(session, rows, &dataset, err);
    if (code == SW_OK)
        code = sw_session_load(session, err);
    if (code == SW_OK)
        code = sw_engine_start(session->engine, err);
    if (code == SW_OK)
        code = sw_session_evaluate(session, dataset, &loss, &tokens, err);
    if (code == SW_OK && !isfinite(loss)) {
        const char *block = sw_engine_nonfinite(session->engine);
        code =
            SW_FAIL(err, SW_E_NONFINITE,
                    "%s: the loss is not finite%s%s: the model's weights are broken, or too large "
                    "for precision.compute %s",
                    session->model_path, block != NULL ? ", first in " : "",
                    block != NULL ? block : "", sw_dtype_name(session->plan->request.compute));
    }
    if (code == SW_OK) {
        struct sw_text line = {0};
        sw_progress_end(&session->progress);
        sw_text_add(&line, "{\"loss\": ");
        sw_text_add_json_double(&line, loss);
        sw_text_add(&line, ", \"tokens\": %lld}", (long long)tokens);
        code = sw_text_check(&line, "the result", err);
        if (code == SW_OK)
            puts(line.bytes);
        free(line.bytes);
    }
    sw_dataset_free(dataset);
    return code;
}

static sw_code run_eval(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_device_ops *device;
    struct sw_config config;
    struct sw_session session;
    const char *model = sw_cli_value(&sw_command_eval, args, "model");
    sw_code code = sw_cli_config(args, args->positional, &config, err);
    if (code != SW_OK)
        return code;
    code = sw_preflight_rows(&config, "data.eval", config.data.eval, err);
    if (code == SW_OK)
        code = sw_back_end_choose(&config, &device, err);
    if (code == SW_OK)
        code = sw_session_open(&session, &config, device, model, "--model", err);
    if (code == SW_OK) {
        code = evaluate(&session, config.data.eval, err);
        sw_session_close(&session);
    }
    sw_config_deinit(&config);
    return code;
}

const struct sw_command sw_command_eval = {
    .name = "eval",
    .summary = "loss of a model over the rows of data.eval",
    .positional = "CONFIG.yaml",
    .positional_needed = true,
    .takes_set = true,
    .options = {{"model", "DIR", "the model directory (or a checkpoint)"}},
    .needed = {"model"},
    .help =
        "The last line of standard output is {\"loss\": mean over target tokens, \"tokens\": their "
        "number}.\n",
    .run = run_eval,
};

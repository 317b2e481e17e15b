#include "train/run.h"

#include "base/file.h"
#include "ckpt/export.h"
#include "train/evaluate.h"
#include "train/preflight.h"

#include <stdlib.h>

static sw_code load_rows(struct sw_run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    sw_code code = sw_session_dataset(&run->session, config->data.train, &run->rows, err);
    if (code == SW_OK && config->data.eval[0] != '\0')
        code = sw_session_dataset(&run->session, config->data.eval, &run->eval_rows, err);
    if (code != SW_OK)
        return code;
    int64_t rows = sw_dataset_rows(run->rows);
    if (config->train.steps == 0)
        run->steps = sw_batcher_steps(rows, config->train.epochs, config->train.global_batch);
    if (run->steps <= 0)
        return SW_FAIL(err, SW_E_USAGE, "train.epochs: %lld epochs of %lld row%s are too many",
                       (long long)config->train.epochs, (long long)rows, sw_text_plural(rows));
    if (run->resumed != NULL && run->state.rows != rows)
        sw_progress_say(&run->session.progress,
                        "note: %s has %lld row%s, the run began with %lld: steps see other rows",
                        config->data.train, (long long)rows, sw_text_plural(rows),
                        (long long)run->state.rows);
    run->state.rows = rows;
    const struct sw_batcher_options options = {.global_batch = config->train.global_batch,
                                               .shuffle = config->data.shuffle,
                                               .seed = (uint64_t)config->data.seed,
                                               .group_by_length = config->data.group_by_length};
    return sw_batcher_open(run->rows, &options, &run->batcher, err);
}

/* Plan before rows are read: what cannot be had or does not fit is said at once. */
static sw_code plan_run(struct sw_run *run, struct sw_err *err)
{
    struct sw_session *session = &run->session;
    struct sw_plan_request request;
    sw_code code =
        sw_session_optimizer(run->config, run->config->train.steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_request(session, SW_FOR_TRAINING, &request, err);
    if (code != SW_OK)
        return code;
    if (run->resumed != NULL) {
        if (run->state.optimizer != session->optim.name ||
            run->state.moments != session->optim.moments)
            return SW_FAIL(
                err, SW_E_USAGE,
                "%s was made with optimizer.name %s and precision.moments %s; go on with "
                "these, or start a new run from its weights",
                run->resumed, sw_optim_name_text(run->state.optimizer),
                sw_dtype_name(run->state.moments));
        /* What results depend on and was left open stays as it was. */
        if (request.micro_batch == 0)
            request.micro_batch = run->state.micro_batch < request.global_batch
                                      ? run->state.micro_batch
                                      : request.global_batch;
        if (request.schedule == SW_SCHEDULE_AUTO && run->state.pipeline == request.pipeline &&
            run->state.data == request.data)
            request.schedule = run->state.schedule;
        if (run->config->precision.compute == SW_CFG_DTYPE_AUTO && run->state.global_batch > 0)
            request.compute = run->state.compute;
    }
    return sw_session_plan(session, &request, err);
}

static sw_code load_engine(struct sw_run *run, struct sw_err *err)
{
    struct sw_session *session = &run->session;
    /* Again: now the number of steps is known. */
    sw_code code = sw_session_optimizer(run->config, run->steps, &session->optim, err);
    if (code == SW_OK)
        code = sw_session_load(session, err);
    if (code == SW_OK && run->resumed != NULL) {
        code = sw_checkpoint_load_states(session->engine, session->model, &session->optim,
                                         run->resumed, err);
        sw_engine_set_updates(session->engine, run->state.updates);
    }
    run->state.micro_batch = session->plan->bounds.rows;
    run->state.global_batch = run->config->train.global_batch;
    run->state.compute = session->plan->request.compute;
    run->state.pipeline = session->plan->stages;
    run->state.data = session->plan->replicas;
    run->state.schedule = session->plan->schedule;
    run->state.optimizer = session->optim.name;
    run->state.moments = session->optim.moments;
    return code;
}

/* Keep config.json and the tokenizer in the run directory: every checkpoint gets them, and the
 * place they came from may go meanwhile (a checkpoint that is rotated out, a model that is moved).
 */
static sw_code keep_source(struct sw_run *run, struct sw_err *err)
{
    run->source = sw_run_dir_file(run->directory, "model");
    if (run->source == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (run->resumed != NULL && sw_file_is_directory(run->source))
        return SW_OK;
    const struct sw_export_options options = {
        .directory = run->source, .source = run->session.model_path, .dtype = SW_F32};
    struct sw_export *export;
    sw_code code = sw_export_begin(&export, &options, NULL, 0, err);
    return code == SW_OK ? sw_export_commit(export, err) : code;
}

/* The configuration as it was understood, for whoever reads the run later. */
static sw_code record_config(struct sw_run *run, struct sw_err *err)
{
    struct sw_text text = {0};
    char *path = sw_run_dir_file(run->directory, "config.yaml");
    sw_config_dump(run->config, &text);
    sw_code code = sw_text_check(&text, "config.yaml", err);
    if (code == SW_OK && path == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (code == SW_OK)
        code = sw_file_write_atomic(path, text.bytes, text.used_bytes, err);
    free(path);
    free(text.bytes);
    return code;
}

/* Lines of steps that will be done again are dropped. */
static sw_code open_metrics(struct sw_run *run, const char *name, struct sw_metrics **out,
                            struct sw_err *err)
{
    char *path = sw_run_dir_file(run->directory, name);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    sw_code code = sw_metrics_open(out, path, run->state.step, err);
    free(path);
    return code;
}

/* A run that is not meant to stop may run without room for a checkpoint, knowingly. */
static void warn_of_stopping(struct sw_run *run)
{
    int64_t there = sw_directory_free_bytes(run->config->output.dir);
    struct sw_text text = {0};
    if (run->space.saves > 0 || there < 0 || there >= run->space.checkpoint_bytes)
        return;
    sw_text_add_size(&text, run->space.checkpoint_bytes);
    sw_text_add(&text, " and output.dir's file system has ");
    sw_text_add_size(&text, there);
    if (!text.failed)
        sw_progress_say(&run->session.progress,
                        "warning: a checkpoint takes %s free: stopping early would lose the run",
                        text.bytes);
    free(text.bytes);
}

static void introduce(struct sw_run *run)
{
    const struct sw_plan *plan = run->session.plan;
    sw_progress_say(
        &run->session.progress,
        "%s: %.1f M parameters, %s on %s; %lld step%s of %lld row%s in micro-batches of "
        "%lld%s%s",
        run->session.model_path, (double)run->session.model->elements / 1e6,
        sw_dtype_name(plan->request.compute), run->session.device->name, (long long)run->steps,
        sw_text_plural(run->steps), (long long)run->config->train.global_batch,
        sw_text_plural(run->config->train.global_batch), (long long)plan->bounds.rows,
        plan->recompute ? ", recomputing" : "", run->resumed != NULL ? "; resumed" : "");
    if (plan->ranks > 1)
        sw_progress_say(&run->session.progress, "  %d stage%s x %d replica%s, %s, ZeRO %d",
                        (int)plan->stages, sw_text_plural(plan->stages), (int)plan->replicas,
                        sw_text_plural(plan->replicas), sw_schedule_name(plan->schedule),
                        plan->request.zero);
    if (run->resumed != NULL)
        sw_progress_say(&run->session.progress, "  from %s, step %lld", run->resumed,
                        (long long)run->state.step);
    sw_progress_say(&run->session.progress, "  memory of the process %.1f MiB, %.1f as planned",
                    (double)sw_engine_sealed_bytes(run->session.engine) / (1 << 20),
                    (double)sw_plan_process_bytes(plan) / (1 << 20));
}

/* Is there room for what will be written? Asked early, and again when spill files have theirs. */
static sw_code check_space(struct sw_run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    int64_t every = config->output.save_every, checkpoint_bytes;
    const struct sw_session *session = &run->session;
    sw_code code = sw_checkpoint_bytes(session->model, &session->optim, &checkpoint_bytes, err);
    if (code != SW_OK)
        return code;
    enum sw_dtype dtype = sw_session_output_dtype(config);
    run->space = (struct sw_space){
        .checkpoint_bytes = checkpoint_bytes,
        .final_bytes = config->output.final ? session->model->elements * sw_dtype_bytes(dtype) : 0,
        .final_is_fp32 = dtype == SW_F32,
        .keep = config->output.keep_last,
        .stops = config->run.max_time_seconds > 0,
    };
    if (every > 0) /* while the number of steps is not known, many */
        run->space.saves =
            run->steps > 0 ? (run->steps - 1) / every - run->state.step / every + 1 : INT32_MAX;
    for (int64_t step = INT64_MAX; (step = sw_run_dir_before(run->directory, step)) >= 0;)
        run->space.existing++;
    return sw_space_check(&run->space, config->output.dir,
                          sw_directory_free_bytes(config->output.dir), err);
}

/* From here on output.dir is written. */
static sw_code write_and_start(struct sw_run *run, struct sw_err *err)
{
    sw_code code = check_space(run, err);
    if (code == SW_OK && run->options->begin_writing != NULL)
        run->options->begin_writing();
    if (code == SW_OK && sw_run_stop_asked(run))
        code = SW_FAIL(err, SW_E_STOPPED, "stopped before the first step; nothing was written");
    if (code == SW_OK)
        code = sw_run_dir_make(run->directory, err);
    if (code == SW_OK)
        code = sw_run_set_damaged_aside(run, err);
    if (code == SW_OK)
        code = keep_source(run, err);
    if (code == SW_OK)
        code = record_config(run, err);
    if (code == SW_OK)
        code = open_metrics(run, "metrics.jsonl", &run->metrics, err);
    if (code == SW_OK && run->eval_rows != NULL)
        code = open_metrics(run, "eval.jsonl", &run->evaluations, err);
    if (code == SW_OK && run->options->trace != NULL)
        code = sw_engine_trace(run->session.engine, err);
    if (code == SW_OK)
        code = sw_engine_start(run->session.engine, err);
    if (code == SW_OK)
        introduce(run);
    if (code == SW_OK)
        warn_of_stopping(run);
    return code;
}

bool sw_run_stop_asked(const struct sw_run *run)
{
    return run->options->stop_requested != NULL && run->options->stop_requested();
}

sw_code sw_run_begin(struct sw_run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    const struct sw_device_ops *device = run->options->device;
    struct sw_optim_settings optim;
    run->steps = config->train.steps;
    sw_code code = sw_preflight_train(config, run->options->trace, err);
    if (code == SW_OK)
        code = sw_session_check(config, device, err);
    if (code == SW_OK)
        code = sw_session_optimizer(config, config->train.steps, &optim, err);
    if (code == SW_OK && sw_run_dir_open(&run->directory, config->output.dir,
                                         run->options->resume != NULL, err) != SW_OK)
        code = sw_config_locate(config, err);
    if (code == SW_OK)
        code = sw_run_find_checkpoint(run, err);
    if (code == SW_OK && config->train.steps > 0 && run->options->resume != NULL)
        code = sw_run_check_left(run, err);
    if (code == SW_OK && !run->finished && run->resumed != NULL)
        code = sw_run_note_changes(run, err);
    if (code != SW_OK || run->finished)
        return code;
    code = sw_session_open(&run->session, config, device,
                           run->resumed != NULL ? run->resumed : config->model.path,
                           run->resumed != NULL ? "--resume" : "model.path", err);
    run->session.stop_requested = run->options->stop_requested;
    if (code == SW_OK)
        code = plan_run(run, err);
    if (code == SW_OK)
        code = check_space(run, err);
    if (code == SW_OK)
        code = load_rows(run, err);
    if (code == SW_OK && run->options->resume != NULL)
        code = sw_run_check_left(run, err);
    if (code != SW_OK || run->finished)
        return code;
    code = load_engine(run, err);
    return code == SW_OK ? write_and_start(run, err) : code;
}

#include "train/loop.h"

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/export.h"
#include "ckpt/run_dir.h"
#include "data/batcher.h"
#include "exec/executor.h"
#include "train/evaluate.h"
#include "train/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Non-finite steps in a row after which a run stops. */
enum { NONFINITE_LIMIT = 8 };

struct run {
    const struct sw_train_options *options;
    const struct sw_config *config;
    struct sw_run_dir *directory;
    char *resumed; /* checkpoint directory, or NULL */
    char *source;  /* output.dir/model: config.json and tokenizer */
    struct sw_run_state state;
    struct sw_session session;
    struct sw_dataset *rows, *eval_rows;
    struct sw_batcher *batcher;
    struct sw_metrics *metrics;
    int64_t steps, nonfinite_in_a_row;
    double begin_seconds;    /* of the loop */
    int64_t first_step_done; /* steps done before this process */
};

/* ---- beginning ---- */

static sw_code find_resume(struct run *run, struct sw_err *err)
{
    const char *resume = run->options->resume;
    if (resume == NULL)
        return SW_OK;
    if (strcmp(resume, "auto") != 0) {
        run->resumed = sw_strdup(resume);
    } else {
        int64_t newest = sw_run_dir_newest(run->directory);
        if (newest < 0) { /* a fresh start: what a script that always resumes wants */
            fprintf(stderr, "%s has no checkpoint yet: starting at step 1\n",
                    run->config->output.dir);
            return SW_OK;
        }
        run->resumed = sw_run_dir_checkpoint(run->directory, newest);
    }
    if (run->resumed == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    sw_code code = sw_checkpoint_read(run->resumed, &run->state, err);
    if (code == SW_OK && sw_run_dir_newest(run->directory) > run->state.step)
        code = SW_FAIL(err, SW_E_USAGE,
                       "%s is of step %lld, but output.dir %s has a checkpoint of step %lld: two "
                       "histories would mix; remove the newer ones, or choose another output.dir",
                       run->resumed, (long long)run->state.step, run->config->output.dir,
                       (long long)sw_run_dir_newest(run->directory));
    return code;
}

static sw_code load_rows(struct run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    sw_code code = sw_session_dataset(&run->session, config->data.train, &run->rows, err);
    if (code == SW_OK && config->data.eval[0] != '\0')
        code = sw_session_dataset(&run->session, config->data.eval, &run->eval_rows, err);
    if (code != SW_OK)
        return code;
    int64_t rows = sw_dataset_rows(run->rows);
    run->steps = config->train.steps > 0
                     ? config->train.steps
                     : sw_batcher_steps(rows, config->train.epochs, config->train.global_batch);
    if (run->steps <= 0)
        return SW_FAIL(err, SW_E_USAGE, "train.epochs: %lld epochs of %lld rows are too many",
                       (long long)config->train.epochs, (long long)rows);
    if (run->resumed != NULL && run->state.rows != rows)
        sw_progress_say(&run->session.progress,
                        "note: %s has %lld rows, the run began with %lld: steps see other rows",
                        config->data.train, (long long)rows, (long long)run->state.rows);
    run->state.rows = rows;
    const struct sw_batcher_options options = {.global_batch = config->train.global_batch,
                                               .shuffle = config->data.shuffle,
                                               .seed = (uint64_t)config->data.seed,
                                               .group_by_length = config->data.group_by_length};
    return sw_batcher_open(run->rows, &options, &run->batcher, err);
}

static sw_code prepare_engine(struct run *run, struct sw_err *err)
{
    struct sw_session *session = &run->session;
    struct sw_plan_request request;
    sw_code code = sw_session_optimizer(run->config, run->steps, &session->optim, err);
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
        if (request.micro_batch == 0)
            request.micro_batch = run->state.micro_batch;
    }
    code = sw_session_prepare(session, &request, err);
    if (code != SW_OK)
        return code;
    if (run->resumed != NULL) {
        code = sw_checkpoint_load_states(session->engine, session->model, &session->optim,
                                         run->resumed, err);
        sw_engine_set_updates(session->engine, run->state.updates);
    }
    run->state.micro_batch = session->plan->bounds.rows;
    run->state.optimizer = session->optim.name;
    run->state.moments = session->optim.moments;
    return code;
}

/* Keep config.json and the tokenizer in the run directory: every checkpoint gets them, and the
 * place they came from may go meanwhile (a checkpoint that is rotated out, a model that is moved).
 */
static sw_code keep_source(struct run *run, struct sw_err *err)
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
static sw_code write_config(struct run *run, struct sw_err *err)
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

static sw_code open_metrics(struct run *run, struct sw_err *err)
{
    char *path = sw_run_dir_file(run->directory, "metrics.jsonl");
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    sw_code code = sw_metrics_open(&run->metrics, path, run->state.step, err);
    free(path);
    return code;
}

static void introduce(struct run *run)
{
    const struct sw_plan *plan = run->session.plan;
    sw_progress_say(&run->session.progress,
                    "%s: %.1f M parameters, %s on %s; %lld steps of %lld rows in micro-batches of "
                    "%lld%s%s",
                    run->session.model_path, (double)run->session.model->elements / 1e6,
                    sw_dtype_name(plan->request.compute), run->session.device->name,
                    (long long)run->steps, (long long)run->config->train.global_batch,
                    (long long)plan->bounds.rows, plan->recompute ? ", recomputing" : "",
                    run->resumed != NULL ? "; resumed" : "");
    if (run->resumed != NULL)
        sw_progress_say(&run->session.progress, "  from %s, step %lld", run->resumed,
                        (long long)run->state.step);
}

static sw_code begin(struct run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    static const char *const needed[] = {"model.path", "data.train", "output.dir"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (sw_config_require(config, needed[i], err) != SW_OK)
            return err->code;
    /* What clashes is refused before a directory is made. */
    struct sw_optim_settings optim;
    sw_code code = sw_session_optimizer(config, config->train.steps, &optim, err);
    if (code == SW_OK)
        code =
            sw_run_dir_open(&run->directory, config->output.dir, run->options->resume != NULL, err);
    if (code == SW_OK)
        code = find_resume(run, err);
    if (code == SW_OK)
        code = sw_session_open(&run->session, config, run->options->device,
                               run->resumed != NULL ? run->resumed : config->model.path, err);
    if (code == SW_OK)
        code = load_rows(run, err);
    if (code == SW_OK)
        code = prepare_engine(run, err);
    if (code == SW_OK)
        code = keep_source(run, err);
    if (code == SW_OK)
        code = write_config(run, err);
    if (code == SW_OK)
        code = open_metrics(run, err);
    if (code == SW_OK && run->options->trace != NULL)
        code = sw_engine_trace(run->session.engine, err);
    if (code == SW_OK)
        code = sw_engine_start(run->session.engine, err);
    if (code == SW_OK)
        introduce(run);
    return code;
}

/* ---- on the way ---- */

static void show_step(struct run *run, const struct sw_step_result *result, double lr,
                      double tokens_per_second)
{
    int64_t step = run->state.step, done = step - run->first_step_done;
    double elapsed = sw_seconds_now() - run->begin_seconds;
    char left[SW_DURATION_BYTES];
    bool due = step == 1 || step == run->steps || step % run->config->output.log_every == 0;
    sw_progress_line(&run->session.progress, due,
                     "step %lld/%lld  loss %.4f  norm %.3g  lr %.3g  %.0f tokens/s  %s left",
                     (long long)step, (long long)run->steps, result->loss, result->grad_norm, lr,
                     tokens_per_second,
                     sw_duration_text(elapsed / (double)done * (double)(run->steps - step), left));
}

/* Count a step that changed nothing; refuse to go on after too many. */
static sw_code check_finite(struct run *run, const struct sw_step_result *result,
                            struct sw_err *err)
{
    if (result->finite) {
        run->nonfinite_in_a_row = 0;
        return SW_OK;
    }
    const char *block = result->nonfinite_block >= 0
                            ? run->session.model->blocks[result->nonfinite_block].name
                            : "a gradient";
    run->state.nonfinite_steps++;
    run->nonfinite_in_a_row++;
    sw_progress_say(&run->session.progress,
                    "step %lld: loss or gradient is not finite (first in %s); the step changed "
                    "nothing",
                    (long long)run->state.step, block);
    if (run->nonfinite_in_a_row < NONFINITE_LIMIT)
        return SW_OK;
    return SW_FAIL(
        err, SW_E_NONFINITE,
        "step %lld is the %dth in a row that is not finite, first in %s; most likely the "
        "weights have diverged: go back to a checkpoint, lower optimizer.lr, or check "
        "model.path for broken weights",
        (long long)run->state.step, NONFINITE_LIMIT, block);
}

static sw_code run_step(struct run *run, struct sw_err *err)
{
    int64_t step = run->state.step + 1;
    const struct sw_batch batch = sw_batcher_step(run->batcher, step - 1);
    double lr = sw_optim_lr(&run->session.optim, step);
    struct sw_step_result result;
    sw_code code = sw_engine_step(run->session.engine, step, lr, &batch, &result, err);
    if (code != SW_OK)
        return code;
    int64_t tokens = 0;
    for (int64_t i = 0; i < batch.count; i++)
        tokens += batch.rows[i].source_length + batch.rows[i].target_length;
    double tokens_per_second = (double)tokens / result.seconds;
    run->state.step = step;
    code = sw_metrics_step(run->metrics, step, lr, batch.target_tokens, tokens_per_second, &result,
                           err);
    if (code == SW_OK)
        show_step(run, &result, lr, tokens_per_second);
    if (code == SW_OK)
        code = check_finite(run, &result, err);
    return code;
}

static sw_code save(struct run *run, struct sw_err *err)
{
    struct sw_session *session = &run->session;
    char *path = sw_run_dir_checkpoint(run->directory, run->state.step);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    struct sw_transfer transfer = sw_session_transfer(session, "saving");
    sw_memory_unseal();
    sw_code code = sw_engine_drain(session->engine, err);
    run->state.updates = sw_engine_updates(session->engine);
    if (code == SW_OK)
        code = sw_checkpoint_save(session->engine, session->model, &session->optim, run->source,
                                  path, &run->state, &transfer, err);
    if (code == SW_OK)
        code = sw_run_dir_prune(run->directory, run->config->output.keep_last, err);
    sw_memory_seal();
    if (code == SW_OK)
        sw_progress_say(&session->progress, "saved %s", path);
    free(path);
    return code;
}

static sw_code evaluate(struct run *run, struct sw_err *err)
{
    double loss;
    int64_t tokens;
    sw_memory_unseal();
    sw_code code = sw_session_evaluate(&run->session, run->eval_rows, &loss, &tokens, err);
    sw_memory_seal();
    if (code == SW_OK)
        sw_progress_say(&run->session.progress, "step %lld: loss %.4f on %s (%lld tokens)",
                        (long long)run->state.step, loss, run->config->data.eval,
                        (long long)tokens);
    return code;
}

static bool every(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

static sw_code stop_early(struct run *run, const char *why, struct sw_err *err)
{
    char *newest = NULL;
    sw_code code = SW_OK;
    if (sw_run_dir_newest(run->directory) != run->state.step)
        code = save(run, err);
    if (code != SW_OK)
        return code;
    newest = sw_run_dir_checkpoint(run->directory, run->state.step);
    code = SW_FAIL(err, SW_E_STOPPED,
                   "stopped after step %lld of %lld (%s); %s has everything, "
                   "--resume auto goes on",
                   (long long)run->state.step, (long long)run->steps, why,
                   newest != NULL ? newest : "the checkpoint");
    free(newest);
    return code;
}

static sw_code loop(struct run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    run->begin_seconds = sw_seconds_now();
    run->first_step_done = run->state.step;
    while (run->state.step < run->steps) {
        sw_code code = run_step(run, err);
        bool last = run->state.step == run->steps;
        if (code == SW_OK && !last && every(config->output.save_every, run->state.step))
            code = save(run, err);
        if (code == SW_OK && !last && every(config->output.eval_every, run->state.step))
            code = evaluate(run, err);
        if (code != SW_OK)
            return code;
        if (!last && run->options->stop_requested != NULL && run->options->stop_requested())
            return stop_early(run, "asked to", err);
        if (!last && config->run.max_time_seconds > 0 &&
            sw_seconds_now() - run->begin_seconds >= config->run.max_time_seconds)
            return stop_early(run, "run.max_time is over", err);
    }
    return SW_OK;
}

/* ---- end ---- */

static sw_code finish(struct run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    struct sw_session *session = &run->session;
    sw_code code = sw_engine_drain(session->engine, err);
    if (code == SW_OK && run->eval_rows != NULL)
        code = evaluate(run, err);
    if (code == SW_OK && config->output.save_every > 0)
        code = save(run, err);
    if (code != SW_OK || !config->output.final)
        return code;
    char *path = sw_run_dir_file(run->directory, "final");
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    enum sw_dtype dtype = config->output.dtype == SW_CFG_BF16   ? SW_BF16
                          : config->output.dtype == SW_CFG_FP16 ? SW_F16
                                                                : SW_F32;
    struct sw_transfer transfer = sw_session_transfer(session, "writing the model");
    sw_memory_unseal();
    code = sw_weights_export(session->engine, session->model, run->source, path, dtype, NULL, NULL,
                             &transfer, err);
    if (code == SW_OK) {
        char took[SW_DURATION_BYTES];
        sw_progress_say(&session->progress, "done in %s; the model is in %s",
                        sw_duration_text(sw_seconds_now() - run->begin_seconds, took), path);
    }
    free(path);
    return code;
}

sw_code sw_train(const struct sw_train_options *options, struct sw_err *err)
{
    struct run run = {.options = options, .config = options->config};
    sw_code code = begin(&run, err);
    if (code == SW_OK)
        code = loop(&run, err);
    if (code == SW_OK)
        code = finish(&run, err);
    if (run.session.engine != NULL && options->trace != NULL &&
        (code == SW_OK || code == SW_E_STOPPED)) {
        sw_code traced = sw_engine_write_trace(run.session.engine, options->trace, err);
        code = code == SW_OK ? traced : code;
    }
    sw_metrics_close(run.metrics);
    sw_batcher_close(run.batcher);
    sw_dataset_free(run.eval_rows);
    sw_dataset_free(run.rows);
    sw_session_close(&run.session);
    sw_run_dir_close(run.directory);
    free(run.resumed);
    free(run.source);
    return code;
}

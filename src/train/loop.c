#include "train/run.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/timing.h"
#include "train/evaluate.h"

#include <stdlib.h>

/* Non-finite steps in a row after which a run stops. */
enum { NONFINITE_LIMIT = 8 };

static void show_step(struct sw_run *run, const struct sw_step_result *result, double lr,
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
static sw_code check_finite(struct sw_run *run, const struct sw_step_result *result,
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

static sw_code run_step(struct sw_run *run, struct sw_err *err)
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

static sw_code save(struct sw_run *run, struct sw_err *err)
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

/* Unless this step was evaluated before the run was resumed. SW_E_STOPPED, with nothing in `err`,
 * when a stop was asked for meanwhile: a resumed run does it. */
static sw_code evaluate(struct sw_run *run, struct sw_err *err)
{
    double loss, begin = sw_seconds_now();
    int64_t tokens, step = run->state.step;
    if (sw_metrics_at(run->evaluations) >= step)
        return SW_OK;
    sw_memory_unseal();
    sw_code code = sw_session_evaluate(&run->session, run->eval_rows, &loss, &tokens, err);
    sw_memory_seal();
    if (code == SW_E_STOPPED)
        sw_err_init(err);
    if (code == SW_OK)
        code = sw_metrics_evaluation(run->evaluations, step, loss, tokens, sw_seconds_now() - begin,
                                     err);
    if (code == SW_OK)
        sw_progress_say(&run->session.progress, "step %lld: loss %.4f on %s (%lld token%s)",
                        (long long)step, loss, run->config->data.eval, (long long)tokens,
                        sw_text_plural(tokens));
    return code;
}

static bool every(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

/* What the ranks' devices held at most, beside what was planned. */
static void show_devices(struct sw_run *run)
{
    const struct sw_plan *plan = run->session.plan;
    const double mib = 1 << 20;
    for (int32_t rank = 0; plan->ranks > 1 && rank < plan->ranks; rank++)
        sw_progress_say(&run->session.progress,
                        "rank %d: %.2f MiB of device memory at most, %.2f as planned", (int)rank,
                        (double)sw_engine_device_bytes(run->session.engine, rank) / mib,
                        (double)plan->stage[rank % plan->stages].device_bytes / mib);
}

/* What this process took: memory, which was all allocated before the first step, and the drives'
 * wear. */
static void show_use(struct sw_run *run)
{
    const double mib = 1 << 20;
    struct sw_engine *engine = run->session.engine;
    int64_t sealed = sw_engine_sealed_bytes(engine), now = sw_memory_process_bytes();
    struct sw_spill_counters io;
    sw_engine_io(engine, &io);
    if (sealed >= 0 && now >= 0)
        sw_progress_say(&run->session.progress,
                        "memory of the process %.1f MiB, %+.1f since the first step began",
                        (double)now / mib, (double)(now - sealed) / mib);
    if (io.prepared_bytes > 0)
        sw_progress_say(&run->session.progress,
                        "drives: %.1f MiB read, %.1f MiB written, and %.1f to prepare spill files",
                        (double)io.read_bytes / mib, (double)io.written_bytes / mib,
                        (double)io.prepared_bytes / mib);
    show_devices(run);
}

static sw_code stop_early(struct sw_run *run, const char *why, struct sw_err *err)
{
    char *newest = NULL;
    sw_code code = SW_OK;
    if (sw_run_dir_newest(run->directory) != run->state.step)
        code = save(run, err);
    if (code != SW_OK)
        return code;
    show_use(run);
    newest = sw_run_dir_checkpoint(run->directory, run->state.step);
    code = SW_FAIL(err, SW_E_STOPPED,
                   "stopped after step %lld of %lld (%s); %s has everything, "
                   "--resume auto goes on",
                   (long long)run->state.step, (long long)run->steps, why,
                   newest != NULL ? newest : "the checkpoint");
    free(newest);
    return code;
}

static sw_code loop(struct sw_run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    run->begin_seconds = sw_seconds_now();
    run->first_step_done = run->state.step;
    /* What was cut off behind the checkpoint that the run goes on from. */
    if (run->state.step > 0 && run->state.step < run->steps &&
        every(config->output.eval_every, run->state.step)) {
        sw_code code = evaluate(run, err);
        if (code != SW_OK)
            return code == SW_E_STOPPED ? stop_early(run, "asked to", err) : code;
    }
    while (run->state.step < run->steps) {
        sw_code code = run_step(run, err);
        bool last = run->state.step == run->steps;
        if (code == SW_OK && !last && every(config->output.save_every, run->state.step))
            code = save(run, err);
        if (code == SW_OK && !last && every(config->output.eval_every, run->state.step))
            code = evaluate(run, err);
        if (code == SW_E_STOPPED || (code == SW_OK && !last && sw_run_stop_asked(run)))
            return stop_early(run, "asked to", err);
        if (code != SW_OK)
            return code;
        if (!last && config->run.max_time_seconds > 0 &&
            sw_seconds_now() - run->begin_seconds >= config->run.max_time_seconds)
            return stop_early(run, "run.max_time is over", err);
    }
    return SW_OK;
}

static sw_code finish(struct sw_run *run, struct sw_err *err)
{
    const struct sw_config *config = run->config;
    struct sw_session *session = &run->session;
    sw_code code = sw_engine_drain(session->engine, err);
    show_use(run);
    if (code == SW_OK && run->eval_rows != NULL)
        code = evaluate(run, err);
    if (code == SW_E_STOPPED)
        return stop_early(run, "asked to", err);
    if (code == SW_OK && config->output.save_every > 0)
        code = save(run, err);
    if (code != SW_OK || !config->output.final)
        return code;
    char *path = sw_run_dir_file(run->directory, "final");
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    enum sw_dtype dtype = sw_session_output_dtype(config);
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
    struct sw_run run = {.options = options, .config = options->config};
    sw_code code = sw_run_begin(&run, err);
    if (code == SW_OK && !run.finished)
        code = loop(&run, err);
    if (code == SW_OK && !run.finished)
        code = finish(&run, err);
    if (run.metrics != NULL && options->trace != NULL && /* it has begun */
        (code == SW_OK || code == SW_E_STOPPED)) {
        sw_code traced = sw_engine_write_trace(run.session.engine, options->trace, err);
        code = code == SW_OK ? traced : code;
    }
    sw_metrics_close(run.evaluations);
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

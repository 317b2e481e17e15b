/* Going on with a run: from which checkpoint, whether there is anything left to do, and what is set
 * otherwise than before. */
#include "train/run.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Is there a final model, and not one from before the checkpoint, of a run that was to be shorter?
 * Writing one again that is current does no harm. */
static bool has_final(const struct sw_run *run)
{
    struct stat final, checkpoint;
    char *path = sw_run_dir_file(run->directory, "final");
    bool exists = path != NULL && stat(path, &final) == 0 && S_ISDIR(final.st_mode);
    free(path);
    if (!exists || run->resumed == NULL || stat(run->resumed, &checkpoint) != 0)
        return exists;
    return final.st_mtim.tv_sec != checkpoint.st_mtim.tv_sec
               ? final.st_mtim.tv_sec > checkpoint.st_mtim.tv_sec
               : final.st_mtim.tv_nsec >= checkpoint.st_mtim.tv_nsec;
}

/* No checkpoint, with --resume auto: a run that came to its end, or one that never saved. */
static sw_code find_no_checkpoint(struct sw_run *run, struct sw_err *err)
{
    char *metrics = sw_run_dir_file(run->directory, "metrics.jsonl");
    int64_t last = 0;
    sw_code code = metrics != NULL ? sw_metrics_last_step(metrics, &last, err)
                                   : SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    free(metrics);
    bool ended = has_final(run) || (!run->config->output.final && last > 0);
    if (code == SW_OK && ended)
        run->ended_after = last;
    else if (code == SW_OK) /* a fresh start: what a script that always resumes wants */
        fprintf(stderr, "%s has no checkpoint yet: starting at step 1\n", run->config->output.dir);
    return code;
}

/* The newest checkpoint before `step` that is whole; NULL: there is none. Owned. */
static char *find_whole(const struct sw_run *run, int64_t step)
{
    while ((step = sw_run_dir_before(run->directory, step)) >= 0) {
        char *path = sw_run_dir_checkpoint(run->directory, step);
        if (path != NULL && sw_checkpoint_check(path, NULL) == SW_OK)
            return path;
        free(path);
    }
    return NULL;
}

/* run->resumed is the newest checkpoint, for --resume auto: which one instead is a person's choice,
 * since steps are done again. */
static sw_code check_newest(struct sw_run *run, int64_t step, struct sw_err *err)
{
    struct sw_err damage;
    sw_err_init(&damage);
    sw_code code = sw_checkpoint_check(run->resumed, &damage);
    if (code == SW_OK)
        return SW_OK;
    if (code == SW_E_MEMORY)
        return SW_FAIL(err, code, "%s", damage.text);
    char *whole = find_whole(run, step);
    code = whole != NULL
               ? SW_FAIL(err, SW_E_FORMAT,
                         "%s is damaged: %s; --resume %s goes on from the newest checkpoint that "
                         "is whole",
                         run->resumed, damage.text, whole)
               : SW_FAIL(err, SW_E_FORMAT,
                         "%s is damaged: %s; %s has no other checkpoint: train again in another "
                         "output.dir",
                         run->resumed, damage.text, run->config->output.dir);
    free(whole);
    return code;
}

/* Checkpoints of later steps: whole ones are another history, damaged ones go aside later. */
static sw_code check_later(const struct sw_run *run, struct sw_err *err)
{
    char *later = NULL;
    int64_t newest = sw_run_dir_newest(run->directory);
    if (newest > run->state.step)
        later = find_whole(run, INT64_MAX);
    struct sw_run_state state = {0};
    sw_code code = SW_OK;
    if (later != NULL && sw_checkpoint_read(later, &state, NULL) == SW_OK &&
        state.step > run->state.step)
        code = SW_FAIL(err, SW_E_USAGE,
                       "%s is of step %lld, but output.dir has %s: two histories would mix; remove "
                       "the newer ones, or choose another output.dir",
                       run->resumed, (long long)run->state.step, later);
    free(later);
    return code;
}

sw_code sw_run_set_damaged_aside(const struct sw_run *run, struct sw_err *err)
{
    sw_code code = SW_OK;
    int64_t newest;
    while (run->resumed != NULL && code == SW_OK &&
           (newest = sw_run_dir_newest(run->directory)) > run->state.step) {
        char *path = NULL;
        code = sw_run_dir_set_aside(run->directory, newest, &path, err);
        if (code == SW_OK)
            fprintf(stderr, "note: the damaged checkpoint of step %lld is %s now\n",
                    (long long)newest, path);
        free(path);
    }
    return code;
}

sw_code sw_run_find_checkpoint(struct sw_run *run, struct sw_err *err)
{
    const char *resume = run->options->resume;
    int64_t newest = -1;
    sw_code code = SW_OK;
    if (resume == NULL)
        return SW_OK;
    if (strcmp(resume, "auto") != 0) {
        run->resumed = sw_strdup(resume);
    } else {
        newest = sw_run_dir_newest(run->directory);
        if (newest < 0)
            return find_no_checkpoint(run, err);
        run->resumed = sw_run_dir_checkpoint(run->directory, newest);
    }
    if (run->resumed == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    code = newest >= 0 ? check_newest(run, newest, err) : sw_checkpoint_check(run->resumed, err);
    if (code == SW_OK)
        code = sw_checkpoint_read(run->resumed, &run->state, err);
    if (code == SW_E_USAGE && newest < 0)
        return sw_err_blame(err, "--resume");
    return code == SW_OK ? check_later(run, err) : code;
}

sw_code sw_run_check_left(struct sw_run *run, struct sw_err *err)
{
    const char *output = run->config->output.dir;
    long long steps = (long long)run->steps, done = (long long)run->state.step;
    if (run->resumed == NULL)
        done = (long long)run->ended_after;
    if (done > steps)
        return SW_FAIL(err, SW_E_USAGE,
                       "%s asks for %lld step%s, of which the run in %s has done %lld already; ask "
                       "for more, or choose another output.dir",
                       run->config->train.steps > 0 ? "train.steps" : "train.epochs", steps,
                       sw_text_plural(steps), output, done);
    if (run->resumed == NULL && done > 0 && done < steps)
        return SW_FAIL(
            err, SW_E_USAGE,
            "the run in %s ended after step %lld and kept no checkpoint (output.save_every "
            "0): it cannot go on to step %lld; train %s/final on (model.path) in another "
            "output.dir",
            output, done, steps, output);
    run->finished = done == steps && (has_final(run) || !run->config->output.final);
    if (run->finished)
        fprintf(stderr, "the run in %s is finished: %s%lld step%s done%s%s%s; nothing to do\n",
                output, steps == 1 ? "its " : "all ", steps, steps == 1 ? " is" : "s are",
                has_final(run) ? ", the model is in " : "", has_final(run) ? output : "",
                has_final(run) ? "/final" : "");
    return SW_OK;
}

/* ---- what is set otherwise ---- */

/* Of keys that change no result nobody needs to be told. */
static bool is_noted(const char *key)
{
    static const char *const quiet[] = {"output.", "run.", "io."};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++)
        if (strncmp(key, quiet[i], strlen(quiet[i])) == 0)
            return false;
    return true;
}

static sw_code note_key(const struct sw_config *before, const struct sw_config *now, int index,
                        struct sw_err *err)
{
    struct sw_text old = {0}, new = {0};
    sw_config_print(before, index, &old);
    sw_config_print(now, index, &new);
    sw_code code = sw_text_check(&old, "a setting", err);
    if (code == SW_OK)
        code = sw_text_check(&new, "a setting", err);
    if (code == SW_OK && strcmp(old.bytes, new.bytes) != 0)
        fprintf(stderr, "note: %s is %s now, the run had %s\n", sw_config_key(index), new.bytes,
                old.bytes);
    free(old.bytes);
    free(new.bytes);
    return code;
}

/* config.yaml beside the checkpoint; NULL without memory. */
static char *recorded_path(const struct sw_run *run)
{
    char *checkpoint = sw_path_resolve(run->resumed);
    char *parent = checkpoint != NULL ? sw_path_parent(checkpoint) : NULL;
    char *path = parent != NULL ? sw_path_join(parent, "config.yaml") : NULL;
    free(checkpoint);
    free(parent);
    return path;
}

sw_code sw_run_note_changes(const struct sw_run *run, struct sw_err *err)
{
    struct sw_config before;
    struct sw_err unread;
    sw_err_init(&unread);
    char *path = recorded_path(run);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    sw_code code = sw_config_init(&before, err);
    if (code == SW_OK) {
        if (sw_config_read(&before, path, &unread) != SW_OK ||
            sw_config_settle(&before, &unread) != SW_OK)
            fprintf(stderr, "note: what is set otherwise than before cannot be told: %s\n",
                    unread.text);
        else
            for (int i = 0; i < sw_config_count() && code == SW_OK; i++)
                if (is_noted(sw_config_key(i)))
                    code = note_key(&before, run->config, i, err);
        sw_config_deinit(&before);
    }
    free(path);
    return code;
}

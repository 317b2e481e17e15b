#include "ckpt/run_dir.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char CHECKPOINT_PREFIX[] = "checkpoint-";

struct sw_run_dir {
    char *path;
    int lock; /* descriptor of the locked directory; -1: it is not there yet */
};

/* The step of a checkpoint's directory name, or -1 for any other name. */
static int64_t checkpoint_step(const char *name)
{
    size_t prefix = sizeof CHECKPOINT_PREFIX - 1;
    if (strncmp(name, CHECKPOINT_PREFIX, prefix) != 0 || name[prefix] < '0' || name[prefix] > '9')
        return -1;
    char *end;
    errno = 0;
    long long step = strtoll(name + prefix, &end, 10);
    return *end == '\0' && errno == 0 ? step : -1;
}

char *sw_run_dir_file(const struct sw_run_dir *run, const char *name)
{
    return sw_path_join(run->path, name);
}

char *sw_run_dir_checkpoint(const struct sw_run_dir *run, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, "%s%" PRId64, CHECKPOINT_PREFIX, step);
    return sw_path_join(run->path, name);
}

/* Newest first. */
static int order_of_steps(const void *a, const void *b)
{
    int64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Steps of all checkpoints, newest first; *out is owned by the caller. A checkpoint gets its name
 * by a rename once it is whole, so what bears the name is whole. */
static sw_code list_checkpoints(const struct sw_run_dir *run, int64_t **out, int64_t *out_count,
                                struct sw_err *err)
{
    DIR *directory = opendir(run->path);
    if (directory == NULL)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot list %s", run->path);
    sw_code code = SW_OK;
    int64_t *steps = NULL, count = 0, room = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        int64_t step = checkpoint_step(entry->d_name);
        if (step < 0)
            continue;
        if (count == room) {
            room = room * 2 + 16;
            int64_t *larger = realloc(steps, (size_t)room * sizeof *steps);
            if (larger == NULL) {
                code = SW_FAIL(err, SW_E_MEMORY, "no memory to list %s", run->path);
                goto out;
            }
            steps = larger;
        }
        steps[count++] = step;
    }
    if (count > 0)
        qsort(steps, (size_t)count, sizeof *steps, order_of_steps);
out:
    closedir(directory);
    if (code != SW_OK) {
        free(steps);
        return code;
    }
    *out = steps;
    *out_count = count;
    return SW_OK;
}

int64_t sw_run_dir_before(const struct sw_run_dir *run, int64_t step)
{
    int64_t *steps = NULL, count = 0;
    if (list_checkpoints(run, &steps, &count, NULL) != SW_OK)
        return -1;
    int64_t found = -1;
    for (int64_t i = 0; i < count && found < 0; i++)
        if (steps[i] < step)
            found = steps[i];
    free(steps);
    return found;
}

int64_t sw_run_dir_newest(const struct sw_run_dir *run)
{
    return sw_run_dir_before(run, INT64_MAX);
}

sw_code sw_run_dir_set_aside(const struct sw_run_dir *run, int64_t step, char **out,
                             struct sw_err *err)
{
    enum { TRIES = 100 };
    sw_code code = SW_OK;
    char *from = sw_run_dir_checkpoint(run, step), *to = NULL;
    for (int i = 0; i < TRIES; i++) { /* the first name that is free; "%.0d" of 0 is empty */
        char name[96];
        snprintf(name, sizeof name, "%s%" PRId64 ".damaged%s%.0d", CHECKPOINT_PREFIX, step,
                 i > 0 ? "-" : "", i);
        free(to);
        to = sw_run_dir_file(run, name);
        if (to == NULL || !sw_file_exists(to))
            break;
    }
    if (from == NULL || to == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    else if (rename(from, to) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot rename %s to %s", from, to);
    free(from);
    if (code == SW_OK)
        *out = to;
    else
        free(to);
    return code;
}

sw_code sw_run_dir_prune(const struct sw_run_dir *run, int64_t keep, struct sw_err *err)
{
    if (keep == 0)
        return SW_OK;
    int64_t *steps = NULL, count = 0;
    sw_code code = list_checkpoints(run, &steps, &count, err);
    for (int64_t i = keep; code == SW_OK && i < count; i++) {
        char *path = sw_run_dir_checkpoint(run, steps[i]);
        code = path != NULL ? sw_directory_remove(path, err)
                            : SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
        free(path);
    }
    free(steps);
    return code != SW_OK ? sw_err_while(err, "removing old checkpoints of %s", run->path) : SW_OK;
}

/* Does the directory hold a run? */
static bool holds_run(const struct sw_run_dir *run)
{
    static const char *const names[] = {"metrics.jsonl", "final"};
    bool found = sw_run_dir_newest(run) >= 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        char *path = sw_run_dir_file(run, names[i]);
        found = path != NULL && sw_file_exists(path);
        free(path);
    }
    return found;
}

static sw_code lock_directory(struct sw_run_dir *run, struct sw_err *err)
{
    run->lock = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->lock < 0)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot open output.dir %s", run->path);
    if (flock(run->lock, LOCK_EX | LOCK_NB) == 0)
        return SW_OK;
    if (errno == EWOULDBLOCK)
        return SW_FAIL(err, SW_E_FAILED,
                       "another process is training in output.dir %s; wait for it, stop it, or "
                       "choose another output.dir",
                       run->path);
    return errno == ENOTSUP || errno == ENOLCK
               ? SW_OK /* some network file systems: go without */
               : SW_FAIL_OS(err, SW_E_IO, errno, "cannot lock output.dir %s", run->path);
}

sw_code sw_run_dir_open(struct sw_run_dir **out, const char *path, bool resuming,
                        struct sw_err *err)
{
    struct sw_run_dir *run = sw_calloc(1, sizeof *run);
    sw_code code = SW_OK;
    if (run == NULL || (run->path = strdup(path)) == NULL) {
        free(run);
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the run directory");
    }
    run->lock = -1;
    if (sw_directory_check(path, err) != SW_OK)
        code = sw_err_blame(err, "output.dir");
    if (code == SW_OK && sw_file_exists(path))
        code = lock_directory(run, err);
    if (code == SW_OK && !resuming && holds_run(run))
        code = SW_FAIL(err, SW_E_USAGE,
                       "output.dir %s holds a run already; go on with it by --resume auto, or "
                       "choose another output.dir",
                       path);
    if (code != SW_OK) {
        sw_run_dir_close(run);
        return code;
    }
    *out = run;
    return SW_OK;
}

sw_code sw_run_dir_make(struct sw_run_dir *run, struct sw_err *err)
{
    if (run->lock >= 0)
        return SW_OK;
    sw_code code = sw_directory_make(run->path, err);
    return code == SW_OK ? lock_directory(run, err) : sw_err_while(err, "making output.dir");
}

void sw_run_dir_close(struct sw_run_dir *run)
{
    if (run == NULL)
        return;
    if (run->lock >= 0)
        close(run->lock);
    free(run->path);
    free(run);
}

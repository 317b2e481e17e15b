#include "train/preflight.h"

#include "base/file.h"
#include "data/foreign.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that is no rows at all, by how it begins; a pipe is not touched. */
static sw_code check_kind(const char *path, struct sw_err *err)
{
    char start[64];
    int descriptor;
    int64_t bytes;
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return SW_OK;
    sw_code code = sw_file_open(path, &descriptor, &bytes, err);
    if (code != SW_OK)
        return code;
    bytes = bytes < (int64_t)sizeof start ? bytes : (int64_t)sizeof start;
    code = sw_file_pread(descriptor, start, bytes, 0, path, err);
    close(descriptor);
    const char *what = code == SW_OK ? sw_foreign_file(start, bytes) : NULL;
    return what != NULL ? SW_FAIL(err, SW_E_FORMAT, "%s is %s", path, what) : code;
}

sw_code sw_preflight_input(const char *setting, const char *path, struct sw_err *err)
{
    if (access(path, R_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return SW_FAIL(err, SW_E_USAGE, "%s: there is no file %s", setting, path);
    if (sw_file_is_directory(path))
        return SW_FAIL(err, SW_E_USAGE, "%s: %s is a directory, not a file of rows", setting, path);
    if (access(path, R_OK) != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno, "%s: cannot read %s", setting, path);
    return check_kind(path, err) == SW_OK ? SW_OK : sw_err_blame(err, setting);
}

sw_code sw_preflight_output(const char *setting, const char *path, struct sw_err *err)
{
    struct stat status;
    char *folder = sw_path_parent(path);
    sw_code code = SW_OK;
    if (folder == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    else if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        code = SW_FAIL(err, SW_E_USAGE, "%s: %s is %s, not a file", setting, path,
                       S_ISDIR(status.st_mode) ? "a directory" : "a device or a pipe");
    else if (!sw_file_is_directory(folder))
        code =
            SW_FAIL(err, SW_E_USAGE, "%s: there is no folder %s to write it to", setting, folder);
    else if (sw_directory_check(folder, err) != SW_OK)
        code = sw_err_blame(err, setting);
    free(folder);
    return code;
}

sw_code sw_preflight_rows(const struct sw_config *config, const char *key, const char *path,
                          struct sw_err *err)
{
    sw_code code = sw_config_require(config, key, err);
    struct stat status;
    if (code == SW_OK)
        code = sw_preflight_input(key, path, err);
    if (code == SW_OK && stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0)
        code = SW_FAIL(err, SW_E_USAGE, "%s: %s is empty: it holds no rows", key, path);
    return code == SW_OK ? SW_OK : sw_config_locate(config, err);
}

/* A trace may go into output.dir, which is not there yet. */
static sw_code check_trace(const struct sw_config *config, const char *trace, struct sw_err *err)
{
    char *path = sw_path_resolve(trace), *output = sw_path_resolve(config->output.dir);
    char *folder = path != NULL ? sw_path_parent(path) : NULL;
    bool inside =
        folder != NULL && output != NULL && strcmp(folder, output) == 0 && !sw_file_exists(output);
    free(folder);
    free(output);
    free(path);
    return inside ? SW_OK : sw_preflight_output("--trace", trace, err);
}

/* The run directory is written, the model's is only read: one must not be in the other. */
static sw_code check_output(const struct sw_config *config, struct sw_err *err)
{
    sw_code code = SW_OK;
    char *model = sw_path_resolve(config->model.path),
         *output = sw_path_resolve(config->output.dir);
    if (model != NULL && output != NULL && sw_path_is_within(output, model)) {
        (void)SW_FAIL(err, SW_E_USAGE,
                      "output.dir: %s is %s the model directory %s (model.path); choose another",
                      config->output.dir, strcmp(output, model) == 0 ? "" : "inside",
                      config->model.path);
        code = sw_config_locate(config, err);
    }
    free(model);
    free(output);
    return code;
}

sw_code sw_preflight_train(const struct sw_config *config, const char *trace, struct sw_err *err)
{
    static const char *const needed[] = {"model.path", "data.train", "output.dir"};
    sw_code code = SW_OK;
    for (size_t i = 0; i < sizeof needed / sizeof *needed && code == SW_OK; i++)
        code = sw_config_require(config, needed[i], err);
    if (code == SW_OK)
        code = sw_preflight_rows(config, "data.train", config->data.train, err);
    if (code == SW_OK && config->data.eval[0] != '\0')
        code = sw_preflight_rows(config, "data.eval", config->data.eval, err);
    if (code == SW_OK)
        code = check_output(config, err);
    if (code == SW_OK && trace != NULL)
        code = check_trace(config, trace, err);
    return code;
}

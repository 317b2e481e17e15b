#include "cli/back_end.h"

#include "base/file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char MODULE[] = "spillway-cuda.so";

/* NULL when there is none, or when it cannot be loaded: its libraries may be missing. */
static void *open_module(const char *path, const char **why)
{
    if (path == NULL || !sw_file_exists(path))
        return NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL)
        *why = dlerror();
    return module;
}

/* Beside the binary (a build directory), else where it was installed. NULL with the reason. */
static void *load_module(const char **why)
{
    char self[4096];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    void *module = NULL;
    *why = "this build has no CUDA back end";
    if (bytes > 0) {
        self[bytes] = '\0';
        char *parent = sw_path_parent(self);
        char *path = parent != NULL ? sw_path_join(parent, MODULE) : NULL;
        module = open_module(path, why);
        free(path);
        free(parent);
    }
    if (module == NULL) {
        char *path = sw_path_join(SW_MODULE_DIRECTORY, MODULE);
        module = open_module(path, why);
        free(path);
    }
    return module; /* stays loaded: the process needs it to its end */
}

sw_code sw_back_end_cuda(const struct sw_device_ops **out, const char **why, struct sw_err *err)
{
    *out = NULL;
    void *module = load_module(why);
    if (module == NULL)
        return SW_OK;
    const struct sw_device_ops *(*get)(void);
    void *symbol = dlsym(module, "sw_cuda_device_ops_get");
    if (symbol == NULL)
        return SW_FAIL(err, SW_E_DEVICE, "%s is no CUDA back end: %s", MODULE, dlerror());
    *(void **)(void *)&get = symbol;
    int count = 0;
    sw_code code = get()->count(&count, err);
    if (code != SW_OK)
        return code;
    if (count > 0)
        *out = get();
    else
        *why = get()->why_none();
    return SW_OK;
}

sw_code sw_back_end_choose(const struct sw_config *config, const struct sw_device_ops **out,
                           struct sw_err *err)
{
    const char *why = "";
    *out = &sw_cpu_device_ops;
    if (config->devices.kind == SW_CFG_CPU)
        return SW_OK;
    const struct sw_device_ops *cuda;
    sw_code code = sw_back_end_cuda(&cuda, &why, err);
    if (code != SW_OK)
        return code;
    if (cuda != NULL)
        *out = cuda;
    else if (config->devices.kind == SW_CFG_CUDA) {
        (void)SW_FAIL(err, SW_E_USAGE, "devices.kind: cuda: %s; use cpu or auto", why);
        return sw_config_locate(config, err);
    }
    return SW_OK;
}

sw_code sw_cli_config(const struct sw_cli_args *args, const char *path, struct sw_config *out,
                      struct sw_err *err)
{
    sw_code code = sw_config_init(out, err);
    if (code != SW_OK)
        return code;
    if (path != NULL)
        code = sw_config_read(out, path, err);
    for (int64_t i = 0; i < args->set_count && code == SW_OK; i++)
        code = sw_config_set(out, args->sets[i], err);
    if (code == SW_OK)
        code = sw_config_settle(out, err);
    if (code == SW_OK)
        code = sw_config_check(out, err);
    if (code != SW_OK)
        sw_config_deinit(out);
    return code;
}

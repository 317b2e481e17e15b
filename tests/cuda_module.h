/* The CUDA back end for test programs: the module of the build, or the reason why there is none. */
#ifndef SPILLWAY_TESTS_CUDA_MODULE_H
#define SPILLWAY_TESTS_CUDA_MODULE_H

#include "kernels/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* spillway-cuda.so of the nearest folder above this program's that has one. NULL, with the reason
 * printed: skip. */
static inline const struct sw_device_ops *sw_test_cuda(void)
{
    static const char name[] = "/spillway-cuda.so";
    char path[4096];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    if (bytes <= 0)
        return NULL;
    path[bytes] = '\0';
    for (char *slash = strrchr(path, '/'); slash != NULL; slash = strrchr(path, '/')) {
        strcpy(slash, name);
        if (access(path, R_OK) == 0)
            break;
        *slash = '\0';
    }
    if (path[0] == '\0') {
        printf("skipped: this build has no CUDA back end\n");
        return NULL;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) {
        printf("skipped: %s\n", dlerror());
        return NULL;
    }
    const struct sw_device_ops *(*get)(void);
    void *symbol = dlsym(module, "sw_cuda_device_ops_get");
    if (symbol == NULL) {
        printf("skipped: %s\n", dlerror());
        return NULL;
    }
    memcpy(&get, &symbol, sizeof get);
    int count = 0;
    struct sw_err err = {0};
    if (get()->count(&count, &err) != SW_OK || count == 0) {
        printf("skipped: %s\n", err.code != SW_OK ? err.text : get()->why_none());
        return NULL;
    }
    return get();
}

#endif

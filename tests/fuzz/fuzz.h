/* What fuzz targets share: the input as a file, and a look at every tensor of one. Run one with
 *
 *     tests/fuzz/fuzz_NAME -max_total_time=60 a-new-folder tests/fuzz/seeds/NAME
 */
#ifndef SPILLWAY_TESTS_FUZZ_H
#define SPILLWAY_TESTS_FUZZ_H

#include "base/file.h"
#include "io/tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Path of a file in memory that holds `data`; the same file for every input. */
static inline const char *sw_fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int descriptor = -1;
    if (descriptor < 0) {
        descriptor = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    }
    if (descriptor < 0 || ftruncate(descriptor, 0) != 0 ||
        sw_file_pwrite(descriptor, data, (int64_t)size, 0, path, NULL) != SW_OK)
        abort();
    return path;
}

/* What was let through must be readable: the start and the end of every tensor. */
static inline void sw_fuzz_read_tensors(const struct sw_tensor_file *file)
{
    enum { COUNT = 512 };
    static float values[COUNT];
    static char raw[COUNT * 8];
    for (int64_t i = 0; i < file->tensor_count; i++) {
        const struct sw_tensor *tensor = &file->tensors[i];
        int64_t count = tensor->elements < COUNT ? tensor->elements : COUNT;
        if (sw_tensor_read_raw(tensor, 0, count, raw, NULL) != SW_OK ||
            sw_tensor_read_raw(tensor, tensor->elements - count, count, raw, NULL) != SW_OK)
            abort();
        if (tensor->readable &&
            sw_tensor_read_float(tensor, tensor->elements / 2, count / 2, values, NULL) != SW_OK)
            abort();
    }
}

#endif

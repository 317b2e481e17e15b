#include "fuzz.h"

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sw_tensor_file *file;
    struct sw_err err = {0};
    if (sw_safetensors_open(sw_fuzz_file(data, size), &file, &err) != SW_OK)
        return 0;
    sw_fuzz_read_tensors(file);
    sw_tensor_file_close(file);
    return 0;
}

#include "fuzz.h"

#include "io/pickle.h"
#include "io/torch_bin.h"

/* As a file, and as a bare pickle, which gets further than one behind a checksum. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sw_tensor_file *file;
    struct sw_pickle *pickle;
    struct sw_err err = {0};
    if (sw_torch_bin_open(sw_fuzz_file(data, size), &file, &err) == SW_OK) {
        sw_fuzz_read_tensors(file);
        sw_tensor_file_close(file);
    }
    if (sw_pickle_parse((const char *)data, (int64_t)size, "input", &pickle, NULL, NULL) == SW_OK)
        sw_pickle_free(pickle);
    return 0;
}

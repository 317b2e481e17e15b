#include "fuzz.h"
#include "fuzz_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sw_fuzz_rows(data, size, SW_ROWS_JSONL, false);
    sw_fuzz_rows(data, size, SW_ROWS_JSONL, true);
    return 0;
}

#include "fuzz.h"
#include "fuzz_rows.h"

/* CSV, and TSV, which shares most of it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sw_fuzz_rows(data, size, SW_ROWS_CSV, false);
    sw_fuzz_rows(data, size, SW_ROWS_CSV, true);
    sw_fuzz_rows(data, size, SW_ROWS_TSV, true);
    return 0;
}

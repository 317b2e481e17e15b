#include "data/foreign.h"

#include <stddef.h>
#include <string.h>

#define UTF_16 "text in UTF-16: save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)"

const char *sw_foreign_file(const char *bytes, int64_t count)
{
    static const struct {
        const char *start;
        int64_t bytes;
        const char *what;
    } known[] = {
        {"\x1F\x8B", 2, "compressed by gzip: gunzip it first"},
        {"\x28\xB5\x2F\xFD", 4, "compressed by zstd: unzstd it first"},
        {"\xFD"
         "7zXZ\0",
         6, "compressed by xz: unxz it first"},
        {"BZh91AY&SY", 10, "compressed by bzip2: bunzip2 it first"},
        {"PK\x03\x04", 4, "a zip archive or a spreadsheet: unpack it, or save its rows as CSV"},
        {"PAR1\x15", 5, "a Parquet file: write its rows as JSONL first"},
        {"ARROW1\0", 7, "an Arrow file: write its rows as JSONL first"},
        {"version https://git-lfs", 23,
         "a Git LFS pointer, not the file itself: git lfs pull fetches it"},
        {"\xFF\xFE", 2, UTF_16},
        {"\xFE\xFF", 2, UTF_16},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (count >= known[i].bytes && memcmp(bytes, known[i].start, (size_t)known[i].bytes) == 0)
            return known[i].what;
    if (count >= 2 && (bytes[0] == '\0') != (bytes[1] == '\0')) /* without a byte order mark */
        return UTF_16;
    return NULL;
}

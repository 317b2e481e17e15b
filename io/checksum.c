#include "io/checksum.h"

#include <stddef.h>
#include <xxhash.h>

uint64_t sw_checksum(const void *data, int64_t bytes)
{
    uint64_t sum = XXH3_64bits(data, (size_t)bytes);
    return sum != 0 ? sum : 1;
}

/* Checksums of spilled data: XXH3, 64 bit. The only file behind it knows xxHash. */
#ifndef SPILLWAY_IO_CHECKSUM_H
#define SPILLWAY_IO_CHECKSUM_H

#include <stdint.h>

/* Never 0, which can so mean "none". */
uint64_t sw_checksum(const void *data, int64_t bytes);

#endif

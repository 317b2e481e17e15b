/* Files that are no text in UTF-8, told by how they begin. */
#ifndef SPILLWAY_DATA_FOREIGN_H
#define SPILLWAY_DATA_FOREIGN_H

#include <stdint.h>

/* What a file is that begins with these bytes and what to do about it, to go behind "FILE is ":
 * "compressed by gzip: gunzip it first". NULL: nothing speaks against rows. */
const char *sw_foreign_file(const char *bytes, int64_t count);

#endif

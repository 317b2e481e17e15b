/* UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef SPILLWAY_DATA_UTF8_H
#define SPILLWAY_DATA_UTF8_H

#include <stdint.h>

/* Bytes of the character that `text` (`bytes` > 0 of it) begins with, or 0 when it is none. */
int sw_utf8_character(const char *text, int64_t bytes);
/* Offset of the first byte that is no part of a character; -1 when all of it is UTF-8. */
int64_t sw_utf8_check(const char *text, int64_t bytes);

#endif

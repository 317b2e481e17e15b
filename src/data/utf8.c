#include "data/utf8.h"

#include <string.h>

/* Unicode, table 3-7: only the second byte's range depends on the first. */
int sw_utf8_character(const char *text, int64_t bytes)
{
    const unsigned char *byte = (const unsigned char *)text;
    unsigned char first = byte[0], low = 0x80, high = 0xBF;
    int length;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (bytes < length)
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (byte[1] < low || byte[1] > high)
        return 0;
    for (int i = 2; i < length; i++)
        if ((byte[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

int64_t sw_utf8_check(const char *text, int64_t bytes)
{
    int64_t at = 0;
    while (at < bytes) {
        uint64_t word;
        if (bytes - at >= 8) { /* mostly ASCII: eight at a time */
            memcpy(&word, text + at, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                at += 8;
                continue;
            }
        }
        int length = sw_utf8_character(text + at, bytes - at);
        if (length == 0)
            return at;
        at += length;
    }
    return -1;
}

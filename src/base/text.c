#include "base/text.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `count` more bytes and the NUL. */
static bool reserve(struct sw_text *text, int64_t count)
{
    int64_t wanted;
    void *array = text->bytes;
    if (!text->failed && sw_size_add(text->used_bytes, count, &wanted) &&
        sw_array_reserve(&array, &text->capacity_bytes, wanted, 1)) {
        text->bytes = array;
        return true;
    }
    text->failed = true;
    return false;
}

void sw_text_add(struct sw_text *text, const char *format, ...)
{
    char piece[1024];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int count = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (count < 0)
        text->failed = true;
    else if (count < (int)sizeof piece)
        sw_text_add_bytes(text, piece, count);
    else if (reserve(text, count)) {
        vsnprintf(text->bytes + text->used_bytes, (size_t)count + 1, format, again);
        text->used_bytes += count;
    }
    va_end(again);
}

void sw_text_add_bytes(struct sw_text *text, const char *bytes, int64_t count)
{
    if (!reserve(text, count))
        return;
    memcpy(text->bytes + text->used_bytes, bytes, (size_t)count);
    text->used_bytes += count;
    text->bytes[text->used_bytes] = '\0';
}

void sw_text_add_json_string(struct sw_text *text, const char *string)
{
    sw_text_add_bytes(text, "\"", 1);
    while (*string != '\0') {
        size_t plain = 0;
        while ((unsigned char)string[plain] >= 0x20 && string[plain] != '"' &&
               string[plain] != '\\' && string[plain] != 0x7F)
            plain++;
        sw_text_add_bytes(text, string, (int64_t)plain);
        string += plain;
        if (*string == '\0')
            break;
        if (*string == '"' || *string == '\\')
            sw_text_add(text, "\\%c", *string);
        else if (*string == '\n')
            sw_text_add_bytes(text, "\\n", 2);
        else
            sw_text_add(text, "\\u%04x", (unsigned)(unsigned char)*string);
        string++;
    }
    sw_text_add_bytes(text, "\"", 1);
}

void sw_text_add_json_double(struct sw_text *text, double value)
{
    char digits[40];
    if (!isfinite(value)) {
        sw_text_add_bytes(text, "null", 4);
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    sw_text_add(text, "%s", digits);
}

sw_code sw_text_check(const struct sw_text *text, const char *what, struct sw_err *err)
{
    if (text->failed)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %s", what);
    return SW_OK;
}

void sw_text_add_size(struct sw_text *text, int64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    double value = (double)bytes / 1024;
    int unit = 0;
    for (; unit < 2 && value >= 1000; unit++)
        value /= 1024;
    if (bytes < 1024)
        sw_text_add(text, "%lld byte%s", (long long)bytes, sw_text_plural(bytes));
    else
        sw_text_add(text, "%.1f %s", value, units[unit]);
}

void sw_text_add_seconds(struct sw_text *text, double seconds)
{
    static const char *const units[] = {"s", "ms", "us"};
    int unit = 0;
    for (; unit < 2 && seconds > 0 && seconds < 1; unit++)
        seconds *= 1000;
    sw_text_add(text, "%.3f %s", seconds, units[unit]);
}

const char *sw_text_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

bool sw_text_parse_size(const char *text, int64_t *out_bytes)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    const double most = 9007199254740992.0; /* 2^53 */
    size_t whole = strspn(text, "0123456789"), fraction = 0;
    const char *at = text + whole;
    if (*at == '.') {
        fraction = strspn(at + 1, "0123456789");
        at += 1 + fraction;
    }
    double number = whole + fraction > 0 ? strtod(text, NULL) : -1;
    at += *at == ' ';
    for (int unit = 0; unit < 5; unit++) {
        double bytes = ldexp(number, 10 * unit);
        if (strcmp(at, units[unit]) != 0)
            continue;
        if (!(bytes >= 0 && bytes <= most) || (bytes > floor(bytes) && (unit == 0 || bytes < 1)))
            return false;
        *out_bytes = (int64_t)bytes;
        return true;
    }
    return false;
}

int sw_text_distance(const char *a, const char *b)
{
    enum { COMPARED = 64 };
    int rows[3][COMPARED + 1] = {{0}};
    int *before = rows[0], *last = rows[1], *now = rows[2];
    int m = (int)strnlen(a, COMPARED), n = (int)strnlen(b, COMPARED);
    for (int j = 0; j <= n; j++)
        last[j] = j;
    for (int i = 1; i <= m; i++) {
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = best < last[j] + 1 ? best : last[j] + 1;
            best = best < now[j - 1] + 1 ? best : now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *recycled = before;
        before = last;
        last = now;
        now = recycled;
    }
    return last[n];
}

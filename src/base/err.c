#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sw_err_init(struct sw_err *err)
{
    memset(err, 0, sizeof *err);
}

static void append(char *text, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, SW_ERR_TEXT_BYTES - used, "%s", more);
}

sw_code sw_err_set(struct sw_err *err, sw_code code, int os_errno, const char *file, int line,
                   const char *format, ...)
{
    sw_assert(code != SW_OK);
    if (err == NULL)
        return code;
    if (err->code != SW_OK)
        return err->code;
    err->code = code;
    err->os_errno = os_errno;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (os_errno != 0) {
        char reason[128];
        append(err->text, ": ");
        append(err->text, strerror_r(os_errno, reason, sizeof reason));
    }
    return code;
}

sw_code sw_err_while(struct sw_err *err, const char *format, ...)
{
    if (err == NULL || err->code == SW_OK)
        return err == NULL ? SW_E_FAILED : SW_OK;
    char more[512];
    va_list args;
    va_start(args, format);
    vsnprintf(more, sizeof more, format, args);
    va_end(args);
    append(err->text, ", while ");
    append(err->text, more);
    return err->code;
}

sw_code(sw_err_blame)(struct sw_err *err, const char *setting)
{
    if (err == NULL)
        return SW_E_USAGE;
    if (err->code == SW_E_IO || err->code == SW_E_FORMAT)
        err->code = SW_E_USAGE;
    if (err->code == SW_E_USAGE) {
        char text[SW_ERR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", err->text);
        snprintf(err->text, sizeof err->text, "%.200s: %.1840s", setting, text);
    }
    return err->code;
}

int sw_code_exit_status(sw_code code)
{
    switch (code) {
    case SW_OK:
        return 0;
    case SW_E_USAGE:
        return 2;
    case SW_E_FIT:
        return 3;
    case SW_E_STOPPED:
        return 75;
    case SW_E_FAILED:
    case SW_E_IO:
    case SW_E_FORMAT:
    case SW_E_MEMORY:
    case SW_E_DEVICE:
    case SW_E_NONFINITE:
        break;
    }
    return 1;
}

void sw_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "spillway: this is a bug: %s:%d: assertion failed: %s\n", file, line,
            condition);
    fflush(stderr);
    abort();
}

/* Operational failures: a code for control flow and one caller-owned text for the person.
 *
 * A function that can fail returns `sw_code` and fills the `struct sw_err` its caller passed. The
 * first failure wins: later calls leave it alone, callers only add "while ..." with
 * sw_err_while(). A bug is not an operational failure: use sw_assert(). */
#ifndef SPILLWAY_BASE_ERR_H
#define SPILLWAY_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sw_code {
    SW_OK = 0,
    SW_E_FAILED,    /* anything that went wrong at run time; exit status 1 */
    SW_E_USAGE,     /* bad command line, configuration or input file named there; exit status 2 */
    SW_E_FIT,       /* the plan does not fit; exit status 3 */
    SW_E_IO,        /* an operating system call on a file failed (os_errno set); exit status 1 */
    SW_E_FORMAT,    /* a file is not what it should be; exit status 1 */
    SW_E_MEMORY,    /* allocation or pinning failed; exit status 1 */
    SW_E_DEVICE,    /* a device or its library failed; exit status 1 */
    SW_E_NONFINITE, /* loss or gradient stayed non-finite; exit status 1 */
    SW_E_STOPPED,   /* stopped on request after a checkpoint; exit status 75 */
} sw_code;

enum { SW_ERR_TEXT_BYTES = 2048 };

struct sw_err {
    sw_code code;
    int os_errno;     /* errno of the call, or 0 */
    const char *file; /* source position of the first failure */
    int line;
    char text[SW_ERR_TEXT_BYTES];
};

#define SW_WARN_UNUSED __attribute__((warn_unused_result))
#define SW_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))

/* Clear `err` for a fresh use. */
void sw_err_init(struct sw_err *err);

/* Record a failure unless `err` already holds one, and return the code that `err` then holds. `err`
 * may be NULL: then only `code` is returned. Use SW_FAIL and SW_FAIL_OS, which add the position. */
sw_code sw_err_set(struct sw_err *err, sw_code code, int os_errno, const char *file, int line,
                   const char *format, ...) SW_PRINTF(6, 7);

/* Append ", while ..." to a failure; does nothing when there is none. Returns err->code. */
sw_code sw_err_while(struct sw_err *err, const char *format, ...) SW_PRINTF(2, 3);

/* A setting or option names something that cannot be used: begin the text with `setting`, and make
 * a failure to read it SW_E_USAGE. For what was found before any work began. Returns err->code. */
sw_code sw_err_blame(struct sw_err *err, const char *setting);
#ifdef __clang_analyzer__ /* as with SW_FAIL_OS */
#define sw_err_blame(err, setting) ((void)(sw_err_blame)((err), (setting)), (sw_code)SW_E_USAGE)
#endif

/* Exit status of the command line for `code` (DESIGN, Commands). */
int sw_code_exit_status(sw_code code);

#define SW_FAIL(err, code, ...) SW_FAIL_OS(err, code, 0, __VA_ARGS__)
/* As SW_FAIL, with errno's text appended. */
#ifndef __clang_analyzer__
#define SW_FAIL_OS(err, code, errnum, ...)                                                         \
    sw_err_set((err), (code), (errnum), __FILE__, __LINE__, __VA_ARGS__)
#else /* which does not see into err.c that this is never SW_OK */
#define SW_FAIL_OS(err, code, errnum, ...)                                                         \
    (sw_err_set((err), (code), (errnum), __FILE__, __LINE__, __VA_ARGS__), (sw_code)SW_E_FAILED)
#endif

/* Assertions stay on in release builds. */
#define sw_assert(condition)                                                                       \
    ((condition) ? (void)0 : sw_assert_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn)) void sw_assert_failed(const char *condition, const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif

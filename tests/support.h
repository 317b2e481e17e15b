/* What test programs share: includes cmocka in the order it wants, scratch directories, the folder
 * of reference cases. */
#ifndef SPILLWAY_TESTS_SUPPORT_H
#define SPILLWAY_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Set by the makefile: where the sources are. */
#ifndef SW_SOURCE_DIRECTORY
#define SW_SOURCE_DIRECTORY "."
#endif

/* The call must succeed; its message is shown when it does not. */
#define assert_ok(call, err)                                                                       \
    do {                                                                                           \
        sw_code code_ = (call);                                                                    \
        if (code_ != SW_OK)                                                                        \
            fail_msg("%s: %s", #call, (err)->text);                                                \
    } while (0)

/* The call must fail with `wanted`, and its message hold `part`. Clears the error. */
#define assert_refused(call, wanted, part, err)                                                    \
    do {                                                                                           \
        sw_code code_ = (call);                                                                    \
        if (code_ != (wanted) || (err)->code != code_ || strstr((err)->text, part) == NULL)        \
            fail_msg("%s: code %d, \"%s\", which lacks \"%s\"", #call, (int)code_, (err)->text,    \
                     part);                                                                        \
        sw_err_init(err);                                                                          \
    } while (0)

/* A new empty directory under $TMPDIR; remove it with sw_test_scratch_remove(). */
static inline char *sw_test_scratch(void)
{
    const char *base = getenv("TMPDIR");
    char *path = sw_path_join(base != NULL ? base : "/tmp", "spillway-test-XXXXXX");
    if (path == NULL || mkdtemp(path) == NULL) {
        perror("mkdtemp");
        abort();
    }
    return path;
}

static inline void sw_test_scratch_remove(char *path)
{
    if (sw_directory_remove(path, NULL) != SW_OK)
        fprintf(stderr, "cannot remove %s\n", path);
    free(path);
}

/* The folder of reference cases, or NULL with a reason printed: then skip. Borrowed. */
static inline const char *sw_test_golden_dir(void)
{
    const char *path = getenv("SPILLWAY_GOLDEN");
    if (path == NULL)
        path = SW_SOURCE_DIRECTORY "/../shared/golden";
    if (sw_file_is_directory(path))
        return path;
    printf("skipped: no reference cases in %s (set SPILLWAY_GOLDEN)\n", path);
    return NULL;
}

#endif

#include "cli/measure_args.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sw_code sw_cli_size(const char *option, const char *text, int64_t least, int64_t most,
                    int64_t otherwise, int64_t *out, struct sw_err *err)
{
    int64_t bytes = otherwise;
    if (text != NULL && !sw_text_parse_size(text, &bytes))
        return SW_FAIL(err, SW_E_USAGE, "--%s: %s is not a size, such as 1048576, 512KiB or 2GiB",
                       option, text);
    if (bytes < least || bytes > most)
        return SW_FAIL(err, SW_E_USAGE, "--%s: %lld bytes are not in %lld .. %lld", option,
                       (long long)bytes, (long long)least, (long long)most);
    *out = bytes;
    return SW_OK;
}

sw_code sw_cli_directory(const char *option, const char *path, struct sw_err *err)
{
    if (!sw_file_is_directory(path))
        return SW_FAIL(err, SW_E_USAGE, "--%s: there is no directory %s", option, path);
    char name[32];
    snprintf(name, sizeof name, "--%s", option);
    return sw_directory_check(path, err) == SW_OK ? SW_OK : sw_err_blame(err, name);
}

sw_code sw_cli_split(const char *option, const char *text, int most, char **out_copy,
                     const char **out_names, int *out_count, struct sw_err *err)
{
    int count = 0;
    char *copy = sw_strdup(text), *rest = NULL;
    if (copy == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for --%s", option);
    for (char *name = strtok_r(copy, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        if (count == most) {
            free(copy);
            return SW_FAIL(err, SW_E_USAGE, "--%s: more than %d names", option, most);
        }
        out_names[count++] = name;
    }
    *out_copy = copy;
    *out_count = count;
    return SW_OK;
}

void sw_cli_progress_show(void *context, const char *what, double fraction)
{
    struct sw_cli_progress *progress = context;
    int percent = (int)(fraction * 100);
    bool fresh = strcmp(progress->what, what) != 0;
    if (!fresh && percent == progress->percent)
        return;
    snprintf(progress->what, sizeof progress->what, "%s", what);
    progress->percent = percent;
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[Kmeasuring %s: %d %%", what, percent);
        progress->shown = true;
    } else if (fresh) {
        fprintf(stderr, "measuring %s\n", what);
    }
}

void sw_cli_progress_end(struct sw_cli_progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}

void sw_cli_note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "spillway: %s\n", text);
}

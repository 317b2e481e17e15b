#include "train/progress.h"

#include "base/timing.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double SECONDS_BETWEEN_LINES = 0.1, SECONDS_BETWEEN_SHARES = 10;

void sw_progress_init(struct sw_progress *progress)
{
    *progress = (struct sw_progress){.columns = 100};
    const char *term = getenv("TERM");
    progress->terminal = isatty(STDERR_FILENO) == 1 && (term == NULL || strcmp(term, "dumb") != 0);
    struct winsize size;
    if (progress->terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20)
        progress->columns = size.ws_col;
}

void sw_progress_end(struct sw_progress *progress)
{
    if (progress->line_open)
        fputc('\n', stderr);
    progress->line_open = false;
    progress->shown_at_seconds = 0;
}

void sw_progress_say(struct sw_progress *progress, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (progress->line_open)
        fputs("\r\033[K", stderr);
    progress->line_open = false;
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    fflush(stderr);
    va_end(arguments);
}

void sw_progress_line(struct sw_progress *progress, bool due, const char *format, ...)
{
    double now = sw_seconds_now();
    va_list arguments;
    if (progress->terminal ? !due && now - progress->shown_at_seconds < SECONDS_BETWEEN_LINES
                           : !due)
        return;
    char line[512];
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    progress->shown_at_seconds = now;
    if (progress->terminal)
        fprintf(stderr, "\r\033[K%.*s", progress->columns - 1, line);
    else
        fprintf(stderr, "%s\n", line);
    progress->line_open = progress->terminal;
    fflush(stderr);
}

void sw_progress_share(void *context, int64_t done, int64_t total)
{
    struct sw_progress *progress = context;
    double now = sw_seconds_now();
    if (progress->shown_at_seconds <= 0)
        progress->shown_at_seconds = now; /* what is short shows nothing */
    if (!progress->terminal && now - progress->shown_at_seconds < SECONDS_BETWEEN_SHARES)
        return;
    if (total > 0)
        sw_progress_line(progress, !progress->terminal, "%s: %.0f %%", progress->what,
                         100.0 * (double)done / (double)total);
    else
        sw_progress_line(progress, !progress->terminal, "%s: %lld", progress->what,
                         (long long)done);
}

const char *sw_duration_text(double seconds, char out[SW_DURATION_BYTES])
{
    long long whole = (long long)(seconds + 0.5);
    if (whole < 100)
        snprintf(out, SW_DURATION_BYTES, "%lld s", whole);
    else if (whole < 6000)
        snprintf(out, SW_DURATION_BYTES, "%lld min %02lld s", whole / 60, whole % 60);
    else
        snprintf(out, SW_DURATION_BYTES, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
    return out;
}

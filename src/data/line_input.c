#include "data/line_input.h"

#include "base/mem.h"
#include "data/foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 256 << 10 };

struct sw_line_input {
    char *name;
    int descriptor; /* -1: memory */
    char *buffer;   /* owned; NULL for memory */
    const char *at, *end;
    int64_t line, bytes_read, file_bytes;
    bool at_start, ended;
    bool (*stop_requested)(void); /* NULL: never */
};

static sw_code make(const char *name, struct sw_line_input **out, struct sw_err *err)
{
    struct sw_line_input *input = sw_calloc(1, sizeof *input);
    if (input == NULL || (input->name = sw_strdup(name)) == NULL) {
        free(input);
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", name);
    }
    input->descriptor = -1;
    input->file_bytes = -1;
    input->at_start = true;
    *out = input;
    return SW_OK;
}

sw_code sw_line_input_open(const char *path, struct sw_line_input **out, struct sw_err *err)
{
    struct sw_line_input *input = NULL;
    struct stat status;
    bool standard = strcmp(path, "-") == 0;
    sw_code code = make(standard ? "standard input" : path, &input, err);
    if (code != SW_OK)
        return code;
    input->descriptor = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (input->descriptor < 0 || fstat(input->descriptor, &status) != 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot open %s", path);
        goto out;
    }
    if (S_ISDIR(status.st_mode)) {
        code = SW_FAIL(err, SW_E_IO, "%s is a directory, not a file of rows", path);
        goto out;
    }
    if (S_ISREG(status.st_mode))
        input->file_bytes = (int64_t)status.st_size;
    if ((input->buffer = malloc(BUFFER_BYTES)) == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
        goto out;
    }
    *out = input;
    input = NULL;
out:
    sw_line_input_close(input);
    return code;
}

sw_code sw_line_input_open_memory(const char *bytes, int64_t count, const char *what,
                                  struct sw_line_input **out, struct sw_err *err)
{
    struct sw_line_input *input;
    sw_code code = make(what, &input, err);
    if (code != SW_OK)
        return code;
    input->at = bytes;
    input->end = bytes + count;
    input->bytes_read = input->file_bytes = count;
    *out = input;
    return SW_OK;
}

void sw_line_input_close(struct sw_line_input *input)
{
    if (input == NULL)
        return;
    if (input->descriptor >= 0 && input->descriptor != STDIN_FILENO)
        close(input->descriptor);
    free(input->buffer);
    free(input->name);
    free(input);
}

void sw_line_input_heed(struct sw_line_input *input, bool (*stop_requested)(void))
{
    input->stop_requested = stop_requested;
}

/* Until a pipe has something to read. */
static sw_code wait_for_bytes(struct sw_line_input *input, struct sw_err *err)
{
    enum { LISTEN_MILLISECONDS = 500 };
    struct pollfd descriptor = {.fd = input->descriptor, .events = POLLIN};
    if (input->stop_requested == NULL || input->file_bytes >= 0)
        return SW_OK;
    while (poll(&descriptor, 1, LISTEN_MILLISECONDS) <= 0)
        if (input->stop_requested())
            return SW_FAIL(err, SW_E_STOPPED, "stopped while %s was read", input->name);
    return SW_OK;
}

/* Have bytes at input->at, or input->ended. */
static sw_code fill(struct sw_line_input *input, struct sw_err *err)
{
    ssize_t count = 0;
    if (input->at < input->end)
        return SW_OK;
    if (input->buffer != NULL && !input->ended) {
        if (wait_for_bytes(input, err) != SW_OK)
            return SW_E_STOPPED;
        do
            count = read(input->descriptor, input->buffer, BUFFER_BYTES);
        while (count < 0 && errno == EINTR);
        if (count < 0)
            return SW_FAIL_OS(err, SW_E_IO, errno, "cannot read %s", input->name);
        input->at = input->buffer;
        input->end = input->buffer + count;
        input->bytes_read += count;
    }
    input->ended = input->at == input->end;
    return SW_OK;
}

/* Before the first line: none of a file that is no text. */
static sw_code check_start(const struct sw_line_input *input, struct sw_err *err)
{
    const char *foreign = input->at_start && input->at < input->end
                              ? sw_foreign_file(input->at, input->end - input->at)
                              : NULL;
    return foreign == NULL ? SW_OK : SW_FAIL(err, SW_E_FORMAT, "%s is %s", input->name, foreign);
}

enum sw_line sw_line_input_take(struct sw_line_input *input, struct sw_text *line,
                                int64_t max_bytes, struct sw_err *err)
{
    static const char mark[] = "\xEF\xBB\xBF";
    const int64_t mark_bytes = sizeof mark - 1, begin = line->used_bytes;
    bool too_long = false, whole = false;
    if (fill(input, err) != SW_OK || check_start(input, err) != SW_OK)
        return SW_LINE_FAILED;
    if (input->ended)
        return SW_LINE_END;
    while (!whole && !input->ended) {
        const char *newline = memchr(input->at, '\n', (size_t)(input->end - input->at));
        int64_t count = (newline != NULL ? newline : input->end) - input->at;
        too_long = too_long || count > max_bytes - line->used_bytes;
        if (!too_long)
            sw_text_add_bytes(line, input->at, count);
        whole = newline != NULL;
        input->at += count + (whole ? 1 : 0);
        if (!whole && fill(input, err) != SW_OK)
            return SW_LINE_FAILED;
    }
    input->line++;
    if (sw_text_check(line, "a line", err) != SW_OK)
        return SW_LINE_FAILED;
    if (input->at_start && line->used_bytes - begin >= mark_bytes &&
        memcmp(line->bytes + begin, mark, (size_t)mark_bytes) == 0) {
        line->used_bytes -= mark_bytes;
        memmove(line->bytes + begin, line->bytes + begin + mark_bytes,
                (size_t)(line->used_bytes - begin) + 1);
    }
    input->at_start = false;
    return too_long ? SW_LINE_TOO_LONG : SW_LINE_TAKEN;
}

bool sw_line_input_wait(struct sw_line_input *input, int milliseconds)
{
    struct pollfd descriptor = {.fd = input->descriptor, .events = POLLIN};
    if (input->file_bytes >= 0 || input->ended ||
        (input->at < input->end && memchr(input->at, '\n', (size_t)(input->end - input->at))))
        return true;
    return poll(&descriptor, 1, milliseconds) > 0;
}

const char *sw_line_input_name(const struct sw_line_input *input)
{
    return input->name;
}

int64_t sw_line_input_line(const struct sw_line_input *input)
{
    return input->line;
}

int64_t sw_line_input_bytes_read(const struct sw_line_input *input)
{
    return input->bytes_read;
}

int64_t sw_line_input_file_bytes(const struct sw_line_input *input)
{
    return input->file_bytes;
}

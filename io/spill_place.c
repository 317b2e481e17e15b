/* Directories of a spill store: may we write there, is there room, a file without a name. */
#include "io/spill_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "io/scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRIES = 64 };

/* "12.34 GiB", "5.6 MiB"; in `text`, which is returned. */
static const char *size_text(int64_t bytes, char text[32])
{
    if (bytes >= 1 << 30)
        snprintf(text, 32, "%.2f GiB", (double)bytes / (double)(1 << 30));
    else
        snprintf(text, 32, "%.1f MiB", (double)bytes / (double)(1 << 20));
    return text;
}

/* The first block can be written (some file systems take O_DIRECT and refuse the transfer). */
static int try_write(struct sw_spill *spill, int descriptor)
{
    int reason = 0;
    char *block = aligned_alloc(SW_AIO_ALIGNMENT_BYTES, SW_AIO_ALIGNMENT_BYTES);
    if (block == NULL)
        return ENOMEM;
    memset(block, 0, SW_AIO_ALIGNMENT_BYTES);
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        reason = sw_aio_fault_check(spill->fault, SW_AIO_CALL_WRITE);
        if (reason == 0) {
            ssize_t moved = pwrite(descriptor, block, SW_AIO_ALIGNMENT_BYTES, 0);
            reason = moved == SW_AIO_ALIGNMENT_BYTES ? 0 : moved < 0 ? errno : EAGAIN;
        }
        if (reason != EINTR && reason != EAGAIN)
            break;
    }
    free(block);
    return reason;
}

static int try_open(struct sw_spill *spill, struct sw_spill_place *place, int flags)
{
    int reason = 0;
    for (int tries = 0; tries < MAX_TRIES && place->descriptor < 0; tries++) {
        reason = sw_aio_fault_check(spill->fault, SW_AIO_CALL_OPEN);
        if (reason == 0) {
            place->descriptor = sw_scratch_file_open(place->path, flags);
            reason = place->descriptor < 0 ? errno : 0;
        }
        if (reason != EINTR && reason != EAGAIN)
            break;
    }
    if (reason == 0)
        reason = try_write(spill, place->descriptor);
    if (reason != 0 && place->descriptor >= 0) {
        close(place->descriptor);
        place->descriptor = -1;
    }
    return reason;
}

static sw_code open_file(struct sw_spill *spill, struct sw_spill_place *place, struct sw_err *err)
{
    int reason = try_open(spill, place, spill->buffered ? 0 : O_DIRECT);
    if (reason == EINVAL && !spill->buffered) {
        reason = try_open(spill, place, 0);
        char text[1024];
        snprintf(text, sizeof text,
                 "%s: this file system has no O_DIRECT; spilling through the page cache, which "
                 "costs memory and time",
                 place->path);
        if (reason == 0)
            sw_spill_note(spill, text);
    }
    if (reason == ENOSPC)
        return SW_FAIL_OS(err, SW_E_FIT, reason, "cannot spill to %s: its file system is full",
                          place->path);
    if (reason != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, reason,
                          "cannot write to the spill directory %s (offload.nvme)", place->path);
    return SW_OK;
}

sw_code sw_spill_place_open(struct sw_spill *spill, struct sw_spill_place *place,
                            const struct sw_spill_directory *directory, struct sw_err *err)
{
    struct stat status;
    struct sw_text name = {0};
    sw_text_add(&name, "the spill file in %s", directory->path);
    place->file_name = name.bytes;
    place->path = sw_strdup(directory->path);
    place->cpus = directory->cpus != NULL ? sw_strdup(directory->cpus) : NULL;
    place->weight = directory->weight > 0 ? directory->weight : 1;
    if (name.failed || place->path == NULL || (directory->cpus != NULL && place->cpus == NULL))
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a spill directory");
    if (stat(place->path, &status) != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno,
                          "cannot use the spill directory %s (offload.nvme)", place->path);
    if (!S_ISDIR(status.st_mode))
        return SW_FAIL(err, SW_E_USAGE, "the spill directory %s (offload.nvme) is not a directory",
                       place->path);
    place->file_system = status.st_dev;
    sw_code code = open_file(spill, place, err);
    if (code != SW_OK)
        return code;
    place->free_bytes = sw_directory_free_bytes(place->path);
    if (place->free_bytes < 0)
        return SW_FAIL(err, SW_E_USAGE, "%s (offload.nvme) does not tell its free space",
                       place->path);
    return SW_OK;
}

void sw_spill_place_close(struct sw_spill_place *place)
{
    if (place->descriptor >= 0)
        close(place->descriptor);
    free(place->path);
    free(place->file_name);
    free(place->cpus);
}

/* Directories may share a file system: its space counts once. */
static bool is_first_of_file_system(const struct sw_spill *spill, int index)
{
    for (int i = 0; i < index; i++)
        if (spill->places[i].file_system == spill->places[index].file_system)
            return false;
    return true;
}

sw_code sw_spill_places_check_free(const struct sw_spill *spill, struct sw_err *err)
{
    int64_t total = 0;
    for (int i = 0; i < spill->place_count; i++)
        if (is_first_of_file_system(spill, i) &&
            !sw_size_add(total, spill->places[i].free_bytes, &total))
            total = INT64_MAX;
    if (total >= spill->capacity_bytes)
        return SW_OK;
    struct sw_text list = {0};
    char wanted[32], had[32];
    for (int i = 0; i < spill->place_count; i++)
        sw_text_add(&list, "%s%s has %s free%s", i > 0 ? ", " : "", spill->places[i].path,
                    size_text(spill->places[i].free_bytes, had),
                    is_first_of_file_system(spill, i) ? "" : " (shared with one before)");
    sw_code code = SW_FAIL(err, SW_E_FIT,
                           "spilling needs %s of file space, and there is %s: %s. Free "
                           "some, add a directory to offload.nvme, or keep more in memory",
                           size_text(spill->capacity_bytes, wanted), size_text(total, had),
                           list.failed ? "" : list.bytes);
    free(list.bytes);
    return code;
}

int64_t sw_spill_place_left_bytes(const struct sw_spill *spill, int index)
{
    int64_t left = spill->places[index].free_bytes;
    for (int i = 0; i < spill->place_count; i++)
        if (spill->places[i].file_system == spill->places[index].file_system)
            left -= spill->places[i].used_bytes;
    return left;
}

sw_code sw_spill_place_allocate(struct sw_spill *spill, struct sw_spill_place *place,
                                struct sw_err *err)
{
    int reason = 0;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        reason = sw_aio_fault_check(spill->fault, SW_AIO_CALL_ALLOCATE);
        if (reason == 0 && fallocate(place->descriptor, 0, 0, place->used_bytes) != 0)
            reason = errno;
        if (reason != EINTR && reason != EAGAIN)
            break;
    }
    char size[32];
    /* Where a file system cannot allocate, writing does it. */
    if (reason == 0 || reason == EOPNOTSUPP || reason == ENOSYS)
        return SW_OK;
    return SW_FAIL_OS(err, SW_E_IO, reason, "cannot allocate %s for %s%s",
                      size_text(place->used_bytes, size), place->file_name,
                      reason == EFBIG ? " (`ulimit -f` limits file sizes)" : "");
}

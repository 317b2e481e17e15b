#include "base/file.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20, READ_STEP_BYTES = 1 << 16 };

char *sw_path_join(const char *directory, const char *name)
{
    size_t used = strlen(directory);
    if (used == 0 || name[0] == '/')
        return sw_strdup(name);
    int64_t bytes = (int64_t)(used + 1 + strlen(name) + 1);
    char *path = sw_calloc(bytes, 1);
    if (path != NULL)
        snprintf(path, (size_t)bytes, "%s%s%s", directory, directory[used - 1] == '/' ? "" : "/",
                 name);
    return path;
}

const char *sw_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

char *sw_path_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return sw_strdup(".");
    if (slash == path)
        return sw_strdup("/");
    char *parent = sw_strdup(path);
    if (parent != NULL)
        parent[slash - path] = '\0';
    return parent;
}

/* `path` without slashes at its end; owned. */
static char *without_slashes(const char *path)
{
    char *copy = sw_strdup(path);
    for (size_t n = copy != NULL ? strlen(copy) : 0; n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    return copy;
}

char *sw_path_resolve(const char *path)
{
    char *resolved = realpath(path, NULL);
    if (resolved != NULL || errno != ENOENT)
        return resolved;
    char *copy = without_slashes(path);
    char *parent = copy != NULL ? sw_path_parent(copy) : NULL;
    char *above = parent != NULL ? sw_path_resolve(parent) : NULL;
    resolved = above != NULL ? sw_path_join(above, sw_path_name(copy)) : NULL;
    free(above);
    free(parent);
    free(copy);
    return resolved;
}

bool sw_path_is_within(const char *path, const char *directory)
{
    size_t bytes = strlen(directory);
    return strncmp(path, directory, bytes) == 0 &&
           (path[bytes] == '\0' || path[bytes] == '/' || strcmp(directory, "/") == 0);
}

bool sw_file_exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

bool sw_file_is_directory(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

sw_code sw_file_open(const char *path, int *out_descriptor, int64_t *out_bytes, struct sw_err *err)
{
    /* O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing to a regular file. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot open %s", path);
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        int reason = errno;
        close(descriptor);
        return SW_FAIL_OS(err, SW_E_IO, reason, "cannot examine %s", path);
    }
    if (!S_ISREG(status.st_mode)) {
        close(descriptor);
        return SW_FAIL(err, SW_E_FORMAT, "%s is not a regular file", path);
    }
    *out_descriptor = descriptor;
    *out_bytes = status.st_size;
    return SW_OK;
}

sw_code sw_file_pread(int descriptor, void *out, int64_t bytes, int64_t offset, const char *path,
                      struct sw_err *err)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t got = pread(descriptor, to, (size_t)bytes, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return SW_FAIL_OS(err, SW_E_IO, errno, "cannot read %s at byte %lld", path,
                              (long long)offset);
        if (got == 0)
            return SW_FAIL(err, SW_E_FORMAT, "%s ends at byte %lld, %lld bytes too early", path,
                           (long long)offset, (long long)bytes);
        to += got;
        bytes -= got;
        offset += got;
    }
    return SW_OK;
}

sw_code sw_file_pwrite(int descriptor, const void *data, int64_t bytes, int64_t offset,
                       const char *path, struct sw_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = pwrite(descriptor, from, (size_t)bytes, offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return SW_FAIL_OS(err, SW_E_IO, put < 0 ? errno : EIO, "cannot write %s at byte %lld",
                              path, (long long)offset);
        from += put;
        bytes -= put;
        offset += put;
    }
    return SW_OK;
}

static sw_code read_to_end(int descriptor, const char *path, int64_t max_bytes, char **buffer,
                           int64_t *out_bytes, struct sw_err *err)
{
    int64_t used = 0, capacity = 0;
    for (;;) {
        void *array = *buffer;
        if (!sw_array_reserve(&array, &capacity, used + READ_STEP_BYTES, 1))
            return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
        *buffer = array;
        ssize_t got = read(descriptor, *buffer + used, READ_STEP_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return SW_FAIL_OS(err, SW_E_IO, errno, "cannot read %s", path);
        used += got;
        if (used > max_bytes)
            return SW_FAIL(err, SW_E_FORMAT, "%s is larger than the %lld bytes allowed for it",
                           path, (long long)max_bytes);
        if (got == 0)
            break;
    }
    (*buffer)[used] = '\0';
    *out_bytes = used;
    return SW_OK;
}

sw_code sw_file_read(const char *path, int64_t max_bytes, char **out, int64_t *out_bytes,
                     struct sw_err *err)
{
    char *buffer = NULL;
    int64_t bytes = 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot open %s", path);
    sw_code code = read_to_end(descriptor, path, max_bytes, &buffer, &bytes, err);
    close(descriptor);
    if (code != SW_OK) {
        free(buffer);
        return code;
    }
    *out = buffer;
    if (out_bytes != NULL)
        *out_bytes = bytes;
    return SW_OK;
}

/* fsync and close `descriptor`, which is closed in any case. */
static sw_code sync_and_close(int descriptor, const char *path, struct sw_err *err)
{
    int reason = fsync(descriptor) != 0 ? errno : 0;
    if (close(descriptor) != 0 && reason == 0)
        reason = errno;
    if (reason != 0)
        return SW_FAIL_OS(err, SW_E_IO, reason, "cannot finish writing %s", path);
    return SW_OK;
}

sw_code sw_file_write_atomic(const char *path, const void *data, int64_t bytes, struct sw_err *err)
{
    sw_code code = SW_OK;
    bool created = false;
    int64_t room = (int64_t)strlen(path) + 32;
    char *temporary = sw_calloc(room, 1), *parent = sw_path_parent(path);
    if (temporary == NULL || parent == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", path);
        goto out;
    }
    snprintf(temporary, (size_t)room, "%s.tmp-%ld", path, (long)getpid());
    int descriptor = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot create %s", temporary);
        goto out;
    }
    created = true;
    code = sw_file_pwrite(descriptor, data, bytes, 0, temporary, err);
    if (code != SW_OK) {
        close(descriptor);
        goto out;
    }
    code = sync_and_close(descriptor, temporary, err);
    if (code != SW_OK)
        goto out;
    if (rename(temporary, path) != 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot rename %s to %s", temporary, path);
        goto out;
    }
    created = false;
    code = sw_directory_sync(parent, err);
out:
    if (created)
        unlink(temporary);
    free(temporary);
    free(parent);
    return code;
}

static sw_code copy_bytes(int from, int to, int64_t bytes, const char *from_path,
                          const char *to_path, struct sw_err *err)
{
    sw_code code = SW_OK;
    char *buffer = sw_aligned_alloc(COPY_BYTES);
    if (buffer == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to copy %s", from_path);
    for (int64_t done = 0; done < bytes && code == SW_OK;) {
        int64_t part = bytes - done < COPY_BYTES ? bytes - done : COPY_BYTES;
        code = sw_file_pread(from, buffer, part, done, from_path, err);
        if (code == SW_OK)
            code = sw_file_pwrite(to, buffer, part, done, to_path, err);
        done += part;
    }
    free(buffer);
    return code;
}

sw_code sw_file_copy(const char *from, const char *to, struct sw_err *err)
{
    int source;
    int64_t bytes;
    sw_code code = sw_file_open(from, &source, &bytes, err);
    if (code != SW_OK)
        return code;
    int target = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (target < 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot create %s", to);
        close(source);
        return code;
    }
    code = copy_bytes(source, target, bytes, from, to, err);
    close(source);
    if (code == SW_OK)
        code = sync_and_close(target, to, err);
    else
        close(target);
    if (code != SW_OK)
        unlink(to);
    return code;
}

sw_code sw_directory_make(const char *path, struct sw_err *err)
{
    sw_code code = SW_OK;
    char *partial = sw_strdup(path);
    if (partial == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to create %s", path);
    size_t length = strlen(partial);
    for (size_t i = 1; i <= length; i++) {
        if (partial[i] != '/' && partial[i] != '\0')
            continue;
        partial[i] = '\0';
        int reason = mkdir(partial, 0777) != 0 ? errno : 0;
        if (reason != 0 && !sw_file_is_directory(partial)) {
            code = SW_FAIL_OS(err, SW_E_IO, reason, "cannot create directory %s", partial);
            break;
        }
        if (i < length)
            partial[i] = '/';
    }
    free(partial);
    return code;
}

/* The directory that is there, of `path` and those above it; owned. */
static char *nearest_existing(const char *path)
{
    char *at = without_slashes(path);
    while (at != NULL && !sw_file_exists(at) && strcmp(at, ".") != 0 && strcmp(at, "/") != 0) {
        char *parent = sw_path_parent(at);
        free(at);
        at = parent;
    }
    return at;
}

/* 0, or why no entry can be made in a directory. Asked by making one that has no name, since
 * permissions do not tell all (/proc, a directory that is immutable). */
static int why_not_writable(const char *directory)
{
    if (access(directory, W_OK | X_OK) != 0)
        return errno;
    int descriptor = open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (descriptor >= 0) {
        close(descriptor);
        return 0;
    }
    if (errno != EOPNOTSUPP && errno != EISDIR)
        return errno;
    char *trial = sw_path_join(directory, ".spillway-XXXXXX"); /* file systems without those */
    int reason = trial == NULL ? ENOMEM : mkdtemp(trial) == NULL ? errno : 0;
    if (reason == 0)
        (void)rmdir(trial);
    free(trial);
    return reason;
}

sw_code sw_directory_check(const char *path, struct sw_err *err)
{
    char *at = nearest_existing(path);
    sw_code code = SW_OK;
    int reason;
    if (at == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (!sw_file_is_directory(at))
        code = SW_FAIL_OS(err, SW_E_IO, ENOTDIR, "%s", at);
    else if ((reason = why_not_writable(at)) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, reason, "cannot write to %s", at);
    free(at);
    return code;
}

bool sw_directory_is_empty(const char *path)
{
    DIR *directory = opendir(path);
    bool empty = directory != NULL;
    for (struct dirent *entry; empty && (entry = readdir(directory)) != NULL;)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (directory != NULL)
        closedir(directory);
    return empty;
}

sw_code sw_directory_sync(const char *path, struct sw_err *err)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot open directory %s", path);
    int reason = fsync(descriptor) != 0 ? errno : 0;
    close(descriptor);
    /* Some network file systems cannot sync a directory and need not. */
    if (reason != 0 && reason != EINVAL)
        return SW_FAIL_OS(err, SW_E_IO, reason, "cannot sync directory %s", path);
    return SW_OK;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *position)
{
    (void)status;
    (void)type;
    (void)position;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

sw_code sw_directory_remove(const char *path, struct sw_err *err)
{
    int reason = nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (reason < 0)
        reason = errno;
    if (reason != 0 && reason != ENOENT)
        return SW_FAIL_OS(err, SW_E_IO, reason, "cannot remove %s", path);
    return SW_OK;
}

int64_t sw_directory_free_bytes(const char *path)
{
    struct statvfs status;
    int64_t bytes;
    char *at = nearest_existing(path);
    bool known = at != NULL && statvfs(at, &status) == 0 && status.f_blocks > 0 &&
                 sw_size_mul((int64_t)status.f_bavail, (int64_t)status.f_frsize, &bytes);
    free(at);
    return known ? bytes : -1;
}

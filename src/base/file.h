/* Files and directories. Paths in messages are as the caller gave them. SW_E_IO (with errno) when
 * the operating system says no, SW_E_FORMAT when a file is too big or ends early. */
#ifndef SPILLWAY_BASE_FILE_H
#define SPILLWAY_BASE_FILE_H

#include "base/err.h"

#include <stdint.h>

/* "directory/name" ("name" when `directory` is empty or `name` is absolute), or NULL when there is
 * no memory. Free with free(). */
char *sw_path_join(const char *directory, const char *name) SW_WARN_UNUSED;
/* The last component, borrowed from `path`; `path` must not end in '/'. */
const char *sw_path_name(const char *path);
/* Everything before the last component: "." when there is only one. Free with free(). */
char *sw_path_parent(const char *path) SW_WARN_UNUSED;

/* `path` as an absolute one without links or dots, as far as it exists; what does not yet exist
 * follows as it is written. NULL when there is no memory or it cannot be told. Free with free(). */
char *sw_path_resolve(const char *path) SW_WARN_UNUSED;
/* Is resolved path `path` the directory `directory`, resolved too, or below it? */
bool sw_path_is_within(const char *path, const char *directory);

bool sw_file_exists(const char *path);       /* anything by that name, links followed */
bool sw_file_is_directory(const char *path); /* links followed */

/* Open a regular file for sw_file_pread(). Close with close(). */
sw_code sw_file_open(const char *path, int *out_descriptor, int64_t *out_bytes,
                     struct sw_err *err) SW_WARN_UNUSED;
/* Exactly `bytes` at `offset`; SW_E_FORMAT when the file ends before. Thread-safe. */
sw_code sw_file_pread(int descriptor, void *out, int64_t bytes, int64_t offset, const char *path,
                      struct sw_err *err) SW_WARN_UNUSED;
/* All `bytes` at `offset`. Thread-safe. */
sw_code sw_file_pwrite(int descriptor, const void *data, int64_t bytes, int64_t offset,
                       const char *path, struct sw_err *err) SW_WARN_UNUSED;

/* Read a whole file of at most `max_bytes` (pipes too). *out is owned by the caller (free()) and
 * ends in a NUL that *out_bytes does not count; out_bytes may be NULL. */
sw_code sw_file_read(const char *path, int64_t max_bytes, char **out, int64_t *out_bytes,
                     struct sw_err *err) SW_WARN_UNUSED;
/* Create or replace `path` with `bytes` of data: written beside it, synced, renamed, the directory
 * synced. On failure the old file, if any, is untouched and nothing is left behind. */
sw_code sw_file_write_atomic(const char *path, const void *data, int64_t bytes,
                             struct sw_err *err) SW_WARN_UNUSED;
/* Copy a regular file to `to`, which must not exist, and sync it. Leaves no part on failure. */
sw_code sw_file_copy(const char *from, const char *to, struct sw_err *err) SW_WARN_UNUSED;

/* Create a directory and its missing parents; one that is there already is fine. */
sw_code sw_directory_make(const char *path, struct sw_err *err) SW_WARN_UNUSED;
/* Whether `path` is a directory that can be written, or could be made; leaves nothing behind. */
sw_code sw_directory_check(const char *path, struct sw_err *err) SW_WARN_UNUSED;
bool sw_directory_is_empty(const char *path); /* false, too, of what is no directory */
/* Make entries created, renamed or removed in `path` durable. */
sw_code sw_directory_sync(const char *path, struct sw_err *err) SW_WARN_UNUSED;
/* Remove `path` and all below it, following no links. One that is not there is fine. */
sw_code sw_directory_remove(const char *path, struct sw_err *err) SW_WARN_UNUSED;
/* Bytes that the file system of `path` (or of where it would be made) has free for this user; -1
 * when it does not say. */
int64_t sw_directory_free_bytes(const char *path);

#endif

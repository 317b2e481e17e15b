/* Files that nobody can find and that end with the process. */
#ifndef SPILLWAY_IO_SCRATCH_FILE_H
#define SPILLWAY_IO_SCRATCH_FILE_H

/* Open one for reading and writing on the file system of `directory`, with `flags` (O_DIRECT or 0)
 * besides: without a name where the file system can, else it loses its name at once. -1 and errno
 * when it cannot be had. */
int sw_scratch_file_open(const char *directory, int flags);

#endif

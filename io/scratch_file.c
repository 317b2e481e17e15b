#include "io/scratch_file.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int sw_scratch_file_open(const char *directory, int flags)
{
    int descriptor = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return descriptor;
    char *path = sw_path_join(directory, ".spillway-XXXXXX");
    if (path == NULL) {
        errno = ENOMEM;
        return -1;
    }
    descriptor = mkostemp(path, O_CLOEXEC | flags);
    int reason = errno;
    if (descriptor >= 0)
        unlink(path);
    free(path);
    errno = reason;
    return descriptor;
}

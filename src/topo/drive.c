/* What lies under a directory: file system, block device, disk. */
#include "topo/topo.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct mount {
    char point[PATH_MAX];
    char type[64];
    char source[PATH_MAX];
    unsigned major_number, minor_number;
};

/* Mount points have blanks and backslashes as "\040" and so on. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
            from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static bool is_below(const char *path, const char *point)
{
    size_t length = strlen(point);
    if (length == 1)
        return true;
    return strncmp(path, point, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The mount that `path`, absolute and free of links, is on. False when it is not told. */
static bool find_mount(const char *path, struct mount *out)
{
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL)
        return false;
    while (getline(&line, &capacity, file) > 0) {
        struct mount mount;
        const char *rest = strstr(line, " - ");
        if (rest == NULL ||
            sscanf(line, "%*d %*d %u:%u %*s %4095s", &mount.major_number, &mount.minor_number,
                   mount.point) != 3 ||
            sscanf(rest, " - %63s %4095s", mount.type, mount.source) != 2)
            continue;
        unescape(mount.point);
        /* the longest point, and of equal ones the last, which lies on top */
        if (is_below(path, mount.point) && (!found || strlen(mount.point) >= strlen(out->point))) {
            *out = mount;
            found = true;
        }
    }
    free(line);
    fclose(file);
    return found;
}

/* The whole disk under a block device: of a partition its disk, of a mapped device the first it is
 * made of. False when there is no such device. */
static bool find_disk(unsigned major_number, unsigned minor_number, char *out, size_t out_bytes)
{
    char link[PATH_MAX], path[PATH_MAX], below[PATH_MAX + 32];
    snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major_number, minor_number);
    if (realpath(link, path) == NULL)
        return false;
    snprintf(below, sizeof below, "%s/partition", path);
    if (sw_file_exists(below))
        *strrchr(path, '/') = '\0';
    snprintf(out, out_bytes, "%s", sw_path_name(path));
    return true;
}

static bool read_flag(const char *device, const char *name)
{
    char path[PATH_MAX];
    int value = 0;
    snprintf(path, sizeof path, "/sys/block/%s/queue/%s", device, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (fscanf(file, "%d", &value) != 1)
        value = 0;
    fclose(file);
    return value != 0;
}

static void describe_device(const struct sw_topo *topo, const struct mount *mount,
                            struct sw_machine_drive *drive)
{
    struct stat status;
    bool found =
        find_disk(mount->major_number, mount->minor_number, drive->device, sizeof drive->device);
    /* btrfs and others number their mounts themselves, but name the device */
    if (!found && stat(mount->source, &status) == 0 && S_ISBLK(status.st_mode))
        found = find_disk(major(status.st_rdev), minor(status.st_rdev), drive->device,
                          sizeof drive->device);
    if (!found) {
        snprintf(drive->device, sizeof drive->device, "%s", drive->file_system);
        return;
    }
    drive->rotational = read_flag(drive->device, "rotational");
    if (topo != NULL)
        drive->numa_node = sw_topo_node_of_block_device(topo, drive->device);
}

sw_code sw_topo_describe_drive(const struct sw_topo *topo, const char *directory,
                               struct sw_machine_drive *out, struct sw_err *err)
{
    struct sw_machine_drive drive = {.numa_node = -1};
    struct mount mount;
    if (strlen(directory) >= sizeof drive.directory)
        return SW_FAIL(err, SW_E_USAGE, "the path %s is too long", directory);
    snprintf(drive.directory, sizeof drive.directory, "%s", directory);
    char *real = realpath(directory, NULL);
    if (real == NULL)
        return SW_FAIL_OS(err, SW_E_USAGE, errno, "cannot use the directory %s", directory);
    if (!sw_file_is_directory(real)) {
        free(real);
        return SW_FAIL(err, SW_E_USAGE, "%s is not a directory", directory);
    }
    drive.free_bytes = sw_directory_free_bytes(real);
    struct stat status;
    if (!find_mount(real, &mount)) { /* the root of a chroot need not be one */
        bool known = stat(real, &status) == 0;
        mount = (struct mount){.type = "unknown",
                               .major_number = known ? major(status.st_dev) : 0,
                               .minor_number = known ? minor(status.st_dev) : 0};
    }
    snprintf(drive.file_system, sizeof drive.file_system, "%s", mount.type);
    drive.memory_backed = strcmp(mount.type, "tmpfs") == 0 || strcmp(mount.type, "ramfs") == 0;
    describe_device(topo, &mount, &drive);
    free(real);
    *out = drive;
    return SW_OK;
}

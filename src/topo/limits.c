/* Limits of this machine and of this process, from /proc and /sys. */
#include "topo/topo.h"

#include "base/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* One number from a file; -1 when there is none ("max", no file). */
static int64_t read_number(const char *path)
{
    int64_t value = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%" SCNd64, &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

/* The number behind `key` in a file of lines "key number"; -1 when there is none. */
static int64_t read_keyed(const char *path, const char *key)
{
    char line[256];
    int64_t value = -1;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%" SCNd64, &value) == 1)
            break;
    fclose(file);
    return value;
}

struct limit_files {
    const char *mount, *controller;
    const char *limit, *usage, *inactive_key;
};

struct memory_limits {
    const struct limit_files *files;
    int64_t limit, left;
};

/* A group's limit lowers the limit, and what it leaves lowers what is left. */
static void apply_group(void *context, const char *group)
{
    struct memory_limits *limits = context;
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", group, limits->files->limit);
    int64_t here = read_number(path);
    if (here < 0 || here >= INT64_MAX / 2) /* version 1 writes "none" as a huge number */
        return;
    snprintf(path, sizeof path, "%s/%s", group, limits->files->usage);
    int64_t used = read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    /* page cache that goes on demand */
    int64_t inactive = read_keyed(path, limits->files->inactive_key);
    used = used < 0 ? 0 : used - (inactive > 0 ? inactive : 0);
    int64_t here_left = here - (used > 0 ? used : 0);
    if (here_left < 0)
        here_left = 0;
    if (limits->limit < 0 || here < limits->limit)
        limits->limit = here;
    if (limits->left < 0 || here_left < limits->left)
        limits->left = here_left;
}

void sw_topo_memory_limit_under(const char *root, int64_t *limit_bytes, int64_t *left_bytes)
{
    static const struct limit_files versions[] = {
        {"sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file "},
        {"sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file "},
    };
    struct memory_limits limits = {.limit = -1, .left = -1};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        limits.files = &versions[i];
        sw_cgroup_walk(root, versions[i].mount, versions[i].controller, apply_group, &limits);
    }
    *limit_bytes = limits.limit;
    *left_bytes = limits.left;
}

int64_t sw_topo_memory_limit_bytes(void)
{
    int64_t limit, left;
    sw_topo_memory_limit_under("", &limit, &left);
    return limit;
}

int64_t sw_topo_memory_total_bytes(void)
{
    int64_t kib = read_keyed("/proc/meminfo", "MemTotal:");
    return kib > 0 ? kib * 1024 : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

int64_t sw_topo_memory_available_bytes(void)
{
    int64_t limit, left;
    int64_t kib = read_keyed("/proc/meminfo", "MemAvailable:");
    int64_t available = kib > 0 ? kib * 1024 : sw_topo_memory_total_bytes();
    sw_topo_memory_limit_under("", &limit, &left);
    return left >= 0 && left < available ? left : available;
}

/* CAP_IPC_LOCK: such a process pins what it likes. */
static bool may_pin_all(void)
{
    enum { IPC_LOCK_BIT = 14 };
    char line[256];
    unsigned long long effective = 0;
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "CapEff: %llx", &effective) == 1)
            break;
    fclose(file);
    return (effective >> IPC_LOCK_BIT & 1) != 0;
}

int64_t sw_topo_memlock_bytes(void)
{
    struct rlimit limit;
    if (may_pin_all())
        return -1;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return -1;
    return (int64_t)limit.rlim_cur;
}

void sw_topo_describe(const struct sw_topo *topo, struct sw_machine *machine)
{
    if (gethostname(machine->host_name, sizeof machine->host_name) != 0)
        machine->host_name[0] = '\0';
    machine->host_name[sizeof machine->host_name - 1] = '\0';
    machine->cpus = sw_topo_cpu_count(topo);
    machine->cpus_total = sw_topo_cpu_total(topo);
    machine->numa_nodes = sw_topo_node_count(topo);
    machine->memory_total_bytes = sw_topo_memory_total_bytes();
    machine->memory_available_bytes = sw_topo_memory_available_bytes();
    machine->memory_limit_bytes = sw_topo_memory_limit_bytes();
    machine->memlock_bytes = sw_topo_memlock_bytes();
}

/* A list like "0-1,3". */
int sw_topo_nodes_online(void)
{
    int first, last, count = 0;
    char separator = ',';
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    if (file == NULL)
        return 1;
    while (separator == ',' && fscanf(file, "%d", &first) == 1) {
        last = first;
        if (fscanf(file, "%c", &separator) == 1 && separator == '-') {
            if (fscanf(file, "%d", &last) != 1)
                break;
            if (fscanf(file, "%c", &separator) != 1)
                separator = '\n';
        }
        count += last - first + 1;
    }
    fclose(file);
    return count > 0 ? count : 1;
}

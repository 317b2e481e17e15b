#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Is `name` in a list with commas? The list of version 2 is empty. */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (;;) {
        size_t item = strcspn(list, ",");
        if (item == length && strncmp(list, name, length) == 0)
            return true;
        if (list[item] == '\0')
            return false;
        list += item + 1;
    }
}

/* This process's group of a controller, from lines "number:controllers:group"; "" for none. */
static void own_group(const char *root, const char *controller, char *out, size_t out_bytes)
{
    char path[PATH_MAX], line[PATH_MAX];
    out[0] = '\0';
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *name = list != NULL ? strchr(list + 1, ':') : NULL;
        if (name == NULL)
            continue;
        *name++ = '\0';
        if (is_listed(list + 1, controller))
            snprintf(out, out_bytes, "%s", name);
    }
    fclose(file);
}

void sw_cgroup_walk(const char *root, const char *mount, const char *controller,
                    void (*visit)(void *context, const char *group), void *context)
{
    char own[PATH_MAX / 2], group[PATH_MAX];
    own_group(root, controller, own, sizeof own);
    for (;;) {
        while (own[0] != '\0' && own[strlen(own) - 1] == '/')
            own[strlen(own) - 1] = '\0';
        snprintf(group, sizeof group, "%s/%s%s", root, mount, own);
        visit(context, group);
        char *slash = strrchr(own, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* --- CPU quotas
 * --------------------------------------------------------------------------------*/

static void take_quota(int *least, long long quota, long long period)
{
    if (quota <= 0 || period <= 0) /* -1 and "max": none */
        return;
    long long cpus = (quota + period - 1) / period;
    if (cpus <= INT_MAX && (*least == 0 || cpus < *least))
        *least = (int)cpus;
}

static void visit_version2(void *context, const char *group)
{
    char path[2 * PATH_MAX];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", group);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fscanf(file, "%lld %lld", &quota, &period) == 2)
        take_quota(context, quota, period);
    fclose(file);
}

static long long number_in(const char *group, const char *name)
{
    char path[2 * PATH_MAX];
    long long value = -1;
    snprintf(path, sizeof path, "%s/%s", group, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%lld", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

static void visit_version1(void *context, const char *group)
{
    take_quota(context, number_in(group, "cpu.cfs_quota_us"),
               number_in(group, "cpu.cfs_period_us"));
}

int sw_cgroup_quota_cpus(const char *root)
{
    int least = 0;
    sw_cgroup_walk(root, "sys/fs/cgroup", "", visit_version2, &least);
    sw_cgroup_walk(root, "sys/fs/cgroup/cpu", "cpu", visit_version1, &least);
    return least;
}

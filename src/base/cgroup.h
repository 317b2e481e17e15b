/* Control groups that this process is in. */
#ifndef SPILLWAY_BASE_CGROUP_H
#define SPILLWAY_BASE_CGROUP_H

/* Call `visit` with the directory of this process's group, then with those of the groups above it,
 * up to what is mounted, whose limits hold, too. `root`: "" (tests have another); `mount`: below
 * it, "sys/fs/cgroup" for version 2; `controller`: of version 1, "" for version 2. A container may
 * see its group as the root, so a directory need not be there. */
void sw_cgroup_walk(const char *root, const char *mount, const char *controller,
                    void (*visit)(void *context, const char *group), void *context);

/* The least CPU quota of these groups, in CPUs, rounded up; 0: there is none. */
int sw_cgroup_quota_cpus(const char *root);

#endif

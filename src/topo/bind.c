#include "topo/topo.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* Add a range of a list to `set`; the text behind it, or NULL when it is none. */
static const char *parse_range(const char *text, cpu_set_t *set)
{
    char *end;
    long first = strtol(text, &end, 10), last = first;
    if (end == text)
        return NULL;
    if (*end == '-') {
        text = end + 1;
        last = strtol(text, &end, 10);
        if (end == text)
            return NULL;
    }
    if (first < 0 || last < first || last >= CPU_SETSIZE)
        return NULL;
    for (long cpu = first; cpu <= last; cpu++)
        CPU_SET((size_t)cpu, set);
    return end;
}

bool sw_topo_bind_thread(const char *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const char *at = cpus;; at++) {
        at = parse_range(at, &set);
        if (at == NULL || (*at != ',' && *at != '\0'))
            return false;
        if (*at == '\0')
            break;
    }
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

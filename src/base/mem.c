#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_bool sealed;
static _Thread_local bool thread_is_engine;

bool sw_size_mul(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool sw_size_add(int64_t a, int64_t b, int64_t *out)
{
    int64_t sum;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

int64_t sw_align_up(int64_t bytes, int64_t alignment)
{
    sw_assert(alignment > 0 && (alignment & (alignment - 1)) == 0 && bytes >= 0);
    sw_assert(bytes <= INT64_MAX - alignment);
    return (bytes + alignment - 1) & ~(alignment - 1);
}

static void check_seal(void)
{
#ifdef SW_DEBUG
    sw_assert(!(thread_is_engine && atomic_load(&sealed)));
#endif
}

void *sw_calloc(int64_t count, int64_t size_bytes)
{
    int64_t bytes;
    check_seal();
    if (!sw_size_mul(count, size_bytes, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return calloc(1, bytes > 0 ? (size_t)bytes : 1);
}

void *sw_aligned_alloc(int64_t bytes)
{
    check_seal();
    if (bytes < 0 || bytes > INT64_MAX - SW_HUGE_PAGE_BYTES) {
        errno = ENOMEM;
        return NULL;
    }
    int64_t alignment = bytes < SW_HUGE_PAGE_BYTES ? SW_ALIGNMENT_BYTES : SW_HUGE_PAGE_BYTES;
    int64_t padded = sw_align_up(bytes > 0 ? bytes : 1, alignment);
    void *block = aligned_alloc((size_t)alignment, (size_t)padded);
    if (block == NULL)
        return NULL;
    if (alignment == SW_HUGE_PAGE_BYTES)
        (void)madvise(block, (size_t)padded, MADV_HUGEPAGE);
    memset(block, 0, (size_t)padded);
    return block;
}

char *sw_strdup(const char *text)
{
    check_seal();
    return strdup(text);
}

bool sw_array_reserve(void **array, int64_t *capacity, int64_t count, int64_t size_bytes)
{
    if (count < *capacity)
        return true;
    check_seal();
    int64_t wanted = *capacity > 0 ? *capacity : 8;
    int64_t bytes;
    while (wanted <= count)
        if (!sw_size_mul(wanted, 2, &wanted))
            return false;
    if (!sw_size_mul(wanted, size_bytes, &bytes))
        return false;
    void *grown = realloc(*array, (size_t)bytes);
    if (grown == NULL)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

void sw_memory_thread_is_engine(void)
{
    thread_is_engine = true;
}

void sw_memory_seal(void)
{
    atomic_store(&sealed, true);
}

void sw_memory_unseal(void)
{
    atomic_store(&sealed, false);
}

int64_t sw_memory_process_bytes(void)
{
    char line[128];
    long long anonymous_kib = -1, shared_kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "RssAnon: %lld kB", &anonymous_kib);
        (void)sscanf(line, "RssShmem: %lld kB", &shared_kib);
    }
    fclose(file);
    return anonymous_kib < 0 ? -1 : (anonymous_kib + shared_kib) * 1024;
}

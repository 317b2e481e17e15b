/* Memory of the engine: checked sizes, aligned zeroed blocks, and the seal.
 *
 * Plan, allocate, seal: after sw_memory_seal() the engine's threads allocate nothing. In debug
 * builds (--enable-debug) an allocation through this header on a thread that called
 * sw_memory_thread_is_engine() aborts after the seal. */
#ifndef SPILLWAY_BASE_MEM_H
#define SPILLWAY_BASE_MEM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SW_ALIGNMENT_BYTES = 64, SW_HUGE_PAGE_BYTES = 2 << 20 };

/* a*b and a+b of non-negative sizes; false on overflow, and then *out is not written. */
bool sw_size_mul(int64_t a, int64_t b, int64_t *out);
bool sw_size_add(int64_t a, int64_t b, int64_t *out);
/* `bytes` rounded up to a multiple of the power of two `alignment`. */
int64_t sw_align_up(int64_t bytes, int64_t alignment);

/* `count` zeroed elements of `size_bytes`, or NULL with errno = ENOMEM. Free with free(). */
void *sw_calloc(int64_t count, int64_t size_bytes) SW_WARN_UNUSED;
/* As sw_calloc for bytes aligned to SW_ALIGNMENT_BYTES; contents are zero. Free with free(). From
 * SW_HUGE_PAGE_BYTES on it is aligned to those, and huge pages are asked for, as they are for what
 * a step works on: with small ones a drive is handed every 4096 bytes apart, at half the rate. */
void *sw_aligned_alloc(int64_t bytes) SW_WARN_UNUSED;
/* Copy of a string, or NULL. Free with free(). */
char *sw_strdup(const char *text) SW_WARN_UNUSED;

/* Grow a dynamic array: makes room for `count` + 1 elements. On failure *array is unchanged. */
bool sw_array_reserve(void **array, int64_t *capacity, int64_t count,
                      int64_t size_bytes) SW_WARN_UNUSED;

void sw_memory_thread_is_engine(void);
void sw_memory_seal(void);
void sw_memory_unseal(void);

/* Anonymous and shared memory of this process that is resident; -1 where the system does not tell.
 */
int64_t sw_memory_process_bytes(void);

#ifdef __cplusplus
}
#endif
#endif

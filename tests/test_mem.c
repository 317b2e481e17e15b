/* Sizes that overflow are refused, blocks are aligned and zero, arrays grow and keep what they
 * hold. */
#include "tests/support.h"

#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

static void sizes(void **state)
{
    (void)state;
    int64_t out = -7;
    assert_true(sw_size_mul(3, 5, &out) && out == 15);
    assert_true(sw_size_mul(0, INT64_MAX, &out) && out == 0);
    assert_true(sw_size_add(INT64_MAX - 1, 1, &out) && out == INT64_MAX);
    out = -7;
    assert_false(sw_size_mul(INT64_C(1) << 32, INT64_C(1) << 31, &out));
    assert_false(sw_size_mul(-1, 2, &out));
    assert_false(sw_size_mul(2, -1, &out));
    assert_false(sw_size_add(INT64_MAX, 1, &out));
    assert_false(sw_size_add(-1, 2, &out));
    assert_int_equal(out, -7); /* not written */
}

static void rounding_up(void **state)
{
    (void)state;
    assert_int_equal(sw_align_up(0, 64), 0);
    assert_int_equal(sw_align_up(1, 64), 64);
    assert_int_equal(sw_align_up(64, 64), 64);
    assert_int_equal(sw_align_up(65, 64), 128);
    assert_int_equal(sw_align_up(5, 1), 5);
}

static bool all_zero(const unsigned char *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static void blocks(void **state)
{
    (void)state;
    for (int64_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *aligned = sw_aligned_alloc(bytes), *plain = sw_calloc(bytes, 1);
        assert_non_null(aligned);
        assert_non_null(plain);
        assert_int_equal((uintptr_t)aligned % SW_ALIGNMENT_BYTES, 0);
        assert_true(all_zero(aligned, bytes) && all_zero(plain, bytes));
        memset(aligned, 1, (size_t)bytes); /* what is freed is not zero when it comes again */
        free(aligned);
        free(plain);
    }
    unsigned char *large = sw_aligned_alloc(SW_HUGE_PAGE_BYTES + 1);
    assert_non_null(large);
    assert_int_equal((uintptr_t)large % SW_HUGE_PAGE_BYTES, 0);
    assert_true(all_zero(large, SW_HUGE_PAGE_BYTES + 1));
    free(large);
    errno = 0;
    assert_null(sw_calloc(INT64_C(1) << 40, INT64_C(1) << 40));
    assert_int_equal(errno, ENOMEM);
    assert_null(sw_calloc(-1, 4));
    assert_null(sw_aligned_alloc(-1));
    errno = 0;
    assert_null(sw_aligned_alloc(INT64_MAX));
    assert_int_equal(errno, ENOMEM);
}

static void arrays_grow(void **state)
{
    (void)state;
    void *array = NULL;
    int64_t capacity = 0;
    for (int64_t count = 0; count < 1000; count++) {
        assert_true(sw_array_reserve(&array, &capacity, count, sizeof(int64_t)));
        assert_true(capacity > count);
        ((int64_t *)array)[count] = count * count;
    }
    for (int64_t i = 0; i < 1000; i++)
        assert_int_equal(((int64_t *)array)[i], i * i);
    void *before = array;
    int64_t capacity_before = capacity;
    assert_false(sw_array_reserve(&array, &capacity, capacity, INT64_MAX / 2));
    assert_false(sw_array_reserve(&array, &capacity, INT64_MAX, 1));
    assert_ptr_equal(array, before);
    assert_int_equal(capacity, capacity_before);
    free(array);
}

static void strings(void **state)
{
    (void)state;
    char *copy = sw_strdup("spilled");
    assert_string_equal(copy, "spilled");
    free(copy);
}

/* Debug builds abort when a sealed engine thread allocates; others go on. */
static void sealed(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(9);
        sw_memory_thread_is_engine();
        sw_memory_seal();
        sw_memory_unseal();
        free(sw_calloc(1, 1));
        sw_memory_seal();
        free(sw_calloc(1, 1));
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
#ifdef SW_DEBUG
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),       cmocka_unit_test(rounding_up), cmocka_unit_test(blocks),
        cmocka_unit_test(arrays_grow), cmocka_unit_test(strings),     cmocka_unit_test(sealed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

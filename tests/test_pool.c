/* The worker pool: every task once, worker numbers unique among running tasks, several jobs at
 * once. Run under ThreadSanitizer too: the counters below are plain on purpose where the pool
 * promises exclusion. */
#include "tests/support.h"

#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TASKS = 1000, CALLERS = 4, ROUNDS = 50 };

struct job {
    int runs[TASKS]; /* plain: one task writes one, and sw_pool_run() returning orders the reader */
    int by_worker[64]; /* plain: no two running tasks of a job have one worker number */
    int64_t workers;
    atomic_int outside; /* tasks whose worker number was out of range */
};

static void count(void *context, int64_t index, int64_t worker)
{
    struct job *job = context;
    job->runs[index]++;
    if (worker < 0 || worker >= job->workers)
        atomic_fetch_add(&job->outside, 1);
    else
        job->by_worker[worker]++;
}

/* NULL, or what was wrong. */
static const char *run_and_check(struct sw_pool *pool, int64_t tasks)
{
    struct job job = {.workers = sw_pool_workers(pool)};
    sw_pool_run(pool, count, &job, tasks);
    int64_t sum = 0;
    for (int64_t i = 0; i < TASKS; i++)
        if (job.runs[i] != (i < tasks ? 1 : 0))
            return "a task did not run exactly once";
    for (int64_t i = 0; i < job.workers; i++)
        sum += job.by_worker[i];
    if (atomic_load(&job.outside) != 0)
        return "a worker number is out of range";
    return sum == tasks ? NULL : "two tasks had one worker number at once";
}

static struct sw_pool *open_pool(int threads)
{
    struct sw_pool *pool = NULL;
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(sw_pool_open(&pool, threads, &err), &err);
    return pool;
}

static void every_task_runs_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct sw_pool *pool = open_pool(threads);
        assert_int_equal(sw_pool_workers(pool), threads);
        static const int64_t tasks[] = {0, 1, 2, 3, 7, TASKS};
        for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
            const char *wrong = run_and_check(pool, tasks[i]);
            if (wrong != NULL)
                fail_msg("%d threads, %lld tasks: %s", threads, (long long)tasks[i], wrong);
        }
        sw_pool_close(pool);
    }
}

struct caller {
    struct sw_pool *pool;
    pthread_barrier_t *start;
    const char *wrong;
};

static void *call_often(void *context)
{
    struct caller *caller = context;
    pthread_barrier_wait(caller->start);
    for (int64_t round = 0; round < ROUNDS && caller->wrong == NULL; round++)
        caller->wrong = run_and_check(caller->pool, round * (TASKS / ROUNDS));
    return NULL;
}

static void several_jobs_at_once(void **state)
{
    (void)state;
    pthread_barrier_t start;
    pthread_t threads[CALLERS];
    struct caller callers[CALLERS];
    struct sw_pool *pool = open_pool(3);
    assert_int_equal(pthread_barrier_init(&start, NULL, CALLERS), 0);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.pool = pool, .start = &start};
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < CALLERS; i++)
        if (callers[i].wrong != NULL)
            fail_msg("caller %d: %s", i, callers[i].wrong);
    pthread_barrier_destroy(&start);
    sw_pool_close(pool);
}

static void as_many_threads_as_cpus(void **state)
{
    (void)state;
    assert_true(sw_cpus_available() >= 1);
    struct sw_pool *pool = open_pool(0);
    assert_int_equal(sw_pool_workers(pool), sw_cpus_available());
    sw_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(several_jobs_at_once),
        cmocka_unit_test(as_many_threads_as_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/pool.h"

#include "base/cgroup.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* One call of sw_pool_run(), on its caller's stack. It is in the pool's list from the moment it
 * has unclaimed tasks until its last task is claimed. */
struct job {
    sw_task_fn task;
    void *context;
    int64_t tasks;
    int64_t next;     /* first task nobody claimed */
    int64_t finished; /* tasks done */
    int64_t workers;  /* threads that joined; gives each its worker number */
    struct job *following;
    pthread_cond_t done;
};

struct sw_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct job *first, *last;
    bool stop;
    void (*begin)(void *context, int64_t index); /* NULL: nothing to do */
    void *begin_context;
    int64_t begun;   /* threads that have begun */
    int64_t threads; /* created; one less than workers */
    pthread_t handles[];
};

static void unlink_job(struct sw_pool *pool, struct job *job)
{
    struct job **link = &pool->first, *previous = NULL;
    while (*link != job) {
        previous = *link;
        link = &previous->following;
    }
    *link = job->following;
    if (pool->last == job)
        pool->last = previous;
}

/* Claim and run tasks of `job` until none is left. Called and left with the lock held. */
static void work_on(struct sw_pool *pool, struct job *job)
{
    int64_t worker = job->workers++;
    while (job->next < job->tasks) {
        int64_t index = job->next++;
        if (job->next == job->tasks)
            unlink_job(pool, job);
        pthread_mutex_unlock(&pool->lock);
        job->task(job->context, index, worker);
        pthread_mutex_lock(&pool->lock);
        if (++job->finished == job->tasks)
            pthread_cond_signal(&job->done);
    }
}

static void *worker_main(void *argument)
{
    struct sw_pool *pool = argument;
    sw_memory_thread_is_engine();
    pthread_mutex_lock(&pool->lock);
    int64_t index = ++pool->begun;
    pthread_mutex_unlock(&pool->lock);
    if (pool->begin != NULL)
        pool->begin(pool->begin_context, index);
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        if (pool->first != NULL)
            work_on(pool, pool->first);
        else
            pthread_cond_wait(&pool->work, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

sw_code sw_pool_open(struct sw_pool **out, int threads, struct sw_err *err)
{
    return sw_pool_open_with(out, threads, NULL, NULL, err);
}

sw_code sw_pool_open_with(struct sw_pool **out, int threads,
                          void (*begin)(void *context, int64_t index), void *context,
                          struct sw_err *err)
{
    int64_t extra = (threads > 0 ? threads : sw_cpus_available()) - 1;
    struct sw_pool *pool =
        sw_calloc(1, (int64_t)(sizeof *pool + (size_t)extra * sizeof pool->handles[0]));
    if (pool == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a pool of %lld threads", (long long)extra);
    pool->begin = begin;
    pool->begin_context = context;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    for (; pool->threads < extra; pool->threads++) {
        int rc = pthread_create(&pool->handles[pool->threads], NULL, worker_main, pool);
        if (rc != 0) {
            sw_pool_close(pool);
            return SW_FAIL_OS(err, SW_E_FAILED, rc, "cannot start a worker thread");
        }
    }
    *out = pool;
    return SW_OK;
}

void sw_pool_close(struct sw_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int64_t i = 0; i < pool->threads; i++)
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void sw_pool_run(struct sw_pool *pool, sw_task_fn task, void *context, int64_t tasks)
{
    if (tasks <= 0)
        return;
    if (tasks == 1 || pool->threads == 0) {
        for (int64_t i = 0; i < tasks; i++)
            task(context, i, 0);
        return;
    }
    struct job job = {.task = task, .context = context, .tasks = tasks};
    pthread_cond_init(&job.done, NULL);
    pthread_mutex_lock(&pool->lock);
    if (pool->last != NULL)
        pool->last->following = &job;
    else
        pool->first = &job;
    pool->last = &job;
    pthread_cond_broadcast(&pool->work);
    work_on(pool, &job);
    while (job.finished < job.tasks)
        pthread_cond_wait(&job.done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_destroy(&job.done);
}

int64_t sw_pool_workers(const struct sw_pool *pool)
{
    return pool->threads + 1;
}

int sw_cpus_available(void)
{
    cpu_set_t set;
    int cpus = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        cpus = CPU_COUNT(&set);
    int quota = sw_cgroup_quota_cpus("");
    return quota > 0 && quota < cpus ? quota : cpus;
}

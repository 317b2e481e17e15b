/* The suite of communication on a machine with GPUs (tools/gpu-check runs this): `local` with ranks
 * that share a GPU; `nccl` with 2 and 4 processes, which may share one, since each gives itself out
 * for a host of its own; and, where there are several GPUs, with one thread for all of them and
 * with a thread each. What a group takes of a GPU is held against what it says.
 *
 * comm_check [local|processes|one|threads]...: all by default. Each runs in processes of its own,
 * begun before there is CUDA in any. Exit status 0, 1, or 77 where there is no GPU. */
#include "tests/comm_suite.h"
#include "tests/cuda_module.h"
#include "tests/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SKIPPED = 77, PATIENCE_SECONDS = 120, LONG = 17 << 19 };

static const struct sw_device_ops *ops;

static int count_gpus(void)
{
    struct sw_err err = {0};
    int count = 0;
    return ops->count(&count, &err) == SW_OK ? count : 0;
}

/* NULL, and that this is skipped, or what is wrong. */
static const struct sw_comm_ops *find_nccl(void)
{
    const char *why;
    const struct sw_comm_ops *nccl = ops->comm(&why);
    if (nccl == NULL)
        printf("skipped: %s\n", why);
    return nccl;
}

static int run_local(void)
{
    const struct comm_rig rig = {.ops = ops,
                                 .comms = &sw_comm_local,
                                 .name = "local",
                                 .smallest = 1,
                                 .largest = 4,
                                 .devices = 1,
                                 .process = -1};
    return comm_suite_run(&rig) != 0;
}

/* ---- processes ---- */

static struct meeting {
    pthread_barrier_t all;
    struct sw_comm_id id;
} * meeting; /* shared */
static int this_process;

static void share_id(struct sw_comm_id *id)
{
    struct sw_err err = {0};
    const char *why;
    if (this_process == 0)
        assert_ok(ops->comm(&why)->id(&meeting->id, &err), &err);
    pthread_barrier_wait(&meeting->all);
    *id = meeting->id;
    pthread_barrier_wait(&meeting->all);
}

/* Member `this_process` of `count`. */
static int run_member(int count)
{
    char host[32];
    snprintf(host, sizeof host, "comm-check-%d", this_process);
    (void)setenv("NCCL_HOSTID", host, 1);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    (void)setenv("NCCL_IB_DISABLE", "1", 0);
    int null = this_process > 0 ? open("/dev/null", O_WRONLY) : -1;
    if (null >= 0)
        (void)dup2(null, STDOUT_FILENO);
    ops = sw_test_cuda();
    const struct sw_comm_ops *nccl = ops != NULL ? find_nccl() : NULL;
    if (nccl == NULL)
        return SKIPPED;
    const struct comm_rig rig = {.ops = ops,
                                 .comms = nccl,
                                 .name = "nccl",
                                 .smallest = count,
                                 .largest = count,
                                 .devices = count_gpus(),
                                 .most = LONG,
                                 .process = this_process,
                                 .share_id = share_id};
    return comm_suite_run(&rig) != 0;
}

/* ---- several GPUs in one process ---- */

static int64_t free_bytes(int gpu)
{
    struct sw_device_info info;
    struct sw_err err = {0};
    assert_ok(ops->describe(gpu, &info, &err), &err);
    return info.free_bytes;
}

/* Run after the suite, so that all there is to load has been loaded. */
static void a_group_takes_what_it_says(void **state)
{
    (void)state;
    int gpus = count_gpus();
    int count = gpus < COMM_MEMBERS ? gpus : COMM_MEMBERS;
    int64_t before[COMM_MEMBERS];
    struct sw_device *devices[COMM_MEMBERS];
    struct sw_stream *streams[COMM_MEMBERS];
    struct sw_comm *comm;
    struct sw_err err = {0};
    const char *why;
    const struct sw_comm_ops *nccl = ops->comm(&why);
    for (int m = 0; m < count; m++) {
        const struct sw_device_config config = {.physical_index = m, .memory_bytes = 1 << 20};
        assert_ok(ops->open(&devices[m], &config, &err), &err);
        assert_ok(ops->stream_open(devices[m], SW_STREAM_COLLECTIVE, &streams[m], &err), &err);
    }
    for (int m = 0; m < count; m++)
        before[m] = free_bytes(m);
    const struct sw_comm_group group = {.device = ops, .size = count, .streams = streams};
    assert_ok(nccl->open(&comm, &group, &err), &err);
    for (int m = 0; m < count; m++) {
        int64_t taken = before[m] - free_bytes(m);
        printf("a group of %d takes %.1f MiB of GPU %d, says %.1f\n", count,
               (double)taken / (1 << 20), m, (double)nccl->member_bytes(count) / (1 << 20));
        assert_true(taken <= nccl->member_bytes(count));
    }
    nccl->close(comm);
    for (int m = 0; m < count; m++) {
        ops->stream_close(streams[m]);
        ops->close(devices[m]);
    }
}

static int run_in_one_process(bool threads)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_group_takes_what_it_says)};
    int gpus = count_gpus();
    const struct sw_comm_ops *nccl = gpus >= 2 ? find_nccl() : NULL;
    if (gpus < 2)
        printf("skipped: there is one GPU\n");
    if (nccl == NULL)
        return SKIPPED;
    const struct comm_rig rig = {.ops = ops,
                                 .comms = nccl,
                                 .name = "nccl",
                                 .smallest = threads ? 2 : 1,
                                 .largest = gpus < COMM_MEMBERS ? gpus : COMM_MEMBERS,
                                 .devices = gpus,
                                 .most = LONG,
                                 .threads = threads,
                                 .process = -1};
    int failed = comm_suite_run(&rig);
    if (!threads)
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    return failed != 0;
}

static int run_way(const char *way, int count)
{
    if (count > 0)
        return run_member(count);
    ops = sw_test_cuda();
    if (ops == NULL)
        return SKIPPED;
    return strcmp(way, "local") == 0 ? run_local()
                                     : run_in_one_process(strcmp(way, "threads") == 0);
}

/* `count` processes, or one for 0: 0, 1 or SKIPPED. One that fails takes the others with it. */
static int run_apart(const char *way, int count)
{
    int processes = count > 0 ? count : 1, worst = 0;
    pid_t children[COMM_MEMBERS];
    pthread_barrierattr_t shared;
    printf("== %s%s%.0d\n", way, count > 0 ? " " : "", count);
    fflush(stdout);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&meeting->all, &shared, (unsigned)processes);
    for (this_process = 0; this_process < processes; this_process++) {
        children[this_process] = fork();
        if (children[this_process] == 0) {
            alarm(PATIENCE_SECONDS);
            int status = run_way(way, count);
            fflush(NULL);
            _exit(status);
        }
    }
    for (int i = 0; i < processes; i++) {
        int status = 0;
        pid_t child = waitpid(-1, &status, 0);
        int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (WIFSIGNALED(status))
            printf("a process ended by signal %d\n", WTERMSIG(status));
        if (result != 0 && result != SKIPPED && worst != 1) {
            worst = 1;
            for (int other = 0; other < processes; other++)
                if (children[other] != child)
                    (void)kill(children[other], SIGTERM);
        }
        worst = worst == 0 ? result : worst;
    }
    pthread_barrier_destroy(&meeting->all);
    printf("== %s%s%.0d: %s\n", way, count > 0 ? " " : "", count,
           worst == 0         ? "passed"
           : worst == SKIPPED ? "skipped"
                              : "FAILED");
    return worst;
}

static bool wanted(int argc, char **argv, const char *way)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], way) == 0)
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *way;
        int count;
    } ways[] = {{"local", 0}, {"processes", 2}, {"processes", 4}, {"one", 0}, {"threads", 0}};
    int failed = 0, passed = 0;
    meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!wanted(argc, argv, ways[i].way))
            continue;
        int result = run_apart(ways[i].way, ways[i].count);
        failed += result == 1;
        passed += result == 0;
    }
    return failed > 0 ? 1 : passed > 0 ? 0 : SKIPPED;
}

/* Groups of ranks over the local communicator: what every call moves, sums in the order of the
 * members bit for bit, and a failure that gets out at the barrier. */
#include "base/random.h"
#include "kernels/comm.h"
#include "kernels/kernels.h"
#include "tests/support.h"

enum { MEMBERS = 5, MOST = 1 << 17, GUARD = 64 };

static const struct sw_comm_ops *comms = &sw_comm_local;
static const struct sw_device_ops *ops = &sw_cpu_device_ops;

/* Sizes about the widths of vectors, pages and pieces of copies. */
static const int64_t SIZES[] = {0, 1, 7, 33, 4097, MOST - 3};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

struct group {
    int size;
    struct sw_pool *pool;
    struct sw_device *devices[MEMBERS];
    struct sw_stream *streams[MEMBERS];
    struct sw_comm *comm;
    float *arrays[MEMBERS], *others[MEMBERS]; /* [GUARD + MOST + GUARD], from GUARD on */
};

static float *new_array(struct sw_device *device)
{
    struct sw_err err;
    void *memory;
    sw_err_init(&err);
    assert_ok(
        ops->alloc(device, (int64_t)sizeof(float) * (MOST + 2 * (int64_t)GUARD), &memory, &err),
        &err);
    return (float *)memory + GUARD;
}

static void open_group(struct group *group, int size)
{
    struct sw_err err;
    sw_err_init(&err);
    *group = (struct group){.size = size};
    assert_ok(sw_pool_open(&group->pool, 2, &err), &err);
    for (int m = 0; m < size; m++) {
        const struct sw_device_config config = {.memory_bytes = 4 << 20, .pool = group->pool};
        assert_ok(ops->open(&group->devices[m], &config, &err), &err);
        assert_ok(
            ops->stream_open(group->devices[m], SW_STREAM_COLLECTIVE, &group->streams[m], &err),
            &err);
        group->arrays[m] = new_array(group->devices[m]);
        group->others[m] = new_array(group->devices[m]);
    }
    assert_ok(comms->open(&group->comm, ops, group->streams, size, &err), &err);
}

static void close_group(struct group *group)
{
    comms->close(group->comm);
    for (int m = 0; m < group->size; m++) {
        ops->stream_close(group->streams[m]);
        ops->close(group->devices[m]);
    }
    sw_pool_close(group->pool);
}

static void barrier(struct group *group)
{
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(comms->barrier(group->comm, &err), &err);
}

/* Element i of member m: of many magnitudes, so that another order of a sum has other bits. */
static float value(int m, int64_t i)
{
    const uint32_t key[2] = {17, (uint32_t)m};
    uint32_t words[4];
    sw_philox(key, (const uint32_t[4]){(uint32_t)i, 0, 0, 0}, words);
    float unit = (float)(words[0] >> 8) / 16777216.0f - 0.5f;
    return unit * (float)(1 << words[1] % 20);
}

static float sum(const struct group *group, int64_t i)
{
    float total = value(0, i);
    for (int m = 1; m < group->size; m++)
        total += value(m, i);
    return total;
}

static void fill(struct group *group, int64_t count)
{
    for (int m = 0; m < group->size; m++)
        for (int64_t i = -GUARD; i < count + GUARD; i++) {
            group->arrays[m][i] = i >= 0 && i < count ? value(m, i) : -1.0f;
            group->others[m][i] = -2.0f;
        }
}

static void assert_guards(const float *array, int64_t count, float guard)
{
    for (int64_t i = 1; i <= GUARD; i++) {
        assert_true(array[-i] == guard);
        assert_true(array[count + i - 1] == guard);
    }
}

static void assert_bits(float have, float want, const char *what, int m, int64_t i)
{
    if (memcmp(&have, &want, sizeof have) != 0)
        fail_msg("%s: element %lld of member %d is %.9g, not %.9g", what, (long long)i, m,
                 (double)have, (double)want);
}

/* Ranges of the members, of unlike sizes. `gaps`: the odd members' are empty, and not all elements
 * are anybody's. */
static void cut(const struct group *group, int64_t count, bool gaps, struct sw_comm_range *out)
{
    int64_t at = gaps && count > 2 ? 2 : 0;
    for (int m = 0; m < group->size; m++) {
        int64_t left = count - at;
        int64_t share = m == group->size - 1 && !gaps ? left : left / 2;
        out[m] = (struct sw_comm_range){at, gaps && m % 2 == 1 ? 0 : share};
        at += out[m].count;
    }
}

typedef void (*check_fn)(struct group *group, int64_t count);

static void for_all_groups(check_fn check)
{
    for (int size = 1; size <= MEMBERS; size++) {
        struct group group;
        open_group(&group, size);
        for (int s = 0; s < SIZE_COUNT; s++)
            check(&group, SIZES[s]);
        close_group(&group);
    }
}

/* Bytes, not elements: an odd number of them. */
static void check_send(struct group *group, int64_t count)
{
    int64_t bytes = count > 0 ? 4 * count - 1 : 0;
    for (int from = 0; from < group->size; from++)
        for (int to = 0; to < group->size; to++) {
            fill(group, count);
            comms->send(group->comm, from, to, group->others[to], group->arrays[from], bytes);
            barrier(group);
            assert_memory_equal(group->others[to], group->arrays[from], (size_t)bytes);
            const float guard = -2.0f;
            assert_memory_equal((const char *)group->others[to] + bytes,
                                (const char *)&guard + (count > 0 ? 3 : 0), count > 0 ? 1 : 4);
            assert_guards(group->others[to], count, -2.0f);
            for (int m = 0; m < group->size; m++)
                if (m != to)
                    assert_guards(group->others[m], 0, -2.0f);
        }
}

static void send_moves_bytes_between_any_two(void **state)
{
    (void)state;
    for_all_groups(check_send);
}

static void check_gather(struct group *group, int64_t count)
{
    for (int way = 0; way < 4; way++) {
        bool gaps = way % 2 == 1, in_place = way >= 2;
        struct sw_comm_range ranges[MEMBERS];
        const void *sources[MEMBERS];
        void *destinations[MEMBERS];
        cut(group, count, gaps, ranges);
        fill(group, count);
        for (int m = 0; m < group->size; m++) {
            sources[m] = ranges[m].count > 0 ? group->arrays[m] + ranges[m].first : NULL;
            destinations[m] = in_place ? group->arrays[m] : group->others[m];
        }
        comms->all_gather(group->comm, destinations, sources, ranges, (int64_t)sizeof(float));
        barrier(group);
        for (int m = 0; m < group->size; m++) {
            const float *have = destinations[m];
            float untouched = in_place ? -1.0f : -2.0f;
            for (int owner = 0; owner < group->size; owner++)
                for (int64_t i = ranges[owner].first; i < ranges[owner].first + ranges[owner].count;
                     i++)
                    assert_bits(have[i], value(owner, i), "all_gather", m, i);
            for (int64_t i = 0; gaps && i < ranges[0].first; i++) /* nobody's */
                assert_bits(have[i], in_place ? value(m, i) : untouched, "all_gather", m, i);
            assert_guards(have, count, untouched);
        }
    }
}

static void all_gather_in_and_out_of_place(void **state)
{
    (void)state;
    for_all_groups(check_gather);
}

static void elements_of_two_bytes_are_gathered(void **state)
{
    (void)state;
    struct group group;
    struct sw_comm_range ranges[3] = {{0, 5}, {5, 0}, {5, 2}};
    const void *sources[3];
    void *destinations[3];
    open_group(&group, 3);
    for (int m = 0; m < 3; m++) {
        uint16_t *mine = (uint16_t *)group.arrays[m];
        for (int i = 0; i < 8; i++)
            mine[i] = (uint16_t)(100 * m + i);
        sources[m] = mine + ranges[m].first;
        destinations[m] = mine;
    }
    comms->all_gather(group.comm, destinations, sources, ranges, 2);
    barrier(&group);
    for (int m = 0; m < 3; m++) {
        const uint16_t want[8] = {0, 1, 2, 3, 4, 205, 206, (uint16_t)(100 * m + 7)};
        assert_memory_equal(destinations[m], want, sizeof want);
    }
    close_group(&group);
}

static void check_reduce_scatter(struct group *group, int64_t count)
{
    for (int gaps = 0; gaps < 2; gaps++) {
        struct sw_comm_range ranges[MEMBERS];
        cut(group, count, gaps == 1, ranges);
        fill(group, count);
        comms->reduce_scatter(group->comm, group->arrays, ranges);
        barrier(group);
        for (int m = 0; m < group->size; m++) {
            for (int64_t i = ranges[m].first; i < ranges[m].first + ranges[m].count; i++)
                assert_bits(group->arrays[m][i], sum(group, i), "reduce_scatter", m, i);
            assert_guards(group->arrays[m], count, -1.0f);
        }
    }
}

static void reduce_scatter_sums_in_the_order_of_the_members(void **state)
{
    (void)state;
    for_all_groups(check_reduce_scatter);
}

static void check_all_reduce(struct group *group, int64_t count)
{
    fill(group, count);
    comms->all_reduce(group->comm, group->arrays, count);
    barrier(group);
    for (int m = 0; m < group->size; m++) {
        for (int64_t i = 0; i < count; i++)
            assert_bits(group->arrays[m][i], sum(group, i), "all_reduce", m, i);
        assert_guards(group->arrays[m], count, -1.0f);
    }
}

static void all_reduce_sums_in_the_order_of_the_members(void **state)
{
    (void)state;
    for_all_groups(check_all_reduce);
}

/* The sums above would not notice another order if the values did not: these do. */
static void another_order_has_other_bits(void **state)
{
    (void)state;
    int64_t unlike = 0;
    for (int64_t i = 0; i < 4096; i++)
        unlike +=
            value(0, i) + value(1, i) + value(2, i) != value(2, i) + value(1, i) + value(0, i);
    assert_true(unlike > 100);
}

static void check_broadcast(struct group *group, int64_t count)
{
    for (int root = 0; root < group->size; root++) {
        void *arrays[MEMBERS];
        fill(group, count);
        for (int m = 0; m < group->size; m++)
            arrays[m] = group->arrays[m];
        comms->broadcast(group->comm, root, arrays, count * (int64_t)sizeof(float));
        barrier(group);
        for (int m = 0; m < group->size; m++) {
            for (int64_t i = 0; i < count; i++)
                assert_bits(group->arrays[m][i], value(root, i), "broadcast", m, i);
            assert_guards(group->arrays[m], count, -1.0f);
        }
    }
}

static void broadcast_from_any_member(void **state)
{
    (void)state;
    for_all_groups(check_broadcast);
}

/* The first failure of the group, by its code and words; and what failed does nothing more. */
static void the_barrier_tells_a_failure_of_any_member(void **state)
{
    (void)state;
    for (int broken = 0; broken < 3; broken++) {
        struct group group;
        struct sw_err err;
        sw_err_init(&err);
        open_group(&group, 3);
        fill(&group, 16);
        (void)SW_FAIL(&group.streams[broken]->error, SW_E_DEVICE, "member %d has burnt out",
                      broken);
        comms->send(group.comm, broken, (broken + 1) % 3, group.others[(broken + 1) % 3],
                    group.arrays[broken], 64);
        assert_true(group.others[(broken + 1) % 3][0] == -2.0f);
        char words[64];
        snprintf(words, sizeof words, "member %d has burnt out", broken);
        assert_refused(comms->barrier(group.comm, &err), SW_E_DEVICE, words, &err);
        assert_int_equal(comms->barrier(group.comm, NULL), SW_E_DEVICE);
        assert_int_equal(comms->failed(group.comm), broken);
        close_group(&group);
    }
}

/* A sum over a member that failed is nobody's result: the failure is on all streams. */
static void a_failure_reaches_those_who_took_part(void **state)
{
    (void)state;
    struct group group;
    struct sw_err err;
    sw_err_init(&err);
    open_group(&group, 4);
    fill(&group, 16);
    (void)SW_FAIL(&group.streams[2]->error, SW_E_DEVICE, "member 2 has burnt out");
    assert_int_equal(comms->failed(group.comm), -1);
    comms->all_reduce(group.comm, group.arrays, 16);
    assert_int_equal(comms->failed(group.comm), 2);
    for (int m = 0; m < 4; m++)
        assert_refused(ops->stream_sync(group.streams[m], &err), SW_E_DEVICE, "member 2", &err);
    close_group(&group);
}

static void it_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(comms->name, "local");
    comms->close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(send_moves_bytes_between_any_two),
        cmocka_unit_test(all_gather_in_and_out_of_place),
        cmocka_unit_test(elements_of_two_bytes_are_gathered),
        cmocka_unit_test(reduce_scatter_sums_in_the_order_of_the_members),
        cmocka_unit_test(all_reduce_sums_in_the_order_of_the_members),
        cmocka_unit_test(another_order_has_other_bits),
        cmocka_unit_test(broadcast_from_any_member),
        cmocka_unit_test(the_barrier_tells_a_failure_of_any_member),
        cmocka_unit_test(a_failure_reaches_those_who_took_part),
        cmocka_unit_test(it_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

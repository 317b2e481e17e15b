#include "comm_suite.h"

#include "base/random.h"
#include "kernels/kernels.h"
#include "support.h"

#include <pthread.h>

enum { MOST = 1 << 17, GUARD = 64 };

static struct comm_rig rig;

/* Sizes about the widths of vectors, pages and pieces of copies. */
static const int64_t SIZES[] = {0, 1, 7, 33, 4097, MOST - 3};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

/* A member's memory, in it and on the host: [GUARD + most + GUARD], from GUARD on. */
struct array {
    float *device, *host;
};

struct group {
    int size, owners;
    int64_t most;
    struct sw_pool *pool;
    struct sw_device *devices[COMM_MEMBERS];
    struct sw_stream *streams[COMM_MEMBERS], *copies[COMM_MEMBERS];
    struct sw_comm *comms[COMM_MEMBERS]; /* of each owner */
    struct array arrays[COMM_MEMBERS], others[COMM_MEMBERS];
};

/* ---- calls, by all owners ---- */

enum what { OPEN, SEND, GATHER, BROADCAST, REDUCE_SCATTER, ALL_REDUCE, BARRIER, CLOSE };

struct call {
    enum what what;
    struct group *group;
    struct sw_comm_id id;
    int from, to;
    void *destination;
    const void *source;
    void *destinations[COMM_MEMBERS];
    const void *sources[COMM_MEMBERS];
    const struct sw_comm_range *ranges;
    int64_t bytes; /* of all, or of an element */
    int64_t count;
};

struct owned_call {
    const struct call *call;
    int owner;
    sw_code code;
    struct sw_err err;
    pthread_t thread;
};

static bool owns(const struct group *group, int owner, int m)
{
    return group->streams[m] != NULL && (group->owners == 1 || owner == m);
}

static sw_code open_part(const struct call *call, int owner, struct sw_err *err)
{
    struct group *group = call->group;
    struct sw_stream *streams[COMM_MEMBERS];
    bool apart = group->owners > 1 || rig.process >= 0;
    for (int m = 0; m < group->size; m++)
        streams[m] = owns(group, owner, m) ? group->streams[m] : NULL;
    const struct sw_comm_group part = {
        .device = rig.ops, .size = group->size, .streams = streams, .id = apart ? &call->id : NULL};
    return rig.comms->open(&group->comms[owner], &part, err);
}

static void *run_call(void *context)
{
    struct owned_call *owned = context;
    const struct call *call = owned->call;
    struct sw_comm *comm = call->group->comms[owned->owner];
    float *arrays[COMM_MEMBERS];
    for (int m = 0; m < call->group->size; m++)
        arrays[m] = call->group->arrays[m].device;
    switch (call->what) {
    case OPEN:
        owned->code = open_part(call, owned->owner, &owned->err);
        break;
    case SEND:
        comm->ops->send(comm, call->from, call->to, call->destination, call->source, call->bytes);
        break;
    case GATHER:
        comm->ops->all_gather(comm, call->destinations, call->sources, call->ranges, call->bytes);
        break;
    case BROADCAST:
        sw_comm_broadcast(comm, call->group->size, call->from, (void *const *)call->destinations,
                          call->bytes);
        break;
    case REDUCE_SCATTER:
        comm->ops->reduce_scatter(comm, arrays, call->ranges);
        break;
    case ALL_REDUCE:
        comm->ops->all_reduce(comm, arrays, call->count);
        break;
    case BARRIER:
        owned->code = comm->ops->barrier(comm, &owned->err);
        break;
    case CLOSE:
        comm->ops->close(comm);
        break;
    }
    return NULL;
}

static void perform(const struct call *call)
{
    struct owned_call owned[COMM_MEMBERS];
    int owners = call->group->owners;
    for (int o = 0; o < owners; o++) {
        owned[o] = (struct owned_call){.call = call, .owner = o};
        if (owners == 1)
            run_call(&owned[o]);
        else
            assert_int_equal(pthread_create(&owned[o].thread, NULL, run_call, &owned[o]), 0);
    }
    for (int o = 0; o < owners; o++) {
        if (owners > 1)
            assert_int_equal(pthread_join(owned[o].thread, NULL), 0);
        assert_ok(owned[o].code, &owned[o].err);
    }
}

/* ---- groups ---- */

static bool is_here(const struct group *group, int m)
{
    return group->streams[m] != NULL;
}

static int64_t array_bytes(const struct group *group)
{
    return (int64_t)sizeof(float) * (group->most + 2 * (int64_t)GUARD);
}

static struct array new_array(const struct group *group, int m)
{
    struct sw_err err;
    void *device, *host;
    sw_err_init(&err);
    assert_ok(rig.ops->alloc(group->devices[m], array_bytes(group), &device, &err), &err);
    assert_ok(rig.ops->host_alloc(group->devices[m], array_bytes(group), &host, &err), &err);
    return (struct array){(float *)device + GUARD, (float *)host + GUARD};
}

static void copy(const struct group *group, int m, void *destination, const void *source,
                 int64_t bytes)
{
    struct sw_err err;
    sw_err_init(&err);
    rig.ops->copy(group->copies[m], destination, source, bytes);
    assert_ok(rig.ops->stream_sync(group->copies[m], &err), &err);
}

/* Host to device, and back. */
static void put(const struct group *group, int m, const struct array *array)
{
    copy(group, m, array->device - GUARD, array->host - GUARD, array_bytes(group));
}

static const float *get(const struct group *group, int m, const struct array *array)
{
    copy(group, m, array->host - GUARD, array->device - GUARD, array_bytes(group));
    return array->host;
}

static void open_group_of(struct group *group, int size, int64_t most)
{
    struct sw_err err;
    sw_err_init(&err);
    *group = (struct group){.size = size, .most = most, .owners = rig.threads ? size : 1};
    assert_ok(sw_pool_open(&group->pool, 2, &err), &err);
    for (int m = 0; m < size; m++) {
        const struct sw_device_config config = {.physical_index = m % rig.devices,
                                                .memory_bytes = 2 * array_bytes(group) + 4096,
                                                .pool = group->pool};
        if (rig.process >= 0 && m != rig.process)
            continue;
        assert_ok(rig.ops->open(&group->devices[m], &config, &err), &err);
        assert_ok(
            rig.ops->stream_open(group->devices[m], SW_STREAM_COLLECTIVE, &group->streams[m], &err),
            &err);
        assert_ok(rig.ops->stream_open(group->devices[m], SW_STREAM_D2H, &group->copies[m], &err),
                  &err);
        group->arrays[m] = new_array(group, m);
        group->others[m] = new_array(group, m);
    }
    struct call call = {.what = OPEN, .group = group};
    if (rig.process >= 0)
        rig.share_id(&call.id);
    else if (group->owners > 1)
        assert_ok(rig.comms->id(&call.id, &err), &err);
    perform(&call);
}

static void open_group(struct group *group, int size)
{
    open_group_of(group, size, MOST);
}

static void close_group(struct group *group)
{
    perform(&(struct call){.what = CLOSE, .group = group});
    for (int m = 0; m < group->size; m++) {
        if (!is_here(group, m))
            continue;
        rig.ops->host_free(group->devices[m], group->arrays[m].host - GUARD, array_bytes(group));
        rig.ops->host_free(group->devices[m], group->others[m].host - GUARD, array_bytes(group));
        rig.ops->stream_close(group->streams[m]);
        rig.ops->stream_close(group->copies[m]);
        rig.ops->close(group->devices[m]);
    }
    sw_pool_close(group->pool);
}

static void barrier(struct group *group)
{
    perform(&(struct call){.what = BARRIER, .group = group});
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

/* All is filled before anybody's memory is written by another. */
static void fill(struct group *group, int64_t count)
{
    for (int m = 0; m < group->size; m++) {
        if (!is_here(group, m))
            continue;
        for (int64_t i = -GUARD; i < count + GUARD; i++) {
            group->arrays[m].host[i] = i >= 0 && i < count ? value(m, i) : -1.0f;
            group->others[m].host[i] = -2.0f;
        }
        put(group, m, &group->arrays[m]);
        put(group, m, &group->others[m]);
    }
    barrier(group);
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
    for (int size = rig.smallest; size <= rig.largest; size++) {
        struct group group;
        open_group(&group, size);
        for (int s = 0; s < SIZE_COUNT; s++)
            check(&group, SIZES[s]);
        close_group(&group);
    }
}

/* ---- what each call does ---- */

/* Bytes, not elements: an odd number of them. */
static void check_one_send(struct group *group, int from, int to, int64_t count)
{
    int64_t bytes = count > 0 ? 4 * count - 1 : 0;
    const float guard = -2.0f;
    fill(group, count);
    perform(&(struct call){.what = SEND,
                           .group = group,
                           .from = from,
                           .to = to,
                           .destination = group->others[to].device,
                           .source = group->arrays[from].device,
                           .bytes = bytes});
    barrier(group);
    for (int m = 0; m < group->size; m++) {
        if (!is_here(group, m))
            continue;
        const float *have = get(group, m, &group->others[m]);
        assert_guards(have, m == to ? count : 0, guard);
        for (int64_t i = 0; m == to && i + 1 < count; i++)
            assert_bits(have[i], value(from, i), "send", m, i);
        if (m != to || count == 0)
            continue;
        float last = value(from, count - 1);
        assert_memory_equal(&have[count - 1], &last, 3);
        assert_memory_equal((const char *)&have[count - 1] + 3, (const char *)&guard + 3, 1);
    }
}

static void check_send(struct group *group, int64_t count)
{
    for (int from = 0; from < group->size; from++)
        for (int to = 0; to < group->size; to++)
            check_one_send(group, from, to, count);
}

static void send_moves_bytes_between_any_two(void **state)
{
    (void)state;
    for_all_groups(check_send);
}

static void gather(struct group *group, const struct sw_comm_range *ranges, bool in_place)
{
    struct call call = {
        .what = GATHER, .group = group, .ranges = ranges, .bytes = (int64_t)sizeof(float)};
    for (int m = 0; m < group->size; m++) {
        if (!is_here(group, m))
            continue;
        call.sources[m] = ranges[m].count > 0 ? group->arrays[m].device + ranges[m].first : NULL;
        call.destinations[m] = in_place ? group->arrays[m].device : group->others[m].device;
    }
    perform(&call);
    barrier(group);
}

static void check_gather(struct group *group, int64_t count)
{
    for (int way = 0; way < 4; way++) {
        bool gaps = way % 2 == 1, in_place = way >= 2;
        struct sw_comm_range ranges[COMM_MEMBERS];
        cut(group, count, gaps, ranges);
        fill(group, count);
        gather(group, ranges, in_place);
        for (int m = 0; m < group->size; m++) {
            if (!is_here(group, m))
                continue;
            const float *have = get(group, m, in_place ? &group->arrays[m] : &group->others[m]);
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

static void check_broadcast(struct group *group, int64_t count)
{
    for (int root = 0; root < group->size; root++) {
        struct call call = {.what = BROADCAST,
                            .group = group,
                            .from = root,
                            .bytes = count * (int64_t)sizeof(float)};
        fill(group, count);
        for (int m = 0; m < group->size; m++)
            call.destinations[m] = is_here(group, m) ? group->arrays[m].device : NULL;
        perform(&call);
        barrier(group);
        for (int m = 0; m < group->size; m++) {
            if (!is_here(group, m))
                continue;
            const float *have = get(group, m, &group->arrays[m]);
            for (int64_t i = 0; i < count; i++)
                assert_bits(have[i], value(root, i), "broadcast", m, i);
            assert_guards(have, count, -1.0f);
        }
    }
}

static void broadcast_reaches_all_from_any(void **state)
{
    (void)state;
    for_all_groups(check_broadcast);
}

/* In place, the first two members with 5 and 2 of 8, the others with none. */
static void elements_of_two_bytes_are_gathered(void **state)
{
    (void)state;
    struct group group;
    struct sw_comm_range ranges[COMM_MEMBERS] = {{0, 5}, {5, 2}};
    int size = rig.largest;
    open_group(&group, size);
    fill(&group, 0);
    struct call call = {.what = GATHER, .group = &group, .ranges = ranges, .bytes = 2};
    for (int m = 0; m < size; m++) {
        if (!is_here(&group, m))
            continue;
        uint16_t *mine = (uint16_t *)group.arrays[m].host;
        for (int i = 0; i < 8; i++)
            mine[i] = (uint16_t)(100 * m + i);
        put(&group, m, &group.arrays[m]);
        call.sources[m] = (uint16_t *)group.arrays[m].device + ranges[m].first;
        call.destinations[m] = group.arrays[m].device;
    }
    barrier(&group);
    perform(&call);
    barrier(&group);
    for (int m = 0; m < size; m++) {
        if (!is_here(&group, m))
            continue;
        const uint16_t want[8] = {0, 1, 2, 3, 4, 105, 106, (uint16_t)(100 * m + 7)};
        assert_memory_equal(get(&group, m, &group.arrays[m]), want, sizeof want);
    }
    close_group(&group);
}

static void check_reduce_scatter(struct group *group, int64_t count)
{
    for (int gaps = 0; gaps < 2; gaps++) {
        struct sw_comm_range ranges[COMM_MEMBERS];
        cut(group, count, gaps == 1, ranges);
        fill(group, count);
        perform(&(struct call){.what = REDUCE_SCATTER, .group = group, .ranges = ranges});
        barrier(group);
        for (int m = 0; m < group->size; m++) {
            if (!is_here(group, m))
                continue;
            const float *have = get(group, m, &group->arrays[m]);
            for (int64_t i = ranges[m].first; i < ranges[m].first + ranges[m].count; i++)
                assert_bits(have[i], sum(group, i), "reduce_scatter", m, i);
            assert_guards(have, count, -1.0f);
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
    perform(&(struct call){.what = ALL_REDUCE, .group = group, .count = count});
    barrier(group);
    for (int m = 0; m < group->size; m++) {
        if (!is_here(group, m))
            continue;
        const float *have = get(group, m, &group->arrays[m]);
        for (int64_t i = 0; i < count; i++)
            assert_bits(have[i], sum(group, i), "all_reduce", m, i);
        assert_guards(have, count, -1.0f);
    }
}

static void all_reduce_sums_in_the_order_of_the_members(void **state)
{
    (void)state;
    for_all_groups(check_all_reduce);
}

/* Longer than what a method has room for at a time. */
static void long_sums_in_pieces(void **state)
{
    (void)state;
    struct group group;
    if (rig.most <= MOST)
        return;
    open_group_of(&group, rig.largest, rig.most);
    check_reduce_scatter(&group, rig.most - 5);
    check_all_reduce(&group, rig.most - 5);
    close_group(&group);
}

/* Nobody waits between calls: what one leaves is what the next one takes. */
static void calls_follow_each_other(void **state)
{
    (void)state;
    struct group group;
    struct sw_comm_range ranges[COMM_MEMBERS];
    const int64_t count = 4097;
    open_group(&group, rig.largest);
    cut(&group, count, false, ranges);
    fill(&group, count);
    struct call gathered = {
        .what = GATHER, .group = &group, .ranges = ranges, .bytes = (int64_t)sizeof(float)};
    for (int m = 0; m < group.size; m++) {
        gathered.sources[m] = is_here(&group, m) ? group.arrays[m].device + ranges[m].first : NULL;
        gathered.destinations[m] = group.arrays[m].device;
    }
    for (int i = 0; i < 8; i++) {
        perform(&(struct call){.what = REDUCE_SCATTER, .group = &group, .ranges = ranges});
        perform(&gathered);
    }
    barrier(&group);
    for (int m = 0; m < group.size; m++) {
        const float *have = is_here(&group, m) ? get(&group, m, &group.arrays[m]) : NULL;
        for (int64_t i = 0; have != NULL && i < count; i++) {
            float want = sum(&group, i);
            for (int again = 1; again < 8; again++) {
                float one = want;
                for (int other = 1; other < group.size; other++)
                    want += one;
            }
            assert_bits(have[i], want, "calls in turn", m, i);
        }
    }
    close_group(&group);
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

/* ---- failures, where one thread has all members ---- */

static bool one_owner(void)
{
    return !rig.threads && rig.process < 0 && rig.largest >= 2;
}

/* The first failure of the group, by its code and words; and what failed does nothing more. */
static void the_barrier_tells_a_failure_of_any_member(void **state)
{
    (void)state;
    int size = one_owner() ? rig.largest : 0;
    for (int broken = 0; broken < size; broken++) {
        struct group group;
        struct sw_err err;
        char words[64];
        sw_err_init(&err);
        open_group(&group, size);
        fill(&group, 16);
        struct sw_comm *comm = group.comms[0];
        int to = (broken + 1) % size;
        snprintf(words, sizeof words, "member %d has burnt out", broken);
        (void)SW_FAIL(&group.streams[broken]->error, SW_E_DEVICE, "%s", words);
        comm->ops->send(comm, broken, to, group.others[to].device, group.arrays[broken].device, 64);
        assert_refused(comm->ops->barrier(comm, &err), SW_E_DEVICE, words, &err);
        assert_int_equal(comm->ops->barrier(comm, NULL), SW_E_DEVICE);
        assert_int_equal(comm->ops->failed(comm), broken);
        assert_true(get(&group, to, &group.others[to])[0] == -2.0f);
        close_group(&group);
    }
}

/* A sum over a member that failed is nobody's result: the failure is on all streams. */
static void a_failure_reaches_those_who_took_part(void **state)
{
    (void)state;
    struct group group;
    struct sw_err err;
    if (!one_owner())
        return;
    sw_err_init(&err);
    int broken = rig.largest - 1;
    open_group(&group, rig.largest);
    fill(&group, 16);
    (void)SW_FAIL(&group.streams[broken]->error, SW_E_DEVICE, "the last has burnt out");
    struct sw_comm *comm = group.comms[0];
    assert_int_equal(comm->ops->failed(comm), -1);
    perform(&(struct call){.what = ALL_REDUCE, .group = &group, .count = 16});
    assert_int_equal(comm->ops->failed(comm), broken);
    for (int m = 0; m < group.size; m++)
        assert_refused(rig.ops->stream_sync(group.streams[m], &err), SW_E_DEVICE, "the last", &err);
    close_group(&group);
}

static void it_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(rig.comms->name, rig.name);
    rig.comms->close(NULL);
}

int comm_suite_run(const struct comm_rig *of)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(send_moves_bytes_between_any_two),
        cmocka_unit_test(all_gather_in_and_out_of_place),
        cmocka_unit_test(broadcast_reaches_all_from_any),
        cmocka_unit_test(elements_of_two_bytes_are_gathered),
        cmocka_unit_test(reduce_scatter_sums_in_the_order_of_the_members),
        cmocka_unit_test(all_reduce_sums_in_the_order_of_the_members),
        cmocka_unit_test(long_sums_in_pieces),
        cmocka_unit_test(calls_follow_each_other),
        cmocka_unit_test(another_order_has_other_bits),
        cmocka_unit_test(the_barrier_tells_a_failure_of_any_member),
        cmocka_unit_test(a_failure_reaches_those_who_took_part),
        cmocka_unit_test(it_has_a_name),
    };
    rig = *of;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

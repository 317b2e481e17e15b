/* Groups whose members have a GPU each, over NCCL. The library is loaded when a group is wanted, so
 * that this module runs where it is not installed.
 *
 * Everything is made of NCCL's sends and receives. NCCL's own reductions add in the order of a ring
 * that it lays out by topology and size, and want ranges of one length; here each member fetches
 * the others' share of its range, in pieces, and adds them in the order of the members. That moves
 * the same bytes over a GPU's link as a ring does, (n - 1) / n of an array each way. */
#include "kernels/comm.h"
#include "kernels/cuda/cuda.cuh"

#ifdef SW_HAVE_NCCL

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <mutex>
#include <nccl.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "configure asks for NCCL 2.18 or later"
#endif

/* Of each member, for the others' pieces of a sum. Large enough that starting a round costs little
 * beside its transfer. */
static constexpr int64_t WORKSPACE_BYTES = 16 << 20;
/* NCCL's channels, each a block on the GPU that sends and one that receives: enough for PCIe and
 * most of NVLink; their buffers, about 10 MiB a channel and peer, lie beside the ranks' caps. */
enum { CHANNELS = 8, CHANNEL_BYTES = 10 << 20, OLDEST = NCCL_VERSION(2, 18, 0) };
enum { MEETING_BYTES = 16, THREADS = 256 };

/* --- The library -------------------------------------------------------------------------------*/

static struct {
    bool tried;
    char why[256]; /* it cannot be used; "": it can */
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) init;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
} nccl;

static std::mutex library_lock;

template <typename F> static bool find(void *library, F *out, const char *name)
{
    void *symbol = dlsym(library, name);
    static_assert(sizeof symbol == sizeof *out, "functions have addresses");
    memcpy(out, &symbol, sizeof symbol);
    if (symbol == nullptr)
        snprintf(nccl.why, sizeof nccl.why,
                 "libnccl.so.2 has no %s: 2.18 is the oldest that will do", name);
    return symbol != nullptr;
}

static void load_library()
{
    nccl.tried = true;
    /* NVLink multicast can put a host's GPUs out of service for everybody on it. Read by NCCL when
     * its first group is made. */
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char *reason = dlerror();
        snprintf(nccl.why, sizeof nccl.why, "NCCL cannot be loaded (%.200s)",
                 reason != nullptr ? reason : "no reason given");
        return;
    }
    int version = 0;
    if (find(library, &nccl.get_version, "ncclGetVersion") &&
        find(library, &nccl.get_unique_id, "ncclGetUniqueId") &&
        find(library, &nccl.init, "ncclCommInitRankConfig") &&
        find(library, &nccl.destroy, "ncclCommDestroy") &&
        find(library, &nccl.abort, "ncclCommAbort") &&
        find(library, &nccl.async_error, "ncclCommGetAsyncError") &&
        find(library, &nccl.error_string, "ncclGetErrorString") &&
        find(library, &nccl.last_error, "ncclGetLastError") &&
        find(library, &nccl.send, "ncclSend") && find(library, &nccl.recv, "ncclRecv") &&
        find(library, &nccl.group_start, "ncclGroupStart") &&
        find(library, &nccl.group_end, "ncclGroupEnd") &&
        (nccl.get_version(&version) != ncclSuccess || version < OLDEST))
        snprintf(nccl.why, sizeof nccl.why, "NCCL %d.%d is older than 2.18", version / 10000,
                 version / 100 % 100);
}

extern const struct sw_comm_ops sw_cuda_nccl;

/* --- Groups ------------------------------------------------------------------------------------*/

struct member {
    struct sw_stream *stream; /* NULL: elsewhere */
    ncclComm_t comm;
    float *workspace;
};

struct group {
    struct sw_comm head;
    const struct sw_device_ops *device;
    int size;
    bool whole; /* all members are here */
    int failed; /* member; -1: none */
    struct member members[];
};

static struct group *own(struct sw_comm *comm)
{
    return reinterpret_cast<struct group *>(comm);
}

/* A failure of one member is one of all that are here: what it took part in has no result. False:
 * do nothing more. */
static bool begin(struct group *group)
{
    const struct sw_err *error = nullptr;
    for (int m = 0; m < group->size && error == nullptr; m++) {
        const struct member *member = &group->members[m];
        if (member->stream == nullptr || member->stream->error.code == SW_OK)
            continue;
        error = &member->stream->error;
        group->failed = group->failed < 0 ? m : group->failed;
    }
    for (int m = 0; m < group->size && error != nullptr; m++) {
        struct sw_stream *stream = group->members[m].stream;
        if (stream != nullptr && stream->error.code == SW_OK)
            stream->error = *error;
    }
    return error == nullptr;
}

static const char *reason_of(ncclResult_t result, ncclComm_t comm)
{
    const char *last = nccl.last_error(comm);
    return last != nullptr && last[0] != '\0' ? last : nccl.error_string(result);
}

static void fail(struct group *group, int m, ncclResult_t result, const char *what)
{
    struct member *member = &group->members[m];
    if (member->stream->error.code == SW_OK)
        (void)SW_FAIL(&member->stream->error, SW_E_DEVICE,
                      "NCCL, member %d of %d: %s: %.300s (%s); NCCL_DEBUG=WARN says more", m,
                      group->size, what, reason_of(result, member->comm),
                      nccl.error_string(result));
    (void)begin(group); /* spreads it */
}

/* The calls since nccl.group_start() go out together; `result` is their first failure. */
static void end_calls(struct group *group, ncclResult_t result, const char *what)
{
    ncclResult_t ended = nccl.group_end();
    if (result == ncclSuccess)
        result = ended;
    for (int m = 0; m < group->size && result != ncclSuccess; m++)
        if (group->members[m].stream != nullptr) {
            fail(group, m, result, what);
            return;
        }
}

static void send_part(const struct group *group, int from, int to, const void *source,
                      int64_t bytes, ncclResult_t *result)
{
    const struct member *member = &group->members[from];
    if (bytes > 0 && member->stream != nullptr && *result == ncclSuccess)
        *result = nccl.send(source, static_cast<size_t>(bytes), ncclInt8, to, member->comm,
                            sw_cuda_stream(member->stream));
}

static void receive_part(const struct group *group, int from, int to, void *destination,
                         int64_t bytes, ncclResult_t *result)
{
    const struct member *member = &group->members[to];
    if (bytes > 0 && member->stream != nullptr && *result == ncclSuccess)
        *result = nccl.recv(destination, static_cast<size_t>(bytes), ncclInt8, from, member->comm,
                            sw_cuda_stream(member->stream));
}

/* Everybody sends everybody a few bytes. */
static void meet(struct group *group)
{
    if (group->size == 1 || !begin(group))
        return;
    ncclResult_t result = nccl.group_start();
    for (int m = 0; m < group->size; m++)
        for (int other = 0; other < group->size; other++) {
            char *memory = reinterpret_cast<char *>(group->members[m].workspace);
            if (other == m || memory == nullptr)
                continue;
            send_part(group, m, other, memory, MEETING_BYTES, &result);
            receive_part(group, other, m, memory + (1 + int64_t{other}) * MEETING_BYTES,
                         MEETING_BYTES, &result);
        }
    end_calls(group, result, "meeting");
}

/* Where others drive members, one of them may be gone for good: NCCL notices, its kernels do not.
 * So this asks both in turn. */
static void wait_watching(struct group *group, int m)
{
    const struct member *member = &group->members[m];
    const struct timespec pause = {0, 200000};
    while (sw_cuda_begin(member->stream)) {
        cudaError_t error = cudaStreamQuery(sw_cuda_stream(member->stream));
        ncclResult_t result = ncclSuccess;
        if (error == cudaSuccess)
            return;
        if (error != cudaErrorNotReady) {
            sw_cuda_fail(member->stream, error, "running what was submitted");
            return;
        }
        (void)cudaGetLastError();
        (void)nccl.async_error(member->comm, &result);
        if (result != ncclSuccess && result != ncclInProgress) {
            fail(group, m, result, "waiting for the others");
            (void)nccl.abort(member->comm);
            group->members[m].comm = nullptr;
            return;
        }
        (void)nanosleep(&pause, nullptr);
    }
}

static sw_code barrier(struct sw_comm *comm, struct sw_err *err)
{
    struct group *group = own(comm);
    sw_code code = SW_OK;
    if (!group->whole)
        meet(group);
    for (int m = 0; m < group->size; m++) {
        struct sw_stream *stream = group->members[m].stream;
        if (stream == nullptr)
            continue;
        if (!group->whole)
            wait_watching(group, m);
        sw_code one = group->device->stream_sync(stream, code == SW_OK ? err : nullptr);
        code = code == SW_OK ? one : code;
    }
    (void)begin(group); /* notes who failed */
    return code;
}

/* --- Opening -----------------------------------------------------------------------------------*/

static void close_group(struct sw_comm *comm)
{
    struct group *group = own(comm);
    if (group == nullptr)
        return;
    for (int m = 0; m < group->size; m++) {
        struct member *member = &group->members[m];
        if (member->comm != nullptr && (group->failed >= 0 || member->stream->error.code != SW_OK))
            (void)nccl.abort(member->comm);
        else if (member->comm != nullptr)
            (void)nccl.destroy(member->comm);
        (void)cudaFree(member->workspace);
    }
    free(group);
}

static sw_code new_id(struct sw_comm_id *out, struct sw_err *err)
{
    ncclUniqueId id;
    static_assert(sizeof id <= sizeof out->bytes, "an id of NCCL fits ours");
    ncclResult_t result = nccl.get_unique_id(&id);
    if (result != ncclSuccess)
        return SW_FAIL(err, SW_E_DEVICE, "NCCL: making an id for a group: %.300s",
                       reason_of(result, nullptr));
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &id, sizeof id);
    return SW_OK;
}

static int64_t member_bytes(int size)
{
    return WORKSPACE_BYTES + int64_t{size - 1} * CHANNELS * CHANNEL_BYTES;
}

/* Handles of the members that are here, all together: each waits for the others. */
static sw_code join(struct group *group, const struct sw_comm_id *name, struct sw_err *err)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = CHANNELS;
    memcpy(&id, name->bytes, sizeof id);
    ncclResult_t result = nccl.group_start();
    for (int m = 0; m < group->size && result == ncclSuccess; m++) {
        struct member *member = &group->members[m];
        if (member->stream != nullptr && sw_cuda_begin(member->stream))
            result = nccl.init(&member->comm, group->size, id, m, &config);
    }
    ncclResult_t ended = nccl.group_end();
    if (result == ncclSuccess)
        result = ended;
    if (result != ncclSuccess)
        return SW_FAIL(err, SW_E_DEVICE,
                       "NCCL: opening a group of %d GPUs: %.300s (%s); NCCL_DEBUG=WARN says more, "
                       "NCCL_P2P_DISABLE=1 goes through host memory, parallel.data: 1 goes without",
                       group->size, reason_of(result, nullptr), nccl.error_string(result));
    for (int m = 0; m < group->size; m++) {
        struct member *member = &group->members[m];
        if (member->stream == nullptr || !sw_cuda_begin(member->stream))
            continue;
        void *memory = nullptr;
        cudaError_t error = cudaMalloc(&memory, WORKSPACE_BYTES);
        if (error != cudaSuccess)
            return SW_FAIL(err, SW_E_FIT,
                           "NCCL: %lld bytes for the sums of a group: %s; a lower devices.memory "
                           "would help",
                           static_cast<long long>(WORKSPACE_BYTES), cudaGetErrorString(error));
        member->workspace = static_cast<float *>(memory);
        (void)cudaMemsetAsync(memory, 0, WORKSPACE_BYTES, sw_cuda_stream(member->stream));
    }
    return SW_OK;
}

static sw_code open_group(struct sw_comm **out, const struct sw_comm_group *wanted,
                          struct sw_err *err)
{
    struct sw_comm_id id;
    sw_code code = SW_OK;
    size_t members = static_cast<size_t>(wanted->size);
    sw_assert(wanted->size >= 1 &&
              (1 + int64_t{wanted->size}) * MEETING_BYTES <= WORKSPACE_BYTES / 256);
    struct group *group = static_cast<struct group *>(
        calloc(1, sizeof(struct group) + members * sizeof(struct member)));
    if (group == nullptr)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a group of %d ranks", wanted->size);
    group->head.ops = &sw_cuda_nccl;
    group->device = wanted->device;
    group->size = wanted->size;
    group->failed = -1;
    group->whole = true;
    for (int m = 0; m < wanted->size; m++) {
        group->members[m].stream = wanted->streams[m];
        group->whole = group->whole && wanted->streams[m] != nullptr;
    }
    sw_assert(group->whole || wanted->id != nullptr);
    if (wanted->id != nullptr)
        id = *wanted->id;
    else
        code = new_id(&id, err);
    if (code == SW_OK)
        code = join(group, &id, err);
    if (code == SW_OK) { /* NCCL connects two members, and takes memory, when they first talk */
        meet(group);
        code = barrier(&group->head, err);
    }
    if (code != SW_OK) {
        close_group(&group->head);
        return code;
    }
    *out = &group->head;
    return SW_OK;
}

/* --- What groups do ----------------------------------------------------------------------------*/

static void send_bytes(struct sw_comm *comm, int from, int to, void *destination,
                       const void *source, int64_t bytes)
{
    struct group *group = own(comm);
    if (bytes <= 0 || !begin(group))
        return;
    if (from == to) {
        if (group->members[to].stream != nullptr)
            group->device->copy(group->members[to].stream, destination, source, bytes);
        return;
    }
    ncclResult_t result = nccl.group_start();
    send_part(group, from, to, source, bytes, &result);
    receive_part(group, from, to, destination, bytes, &result);
    end_calls(group, result, "sending");
}

static void all_gather(struct sw_comm *comm, void *const *destinations, const void *const *sources,
                       const struct sw_comm_range *ranges, int64_t element_bytes)
{
    struct group *group = own(comm);
    if (!begin(group))
        return;
    for (int m = 0; m < group->size; m++)
        if (group->members[m].stream != nullptr && ranges[m].count > 0)
            group->device->copy(group->members[m].stream,
                                static_cast<char *>(destinations[m]) +
                                    ranges[m].first * element_bytes,
                                sources[m], ranges[m].count * element_bytes);
    ncclResult_t result = nccl.group_start();
    for (int m = 0; m < group->size; m++)
        for (int other = 0; other < group->size; other++) {
            if (other == m || group->members[m].stream == nullptr)
                continue;
            send_part(group, m, other, sources[m], ranges[m].count * element_bytes, &result);
            receive_part(group, other, m,
                         static_cast<char *>(destinations[m]) + ranges[other].first * element_bytes,
                         ranges[other].count * element_bytes, &result);
        }
    end_calls(group, result, "gathering");
}

/* own[i] = the sum of element i over the members in their order. Of the `size` members, `mine` is
 * this one; the others' elements lie in `others`, in their order, `stride` apart. count threads in
 * all; reads size, writes 1 floats an element. */
static __global__ void add_in_order(float *own, const float *others, int64_t stride, int mine,
                                    int size, int64_t count)
{
    int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        float here = own[i];
        float sum = mine == 0 ? here : others[i];
        for (int m = 1; m < size; m++)
            sum += m == mine ? here : others[(m < mine ? m : m - 1) * stride + i];
        own[i] = sum;
    }
}

static void add_pieces(struct sw_stream *stream, float *own, const float *others, int64_t stride,
                       int mine, int size, int64_t count)
{
    if (count <= 0 || !sw_cuda_begin(stream))
        return;
    int64_t blocks =
        sw_cuda_min(sw_cuda_ceil_div(count, THREADS), 8 * int64_t{sw_cuda_processors(stream)});
    add_in_order<<<static_cast<unsigned>(blocks), THREADS, 0, sw_cuda_stream(stream)>>>(
        own, others, stride, mine, size, count);
    sw_cuda_end(stream, "adding the members' pieces");
}

/* Elements of a range that are `done` elements after its first and in a piece of `most`. */
static int64_t piece_of(const struct sw_comm_range *range, int64_t done, int64_t most)
{
    return range->count > done ? sw_cuda_min(range->count - done, most) : 0;
}

/* One piece of each member's range, to it from all others. */
static void reduce_pieces(struct group *group, float *const *arrays,
                          const struct sw_comm_range *ranges, int64_t done, int64_t most)
{
    const int64_t element = static_cast<int64_t>(sizeof(float));
    if (!begin(group))
        return;
    ncclResult_t result = nccl.group_start();
    for (int m = 0; m < group->size; m++)
        for (int other = 0; other < group->size; other++) {
            const struct member *member = &group->members[m];
            if (other == m || member->stream == nullptr)
                continue;
            send_part(group, m, other, arrays[m] + ranges[other].first + done,
                      piece_of(&ranges[other], done, most) * element, &result);
            receive_part(group, other, m,
                         member->workspace + (other < m ? other : other - 1) * most,
                         piece_of(&ranges[m], done, most) * element, &result);
        }
    end_calls(group, result, "reducing");
    for (int m = 0; m < group->size; m++)
        if (group->members[m].stream != nullptr)
            add_pieces(group->members[m].stream, arrays[m] + ranges[m].first + done,
                       group->members[m].workspace, most, m, group->size,
                       piece_of(&ranges[m], done, most));
}

static void reduce_scatter(struct sw_comm *comm, float *const *arrays,
                           const struct sw_comm_range *ranges)
{
    struct group *group = own(comm);
    int64_t longest = 0;
    if (group->size == 1)
        return;
    int64_t most = WORKSPACE_BYTES / static_cast<int64_t>(sizeof(float)) / (group->size - 1);
    most = most / 64 * 64;
    for (int m = 0; m < group->size; m++)
        longest = ranges[m].count > longest ? ranges[m].count : longest;
    for (int64_t done = 0; done < longest; done += most)
        reduce_pieces(group, arrays, ranges, done, most);
}

/* Each member sums a part, which all then fetch. */
static void all_reduce(struct sw_comm *comm, float *const *arrays, int64_t count)
{
    enum { PARTS = 64 };
    struct group *group = own(comm);
    struct sw_comm_range ranges[PARTS];
    void *destinations[PARTS];
    const void *sources[PARTS];
    sw_assert(group->size <= PARTS);
    int64_t share = sw_cuda_align_up(sw_cuda_ceil_div(count, group->size));
    for (int m = 0; m < group->size; m++) {
        int64_t first = sw_cuda_min(m * share, count);
        bool here = group->members[m].stream != nullptr;
        ranges[m].first = first;
        ranges[m].count = sw_cuda_min(share, count - first);
        destinations[m] = here ? arrays[m] : nullptr;
        sources[m] = here ? arrays[m] + first : nullptr;
    }
    reduce_scatter(comm, arrays, ranges);
    all_gather(comm, destinations, sources, ranges, static_cast<int64_t>(sizeof(float)));
}

static int failed(const struct sw_comm *comm)
{
    return reinterpret_cast<const struct group *>(comm)->failed;
}

const struct sw_comm_ops sw_cuda_nccl = {
    .name = "nccl",
    .id = new_id,
    .member_bytes = member_bytes,
    .open = open_group,
    .close = close_group,
    .send = send_bytes,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .barrier = barrier,
    .failed = failed,
};

const struct sw_comm_ops *sw_cuda_comm(const char **why)
{
    std::lock_guard<std::mutex> guard(library_lock);
    if (!nccl.tried)
        load_library();
    *why = nccl.why;
    return nccl.why[0] == '\0' ? &sw_cuda_nccl : nullptr;
}

#else /* nccl.h was not there */

const struct sw_comm_ops *sw_cuda_comm(const char **why)
{
    *why = "this build has no NCCL";
    return nullptr;
}

#endif

/* Host memory that the GPU copies from and to while the host goes on. */
#include "kernels/cuda/cuda.cuh"

#include <cerrno>
#include <sys/mman.h>

static const int64_t PAGE = 4096, HUGE_PAGE = 2 << 20;

static int64_t round_up(int64_t bytes, int64_t multiple)
{
    return sw_cuda_ceil_div(bytes, multiple) * multiple;
}

/* Exactly as many pages as are asked for, large ones where that many bytes fill one. */
static int64_t mapped_bytes(int64_t bytes)
{
    return round_up(bytes > 0 ? bytes : 1, PAGE);
}

/* Memory that begins on a huge page, when it is as long as one; nullptr with errno. */
static char *map(int64_t bytes)
{
    int64_t spare = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    void *memory = mmap(nullptr, static_cast<size_t>(bytes + spare), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return nullptr;
    char *begin = static_cast<char *>(memory);
    if (spare == 0)
        return begin;
    int64_t before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % HUGE_PAGE);
    before = before > 0 ? HUGE_PAGE - before : 0;
    if (before > 0)
        (void)munmap(begin, static_cast<size_t>(before));
    if (spare > before)
        (void)munmap(begin + before + bytes, static_cast<size_t>(spare - before));
    (void)madvise(begin + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return begin + before;
}

/* Pieces end at multiples of SW_CUDA_PIECE_BYTES of the address, so that a copy can tell from an
 * address alone where to cut. */
static int64_t piece_at(const char *at, const char *end)
{
    int64_t in = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % SW_CUDA_PIECE_BYTES);
    return sw_cuda_min(SW_CUDA_PIECE_BYTES - in, end - at);
}

static void unregister(char *memory, const char *end)
{
    for (char *at = memory; at < end; at += piece_at(at, end))
        (void)cudaHostUnregister(at);
}

sw_code sw_cuda_pinned_alloc(int64_t bytes, void **out, struct sw_err *err)
{
    sw_assert(bytes >= 0 && bytes < INT64_MAX / 2);
    int64_t mapped = mapped_bytes(bytes);
    char *memory = map(mapped);
    if (memory == nullptr)
        return SW_FAIL_OS(err, SW_E_MEMORY, errno,
                          "cannot get %lld bytes of host memory (offload.host_memory)",
                          static_cast<long long>(bytes));
    const char *end = memory + mapped;
    for (char *at = memory; at < end;) {
        int64_t piece = piece_at(at, end);
        cudaError_t error =
            cudaHostRegister(at, static_cast<size_t>(piece), cudaHostRegisterPortable);
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            unregister(memory, at);
            (void)munmap(memory, static_cast<size_t>(mapped));
            return SW_FAIL(err, SW_E_MEMORY,
                           "cannot pin %lld bytes of host memory (%lld were): %s; a higher limit "
                           "of locked memory (ulimit -l) or a lower offload.host_memory would help",
                           static_cast<long long>(bytes), static_cast<long long>(at - memory),
                           cudaGetErrorString(error));
        }
        at += piece;
    }
    *out = memory;
    return SW_OK;
}

void sw_cuda_pinned_free(void *memory, int64_t bytes)
{
    if (memory == nullptr)
        return;
    int64_t mapped = mapped_bytes(bytes);
    char *begin = static_cast<char *>(memory);
    unregister(begin, begin + mapped);
    (void)munmap(begin, static_cast<size_t>(mapped));
}

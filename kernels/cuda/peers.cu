/* Which GPUs reach each other's memory. What the driver says is tried: behind an IOMMU, or some
 * switches, copies between GPUs that it takes for peers arrive broken. */
#include "kernels/cuda/cuda.cuh"

#include <cstdlib>
#include <cstring>
#include <mutex>

enum { MOST = 64, WORDS = 1 << 16 };

static std::mutex lock;
static uint64_t opened;                                    /* GPUs in use, a bit each */
static enum { UNKNOWN, REACHED, APART } known[MOST][MOST]; /* in both orders */
static uint32_t sent[WORDS], arrived[WORDS];               /* under the lock */

static cudaError_t enable(int from, int to)
{
    cudaError_t error = cudaSetDevice(from);
    if (error == cudaSuccess)
        error = cudaDeviceEnablePeerAccess(to, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        error = cudaSuccess;
    }
    return error;
}

static void disable(int from, int to)
{
    if (cudaSetDevice(from) == cudaSuccess)
        (void)cudaDeviceDisablePeerAccess(to);
    (void)cudaGetLastError();
}

static cudaError_t alloc_on(int ordinal, void **out)
{
    cudaError_t error = cudaSetDevice(ordinal);
    return error == cudaSuccess ? cudaMalloc(out, sizeof sent) : error;
}

/* A copy of a pattern from one GPU's memory to the other's. */
static cudaError_t try_copy(int from, int to, bool *whole)
{
    void *source = nullptr, *destination = nullptr;
    for (uint32_t i = 0; i < WORDS; i++)
        sent[i] = i * 2654435761U + static_cast<uint32_t>(from * MOST + to);
    memset(arrived, 0, sizeof arrived);
    cudaError_t error = alloc_on(from, &source);
    if (error == cudaSuccess)
        error = alloc_on(to, &destination);
    if (error == cudaSuccess)
        error = cudaMemcpy(destination, arrived, sizeof arrived, cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaMemcpy(source, sent, sizeof sent, cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaMemcpyPeer(destination, to, source, from, sizeof sent);
    if (error == cudaSuccess) /* it may be under way still */
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess && cudaSetDevice(from) == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        error = cudaMemcpy(arrived, destination, sizeof arrived, cudaMemcpyDeviceToHost);
    *whole = error == cudaSuccess && memcmp(sent, arrived, sizeof sent) == 0;
    (void)cudaFree(source);
    (void)cudaFree(destination);
    return error;
}

static bool find_out(int one, int other)
{
    int there = 0, back = 0;
    bool arrives = false, returns = false;
    if (cudaDeviceCanAccessPeer(&there, one, other) == cudaSuccess && there != 0 &&
        cudaDeviceCanAccessPeer(&back, other, one) == cudaSuccess && back != 0) {
        cudaError_t error = enable(one, other);
        if (error == cudaSuccess)
            error = enable(other, one);
        if (error == cudaSuccess)
            error = try_copy(one, other, &arrives);
        if (error == cudaSuccess)
            (void)try_copy(other, one, &returns);
        if (!arrives || !returns) {
            disable(one, other);
            disable(other, one);
            (void)setenv("NCCL_P2P_DISABLE", "1", 0); /* it would believe the driver */
        }
    }
    (void)cudaGetLastError();
    return arrives && returns;
}

bool sw_cuda_reaches(int one, int other)
{
    std::lock_guard<std::mutex> guard(lock);
    if (one == other || one < 0 || other < 0 || one >= MOST || other >= MOST)
        return one == other;
    if (known[one][other] == UNKNOWN)
        known[one][other] = known[other][one] = find_out(one, other) ? REACHED : APART;
    return known[one][other] == REACHED;
}

void sw_cuda_reach_others(int ordinal)
{
    uint64_t others = 0;
    if (ordinal < 0 || ordinal >= MOST)
        return;
    {
        std::lock_guard<std::mutex> guard(lock);
        if ((opened >> ordinal & 1) == 0)
            others = opened;
        opened |= uint64_t{1} << ordinal;
    }
    for (int other = 0; other < MOST; other++)
        if ((others >> other & 1) != 0)
            (void)sw_cuda_reaches(ordinal, other);
    (void)cudaSetDevice(ordinal);
}

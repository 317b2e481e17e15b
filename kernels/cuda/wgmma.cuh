/* Hopper's asynchronous products (sm_90a; PTX ISA 8, "Asynchronous Warpgroup Level Matrix
 * Multiply-Accumulate Instructions"): a warpgroup of 128 threads multiplies 64 rows; B comes from
 * shared memory, A from there or from registers, sums stay in registers.
 *
 * Warp w of the warpgroup has rows 16 w and up; within them elements of A in registers and sums lie
 * as mma.cuh's fragments do.
 *
 * A panel is R rows of 64 bf16 elements, 128 bytes, at a multiple of 1024 bytes; 16-byte piece c of
 * row r lies at c ^ (r % 8). A tile of 128 columns is two panels, one behind the other. Either way
 * of reading it is fine: rows are what a sum goes over ("down") or columns are ("along"). */
#ifndef SPILLWAY_KERNELS_CUDA_WGMMA_CUH
#define SPILLWAY_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/mma.cuh"

/* Whether this compilation is for a target that has them; the host's has their declarations. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define SW_HAVE_WGMMA 1
#else
#define SW_HAVE_WGMMA 0
#endif

#if SW_HAVE_WGMMA

/* An operand in shared memory. `panel_bytes`: between panels, where an operand that is read down
 * has more than one. */
static __device__ __forceinline__ uint64_t async_operand(uint32_t address, uint32_t panel_bytes)
{
    return static_cast<uint64_t>((address & 0x3FFFFu) >> 4) |
           static_cast<uint64_t>(panel_bytes >> 4) << 16 | static_cast<uint64_t>(1024 >> 4) << 32 |
           static_cast<uint64_t>(1) << 62;
}

/* Before the first of some products: registers that they use are written. */
static __device__ __forceinline__ void async_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

/* Behind the last of some products, which become a group. */
static __device__ __forceinline__ void async_end(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/* Waits until no more than PENDING groups are left. */
template <int PENDING> static __device__ __forceinline__ void async_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

/* Keeps what uses these sums on its side of a wait. */
template <int N> static __device__ __forceinline__ void async_hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

/* Makes what this thread wrote to shared memory, copies waited for included, visible to products
 * behind the next barrier. */
static __device__ __forceinline__ void async_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

#define SW_SUMS(use, c) use((c)[0]), use((c)[1]), use((c)[2]), use((c)[3])
#define SW_SUMS_8(use, c)                                                                          \
    SW_SUMS(use, (c)[0]), SW_SUMS(use, (c)[1]), SW_SUMS(use, (c)[2]), SW_SUMS(use, (c)[3]),        \
        SW_SUMS(use, (c)[4]), SW_SUMS(use, (c)[5]), SW_SUMS(use, (c)[6]), SW_SUMS(use, (c)[7])
#define SW_SUMS_32                                                                                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/* c = a b: 64 x 16 by 16 x 64, both in shared memory, read along (0) or down (1). */
template <int A_DOWN, int B_DOWN>
static __device__ __forceinline__ void multiply_async_new(float (&c)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SW_SUMS_32
                 "%32, %33, p, 1, 1, %34, %35;\n}\n"
                 : SW_SUMS_8("=f", c)
                 : "l"(a), "l"(b), "n"(A_DOWN), "n"(B_DOWN));
}

/* c += a b */
template <int A_DOWN, int B_DOWN>
static __device__ __forceinline__ void multiply_async(float (&c)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SW_SUMS_32
                 "%32, %33, p, 1, 1, %34, %35;\n}\n"
                 : SW_SUMS_8("+f", c)
                 : "l"(a), "l"(b), "n"(A_DOWN), "n"(B_DOWN));
}

/* The same with A in registers and B read down. */
static __device__ __forceinline__ void multiply_async(float (&c)[8][4], const uint32_t (&a)[4],
                                                      uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SW_SUMS_32
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : SW_SUMS_8("+f", c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* 128 columns. */
static __device__ __forceinline__ void multiply_async(float (&c)[16][4], const uint32_t (&a)[4],
                                                      uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 : SW_SUMS_8("+f", c), SW_SUMS_8("+f", c + 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SW_SUMS_32
#undef SW_SUMS_8
#undef SW_SUMS

#endif
#endif

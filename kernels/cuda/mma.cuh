/* The instructions that tiled kernels are made of: 16 x 8 x 16 products of bf16 with fp32 sums,
 * loads of their operands from shared memory, asynchronous copies to it (sm_80 and later; PTX ISA
 * 8, "Warp Level Matrix Multiply-Accumulate Instructions").
 *
 * Fragments, with g = lane / 4 and t = lane % 4: element pairs of a 16 x 16 operand A lie in a[0]
 * (row g, columns 2t and 2t + 1), a[1] (row g + 8), a[2] (row g, columns + 8), a[3] (both); of a
 * 16 x 8 operand B in b[0] (rows 2t and 2t + 1, column g) and b[1] (rows + 8); sums of a 16 x 8
 * result in c[0], c[1] (row g, columns 2t and 2t + 1) and c[2], c[3] (row g + 8). */
#ifndef SPILLWAY_KERNELS_CUDA_MMA_CUH
#define SPILLWAY_KERNELS_CUDA_MMA_CUH

#include <stdint.h>

/* Address within shared memory. */
static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Four 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8 and
 * receives, of each, elements 2t and 2t + 1 of row g. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* As load_matrices, of the transposed matrices. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* c += a b */
static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes, both addresses aligned to as much; zeros when not `there`, and nothing is read. */
static __device__ __forceinline__ void copy_async_16(uint32_t shared, const void *global,
                                                     bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_async_4(uint32_t shared, const void *global, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared), "l"(global),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Waits for this thread's copies; others' need a barrier behind it. */
static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

/* Makes a group of this thread's copies since the last one. */
static __device__ __forceinline__ void copy_end(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for this thread's copies, the last group's excepted. */
static __device__ __forceinline__ void copy_wait_but_one(void)
{
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
}

/* 2^x, relative error 2^-22; 0 for -infinity. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats rounded to bf16, `low` in the low half. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#endif

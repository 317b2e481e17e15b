/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). A number is a pure function of key and counter, so recomputation, another
 * layout or another device gives the same one. */
#ifndef SPILLWAY_BASE_RANDOM_H
#define SPILLWAY_BASE_RANDOM_H

#include "base/inline.h"

#include <stdint.h>

/* Four words for `counter` under `key`. */
SW_INLINE void sw_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Key of an independent sequence (splitmix64 of the seed and a sequence name). */
SW_INLINE void sw_random_key(uint64_t seed, uint64_t sequence, uint32_t key[2])
{
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (sequence + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    key[0] = (uint32_t)z;
    key[1] = (uint32_t)(z >> 32);
}

/* Sequences in use, so that no two meet. */
enum sw_random_sequence {
    SW_RANDOM_SHUFFLE = 1,
    SW_RANDOM_INIT = 2,
    SW_RANDOM_DROPOUT = 3,
    SW_RANDOM_ROUNDING = 4,
};

/* Uniform in [0, 1) with 24 bits. */
SW_INLINE float sw_random_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif

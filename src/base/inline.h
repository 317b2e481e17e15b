/* Small functions in headers, which CUDA sources call on the device as well as on the host. */
#ifndef SPILLWAY_BASE_INLINE_H
#define SPILLWAY_BASE_INLINE_H

#ifdef __CUDACC__
#define SW_INLINE static inline __host__ __device__
#else
#define SW_INLINE static inline
#endif

#endif

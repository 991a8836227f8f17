// Loads that tell the L2 cache when to give up what they read. A row is read once and written once, so the cache keeps
// lines that nobody asks for again. Plain loads and asynchronous copies take the same advice.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "common/device/launch.cuh"

namespace worklog::welford {

// [snippet: keeping]
// The eviction priority, in the L2 cache, of lines that are read. Where tensors are much larger than the cache, these
// lines are evicted last. They are not needed again: the point is that the lines of y, which are written, go first.
enum class Eviction { first, normal, last };

// The same in the form that an instruction takes. A choice and no branch, which the first load would wait for.
__device__ inline uint64_t advice_of([[maybe_unused]] Eviction eviction) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint64_t first, normal, last;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  return eviction == Eviction::first ? first : eviction == Eviction::normal ? normal : last;
#else
  return 0;
#endif
}

template <bool advised = true>
__device__ inline uint4 load_vector(const void* from, [[maybe_unused]] uint64_t advice) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (advised) {
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(advice)
                 : "memory");
    return v;
  }
#endif
  return *static_cast<const uint4*>(from);
}

// Into shared memory, asynchronously. A ring whose places depend on a number that is the same for all lanes has to say
// `undivided`: a mask that clears no bit, since shared memory ends far below 2^30, but keeps the address one number.
// Else NVIDIA's assembler may add up its parts in the copy itself, and then names the wrong register for the advice: an
// illegal instruction, up to CUDA 13.3 (IST-DASLab/marlin, issue 44).
inline constexpr unsigned undivided = 0x3fffffff;

template <unsigned mask = ~0u>
__device__ inline void copy_vector(uint4* to, const void* from, [[maybe_unused]] uint64_t advice) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to)) & mask;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "l"(advice)
               : "memory");
#else
  __pipeline_memcpy_async(to, from, 16);
#endif
}

// For a launch that reads so many bytes: `last` if they are more than `times` the size of the cache.
inline Eviction eviction_of(int64_t bytes_read, int times) {
  return bytes_read > times * int64_t{device_attribute(cudaDevAttrL2CacheSize)} ? Eviction::last : Eviction::normal;
}
// [/snippet]

}  // namespace worklog::welford

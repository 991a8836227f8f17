// The load step: a thread's share of a row, in registers. It stays in the storage type, so 16 bits take half the
// registers of floats. All loads are issued before the first value is used.
#pragma once

#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/cache_advice.cuh"

namespace worklog::welford {

using vectorized::Floats;
using vectorized::unpack;
using vectorized::vector_size;

// [snippet: load_step]
// Computing a row's address from its number takes many instructions. The compiler cannot see through this, so it
// computes the address once for a row and not, as it would, for each vector.
template <class T>
__device__ inline T* found_once(T* address) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(address));
#endif
  return address;
}

// A thread's share of a row, in registers and in the storage type: 16 bits stay 16 bits. `advised`: the L2 cache is
// told when to evict its vectors. Even advice that changes nothing (`normal`) takes a little time.
template <class T, int vectors_, bool advised_>
struct RowShare {
  static constexpr int vectors = vectors_;
  static constexpr bool advised = advised_;
  uint4 vector[vectors];
  T edge;

  // All loads are issued before the first value is used.
  template <class Place>
  __device__ void load(const T* row, const Place& place, Eviction eviction = Eviction::normal) {
    row = found_once(row);
    const uint64_t advice = advice_of(eviction);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (place.has(i)) vector[i] = load_vector<advised>(row + place.column(i), advice);
    }
    if (place.has_edge()) edge = row[place.edge];
  }

  // Calls f(values) for the elements of each vector, and of the edge.
  template <class Place, class Function>
  __device__ void for_each(const Place& place, Function f) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (place.has(i)) f(unpack<T>(vector[i]).at);
    }
    const float one[1] = {vectorized::to_float(edge)};
    if (place.has_edge()) f(one);
  }
};
// [/snippet]

}  // namespace worklog::welford

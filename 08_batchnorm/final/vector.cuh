// What a thread moves in one piece, and what it tells the L2 cache about it. A piece is 16 bytes where the tensors are
// aligned, and one element where they are not. Both are one type, so that each kernel is written once. All that these
// files take from stage 05's final kernel is named here.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/cache_advice.cuh"

namespace worklog::batchnorm {

using vectorized::Floats;
using vectorized::to_float;
using vectorized::vector_size;
using welford::advice_of;
using welford::copy_vector;
using welford::Eviction;
using welford::eviction_of;
using welford::load_vector;

// [snippet: vector]
// What a thread moves in one piece: 16 bytes, or one element where memory has no alignment to offer.
template <class T, int size>
struct alignas(size * sizeof(T)) Vector {
  T at[size];
};

template <class T, int size>
__device__ inline void unpack(const Vector<T, size>& vector, float (&values)[size]) {
  if constexpr (size == vector_size<T>) {
    const Floats<T> floats = vectorized::unpack<T>(*reinterpret_cast<const uint4*>(&vector));
#pragma unroll
    for (int k = 0; k < size; ++k) values[k] = floats.at[k];
  } else {
    values[0] = to_float(vector.at[0]);
  }
}

template <class T, int size>
__device__ inline Vector<T, size> pack(const float (&values)[size]) {
  Vector<T, size> vector;
  if constexpr (size == vector_size<T>) {
    Floats<T> floats;
#pragma unroll
    for (int k = 0; k < size; ++k) floats.at[k] = values[k];
    *reinterpret_cast<uint4*>(&vector) = vectorized::pack<T>(floats);
  } else {
    vector.at[0] = static_cast<T>(values[0]);
  }
  return vector;
}

template <class Bits>
__device__ inline Bits read_vector(const void* from, [[maybe_unused]] uint64_t advice) {
  Bits bits;
  if constexpr (sizeof(Bits) == sizeof(uint4)) {
    *reinterpret_cast<uint4*>(&bits) = load_vector(from, advice);
  } else {
    bits = *static_cast<const Bits*>(from);
  }
  return bits;
}

// y will not be read again soon: the store asks the L2 cache to give its place up first, and so to keep x.
template <class T, int size>
__device__ inline void store_streaming(T* to, const Vector<T, size>& vector) {
  if constexpr (sizeof(vector) == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
  } else {
    *to = vector.at[0];
  }
}
// [/snippet]

inline bool is_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

// As measured. Up to so many times the L2 cache, more reads hit it if what is read for the last time is evicted first.
// Beyond that, reads and writes hinder each other less if y is evicted first, as in stage 05.
inline constexpr int caches_to_hit = 4;

}  // namespace worklog::batchnorm

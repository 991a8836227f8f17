// A vector's 16 bytes become floats. For bfloat16 there is a shorter way than stage 04's, and rows of 16 bits need it:
// there the schedulers have little time for each element.
#pragma once

#include <type_traits>

#include "04_vectorized/vectors.cuh"

namespace worklog::welford {

using vectorized::Floats;
using vectorized::vector_size;

// [snippet: unpack]
// As stage 04 unpacks; but a bfloat16 is the upper half of a float, so that it takes one instruction, and one that the
// compiler will rather repeat than keep its result in a register.
template <class T>
__device__ inline Floats<T> unpack(uint4 bits) {
  if constexpr (!std::is_same_v<T, __nv_bfloat16>) return vectorized::unpack<T>(bits);
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Floats<T> floats;
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) {
    floats.at[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xffff0000u);
  }
  return floats;
}
// [/snippet]

}  // namespace worklog::welford

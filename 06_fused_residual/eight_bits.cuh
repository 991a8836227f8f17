// From floats to eight bits: e4m3 and int8, to nearest even, saturating.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"

namespace worklog::fused_residual {

using vectorized::Floats;
using vectorized::vector_size;

// [snippet: e4m3]
// An e4m3 has the fields of a float, in the same order: sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa.
// So a float becomes one by another bias, and by rounding away the last 20 bits of its mantissa.
__device__ inline unsigned to_e4m3(float value) {
  constexpr int cut = 20;                                  // bits of a float's mantissa that an e4m3 has not
  constexpr unsigned smallest_normal = 121u << 23;         // the bits of 2^-6
  constexpr unsigned bias_difference = 120u << 23;         // 127 - 7
  constexpr unsigned largest = 0x7e, not_a_number = 0x7f;  // 448
  const unsigned bits = __float_as_uint(value);
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return not_a_number;
  unsigned rounded;
  if (magnitude < smallest_normal) {
    // In steps of 2^-9, which is the last place of 2^14: the addition rounds.
    rounded = __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - __float_as_uint(0x1p14f);
  } else {
    rounded = (magnitude - bias_difference + ((1u << (cut - 1)) - 1) + (magnitude >> cut & 1)) >> cut;
    if (rounded > largest) rounded = largest;
  }
  return rounded | (bits >> 24 & 0x80u);
}

// Two at once, the first in the low byte.
__device__ inline unsigned to_e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;  // NOLINT: what the instruction is given
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_e4m3(low) | to_e4m3(high) << 8;
#endif
}
// [/snippet]

// [snippet: int8]
__device__ inline unsigned to_int8(float value) {
  const int rounded = __float2int_rn(value);  // saturates as well; 0 for NaN
  return static_cast<unsigned>(rounded < -128 ? -128 : rounded > 127 ? 127 : rounded) & 0xffu;
}
// [/snippet]

__device__ inline unsigned to_bytes(ByteFormat format, float a, float b, float c, float d) {
  if (format == ByteFormat::e4m3) return to_e4m3_pair(a, b) | to_e4m3_pair(c, d) << 16;
  return to_int8(a) | to_int8(b) << 8 | to_int8(c) << 16 | to_int8(d) << 24;
}

// [snippet: store_bytes]
__device__ __forceinline__ void store_words(uint8_t* to, const unsigned (&word)[2]) {
  *reinterpret_cast<uint2*>(to) = {word[0], word[1]};
}
__device__ __forceinline__ void store_words(uint8_t* to, const unsigned (&word)[1]) {
  *reinterpret_cast<unsigned*>(to) = word[0];
}

// A vector's elements times `factor`, in eight bits: 8 bytes where it has 16, or 4.
template <bool always_whole, class T>
__device__ __forceinline__ void store_bytes(uint8_t* row, int col, int cols, const Floats<T>& y, float factor,
                                            ByteFormat format) {
  constexpr int size = vector_size<T>;
  unsigned word[size / 4];
#pragma unroll
  for (int i = 0; i < size / 4; ++i) {
    const float* at = y.at + 4 * i;
    word[i] = to_bytes(format, at[0] * factor, at[1] * factor, at[2] * factor, at[3] * factor);
  }
  if constexpr (always_whole) return store_words(row + col, word);
  if (col + size <= cols && reinterpret_cast<uintptr_t>(row + col) % size == 0) return store_words(row + col, word);
#pragma unroll
  for (int k = 0; k < size; ++k) {
    if (col + k < cols) row[col + k] = static_cast<uint8_t>(word[k / 4] >> 8 * (k % 4));
  }
}
// [/snippet]

}  // namespace worklog::fused_residual

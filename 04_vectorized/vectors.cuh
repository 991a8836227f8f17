// What a thread moves at a time: 16 bytes of a row, as elements of their type and as floats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace worklog::vectorized {

// [snippet: vector]
// How many elements 16 bytes hold: 4 floats, 8 halves.
template <class T>
inline constexpr int vector_size = 16 / sizeof(T);

// A vector's elements, as the arithmetic wants them.
template <class T>
struct Floats {
  float at[vector_size<T>];
};

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// A bf16 is the upper half of a float, so one shift or mask unpacks it. That is so cheap that the compiler mostly
// repeats it rather than keep the floats, which take twice the registers.
template <class T>
__device__ inline Floats<T> unpack(uint4 bits) {
  Floats<T> floats;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      floats.at[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xffff0000u);
    }
  } else {
    T element[vector_size<T>];
    *reinterpret_cast<uint4*>(element) = bits;
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) floats.at[k] = to_float(element[k]);
  }
  return floats;
}

// Two at a time, where one instruction rounds both.
__device__ inline __half2 round_pair(float a, float b, __half) {
  return __floats2half2_rn(a, b);
}
__device__ inline __nv_bfloat162 round_pair(float a, float b, __nv_bfloat16) {
  return __floats2bfloat162_rn(a, b);
}

// Always put into its caller: the CPU layer's counter would not see the store of what a call returns.
template <class T>
__device__ __forceinline__ uint4 pack(const Floats<T>& floats) {
  if constexpr (sizeof(T) == 4) {
    return {__float_as_uint(floats.at[0]), __float_as_uint(floats.at[1]), __float_as_uint(floats.at[2]),
            __float_as_uint(floats.at[3])};
  } else {
    decltype(round_pair(0.0f, 0.0f, T())) pair[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) pair[k] = round_pair(floats.at[2 * k], floats.at[2 * k + 1], T());
    return *reinterpret_cast<uint4*>(pair);
  }
}
// [/snippet]

// [snippet: load]
// True where `col` and the columns after it fill a vector of the row that memory can move in one piece.
template <class T>
__device__ inline bool is_whole(const T* row, int col, int cols) {
  return col >= 0 && col + vector_size<T> <= cols && reinterpret_cast<uintptr_t>(row + col) % 16 == 0;
}

// Columns col, col + 1, ... of a row; zeros stand for those that the row does not have. Where the caller knows that
// every vector is whole, `always_whole`, there is nothing to ask.
template <bool always_whole = false, class T>
__device__ inline uint4 load(const T* row, int col, int cols) {
  T element[vector_size<T>];
  if (always_whole || is_whole(row, col, cols)) {
    *reinterpret_cast<uint4*>(element) = *reinterpret_cast<const uint4*>(row + col);
  } else {
    // [task: load_ends]
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      const bool inside = col + k >= 0 && col + k < cols;
      element[k] = inside ? row[col + k] : static_cast<T>(0.0f);
    }
    // [/task]
  }
  return *reinterpret_cast<uint4*>(element);
}

template <bool always_whole = false, class T>
__device__ inline void store(T* row, int col, int cols, uint4 bits) {
  if (always_whole || is_whole(row, col, cols)) {
    *reinterpret_cast<uint4*>(row + col) = bits;
  } else {
    T element[vector_size<T>];
    *reinterpret_cast<uint4*>(element) = bits;
    // [task: store_ends]
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      if (col + k >= 0 && col + k < cols) row[col + k] = element[k];
    }
    // [/task]
  }
}

// The column at which a row's first vector starts: 0, or less where the row itself does not start on a 16-byte
// boundary. The vectors then straddle its ends, and all those between are aligned.
template <class T>
__device__ inline int first_column(const T* row) {
  return -static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
}
// [/snippet]

// [snippet: affine]
// gamma or beta at the columns of a vector of T, in its own storage type G: fp32 parameters of 16-bit elements are two
// vectors.
template <class T, class G>
struct Parameter {
  static constexpr int parts = vector_size<T> / vector_size<G> > 1 ? vector_size<T> / vector_size<G> : 1;
  uint4 bits[parts];

  // `absent` stands for every element where `parameter` is null.
  template <bool always_whole = false>
  __device__ void load(const G* parameter, int col, int cols, float absent) {
    Floats<G> same;
#pragma unroll
    for (int k = 0; k < vector_size<G>; ++k) same.at[k] = absent;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      bits[i] = parameter ? vectorized::load<always_whole>(parameter, col + i * vector_size<G>, cols) : pack<G>(same);
    }
  }

  __device__ Floats<T> unpack() const {
    Floats<T> floats;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const Floats<G> part = vectorized::unpack<G>(bits[i]);
#pragma unroll
      for (int k = 0; k < vector_size<G>; ++k) floats.at[i * vector_size<G> + k] = part.at[k];
    }
    return floats;
  }
};

template <class T, class G>
__device__ inline Floats<T> normalize(const Floats<T>& x, float mean, float rstd, const Parameter<T, G>& gamma,
                                      const Parameter<T, G>& beta) {
  const Floats<T> scale = gamma.unpack();
  const Floats<T> shift = beta.unpack();
  Floats<T> y;
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) y.at[k] = (x.at[k] - mean) * rstd * scale.at[k] + shift.at[k];
  return y;
}
// [/snippet]

}  // namespace worklog::vectorized

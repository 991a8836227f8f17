// Exercise: rows whose length is not a multiple of 4. Look for [task], of which there are two.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::vectorized {

using warp_shuffle::block_sum;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;

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
    // [task: load_ends] This vector does not lie in the row as a whole, or not on a 16-byte boundary. Fill `element`
    // one by one: with what the row has at col + k, and with zeros where it has nothing.
    for (int k = 0; k < vector_size<T>; ++k) element[k] = static_cast<T>(0.0f);
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
    // [task: store_ends] Likewise: store those of `element` that are columns of the row, and nothing else.

    // [/task]
  }
}

// The column at which a row's first vector starts: 0, or less where the row itself does not start on a 16-byte
// boundary. The vectors then straddle its ends, and all those between are aligned.
template <class T>
__device__ inline int first_column(const T* row) {
  return -static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
}

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

template <class T, class G>
__device__ inline void write_statistics(const LayerNormForward<T, G>& p, int64_t row, float mean, float rstd) {
  if (threadIdx.x != 0) return;
  if (p.mean) p.mean[row] = mean;
  if (p.rstd) p.rstd[row] = rstd;
}

inline constexpr int most_threads = 512;  // of a block: each may then have 128 registers

// A thread's share of a row, `vectors` vectors of it, in its storage type: 16 bits stay 16 bits.
template <class T, int vectors>
struct RowInRegisters {
  uint4 bits[vectors];

  // All loads are issued before the first value is used: that many bytes are on their way at once.
  template <bool always_whole = false>
  __device__ void load(const T* row, int first, int step, int cols) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      bits[i] = first + i * step < cols ? vectorized::load<always_whole>(row, first + i * step, cols) : uint4{};
    }
  }

  __device__ float sum() const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const Floats<T> v = unpack<T>(bits[i]);  // zeros beyond the row's ends add nothing
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) sum += v.at[k];
    }
    return sum;
  }

  __device__ float squared_deviations(float mean, int first, int step, int cols) const {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      const bool whole = col >= 0 && col + vector_size<T> <= cols;
      const Floats<T> v = unpack<T>(bits[i]);
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) {
        const float deviation = whole || (col + k >= 0 && col + k < cols) ? v.at[k] - mean : 0.0f;
        squares += deviation * deviation;
      }
    }
    return squares;
  }
};

template <class T, class G, int vectors>
__global__ void __launch_bounds__(most_threads) layernorm_cached(LayerNormForward<T, G> p) {
  __shared__ float scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    T* y = p.y + row * p.y_stride;
    const int first = first_column(x) + static_cast<int>(threadIdx.x) * vector_size<T>;

    RowInRegisters<T, vectors> held;
    held.load(x, first, step, cols);
    const float mean = block_sum(held.sum(), scratch) / p.cols;
    const float rstd = rsqrtf(block_sum(held.squared_deviations(mean, first, step, cols), scratch) / p.cols + p.eps);

#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols, pack<T>(normalize(unpack<T>(held.bits[i]), mean, rstd, gamma, beta)));
    }
    write_statistics(p, row, mean, rstd);
  }
}

// The most vectors that a row of this tensor touches: more than fit its length where it straddles their boundaries.
template <class T>
inline int64_t vectors_in_row(const T* x, int64_t x_stride, int64_t cols) {
  const int64_t start = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
  const int64_t worst_start = x_stride % vector_size<T> == 0 ? start : vector_size<T> - 1;
  return (worst_start + cols + vector_size<T> - 1) / vector_size<T>;
}

// Threads for a row of which each holds `vectors` vectors: whole warps.
template <class T, class G>
inline unsigned threads_for(const LayerNormForward<T, G>& p, int vectors) {
  const int64_t threads = (vectors_in_row(p.x, p.x_stride, p.cols) + vectors - 1) / vectors;
  return static_cast<unsigned>((threads + lanes - 1) / lanes * lanes);
}

// The longest rows that fit into the registers of a block, at `vectors` vectors to a thread.
template <class T, int vectors>
inline constexpr int64_t longest_row = int64_t{most_threads} * vectors* vector_size<T> - vector_size<T>;

template <class T, class G>
void cached(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const unsigned blocks = blocks_for(p.rows, 1);
  const unsigned threads = threads_for(p, 4);
  if (threads <= most_threads) {
    launch(layernorm_cached<T, G, 4>, {.grid = blocks, .block = threads, .stream = stream}, p);
  } else {
    launch(layernorm_cached<T, G, 8>, {.grid = blocks, .block = threads_for(p, 8), .stream = stream}, p);
  }
}

}  // namespace worklog::vectorized

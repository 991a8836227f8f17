// Exercise: the row is read once, and stays in registers. Look for [task].
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::vectorized {

using warp_shuffle::block_sum;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;

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

    // [task: registers] This reads the row three times. Load it once, into a RowInRegisters<T, vectors>; make both sums
    // and y of what it holds.
    float sum = 0.0f;
    for (int i = 0; i < vectors; ++i) {
      if (first + i * step >= cols) break;
      const Floats<T> v = unpack<T>(load(x, first + i * step, cols));
      for (int k = 0; k < vector_size<T>; ++k) sum += v.at[k];
    }
    const float mean = block_sum(sum, scratch) / p.cols;

    float squares = 0.0f;
    for (int i = 0; i < vectors; ++i) {
      for (int col = first + i * step, k = 0; k < vector_size<T>; ++k, ++col) {
        if (col >= 0 && col < cols) squares += (to_float(x[col]) - mean) * (to_float(x[col]) - mean);
      }
    }
    const float rstd = rsqrtf(block_sum(squares, scratch) / p.cols + p.eps);

    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols, pack<T>(normalize(unpack<T>(load(x, col, cols)), mean, rstd, gamma, beta)));
    }
    // [/task]
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

// Exercise: gamma and beta are loaded once for many rows. Look for [task].
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

// A block stays and walks over many rows. The grid is a multiple of
// the vector's size, so that all rows of a block's walk start at the same place between 16-byte boundaries, and a
// thread meets the same columns in each.
template <class T, class G, int vectors>
__global__ void __launch_bounds__(most_threads) layernorm_persistent(LayerNormForward<T, G> p) {
  __shared__ float scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  const int first = first_column(p.x + blockIdx.x * p.x_stride) + static_cast<int>(threadIdx.x) * vector_size<T>;

  // [task: stay] A block walks over many rows, and a thread meets the same columns in each. But it loads gamma and beta
  // anew for each row. Load them once.
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    RowInRegisters<T, vectors> held;
    held.load(p.x + row * p.x_stride, first, step, cols);
    const float mean = block_sum(held.sum(), scratch) / p.cols;
    const float rstd = rsqrtf(block_sum(held.squared_deviations(mean, first, step, cols), scratch) / p.cols + p.eps);

    T* y = p.y + row * p.y_stride;
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
  // [/task]
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

template <class T, class G, int vectors>
void launch_persistent(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  const unsigned threads = threads_for(p, vectors);
  int device = 0;
  int multiprocessors = 0;
  int resident = 0;  // blocks on a multiprocessor
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "asking for the device");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, layernorm_persistent<T, G, vectors>,
                                                           static_cast<int>(threads), 0),
             "asking for the occupancy");
  const unsigned per_walk = vector_size<T>;
  const unsigned blocks = static_cast<unsigned>(multiprocessors * resident) / per_walk * per_walk;
  launch(layernorm_persistent<T, G, vectors>,
         {.grid = blocks > 0 ? blocks : per_walk, .block = threads, .stream = stream}, p);
}

template <class T, class G>
void persistent(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  if (threads_for(p, 2) <= most_threads) {
    launch_persistent<T, G, 2>(p, stream);
  } else {
    launch_persistent<T, G, 4>(p, stream);
  }
}

}  // namespace worklog::vectorized

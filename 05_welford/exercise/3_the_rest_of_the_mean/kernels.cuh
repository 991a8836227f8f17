// Exercise: the mean of a row in two floats. Look for [task], of which there are two.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::vector_size;
using warp_shuffle::block_sum;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

// True where all rows of a tensor start on a 16-byte boundary, or it is null.
template <class T>
bool on_boundaries(const T* tensor, int64_t stride) {
  return reinterpret_cast<uintptr_t>(tensor) % 16 == 0 && stride % vector_size<T> == 0;
}

// Two sums over the block at once, in every thread.
__device__ inline float2 block_sums(float2 sums, float2* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  sums = {warp_sum(sums.x), warp_sum(sums.y)};
  if (lane == 0) scratch[threadIdx.x / lanes] = sums;
  __syncthreads();
  sums = lane < blockDim.x / lanes ? scratch[lane] : float2{0.0f, 0.0f};
  __syncthreads();  // all have read `scratch` before the next row overwrites it
  return {warp_sum(sums.x), warp_sum(sums.y)};
}

// sum / n, where `share` is 1 / n: a product and its correction. Where the quotient is a float they are exact. Rows of
// equal values need that: their mean is their value.
__device__ inline float quotient_of(float sum, float n, float share) {
  const float quotient = sum * share;
  return fmaf(fmaf(-quotient, n, sum), share, quotient);
}

// How a vector of a row is loaded, and how it is stored. Stage 06 has other operations for the kernel below.
template <class T, class G>
struct LayerNorm {
  using Element = T;
  static constexpr bool has_mean = true;
  static constexpr bool stores_sum = false;
  LayerNormForward<T, G> p;

  // `whole`: all vectors of all rows are. Stage 06 loads otherwise the first time, and as here when it loads again.
  template <bool whole>
  __device__ uint4 load(int64_t row, int col) const {
    return load_again<whole>(row, col);
  }
  template <bool whole>
  __device__ uint4 load_again(int64_t row, int col) const {
    return vectorized::load<whole>(p.x + row * p.x_stride, col, static_cast<int>(p.cols));
  }
  template <bool whole>
  __device__ void store(int64_t row, int col, Floats<T> x) const {
    const int cols = static_cast<int>(p.cols);
    Parameter<T, G> gamma, beta;
    gamma.template load<whole>(p.gamma, col, cols, 1.0f);
    beta.template load<whole>(p.beta, col, cols, 0.0f);
    const Floats<T> scales = gamma.unpack(), shifts = beta.unpack();
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) x.at[k] = x.at[k] * scales.at[k] + shifts.at[k];
    store_vector<whole>(p.y + row * p.y_stride, col, pack<T>(x));
  }
  // As vectorized::store, but a whole vector at once: nvcc splits that one's into four.
  template <bool whole>
  __device__ void store_vector(T* row, int col, uint4 bits) const {
    const int cols = static_cast<int>(p.cols);
    if (!whole && !vectorized::is_whole(row, col, cols)) return vectorized::store(row, col, cols, bits);
    __stwb(reinterpret_cast<uint4*>(row + col), bits);
  }

  bool is_whole() const {
    return p.cols % vector_size<T> == 0 && on_boundaries(p.x, p.x_stride) && on_boundaries(p.y, p.y_stride) &&
           on_boundaries(p.gamma, 0) && on_boundaries(p.beta, 0);
  }
};

// How many blocks of 512 threads shall find room on a multiprocessor. With three a thread can have 40 registers, with
// two 64, and with one 128. The more blocks, the more loads are under way; but what finds no register is spilled.
template <class Norm, int vectors, bool whole>
constexpr int resident_blocks() {
  constexpr bool is_16_bits = sizeof(typename Norm::Element) == 2;
  constexpr int blocks_of_long_rows = whole || is_16_bits ? 2 : 1;
  constexpr int blocks_of_short_rows = whole && is_16_bits && Norm::has_mean ? 3 : 2;
  return blocks_that_fit(vectorized::most_threads, vectors > 4 ? blocks_of_long_rows : blocks_of_short_rows);
}

// A block to a row, `vectors` vectors of it in each thread's registers. What is beyond them is read again in each walk.
template <class Norm, int vectors, bool whole>
__global__ void __launch_bounds__(vectorized::most_threads, resident_blocks<Norm, vectors, whole>())
    normalize_held(Norm norm) {
  using T = typename Norm::Element;
  __shared__ float2 scratch[lanes];
  const int cols = static_cast<int>(norm.p.cols);
  const auto n = static_cast<float>(cols);
  const float share = 1.0f / n;  // of an element in a mean
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < norm.p.rows; row += gridDim.x) {
    const int first =
        (whole ? 0 : first_column(norm.p.x + row * norm.p.x_stride)) + static_cast<int>(threadIdx.x) * vector_size<T>;
    uint4 held[vectors];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      held[i] = col < cols ? norm.template load<whole>(row, col) : uint4{};
    }
    const int beyond = first + vectors * step;
    for (int col = beyond; Norm::stores_sum && col < cols; col += step) norm.template load<whole>(row, col);
    const auto for_each_vector = [&](auto use) {
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        if (first + i * step < cols) use(first + i * step, vectorized::unpack<T>(held[i]));
      }
      for (int col = beyond; col < cols; col += step) {
        use(col, vectorized::unpack<T>(norm.template load_again<whole>(row, col)));
      }
    };

    float pivot = 0.0f, rest = 0.0f, variance, scale = 1.0f;
    while (true) {
      if constexpr (Norm::has_mean) {
        float sum = 0.0f;
        for_each_vector([&](int, const Floats<T>& x) {  // beyond the row's ends there are zeros
          for (int k = 0; k < vector_size<T>; ++k) sum += x.at[k] * scale;
        });
        pivot = block_sum(sum, reinterpret_cast<float*>(scratch)) * share;
      }
      // [task: rest] `pivot` is a float near the row's mean. Find what the mean is beside it, `rest`. The squares are
      // taken about the pivot, so the variance has to be corrected by it, too.
      float sum = 0.0f;
      for_each_vector([&](int col, const Floats<T>& x) {
        for (int k = 0; k < vector_size<T>; ++k) {
          if (!whole && (col + k < 0 || col + k >= cols)) continue;
          const float difference = x.at[k] * scale - pivot;
          sum += difference * difference;
        }
      });
      variance = quotient_of(block_sum(sum, reinterpret_cast<float*>(scratch)), n, share);
      // [/task]
      if (isfinite(variance) || scale < 1.0f) break;
      scale = 0x1p-80f;  // squares or sums overflow: once more, so small that they cannot
    }
    if (variance < 0.0f) variance = 0.0f;                      // by the rounding of the difference
    const float rstd = rsqrtf(variance + norm.p.eps * scale);  // eps * scale^2 is nothing; this avoids 1 / 0

    // [task: output] The mean, and the output, as exactly as the two parts have them.
    const float mean = pivot + rest;
    for_each_vector([&](int col, Floats<T> x) {
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] = (x.at[k] * scale - pivot) * rstd;
      norm.template store<whole>(row, col, x);
    });
    // [/task]
    vectorized::write_statistics(norm.p, row, mean / scale, variance == 0.0f ? rsqrtf(norm.p.eps) : rstd * scale);
  }
}

// As many threads as hold the row; for a longer row, as many as a block has.
template <int vectors, bool whole, class Norm>
void launch_held(const Norm& norm, cudaStream_t stream) {
  const unsigned threads = vectorized::threads_for(norm.p, vectors), most = vectorized::most_threads;
  launch(normalize_held<Norm, vectors, whole>,
         {.grid = blocks_for(norm.p.rows, 1), .block = threads < most ? threads : most, .stream = stream}, norm);
}

template <class Norm>
void launch_held(const Norm& norm, cudaStream_t stream) {
  if (norm.p.rows == 0) return;
  // Four vectors to a thread, or eight of a long row. Where each must be asked whether it is whole, four are faster as
  // long as they hold the row.
  const bool is_whole = norm.is_whole();
  const bool is_short = vectorized::threads_for(norm.p, 4) <= (is_whole ? 256 : vectorized::most_threads);
  if (is_whole) return is_short ? launch_held<4, true>(norm, stream) : launch_held<8, true>(norm, stream);
  return is_short ? launch_held<4, false>(norm, stream) : launch_held<8, false>(norm, stream);
}

template <class T, class G>
void held(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  launch_held(LayerNorm<T, G>{p}, stream);
}

}  // namespace worklog::welford

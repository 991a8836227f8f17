// Statistics that hold: Welford's step for one value more, and Chan's merge of the moments of two sets.
//
// Three kernels use them: `textbook`, as the articles have it; `chan`, with the row in registers; and `held`, with the
// mean in two floats, which is right on every input. The final kernel is in final/: start with final/layer_norm.cuh.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::load;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::store;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

// [snippet: moments]
// What is known of some values: how many they are, their mean, and M2, the sum of their squared deviations from it.
struct Moments {
  float count;
  float mean;
  float m2;
};

// Welford's step [1962]: one more value. The mean moves by the value's share of the difference; M2 grows by the product
// of the differences from the old and from the new mean.
__device__ inline void add_value(Moments& moments, float value) {
  moments.count += 1.0f;
  const float difference = value - moments.mean;
  moments.mean += difference / moments.count;
  moments.m2 += difference * (value - moments.mean);
}

// Chan's formula [Chan, Golub, LeVeque 1979]: the moments of two sets of values together.
__device__ inline Moments merge(const Moments& a, const Moments& b) {
  // [task: merge]
  const float count = a.count + b.count;
  const float share = count > 0.0f ? b.count / count : 0.0f;  // two empty sets make an empty one
  const float difference = b.mean - a.mean;
  return {count, a.mean + difference * share, a.m2 + b.m2 + difference * difference * a.count * share};
  // [/task]
}

// The moments of all lanes' values, in every lane.
__device__ inline Moments merge_lanes(Moments moments) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const Moments other = {__shfl_xor_sync(all_lanes, moments.count, distance),
                           __shfl_xor_sync(all_lanes, moments.mean, distance),
                           __shfl_xor_sync(all_lanes, moments.m2, distance)};
    moments = merge(moments, other);
  }
  return moments;
}

// The moments of all the block's values, in every thread. `scratch` holds those of each warp.
template <class Part>
__device__ inline Part merge_block(Part moments, Part* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  moments = merge_lanes(moments);
  if (lane == 0) scratch[threadIdx.x / lanes] = moments;
  __syncthreads();
  moments = merge_lanes(lane < blockDim.x / lanes ? scratch[lane] : Part{});
  __syncthreads();  // all have read `scratch` before the next row overwrites it
  return moments;
}
// [/snippet]

// [snippet: textbook]
// Welford's algorithm as the articles have it: a division for each element, and x read again to normalize.
template <class T, class G>
__global__ void layernorm_textbook(LayerNormForward<T, G> p) {
  __shared__ Moments scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    T* y = p.y + row * p.y_stride;
    const int first = first_column(x) + static_cast<int>(threadIdx.x) * vector_size<T>;

    Moments moments = {};
    for (int col = first; col < cols; col += step) {
      const Floats<T> v = vectorized::unpack<T>(load(x, col, cols));
      for (int k = 0; k < vector_size<T>; ++k) {
        if (col + k >= 0 && col + k < cols) add_value(moments, v.at[k]);
      }
    }
    moments = merge_block(moments, scratch);
    const float rstd = rsqrtf(moments.m2 / p.cols + p.eps);

    for (int col = first; col < cols; col += step) {
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols,
            pack<T>(vectorized::normalize(vectorized::unpack<T>(load(x, col, cols)), moments.mean, rstd, gamma, beta)));
    }
    vectorized::write_statistics(p, row, moments.mean, rstd);
  }
}
// [/snippet]

// [snippet: chan]
// A thread's share of a row in registers gives its moments in two small passes, without a division per element; then
// one round of merges does what took two rounds of sums.
template <class T, class G, int vectors>
__global__ void __launch_bounds__(vectorized::most_threads) layernorm_chan(LayerNormForward<T, G> p) {
  __shared__ Moments scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    T* y = p.y + row * p.y_stride;
    const int first = first_column(x) + static_cast<int>(threadIdx.x) * vector_size<T>;

    vectorized::RowInRegisters<T, vectors> held;
    held.load(x, first, step, cols);
    // [task: moments]
    Moments moments = {};
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      const int begin = col < 0 ? 0 : col;
      const int end = col + vector_size<T> < cols ? col + vector_size<T> : cols;
      if (end > begin) moments.count += static_cast<float>(end - begin);
    }
    moments.mean = moments.count > 0.0f ? held.sum() / moments.count : 0.0f;
    moments.m2 = held.squared_deviations(moments.mean, first, step, cols);
    // [/task]
    moments = merge_block(moments, scratch);
    const float rstd = rsqrtf(moments.m2 / p.cols + p.eps);

#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols,
            pack<T>(vectorized::normalize(vectorized::unpack<T>(held.bits[i]), moments.mean, rstd, gamma, beta)));
    }
    vectorized::write_statistics(p, row, moments.mean, rstd);
  }
}
// [/snippet]

// [snippet: split]
// Moments whose mean is kept in two floats, pivot + rest: the rest has the digits for which a large pivot has no room.
struct SplitMoments {
  float count, pivot, rest, m2;
};

// The moments of x * scale, by the differences from `pivot`. for_each(use) calls use(col, bits) for a thread's vectors.
template <class Norm, class T = typename Norm::Element, class ForEach>
__device__ inline SplitMoments moments_about(float pivot, float scale, int cols, ForEach for_each) {
  SplitMoments part = {0.0f, pivot, 0.0f, 0.0f};
  float left = 0.0f;
  for_each([&](int col, uint4 bits) {
    const Floats<T> x = vectorized::unpack<T>(bits);
    const auto add = [&](int k) {
      const float difference = x.at[k] * scale - pivot;
      part.count += 1.0f;
      left += difference;
      part.m2 += difference * difference;
    };
    if (col >= 0 && col + vector_size<T> <= cols) {  // as nearly all are: no question for each value
      for (int k = 0; k < vector_size<T>; ++k) add(k);
    } else {
      for (int k = 0; k < vector_size<T>; ++k) {
        if (col + k >= 0 && col + k < cols) add(k);
      }
    }
  });
  if (Norm::has_mean && part.count > 0.0f) part.rest = left / part.count;
  part.m2 -= left * part.rest;  // about the mean now, which is `rest` away from the pivot
  return part;
}

// Chan's formula for the parts of all lanes at once, by their differences from the mean as one float has it.
__device__ inline SplitMoments merge_lanes(const SplitMoments& part) {
  const float count = warp_sum(part.count);
  const float mean = warp_sum(part.count * (part.pivot + part.rest)) / fmaxf(count, 1.0f);
  const float pivot = __shfl_sync(all_lanes, mean, 0);  // the same to the last bit in all lanes
  const float difference = (part.pivot - pivot) + part.rest;
  const float left = warp_sum(part.count * difference);
  const float rest = left / fmaxf(count, 1.0f);
  return {count, pivot, rest, warp_sum(part.m2 + part.count * difference * difference) - left * rest};
}
// [/snippet]

// [snippet: held]
// How a vector of a row is loaded, and how it is stored. Stage 06 has other operations for the kernel below.
template <class T, class G>
struct LayerNorm {
  using Element = T;
  static constexpr bool has_mean = true;
  LayerNormForward<T, G> p;

  __device__ uint4 load(int64_t row, int col) const {
    return vectorized::load(p.x + row * p.x_stride, col, static_cast<int>(p.cols));
  }
  // `x` is the loaded vector without the pivot; stage 06 stores that vector, too.
  __device__ void store(int64_t row, int col, uint4, const Floats<T>& x, float rest, float rstd) const {
    Parameter<T, G> gamma, beta;
    gamma.load(p.gamma, col, static_cast<int>(p.cols), 1.0f);
    beta.load(p.beta, col, static_cast<int>(p.cols), 0.0f);
    store_vector(p.y + row * p.y_stride, col, pack<T>(vectorized::normalize(x, rest, rstd, gamma, beta)));
  }
  // As vectorized::store, but a whole vector at once: nvcc splits that one's assignment into four.
  __device__ void store_vector(T* row, int col, uint4 bits) const {
    const int cols = static_cast<int>(p.cols);
    if (!vectorized::is_whole(row, col, cols)) return vectorized::store(row, col, cols, bits);
    __stwb(reinterpret_cast<uint4*>(row + col), bits);
  }
};

// A block to a row, `vectors` vectors of it in each thread's registers. What is beyond them is read in each of 3 walks.
template <class Norm, int vectors>
__global__ void __launch_bounds__(vectorized::most_threads, 1) normalize_held(Norm norm) {
  using T = typename Norm::Element;
  __shared__ SplitMoments scratch[lanes];
  const int cols = static_cast<int>(norm.p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < norm.p.rows; row += gridDim.x) {
    const int first = first_column(norm.p.x + row * norm.p.x_stride) + static_cast<int>(threadIdx.x) * vector_size<T>;
    uint4 held[vectors];
    for (int i = 0; i < vectors; ++i) held[i] = first + i * step < cols ? norm.load(row, first + i * step) : uint4{};
    const auto for_each_vector = [&](auto use) {
#pragma unroll
      for (int i = 0; i < vectors && first + i * step < cols; ++i) use(first + i * step, held[i]);
      for (int col = first + vectors * step; col < cols; col += step) use(col, norm.load(row, col));
    };
    SplitMoments moments;
    float scale = 1.0f;
    while (true) {
      moments = moments_about<Norm>(0.0f, scale, cols, for_each_vector);  // `rest` is the mean, in one float
      if (Norm::has_mean) moments = moments_about<Norm>(moments.rest, scale, cols, for_each_vector);
      moments = merge_block(moments, scratch);
      if (isfinite(__shfl_sync(all_lanes, moments.m2, 0)) || scale < 1.0f) break;  // the same in all threads
      scale = 0x1p-80f;  // squares or sums overflow: once more, so small that they cannot
    }
    const float variance = moments.m2 / norm.p.cols;
    const float rstd = rsqrtf(variance + norm.p.eps * scale);  // with a small scale, eps only avoids 1 / 0
    for_each_vector([&](int col, uint4 bits) {
      Floats<T> x = vectorized::unpack<T>(bits);
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] = x.at[k] * scale - moments.pivot;
      norm.store(row, col, bits, x, moments.rest, rstd);
    });
    vectorized::write_statistics(norm.p, row, (moments.pivot + moments.rest) / scale,
                                 variance == 0.0f ? rsqrtf(norm.p.eps) : rstd * scale);
  }
}
// [/snippet]

// [snippet: variants]
template <class T, class G>
void textbook(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_textbook<T, G>, {.grid = blocks_for(p.rows, 1), .block = 256, .stream = stream}, p);
}

template <class T, class G>
void chan(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const unsigned blocks = blocks_for(p.rows, 1);
  const unsigned threads = vectorized::threads_for(p, 4);
  if (threads <= vectorized::most_threads) {
    launch(layernorm_chan<T, G, 4>, {.grid = blocks, .block = threads, .stream = stream}, p);
  } else {
    launch(layernorm_chan<T, G, 8>, {.grid = blocks, .block = vectorized::threads_for(p, 8), .stream = stream}, p);
  }
}

// As many threads as hold the row in 16 values each, or in 32; for a longer row, as many as a block has.
template <class Norm>
void launch_held(const Norm& norm, cudaStream_t stream) {
  if (norm.p.rows == 0) return;
  constexpr int few = 16 / vector_size<typename Norm::Element>;
  const unsigned most = vectorized::most_threads;
  const bool is_short = vectorized::threads_for(norm.p, few) <= most;
  const unsigned threads = vectorized::threads_for(norm.p, is_short ? few : 2 * few);
  launch(is_short ? normalize_held<Norm, few> : normalize_held<Norm, 2 * few>,
         {.grid = blocks_for(norm.p.rows, 1), .block = threads < most ? threads : most, .stream = stream}, norm);
}

template <class T, class G>
void held(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  launch_held(LayerNorm<T, G>{p}, stream);
}
// [/snippet]

}  // namespace worklog::welford

// Exercise: the moments of what a thread holds in registers. Look for [task].
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

// What is known of some values: how many they are, their mean, and M2, the sum of their squared deviations from it.
struct Moments {
  float count;
  float mean;
  float m2;
};

// Chan's formula [Chan, Golub, LeVeque 1979]: the moments of two sets of values together.
__device__ inline Moments merge(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  const float share = count > 0.0f ? b.count / count : 0.0f;  // two empty sets make an empty one
  const float difference = b.mean - a.mean;
  return {count, a.mean + difference * share, a.m2 + b.m2 + difference * difference * a.count * share};
}

// The moments of all lanes' values, in every lane; but merge(a, b) and merge(b, a) round differently, so that lanes may
// differ in the last bit of the mean.
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
__device__ inline Moments merge_block(Moments moments, Moments* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  moments = merge_lanes(moments);
  if (lane == 0) scratch[threadIdx.x / lanes] = moments;
  __syncthreads();
  moments = merge_lanes(lane < blockDim.x / lanes ? scratch[lane] : Moments{});
  __syncthreads();  // all have read `scratch` before the next row overwrites it
  return moments;
}

// A thread holds its share of a row in registers; one round of merges makes the row's moments of those of the threads.
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
    // [task: moments] Find the moments of the elements that `held` has, without a division for each. The vectors at the
    // row's two ends reach beyond it: what lies there reads as zeros in `held`, and is not an element. No check
    // counts the divisions.
    Moments moments = {};
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

}  // namespace worklog::welford

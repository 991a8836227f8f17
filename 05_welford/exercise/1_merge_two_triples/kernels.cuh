// Exercise: the moments of two sets of values become those of both. Look for [task].
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

// One more value, by Welford's step [1962].
__device__ inline void add_value(Moments& moments, float value) {
  moments.count += 1.0f;
  const float difference = value - moments.mean;
  moments.mean += difference / moments.count;
  moments.m2 += difference * (value - moments.mean);
}

// The moments of two sets of values together, of which only their moments are known.
__device__ inline Moments merge(const Moments& a, const Moments& b) {
  // [task: merge] Return the moments of the values of a and b together: how many, their mean, and the sum of their
  // squared deviations from it. Either set may be empty, and both may be.
  return {a.count + b.count, a.mean, a.m2};
  // [/task]
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

template <class T, class G>
void textbook(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_textbook<T, G>, {.grid = blocks_for(p.rows, 1), .block = 256, .stream = stream}, p);
}

}  // namespace worklog::welford

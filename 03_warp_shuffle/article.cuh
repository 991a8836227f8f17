// How two of the articles add over a warp: see docs/sources.md. Both move values down the lanes, so that only lane 0
// has the sum in the end, and it has to be handed out.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::warp_shuffle {

// [snippet: article_down]
// The sum over the warp, in lane 0. The lane `distance` further up gives its value; the upper lanes' sums are of no
// use.
__device__ inline float sum_down(float value) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(all_lanes, value, distance);
  }
  return value;
}

// The WebGPU article's warp: a shuffle more hands the sum to all lanes. Its words are subgroupShuffleDown and
// subgroupBroadcast.
__device__ inline float sum_down_and_broadcast(float value) {
  return __shfl_sync(all_lanes, sum_down(value), 0);
}
// [/snippet]

// [snippet: article_first_warp]
// The worklog's block: the first warp adds the warps' sums, and everyone reads its result from shared memory.
__device__ inline float sum_by_first_warp(float value, float* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  const unsigned warp = threadIdx.x / lanes;
  value = sum_down(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = sum_down(lane < blockDim.x / lanes ? scratch[lane] : 0.0f);
    if (lane == 0) scratch[0] = value;
  }
  __syncthreads();
  value = scratch[0];
  __syncthreads();  // all have read the sum before the next one overwrites it
  return value;
}

// Its third kernel: one pass over the row for both sums.
static __global__ void layernorm_first_warp(LayerNormForward<float> p) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;

    float sum = 0.0f;
    float squares = 0.0f;
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      sum += x[col];
      squares += x[col] * x[col];
    }
    const float mean = sum_by_first_warp(sum, scratch) / p.cols;
    const float variance = sum_by_first_warp(squares, scratch) / p.cols - mean * mean;
    const float rstd = rsqrtf(variance + p.eps);

    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      y[col] = (x[col] - mean) * rstd * (p.gamma ? p.gamma[col] : 1.0f) + (p.beta ? p.beta[col] : 0.0f);
    }
    if (threadIdx.x == 0) {
      if (p.mean) p.mean[row] = mean;
      if (p.rstd) p.rstd[row] = rstd;
    }
  }
}
// [/snippet]

static __global__ void layernorm_warp_down(LayerNormForward<float> p) {
  const unsigned warps = blockDim.x / lanes;
  for (int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; row < p.rows;
       row += int64_t{gridDim.x} * warps) {
    layernorm_row(p, row, threadIdx.x % lanes, lanes, [](float value) { return sum_down_and_broadcast(value); });
  }
}

inline void article_first_warp(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_first_warp, {.grid = blocks_for(p.rows, 1), .block = threads_per_block, .stream = stream}, p);
}

// `warp_per_row` with the article's sum.
inline void article_warp_down(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const unsigned blocks = blocks_for(p.rows, threads_per_block / lanes);
  launch(layernorm_warp_down, {.grid = blocks, .block = threads_per_block, .stream = stream}, p);
}

}  // namespace worklog::warp_shuffle

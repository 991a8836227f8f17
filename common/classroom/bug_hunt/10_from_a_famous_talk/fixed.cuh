// Bug hunt: from a famous talk.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::bug_hunt {

inline constexpr unsigned threads = 256;

// The sum of `value` over the block, in every thread.
__device__ inline float block_sum(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (unsigned stride = threads / 2; stride >= 32; stride /= 2) {
    if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x < 32) {  // one warp is left, and needs no barrier of the block
    for (unsigned stride = 16; stride > 0; stride /= 2) {
      if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
      __syncwarp();
    }
  }
  __syncthreads();
  const float sum = scratch[0];
  __syncthreads();
  return sum;
}

__global__ void layernorm_kernel(LayerNormForward<float> p) {
  __shared__ float scratch[threads];
  const int64_t row = blockIdx.x;
  const float* x = p.x + row * p.x_stride;
  float* y = p.y + row * p.y_stride;

  float sum = 0.0f;
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) sum += x[col];
  const float mean = block_sum(sum, scratch) / p.cols;

  float squares = 0.0f;
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) squares += (x[col] - mean) * (x[col] - mean);
  const float rstd = rsqrtf(block_sum(squares, scratch) / p.cols + p.eps);

  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float gamma = p.gamma ? p.gamma[col] : 1.0f;
    const float beta = p.beta ? p.beta[col] : 0.0f;
    y[col] = (x[col] - mean) * rstd * gamma + beta;
  }
  if (threadIdx.x == 0) {
    if (p.mean) p.mean[row] = mean;
    if (p.rstd) p.rstd[row] = rstd;
  }
}

inline void layer_norm(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_kernel, {.grid = static_cast<unsigned>(p.rows), .block = threads, .stream = stream}, p);
}

}  // namespace worklog::bug_hunt

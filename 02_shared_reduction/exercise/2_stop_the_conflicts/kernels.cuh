// Exercise: a tree whose threads read neighbouring words. Look for [task].
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::shared_reduction {

inline constexpr unsigned threads_per_block = 256;  // a power of two: the trees halve it down to one

// The sum of `value` over the block, in every thread.
__device__ inline float tree_sum(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  // [task: tree] This tree is right. It adds neighbours first: thread i adds word 2 * i + 1 to word 2 * i, then 4 * i +
  // 2 to 4 * i, and so on. So the words that neighbouring threads read are ever further apart, and share a bank. Give
  // the tree another order.
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    const unsigned left = 2 * stride * threadIdx.x;
    if (left < blockDim.x) scratch[left] += scratch[left + stride];
    __syncthreads();
  }
  // [/task]
  const float sum = scratch[0];
  __syncthreads();  // all have read the sum before the next tree overwrites it
  return sum;
}

// The last pass of every kernel here: x is read once more, and y is written.
__device__ inline void normalize_row(const LayerNormForward<float>& p, int64_t row, float mean, float rstd) {
  const float* x = p.x + row * p.x_stride;
  float* y = p.y + row * p.y_stride;
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

template <float (*block_sum)(float, float*)>
__global__ void layernorm_two_pass(LayerNormForward<float> p) {
  __shared__ float scratch[threads_per_block];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;

    float sum = 0.0f;
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) sum += x[col];
    const float mean = block_sum(sum, scratch) / p.cols;

    float squares = 0.0f;
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) squares += (x[col] - mean) * (x[col] - mean);
    const float rstd = 1.0f / sqrtf(block_sum(squares, scratch) / p.cols + p.eps);

    normalize_row(p, row, mean, rstd);
  }
}

// A block for each row, up to the largest grid; blocks then go on to further rows.
inline void launch_block_per_row(void (*kernel)(LayerNormForward<float>), const LayerNormForward<float>& p,
                                 cudaStream_t stream, unsigned threads = threads_per_block) {
  if (p.rows == 0) return;
  const int64_t largest_grid = 0x7fffffff;
  const auto blocks = static_cast<unsigned>(p.rows < largest_grid ? p.rows : largest_grid);
  launch(kernel, {.grid = blocks, .block = threads, .stream = stream}, p);
}

inline void two_pass(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_two_pass<tree_sum>, p, stream);
}

}  // namespace worklog::shared_reduction

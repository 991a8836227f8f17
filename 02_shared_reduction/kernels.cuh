// One block per row: neighbouring threads read neighbouring addresses, and a tree in shared memory adds their sums.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::shared_reduction {

inline constexpr unsigned threads_per_block = 256;  // a power of two: the trees halve it down to one

// [snippet: tree_sum]
// The sum of `value` over the block, in every thread. The upper half of what is left is added to the lower half, so the
// threads at work are neighbours and read neighbouring words: one word for each bank.
__device__ inline float tree_sum(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  // [task: tree]
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) scratch[threadIdx.x] += scratch[threadIdx.x + stride];
    __syncthreads();  // the next step reads what other warps have written in this one
  }
  // [/task]
  const float sum = scratch[0];
  __syncthreads();  // all have read the sum before the next tree overwrites it
  return sum;
}
// [/snippet]

// [snippet: interleaved_sum]
// The same sum, with the pairs taken next to each other first. In each step the words that
// neighbouring threads read are twice as far apart: two of them share a bank in the first step, eight in the third.
__device__ inline float interleaved_sum(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    const unsigned left = 2 * stride * threadIdx.x;
    if (left < blockDim.x) scratch[left] += scratch[left + stride];
    __syncthreads();
  }
  const float sum = scratch[0];
  __syncthreads();
  return sum;
}
// [/snippet]

// [snippet: normalize_row]
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
// [/snippet]

// [snippet: two_pass]
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
// [/snippet]

// [snippet: one_pass]
// One pass less: E[x^2] - E[x]^2 is the variance on paper. In floating point it is the difference of two numbers that
// may agree in all their digits.
static __global__ void layernorm_one_pass(LayerNormForward<float> p) {
  __shared__ float scratch[threads_per_block];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;

    // [task: one_loop]
    float sum = 0.0f;
    float squares = 0.0f;
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      sum += x[col];
      squares += x[col] * x[col];
    }
    const float mean = tree_sum(sum, scratch) / p.cols;
    const float variance = tree_sum(squares, scratch) / p.cols - mean * mean;
    // [/task]

    normalize_row(p, row, mean, rsqrtf(variance + p.eps));
  }
}
// [/snippet]

// [snippet: launch]
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

inline void one_pass(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_one_pass, p, stream);
}

inline void interleaved(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_two_pass<interleaved_sum>, p, stream);
}
// [/snippet]

}  // namespace worklog::shared_reduction

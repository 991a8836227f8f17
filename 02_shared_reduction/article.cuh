// The one-pass kernel of the WebGPU article, with the slip in its formula, without it, and with the two cures that the
// article names: see docs/sources.md.
#pragma once

#include "02_shared_reduction/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::shared_reduction {

// [snippet: article_variance]
// The article's listing divides the wrong term by N. Without a division of the sum of squares the "variance" is about
// N times too large, and y about sqrt(N) times too small.
__device__ inline float variance_with_slip(float squares, float mean, int64_t cols) {
  return squares - mean * mean / cols;
}

__device__ inline float variance_of(float squares, float mean, int64_t cols) {
  return squares / cols - mean * mean;
}
// [/snippet]

// [snippet: article_tree]
// Both sums in one tree, whose steps are unrolled: the block's size is known when the kernel is compiled.
template <unsigned threads>
__device__ void add_both(float* sum, float* squares) {
#pragma unroll
  for (unsigned stride = threads / 2; stride > 0; stride /= 2) {
    __syncthreads();  // the next step reads what other warps have written in this one
    if (threadIdx.x < stride) {
      sum[threadIdx.x] += sum[threadIdx.x + stride];
      squares[threadIdx.x] += squares[threadIdx.x + stride];
    }
  }
}

template <unsigned threads, float (*variance)(float, float, int64_t)>
__global__ void layernorm_article_tree(LayerNormForward<float> p) {
  __shared__ float sum[threads], squares[threads];
  __shared__ float mean, rstd;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    sum[threadIdx.x] = 0.0f;
    squares[threadIdx.x] = 0.0f;
    for (int64_t col = threadIdx.x; col < p.cols; col += threads) {
      sum[threadIdx.x] += x[col];
      squares[threadIdx.x] += x[col] * x[col];
    }
    add_both<threads>(sum, squares);
    if (threadIdx.x == 0) {
      mean = sum[0] / p.cols;
      rstd = rsqrtf(variance(squares[0], mean, p.cols) + p.eps);
    }
    __syncthreads();
    normalize_row(p, row, mean, rstd);
    __syncthreads();  // all have read mean and rstd before the next row overwrites them
  }
}
// [/snippet]

// [snippet: article_kahan]
// Kahan's sum [1965]: what an addition rounds off is kept, and taken off the next value.
struct KahanSum {
  float sum = 0.0f;
  float excess = 0.0f;  // by how much `sum` is too large

  __device__ void add(float value) {
    const float term = value - excess;
    const float total = sum + term;
    excess = (total - sum) - term;
    sum = total;
  }
};

// "A higher-precision type", the other cure that is named.
struct DoubleSum {
  double sum = 0.0;

  __device__ void add(double value) { sum += value; }
};

// One pass with either sum. The tree over the threads has the type of the sum, too, and so has the formula.
template <class Sum, class Number>
__global__ void layernorm_careful_sums(LayerNormForward<float> p) {
  __shared__ Number sums[threads_per_block], squares[threads_per_block];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    Sum sum, square;
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      sum.add(x[col]);
      square.add(Number{x[col]} * Number{x[col]});
    }
    sums[threadIdx.x] = sum.sum;
    squares[threadIdx.x] = square.sum;
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
      __syncthreads();
      if (threadIdx.x < stride) {
        sums[threadIdx.x] += sums[threadIdx.x + stride];
        squares[threadIdx.x] += squares[threadIdx.x + stride];
      }
    }
    __syncthreads();
    const Number mean = sums[0] / p.cols;
    const Number variance = squares[0] / p.cols - mean * mean;
    __syncthreads();  // all have read the sums before the next row overwrites them
    normalize_row(p, row, static_cast<float>(mean), rsqrtf(static_cast<float>(variance) + p.eps));
  }
}
// [/snippet]

// [snippet: article_launches]
template <unsigned threads, float (*variance)(float, float, int64_t)>
void article_tree(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_article_tree<threads, variance>, p, stream, threads);
}

inline void article_slip(const LayerNormForward<float>& p, cudaStream_t stream) {
  article_tree<128, variance_with_slip>(p, stream);
}

inline void article_kahan(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_careful_sums<KahanSum, float>, p, stream);
}

inline void article_double(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_block_per_row(layernorm_careful_sums<DoubleSum, double>, p, stream);
}
// [/snippet]

}  // namespace worklog::shared_reduction

// The worklog's last kernel, by float4: docs/sources.md has the article. Its four kernels, without gamma, beta and
// statistics, are in variants.cu.
#pragma once

#include "01_naive/kernels.cuh"
#include "02_shared_reduction/kernels.cuh"
#include "03_warp_shuffle/article.cuh"
#include "04_vectorized/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::vectorized {

// [snippet: article_float4]
// One pass by float4 with the sums of its third kernel, and the columns that are left over one by one. A row that does
// not begin on a 16-byte boundary is left over whole. The article has no such test: its loop over what is left over
// suggests any width, but at 1023 columns the second row's first float4 is misaligned, and the kernel is stopped.
__global__ void layernorm_article_float4(LayerNormForward<float> p) {
  __shared__ float scratch[warp_shuffle::lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
    const int64_t vectors = aligned ? p.cols / 4 : 0;

    float sum = 0.0f;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      const float4 v = reinterpret_cast<const float4*>(x)[i];
      sum += v.x + v.y + v.z + v.w;
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int64_t col = 4 * vectors + threadIdx.x; col < p.cols; col += blockDim.x) {
      sum += x[col];
      squares += x[col] * x[col];
    }
    const float mean = warp_shuffle::sum_by_first_warp(sum, scratch) / p.cols;
    const float variance = warp_shuffle::sum_by_first_warp(squares, scratch) / p.cols - mean * mean;
    const float rstd = rsqrtf(variance + p.eps);

    const auto normalized = [&](float value, int64_t col) {
      return (value - mean) * rstd * (p.gamma ? p.gamma[col] : 1.0f) + (p.beta ? p.beta[col] : 0.0f);
    };
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      const float4 v = reinterpret_cast<const float4*>(x)[i];
      reinterpret_cast<float4*>(y)[i] = {normalized(v.x, 4 * i), normalized(v.y, 4 * i + 1), normalized(v.z, 4 * i + 2),
                                         normalized(v.w, 4 * i + 3)};
    }
    for (int64_t col = 4 * vectors + threadIdx.x; col < p.cols; col += blockDim.x) y[col] = normalized(x[col], col);
    if (threadIdx.x == 0) {
      if (p.mean) p.mean[row] = mean;
      if (p.rstd) p.rstd[row] = rstd;
    }
  }
}
// [/snippet]

inline void article_float4(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_article_float4, {.grid = warp_shuffle::blocks_for(p.rows, 1), .block = 256, .stream = stream}, p);
}

}  // namespace worklog::vectorized

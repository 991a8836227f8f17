// The naive kernel of the optimization guide, beside which it sets its fast one: see docs/sources.md.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::naive {

// [snippet: article_lone_thread]
// A block to a row, and a single thread in it: the other 31 lanes of its warp do nothing.
__global__ void layernorm_lone_thread(LayerNormForward<float> p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;

    float mean = 0.0f;
    for (int64_t col = 0; col < p.cols; ++col) mean += x[col];
    mean /= p.cols;
    float variance = 0.0f;
    for (int64_t col = 0; col < p.cols; ++col) variance += (x[col] - mean) * (x[col] - mean);
    variance /= p.cols;

    const float rstd = rsqrtf(variance + p.eps);
    for (int64_t col = 0; col < p.cols; ++col) {
      y[col] = (x[col] - mean) * rstd * (p.gamma ? p.gamma[col] : 1.0f) + (p.beta ? p.beta[col] : 0.0f);
    }
    if (p.mean) p.mean[row] = mean;
    if (p.rstd) p.rstd[row] = rstd;
  }
}
// [/snippet]

inline void article_lone_thread(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const int64_t largest_grid = 0x7fffffff;
  const auto blocks = static_cast<unsigned>(p.rows < largest_grid ? p.rows : largest_grid);
  launch(layernorm_lone_thread, {.grid = blocks, .block = 1, .stream = stream}, p);
}

}  // namespace worklog::naive

// The optimization guide's fast kernel: Welford's algorithm by a single warp. See docs/sources.md.
#pragma once

#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::welford {

// [snippet: article_one_warp]
// The merge has no case for two empty sets: with fewer than 16 columns some of the lanes 0 to 15 meet a lane that has
// no value either, 0/0 is NaN, and the NaN comes down to lane 0.
__device__ inline Moments merge_without_guard(const Moments& a, const Moments& b) {
  const float total = a.count + b.count;
  const float difference = b.mean - a.mean;
  return {total, (a.count * a.mean + b.count * b.mean) / total,
          a.m2 + b.m2 + difference * difference * a.count * b.count / total};
}

// Nothing crosses from warp to warp. In a block of one warp that is right; in a larger one each warp takes the moments
// of its own columns for those of the row.
__global__ void layernorm_one_warp(LayerNormForward<float> p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;

    Moments moments = {};
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) add_value(moments, x[col]);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      moments = merge_without_guard(moments, {__shfl_down_sync(all_lanes, moments.count, distance),
                                              __shfl_down_sync(all_lanes, moments.mean, distance),
                                              __shfl_down_sync(all_lanes, moments.m2, distance)});
    }
    const float mean = __shfl_sync(all_lanes, moments.mean, 0);
    const float rstd = rsqrtf(__shfl_sync(all_lanes, moments.m2, 0) / p.cols + p.eps);

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

inline void launch_one_warp(const LayerNormForward<float>& p, unsigned threads, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_one_warp, {.grid = blocks_for(p.rows, 1), .block = threads, .stream = stream}, p);
}

inline void article_one_warp(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_one_warp(p, 32, stream);
}

inline void article_warps_apart(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_one_warp(p, 256, stream);
}

}  // namespace worklog::welford

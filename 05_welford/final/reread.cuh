// The kernel for all rows that no other kernel takes, of any length, in tensors that lie anywhere. It does the same
// arithmetic an element at a time, and reads the row 3 or 4 times. It is short, and a good one to read first.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/store.cuh"
#include "05_welford/final/sums.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using warp_shuffle::block_sum;
using warp_shuffle::lanes;

// [snippet: reread]
// What is left: rows that fit into no team's registers, wide rows on devices without clusters, and wide rows of tensors
// with different offsets from 16-byte boundaries. The same arithmetic, an element at a time, each read 3 or 4 times.
inline constexpr int threads_of_reread = 1024;
inline constexpr int reads_at_once = 8;

template <class Steps>
__global__ void __launch_bounds__(threads_of_reread) normalize_reread(Steps steps) {
  __shared__ float scratch[lanes];
  const int64_t row = blockIdx.x;
  const auto sum_over_row = [&](auto value, auto f) {
    PairwiseSum<7> sum;  // a thread has at most 2^20 / 1024 columns, and 8 of them at a time
    for (int64_t first = threadIdx.x; first < steps.p.cols; first += reads_at_once * threads_of_reread) {
      float some[reads_at_once];
#pragma unroll
      for (int k = 0; k < reads_at_once; ++k) {
        const int64_t col = first + k * threads_of_reread;
        some[k] = col < steps.p.cols ? f(value(col)) : 0.0f;
      }
      sum.add(sum_of_pairs(some));
    }
    return block_sum(sum.all(), scratch);
  };
  wait_for_previous_kernel();
  const auto first_value = [&](int64_t col) { return steps.load(row, col); };
  const auto value = [&](int64_t col) { return vectorized::to_float(steps.row(row)[col]); };

  Statistics s = {1.0f, sum_over_row(first_value, [](float v) { return v; }) / steps.p.cols, 0.0f, 0.0f};
  for (;;) {
    if constexpr (Steps::about == About::zero) {
      s.pivot = 0.0f;
    } else {
      s.rest = sum_over_row(value, [&](float v) { return fmaf(v, s.scale, -s.pivot); }) / steps.p.cols;
    }
    const float m2 = sum_over_row(value, [&](float v) {
      const float d = fmaf(v, s.scale, -s.pivot) - s.rest;
      return d * d;
    });
    s.rstd = rstd_of(m2 / steps.p.cols, steps.p.eps, s.scale);
    if (isfinite(m2) || s.scale != 1.0f) break;
    s.scale = small_scale;
    s.pivot = sum_over_row(value, [&](float v) { return v * s.scale; }) / steps.p.cols;
  }
  if constexpr (Steps::about == About::mean) {
    const SplitMoments mean = with_mean_as_pivot({0.0f, s.pivot, s.rest, 0.0f});
    s.pivot = mean.pivot;
    s.rest = mean.rest;
  }
  for (int64_t col = threadIdx.x; col < steps.p.cols; col += blockDim.x) store_element(steps, row, col, value(col), s);
  if (threadIdx.x == 0) steps.write_statistics(row, s);
}
// [/snippet]

}  // namespace worklog::welford

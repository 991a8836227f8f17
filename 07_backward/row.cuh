// What dx of an element takes: its row's statistics, and two sums over the row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace worklog::backward {

// [snippet: row]
// The forward pass's statistics of a row.
struct RowStatistics {
  float mean;
  float rstd;
};

// Subtract first: x and the mean are near each other where both are large, and their difference is exact there.
__device__ inline float xhat_of(float x, const RowStatistics& s) {
  return (x - s.mean) * s.rstd;
}

// What a row's dx needs to know of the whole row, with wdy = dy * gamma.
struct RowSums {
  float wdy;       // sum of wdy
  float wdy_xhat;  // sum of wdy * xhat
};

// [task: gradient]
// dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)), with what is the same for the whole row taken together.
struct Gradient {
  float rstd;
  float offset;  // rstd * mean(wdy)
  float slope;   // rstd * mean(wdy * xhat)

  __device__ float operator()(float wdy, float xhat) const { return fmaf(wdy, rstd, -fmaf(xhat, slope, offset)); }
};

__device__ inline Gradient gradient_of(const RowStatistics& s, const RowSums& sums, int64_t cols) {
  const float each = s.rstd / static_cast<float>(cols);
  return {s.rstd, sums.wdy * each, sums.wdy_xhat * each};
}
// [/task]
// [/snippet]

}  // namespace worklog::backward

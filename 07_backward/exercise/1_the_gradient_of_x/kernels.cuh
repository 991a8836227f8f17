// Exercise: the gradient of x, from its derivation. Look for [task], of which there are two.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::to_float;
using warp_shuffle::block_sum;
using warp_shuffle::lanes;

// The forward pass's statistics of a row.
struct RowStatistics {
  float mean;
  float rstd;
};

// Subtract first: x and the mean are near each other where both are large, and their difference is exact there.
__device__ inline float xhat_of(float x, const RowStatistics& s) {
  return (x - s.mean) * s.rstd;
}

// Sums over a row, with wdy = dy * gamma.
struct RowSums {
  float wdy;       // sum of wdy
  float wdy_xhat;  // sum of wdy * xhat
};

// [task: gradient] dx of an element, from its wdy and its xhat and what is the same for the whole row. What is given
// here is right if x moves no other output of its row: but it moves the mean and rstd, and through them every output.
struct Gradient {
  float rstd;

  __device__ float operator()(float wdy, float) const { return wdy * rstd; }
};

__device__ inline Gradient gradient_of(const RowStatistics& s, const RowSums&, int64_t) {
  return {s.rstd};
}
// [/task]

inline constexpr int threads_of_row = 256;  // of a block that works on one row at a time

// dx of one row by one block, which reads x and dy twice. Calls add(col, dy, xhat) for each element on the way: what
// dgamma and dbeta are made of.
template <class T, class G, class Add>
__device__ inline void dx_of_row(const LayerNormBackward<T, G>& p, int64_t row, float* scratch, Add add) {
  const RowStatistics s = {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};  // RMSNorm has no mean
  const auto at = [row](auto* tensor, int64_t stride) { return tensor + row * stride; };
  const auto wdy_of = [&](int64_t col) {
    return to_float(at(p.dy, p.dy_stride)[col]) * (p.gamma ? to_float(p.gamma[col]) : 1.0f);
  };

  RowSums sums = {0.0f, 0.0f};
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float xhat = xhat_of(to_float(at(p.x, p.x_stride)[col]), s);
    // [task: row_sums] Add up what the gradient needs of the whole row. wdy_of(col) is dy * gamma.

    // [/task]
    add(col, to_float(at(p.dy, p.dy_stride)[col]), xhat);
  }
  sums = {p.mean ? block_sum(sums.wdy, scratch) : 0.0f, block_sum(sums.wdy_xhat, scratch)};
  if (!p.dx) return;

  const Gradient gradient = gradient_of(s, sums, p.cols);
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float xhat = xhat_of(to_float(at(p.x, p.x_stride)[col]), s);
    const float past_the_norm = p.dh ? to_float(at(p.dh, p.dh_stride)[col]) : 0.0f;
    at(p.dx, p.dx_stride)[col] = static_cast<T>(gradient(wdy_of(col), xhat) + past_the_norm);
  }
}

template <class T, class G>
__global__ void __launch_bounds__(threads_of_row) dx_only(LayerNormBackward<T, G> p) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [](int64_t, float, float) {});
  }
}

}  // namespace worklog::backward

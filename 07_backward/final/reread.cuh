// Rows that fit into no team: dx by one block to a row, which reads x and dy twice, an element at a time. dgamma and
// dbeta are then separate.cuh's. It is for rows of any length in tensors that lie anywhere.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "05_welford/final/reread.cuh"
#include "05_welford/final/sums.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/separate.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using welford::PairwiseSum;
using welford::reads_at_once;
using welford::sum_of_pairs;
using welford::threads_of_reread;

// [snippet: reread]
// As dx_of_row() of separate.cuh; but a sum over a long row is one of pairs.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_reread) dx_reread(LayerNormBackward<T, G> p, float inverse_cols) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const RowStatistics s = {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};
    const auto xhat = [&](int64_t col) { return xhat_of(to_float(p.x[row * p.x_stride + col]), s); };
    const auto wdy = [&](int64_t col) {
      return to_float(p.dy[row * p.dy_stride + col]) * (p.gamma ? to_float(p.gamma[col]) : 1.0f);
    };
    PairwiseSum<7> of_wdy, of_wdy_xhat;
    for (int64_t first = threadIdx.x; first < p.cols; first += reads_at_once * threads_of_reread) {
      float some[reads_at_once], by_xhat[reads_at_once];
#pragma unroll
      for (int k = 0; k < reads_at_once; ++k) {
        const int64_t col = first + k * threads_of_reread;
        some[k] = col < p.cols ? wdy(col) : 0.0f;
        by_xhat[k] = col < p.cols ? some[k] * xhat(col) : 0.0f;
      }
      of_wdy.add(sum_of_pairs(some));
      of_wdy_xhat.add(sum_of_pairs(by_xhat));
    }
    const RowSums sums = {p.mean ? block_sum(of_wdy.all(), scratch) : 0.0f, block_sum(of_wdy_xhat.all(), scratch)};
    const Gradient gradient = gradient_with(s, sums, inverse_cols);
    for (int64_t col = threadIdx.x; col < p.cols; col += threads_of_reread) {
      const float past_the_norm = p.dh ? to_float(p.dh[row * p.dh_stride + col]) : 0.0f;
      p.dx[row * p.dx_stride + col] = static_cast<T>(gradient(wdy(col), xhat(col)) + past_the_norm);
    }
  }
}

template <class T, class G>
void reread(LayerNormBackward<T, G> p, cudaStream_t stream) {
  if (p.rows > 0 && p.dx) {
    LaunchShape shape = block_per_row(p, stream);
    shape.block = threads_of_reread;
    launch(dx_reread<T, G>, shape, p, 1.0f / static_cast<float>(p.cols));
  }
  p.dx = nullptr;
  separate(p, stream);
}
// [/snippet]

}  // namespace worklog::backward

// dx by one kernel, dgamma and dbeta by another. Each reads all of x and dy.
#pragma once

#include <algorithm>
#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "07_backward/row.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::to_float;
using warp_shuffle::block_sum;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

inline constexpr int threads_of_row = 256;  // of a block that works on one row at a time

// [snippet: dx]
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
    // [task: row_sums]
    const float wdy = wdy_of(col);
    sums.wdy += wdy;
    sums.wdy_xhat += wdy * xhat;
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
// [/snippet]

// [snippet: separate]
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row) dx_only(LayerNormBackward<T, G> p) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [](int64_t, float, float) {});
  }
}

// A block has 32 columns, a warp every 32nd row of them; the warps' sums meet in shared memory. A warp reads 32
// neighbouring elements of a row, and so whole sectors.
template <class T, class G>
__global__ void __launch_bounds__(lanes* lanes) columns_only(LayerNormBackward<T, G> p) {
  __shared__ float dgamma[lanes][lanes + 1];  // one float more to a row, so that a column lies in 32 banks
  __shared__ float dbeta[lanes][lanes + 1];
  const int64_t col = int64_t{blockIdx.x} * lanes + threadIdx.x;
  float gamma_sum = 0.0f;
  float beta_sum = 0.0f;
  if (col < p.cols) {
    for (int64_t row = threadIdx.y; row < p.rows; row += lanes) {
      const float dy = to_float(p.dy[row * p.dy_stride + col]);
      const float mean = p.mean ? p.mean[row] : 0.0f;
      gamma_sum += dy * xhat_of(to_float(p.x[row * p.x_stride + col]), {mean, p.rstd[row]});
      beta_sum += dy;
    }
  }
  // [task: meet]
  dgamma[threadIdx.y][threadIdx.x] = gamma_sum;
  dbeta[threadIdx.y][threadIdx.x] = beta_sum;
  __syncthreads();
  gamma_sum = warp_sum(dgamma[threadIdx.x][threadIdx.y]);  // warp y adds up column y
  beta_sum = warp_sum(dbeta[threadIdx.x][threadIdx.y]);
  // [/task]
  const int64_t own = int64_t{blockIdx.x} * lanes + threadIdx.y;
  if (threadIdx.x != 0 || own >= p.cols) return;
  if (p.dgamma) p.dgamma[own] = static_cast<G>(gamma_sum);
  if (p.dbeta) p.dbeta[own] = static_cast<G>(beta_sum);
}
// [/snippet]

// [snippet: launch_separate]
inline constexpr int64_t most_blocks_of_rows = int64_t{1} << 20;

template <class T, class G>
LaunchShape block_per_row(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  return {
      .grid = static_cast<unsigned>(std::min(p.rows, most_blocks_of_rows)), .block = threads_of_row, .stream = stream};
}

template <class T, class G>
void separate(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.rows > 0 && p.dx) launch(dx_only<T, G>, block_per_row(p, stream), p);
  if (!p.dgamma && !p.dbeta) return;
  launch(columns_only<T, G>,
         {.grid = static_cast<unsigned>((p.cols + lanes - 1) / lanes), .block = dim3(lanes, lanes), .stream = stream},
         p);
}
// [/snippet]

}  // namespace worklog::backward

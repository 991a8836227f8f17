// Exercise: sums of columns that come out the same on every run. Look for [task].
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::to_float;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

// The forward pass's statistics of a row.
struct RowStatistics {
  float mean;
  float rstd;
};

// Subtract first: x and the mean are near each other where both are large, and their difference is exact there.
__device__ inline float xhat_of(float x, const RowStatistics& s) {
  return (x - s.mean) * s.rstd;
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
  // [task: meet] A block's 32 warps have a sum each for its 32 columns. What is given here is right, but adds them up
  // in the order in which the warps come, and so with another rounding on every run. Let gamma_sum and beta_sum of warp
  // y be the sums of column y, in an order that is always the same, and without bank conflicts.
  if (threadIdx.y == 0) {
    dgamma[0][threadIdx.x] = 0.0f;
    dbeta[0][threadIdx.x] = 0.0f;
  }
  __syncthreads();
  atomicAdd(&dgamma[0][threadIdx.x], gamma_sum);
  atomicAdd(&dbeta[0][threadIdx.x], beta_sum);
  __syncthreads();
  gamma_sum = warp_sum(threadIdx.x == 0 ? dgamma[0][threadIdx.y] : 0.0f);
  beta_sum = warp_sum(threadIdx.x == 0 ? dbeta[0][threadIdx.y] : 0.0f);
  // [/task]
  const int64_t own = int64_t{blockIdx.x} * lanes + threadIdx.y;
  if (threadIdx.x != 0 || own >= p.cols) return;
  if (p.dgamma) p.dgamma[own] = static_cast<G>(gamma_sum);
  if (p.dbeta) p.dbeta[own] = static_cast<G>(beta_sum);
}

}  // namespace worklog::backward

// Bug hunt: right in one type.
#pragma once

#include <cuda_bf16.h>

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::bug_hunt {

// dgamma and dbeta: 32 columns to a block, a thread to each, one row after the other.
template <class T, class G>
__global__ void columns_kernel(LayerNormBackward<T, G> p) {
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= p.cols) return;
  G gamma_sum = static_cast<G>(0.0f);
  G beta_sum = static_cast<G>(0.0f);
  for (int64_t row = 0; row < p.rows; ++row) {
    const float dy = static_cast<float>(p.dy[row * p.dy_stride + col]);
    const float xhat = (static_cast<float>(p.x[row * p.x_stride + col]) - p.mean[row]) * p.rstd[row];
    gamma_sum = static_cast<G>(static_cast<float>(gamma_sum) + dy * xhat);
    beta_sum = static_cast<G>(static_cast<float>(beta_sum) + dy);
  }
  if (p.dgamma) p.dgamma[col] = gamma_sum;
  if (p.dbeta) p.dbeta[col] = beta_sum;
}

template <class T, class G>
void backward(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.cols + 31) / 32);
  launch(columns_kernel<T, G>, {.grid = blocks, .block = 32, .stream = stream}, p);
}

}  // namespace worklog::bug_hunt

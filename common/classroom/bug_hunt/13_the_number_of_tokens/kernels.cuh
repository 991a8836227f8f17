// Bug hunt: the number of tokens.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::bug_hunt {

// What the forward pass has found of a row.
struct Statistics {
  float mean;
  float rstd;
};

inline constexpr unsigned warps = 8;

// dgamma and dbeta: 32 columns to a block, every eighth row to each of its warps.
__global__ void columns_kernel(LayerNormBackward<float> p) {
  __shared__ Statistics of_row[warps];
  __shared__ float dgamma[warps][32];
  __shared__ float dbeta[warps][32];
  const int64_t col = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float gamma_sum = 0.0f;
  float beta_sum = 0.0f;
  for (int64_t row = threadIdx.y; row < p.rows; row += warps) {
    if (threadIdx.x == 0) of_row[threadIdx.y] = {p.mean[row], p.rstd[row]};  // one lane reads them for its warp
    __syncthreads();
    if (col < p.cols) {
      const float dy = p.dy[row * p.dy_stride + col];
      const float xhat = (p.x[row * p.x_stride + col] - of_row[threadIdx.y].mean) * of_row[threadIdx.y].rstd;
      gamma_sum += dy * xhat;
      beta_sum += dy;
    }
    __syncthreads();  // all have read before the next row's statistics come
  }
  dgamma[threadIdx.y][threadIdx.x] = gamma_sum;
  dbeta[threadIdx.y][threadIdx.x] = beta_sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= p.cols) return;
  for (unsigned warp = 1; warp < warps; ++warp) {
    gamma_sum += dgamma[warp][threadIdx.x];
    beta_sum += dbeta[warp][threadIdx.x];
  }
  if (p.dgamma) p.dgamma[col] = gamma_sum;
  if (p.dbeta) p.dbeta[col] = beta_sum;
}

inline void backward(const LayerNormBackward<float>& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.cols + 31) / 32);
  launch(columns_kernel, {.grid = blocks, .block = dim3(32, warps), .stream = stream}, p);
}

}  // namespace worklog::bug_hunt

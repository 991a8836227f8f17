// Bug hunt: the first step is fine.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::bug_hunt {

// dgamma and dbeta: a block to a row, which adds its elements to two rows of sums in the workspace.
__global__ void add_rows(LayerNormBackward<float> p) {
  const int64_t row = blockIdx.x;
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float dy = p.dy[row * p.dy_stride + col];
    const float xhat = (p.x[row * p.x_stride + col] - p.mean[row]) * p.rstd[row];
    atomicAdd(p.workspace + col, dy * xhat);
    atomicAdd(p.workspace + p.cols + col, dy);
  }
}

__global__ void write_sums(LayerNormBackward<float> p) {
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= p.cols) return;
  if (p.dgamma) p.dgamma[col] = p.workspace[col];
  if (p.dbeta) p.dbeta[col] = p.workspace[p.cols + col];
}

inline void backward(const LayerNormBackward<float>& p, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(p.workspace, 0, 2 * p.cols * sizeof(float), stream), "clearing the sums");
  if (p.rows > 0) launch(add_rows, {.grid = static_cast<unsigned>(p.rows), .block = 256, .stream = stream}, p);
  const auto blocks = static_cast<unsigned>((p.cols + 255) / 256);
  launch(write_sums, {.grid = blocks, .block = 256, .stream = stream}, p);
}

}  // namespace worklog::bug_hunt

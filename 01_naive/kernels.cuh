// One thread per row: the formula of LayerNorm, written down as it stands.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::naive {

// [snippet: kernel]
static __global__ void layernorm_thread_per_row(LayerNormForward<float> p) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // [task: guard]
  if (row >= p.rows) return;
  // [/task]
  const float* x = p.x + row * p.x_stride;
  float* y = p.y + row * p.y_stride;

  // [task: mean]
  float sum = 0.0f;
  for (int64_t col = 0; col < p.cols; ++col) sum += x[col];
  const float mean = sum / p.cols;
  // [/task]

  // [task: rstd]
  float squares = 0.0f;
  for (int64_t col = 0; col < p.cols; ++col) squares += (x[col] - mean) * (x[col] - mean);
  const float rstd = 1.0f / sqrtf(squares / p.cols + p.eps);
  // [/task]

  for (int64_t col = 0; col < p.cols; ++col) {
    const float gamma = p.gamma ? p.gamma[col] : 1.0f;
    const float beta = p.beta ? p.beta[col] : 0.0f;
    y[col] = (x[col] - mean) * rstd * gamma + beta;
  }
  if (p.mean) p.mean[row] = mean;
  if (p.rstd) p.rstd[row] = rstd;
}
// [/snippet]

// [snippet: launch]
// The same kernel in blocks of `threads`: the block size decides over how many multiprocessors the rows are spread.
inline void launch_thread_per_row(const LayerNormForward<float>& p, unsigned threads, cudaStream_t stream) {
  if (p.rows == 0) return;
  // [task: blocks]
  const unsigned blocks = static_cast<unsigned>((p.rows + threads - 1) / threads);
  // [/task]
  launch(layernorm_thread_per_row, {.grid = blocks, .block = threads, .stream = stream}, p);
}

inline void thread_per_row(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_thread_per_row(p, 256, stream);
}

inline void one_big_block(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch_thread_per_row(p, 1024, stream);
}

inline void small_blocks(const LayerNormForward<float>& p, cudaStream_t stream) {
  // [task: spread]
  launch_thread_per_row(p, 32, stream);
  // [/task]
}
// [/snippet]

}  // namespace worklog::naive

// Exercise: each warp walks over rows of its own. Look for [task].
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::warp_shuffle {

inline constexpr int lanes = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

// The sum of `value` over groups of `width` neighbouring lanes, in every lane. In each step a lane adds the value of
// the lane whose number differs from its own in one bit: no shared memory, no barrier; the lanes wait for each other.
template <int width = lanes>
__device__ inline float warp_sum(float value) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(all_lanes, value, distance);
  }
  return value;
}

// A row is worked on by `group` threads, of which this one is number `thread`; `group_sum` adds over them.
template <class T, class GroupSum>
__device__ void layernorm_row(const LayerNormForward<T>& p, int64_t row, unsigned thread, unsigned group,
                              GroupSum group_sum) {
  const T* x = p.x + row * p.x_stride;
  T* y = p.y + row * p.y_stride;

  float sum = 0.0f;
  for (int64_t col = thread; col < p.cols; col += group) sum += x[col];
  const float mean = group_sum(sum) / p.cols;

  float squares = 0.0f;
  for (int64_t col = thread; col < p.cols; col += group) squares += (x[col] - mean) * (x[col] - mean);
  const float rstd = 1.0f / sqrtf(group_sum(squares) / p.cols + p.eps);

  for (int64_t col = thread; col < p.cols; col += group) {
    const float gamma = p.gamma ? p.gamma[col] : 1.0f;
    const float beta = p.beta ? p.beta[col] : 0.0f;
    y[col] = (x[col] - mean) * rstd * gamma + beta;
  }
  if (thread == 0) {
    if (p.mean) p.mean[row] = mean;
    if (p.rstd) p.rstd[row] = rstd;
  }
}

template <class T>
__global__ void layernorm_warp_per_row(LayerNormForward<T> p) {
  const unsigned warps = blockDim.x / lanes;
  // [task: rows] A block has `warps` warps, and each is to work on a row of its own. Only the first does anything yet.
  // Which row does a warp begin with?
  for (int64_t row = int64_t{blockIdx.x} * warps; row < p.rows; row += int64_t{gridDim.x} * warps) {
    if (threadIdx.x < lanes) {
      layernorm_row(p, row, threadIdx.x, lanes, [](float value) { return warp_sum(value); });
    }
  }
  // [/task]
}

inline constexpr unsigned threads_per_block = 256;

// The blocks for `rows` rows, `rows_per_block` to a block, up to the largest grid; blocks then go on to further rows.
inline unsigned blocks_for(int64_t rows, int64_t rows_per_block) {
  const int64_t largest_grid = 0x7fffffff;
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  return static_cast<unsigned>(blocks < largest_grid ? blocks : largest_grid);
}

template <class T>
void warp_per_row(const LayerNormForward<T>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const int64_t rows_per_block = threads_per_block / lanes;
  launch(layernorm_warp_per_row<T>,
         {.grid = blocks_for(p.rows, rows_per_block), .block = threads_per_block, .stream = stream}, p);
}

}  // namespace worklog::warp_shuffle

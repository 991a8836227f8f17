// Sums that stay in registers: the lanes of a warp hand their values to each other.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::warp_shuffle {

inline constexpr int lanes = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

// [snippet: warp_sum]
// The sum of `value` over groups of `width` neighbouring lanes, in every lane. In each step a lane adds the value of
// the lane whose number differs from its own in one bit: no shared memory, no barrier; the lanes wait for each other.
template <int width = lanes>
__device__ inline float warp_sum(float value) {
  // [task: warp_sum]
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(all_lanes, value, distance);
  }
  // [/task]
  return value;
}
// [/snippet]

// [snippet: block_sum]
// The sum of `value` over the block, in every thread: one hop through shared memory. `scratch` holds a float for each
// warp; blockDim.x is a multiple of 32.
__device__ inline float block_sum(float value, float* scratch) {
  // [task: hop]
  const unsigned lane = threadIdx.x % lanes;
  const unsigned warp = threadIdx.x / lanes;
  const unsigned warps = blockDim.x / lanes;

  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = warp_sum(lane < warps ? scratch[lane] : 0.0f);  // in every warp: cheaper than one warp and a broadcast
  __syncthreads();                                        // all have read `scratch` before the next sum overwrites it
  // [/task]
  return value;
}
// [/snippet]

// [snippet: kernel]
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
__global__ void layernorm_block_per_row(LayerNormForward<T> p) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    layernorm_row(p, row, threadIdx.x, blockDim.x, [&](float value) { return block_sum(value, scratch); });
  }
}

template <class T>
__global__ void layernorm_warp_per_row(LayerNormForward<T> p) {
  const unsigned warps = blockDim.x / lanes;
  // [task: rows]
  for (int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; row < p.rows;
       row += int64_t{gridDim.x} * warps) {
    layernorm_row(p, row, threadIdx.x % lanes, lanes, [](float value) { return warp_sum(value); });
  }
  // [/task]
}
// [/snippet]

// [snippet: launch]
inline constexpr unsigned threads_per_block = 256;

// The blocks for `rows` rows, `rows_per_block` to a block, up to the largest grid; blocks then go on to further rows.
inline unsigned blocks_for(int64_t rows, int64_t rows_per_block) {
  const int64_t largest_grid = 0x7fffffff;
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  return static_cast<unsigned>(blocks < largest_grid ? blocks : largest_grid);
}

template <class T>
void block_per_row(const LayerNormForward<T>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_block_per_row<T>, {.grid = blocks_for(p.rows, 1), .block = threads_per_block, .stream = stream}, p);
}

template <class T>
void warp_per_row(const LayerNormForward<T>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const int64_t rows_per_block = threads_per_block / lanes;
  launch(layernorm_warp_per_row<T>,
         {.grid = blocks_for(p.rows, rows_per_block), .block = threads_per_block, .stream = stream}, p);
}
// [/snippet]

}  // namespace worklog::warp_shuffle

// BatchNorm: statistics over the columns. Rows are spread over the GPU, so that what is normalized together is not read
// by one block, and perhaps not by one GPU. The kernel for every shape is in final/.
#pragma once

#include <algorithm>

#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

using vectorized::Floats;
using welford::add_value;
using welford::Moments;

// [snippet: update]
// What one channel's batch statistics leave behind. `m2` is the sum of the squared deviations of `count` values.
template <class T, class G>
__device__ inline void write_statistics(const BatchNormTrain<T, G>& p, int channel, float count, float mean, float m2,
                                        float invstd) {
  p.save_mean[channel] = mean;
  p.save_invstd[channel] = invstd;
  // [task: running]
  if (p.running_mean) p.running_mean[channel] += p.momentum * (mean - p.running_mean[channel]);
  if (p.running_var) p.running_var[channel] += p.momentum * (m2 / (count - 1.0f) - p.running_var[channel]);
  // [/task]
}
// [/snippet]

// [snippet: channel_per_thread]
// The formula, a thread to a channel. Neighbouring threads have neighbouring channels, so that what a warp reads in one
// step lies together; but 1024 channels are 1024 threads, on a GPU that has room for 264 times as many.
__global__ void batchnorm_channel_per_thread(BatchNormTrain<float> p) {
  const int64_t rows = p.samples * p.pixels;
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= p.channels) return;

  float sum = 0.0f;
  for (int64_t row = 0; row < rows; ++row) sum += p.x[row * p.channels + channel];
  const float mean = sum / rows;
  float m2 = 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const float deviation = p.x[row * p.channels + channel] - mean;
    m2 += deviation * deviation;
  }
  const float invstd = 1.0f / sqrtf(m2 / rows + p.eps);

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = (p.x[i] - mean) * invstd * gamma + beta;
  }
  write_statistics(p, channel, rows, mean, m2, invstd);
}
// [/snippet]

// [snippet: tile_2d]
// The article's kernel: 32 channels to a block, a row to each of its 32 warps; sums of values and of squares, added up
// by a tree over the warps. The statistics that training keeps are our addition.
inline constexpr int tile = 32;

__global__ void batchnorm_tile_2d(BatchNormTrain<float> p) {
  __shared__ float sums[tile][tile];
  __shared__ float squares[tile][tile];
  const int64_t rows = p.samples * p.pixels;
  const int64_t channel = int64_t{blockIdx.x} * tile + threadIdx.x;
  const bool is_channel = channel < p.channels;

  float sum = 0.0f;
  float square = 0.0f;
  for (int64_t row = threadIdx.y; row < rows && is_channel; row += tile) {
    const float v = p.x[row * p.channels + channel];
    sum += v;
    square += v * v;
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  squares[threadIdx.y][threadIdx.x] = square;
  __syncthreads();
  for (int half = tile / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.y) < half) {
      sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
      squares[threadIdx.y][threadIdx.x] += squares[threadIdx.y + half][threadIdx.x];
    }
    __syncthreads();
  }
  const float mean = sums[0][threadIdx.x] / rows;
  const float variance = fmaxf(squares[0][threadIdx.x] / rows - mean * mean, 0.0f);
  const float invstd = rsqrtf(variance + p.eps);
  if (!is_channel) return;

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = threadIdx.y; row < rows; row += tile) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = gamma * ((p.x[i] - mean) * invstd) + beta;
  }
  if (threadIdx.y == 0) write_statistics(p, channel, rows, mean, variance * rows, invstd);
}
// [/snippet]

// [snippet: split_rows]
// The same tiles, with their rows spread over many blocks. Three kernels: each block's moments of its part of the rows,
// their merge, and y.
struct RowSplit {
  int64_t rows;
  int64_t channels;
  int64_t rows_of_part;
};

__global__ void moments_of_parts(const float* x, RowSplit split, Moments* parts) {
  __shared__ Moments moments[tile][tile];
  const int64_t channel = int64_t{blockIdx.x} * tile + threadIdx.x;
  const int64_t begin = blockIdx.y * split.rows_of_part;
  const int64_t end = begin + split.rows_of_part < split.rows ? begin + split.rows_of_part : split.rows;

  Moments mine = {};
  if (channel < split.channels) {
    // [task: part]
    for (int64_t row = begin + threadIdx.y; row < end; row += tile) add_value(mine, x[row * split.channels + channel]);
    // [/task]
  }
  moments[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  for (int half = tile / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.y) < half) {
      moments[threadIdx.y][threadIdx.x] =
          welford::merge(moments[threadIdx.y][threadIdx.x], moments[threadIdx.y + half][threadIdx.x]);
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && channel < split.channels) {
    parts[blockIdx.y * split.channels + channel] = moments[0][threadIdx.x];
  }
}

// The parts are merged in their order, whichever block was done first: the same input gives the same bits.
__global__ void merge_parts(BatchNormTrain<float> p, const Moments* parts, int count) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= p.channels) return;
  Moments all = {};
  // [task: merge]
  for (int part = 0; part < count; ++part) all = welford::merge(all, parts[part * p.channels + channel]);
  // [/task]
  write_statistics(p, channel, all.count, all.mean, all.m2, rsqrtf(all.m2 / all.count + p.eps));
}
// [/snippet]

// [snippet: normalize_parts]
__global__ void normalize_parts(BatchNormTrain<float> p, RowSplit split) {
  const int64_t channel = int64_t{blockIdx.x} * tile + threadIdx.x;
  if (channel >= split.channels) return;
  const int64_t begin = blockIdx.y * split.rows_of_part;
  const int64_t end = begin + split.rows_of_part < split.rows ? begin + split.rows_of_part : split.rows;
  const float mean = p.save_mean[channel];
  const float factor = p.save_invstd[channel] * (p.gamma ? p.gamma[channel] : 1.0f);
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = begin + threadIdx.y; row < end; row += tile) {
    const int64_t i = row * split.channels + channel;
    p.y[i] = (p.x[i] - mean) * factor + beta;
  }
}
// [/snippet]

// [snippet: simple_launches]
// For [N, C], and for images with their channels last, which are [N * pixels, C].
inline void channel_per_thread(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  constexpr int threads = 32;  // a warp to a block, so that they spread over all multiprocessors
  launch(batchnorm_channel_per_thread,
         {.grid = static_cast<unsigned>((p.channels + threads - 1) / threads), .block = threads, .stream = stream}, p);
}

inline void tile_2d(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  const unsigned tiles = static_cast<unsigned>((p.channels + tile - 1) / tile);
  launch(batchnorm_tile_2d, {.grid = tiles, .block = dim3(tile, tile), .stream = stream}, p);
}

inline void split_rows(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  const int64_t rows = p.samples * p.pixels;
  const int64_t tiles = (p.channels + tile - 1) / tile;
  const int64_t blocks = 2 * device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t fit = batchnorm_workspace / (p.channels * int64_t{sizeof(Moments) / sizeof(float)});
  const int64_t parts = std::max<int64_t>(1, std::min({blocks / tiles, rows / tile, fit}));
  const RowSplit split = {rows, p.channels, (rows + parts - 1) / parts};
  Moments* moments = reinterpret_cast<Moments*>(p.workspace);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts)),
                             .block = dim3(tile, tile),
                             .stream = stream};
  launch(moments_of_parts, shape, p.x, split, moments);
  constexpr int threads = 128;
  launch(merge_parts,
         {.grid = static_cast<unsigned>((p.channels + threads - 1) / threads), .block = threads, .stream = stream}, p,
         moments, static_cast<int>(parts));
  launch(normalize_parts, shape, p, split);
}
// [/snippet]

}  // namespace worklog::batchnorm

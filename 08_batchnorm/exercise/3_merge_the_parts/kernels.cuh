// Exercise: the moments of many blocks become those of a channel. Look for [task].
#pragma once

#include <algorithm>

#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

using welford::add_value;
using welford::Moments;

// What one channel's batch statistics leave behind. `m2` is the sum of the squared deviations of `count` values.
template <class T, class G>
__device__ inline void write_statistics(const BatchNormTrain<T, G>& p, int channel, float count, float mean, float m2,
                                        float invstd) {
  p.save_mean[channel] = mean;
  p.save_invstd[channel] = invstd;
  if (p.running_mean) p.running_mean[channel] += p.momentum * (mean - p.running_mean[channel]);
  if (p.running_var) p.running_var[channel] += p.momentum * (m2 / (count - 1.0f) - p.running_var[channel]);
}

inline constexpr int tile = 32;

// The rows of 32 channels are spread over many blocks. Three kernels: each block's moments of its part of the rows,
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
    for (int64_t row = begin + threadIdx.y; row < end; row += tile) add_value(mine, x[row * split.channels + channel]);
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
  // [task: merge] `all` becomes the moments of all `count` parts of a channel: part i of channel c lies at parts[i *
  // p.channels + c]. The same bits on every run.
  all = parts[channel * count / count];
  // [/task]
  write_statistics(p, channel, all.count, all.mean, all.m2, rsqrtf(all.m2 / all.count + p.eps));
}

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

}  // namespace worklog::batchnorm

// BatchNorm: statistics over the columns. Rows are spread over the GPU, so that what is normalized together is not read
// by one block, and perhaps not by one GPU. The kernel for every shape is in final/.
#pragma once

#include <cooperative_groups.h>
#include <algorithm>

#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

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
// step lies together; but 1024 channels are 1024 threads, on a GPU that has room for 200 times as many.
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
  constexpr int threads = 32;  // a warp to a block: as many multiprocessors as there are warps
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

// [snippet: one_launch]
// The same in one launch, for every type and layout. A tile's rows are 8 vectors of neighbouring channels. Or, where
// pixels are neighbours, a tile is one channel, and each row of it is that channel's `run` of pixels in one sample.
inline constexpr int tile_threads = 256;
// Set i is of channel i % channels. Merges the sets of each channel into its first one.
__device__ inline void merge_sets(Moments* sets, int count, int channels, int thread) {
  for (int half = count / 2; half >= channels; half /= 2) {
    __syncthreads();
    for (int i = thread; i < half; i += tile_threads) sets[i] = welford::merge(sets[i], sets[i + half]);
  }
  __syncthreads();
}

template <class T, class G>
__global__ void __launch_bounds__(tile_threads) batchnorm_one_launch(BatchNormTrain<T, G> p, RowSplit split, int run) {
  constexpr int size = vectorized::vector_size<T>;
  constexpr int count = tile_threads * size;
  __shared__ Moments sets[count];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int channels = run > 1 ? 1 : static_cast<int>(blockDim.x) * size;  // of a tile
  const int first = static_cast<int>(blockIdx.x) * channels;
  const int columns = min(channels, static_cast<int>(p.channels) - first) * run;  // elements of a tile's row
  const int64_t begin = blockIdx.y * split.rows_of_part, end = min(begin + split.rows_of_part, split.rows);
  const auto start_of = [&](int64_t row) { return (row * p.channels + first) * run; };
  const auto in_tile = [&](int k) { return run > 1 ? 0 : static_cast<int>(threadIdx.x) * size + k; };
  const auto channel = [&](int k) { return min(first + in_tile(k), static_cast<int>(p.channels) - 1); };

  // A channel's pivot is its first value. If that is so large that squares overflow, a power of 2 scales all down.
  float scale[size], pivot[size], factor[size], offset[size];
  for (int k = 0; k < size; ++k) {
    const float value = vectorized::to_float(p.x[int64_t{channel(k)} * run]);
    scale[k] = fabsf(value) > 0x1p50f ? 0x1p-80f : 1.0f;
    pivot[k] = value * scale[k];
  }
  Moments mine[size] = {};
  for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
    for (int column = threadIdx.x * size; column < columns; column += blockDim.x * size) {
      const auto x = vectorized::unpack<T>(vectorized::load(p.x + start_of(row), column, columns));
      for (int k = 0; k < size && column + k < columns; ++k) add_value(mine[k], fmaf(x.at[k], scale[k], -pivot[k]));
    }
  }
  for (int k = 0; k < size; ++k) sets[thread * size + k] = mine[k];
  merge_sets(sets, count, channels, thread);

  if (gridDim.y > 1) {
    const int all = static_cast<int>(gridDim.y) * channels;
    Moments* const parts = reinterpret_cast<Moments*>(p.workspace) + int64_t{blockIdx.x} * all;
    if (thread < channels) parts[blockIdx.y * channels + thread] = sets[thread];
    cooperative_groups::this_grid().sync();
    for (int i = thread; i < count; i += tile_threads) sets[i] = {};
    for (int i = thread; i < all; i += tile_threads) sets[i % count] = welford::merge(sets[i % count], parts[i]);
    merge_sets(sets, count, channels, thread);
  }
  for (int k = 0; k < size; ++k) {
    const Moments all = sets[in_tile(k)];
    const float invstd = rsqrtf(all.m2 / all.count + fmaxf(p.eps * scale[k] * scale[k], 0x1p-126f));  // never of 0
    factor[k] = invstd * (p.gamma ? vectorized::to_float(p.gamma[channel(k)]) : 1.0f);
    offset[k] = (p.beta ? vectorized::to_float(p.beta[channel(k)]) : 0.0f) - all.mean * factor[k];
    if (blockIdx.y > 0 || thread * size + k >= columns / run) continue;
    write_statistics(p, channel(k), all.count, (pivot[k] + all.mean) / scale[k], all.m2 / scale[k] / scale[k],
                     invstd * scale[k]);
  }
  for (int64_t row = end - 1 - threadIdx.y; row >= begin; row -= blockDim.y) {
    for (int column = threadIdx.x * size; column < columns; column += blockDim.x * size) {
      auto x = vectorized::unpack<T>(vectorized::load(p.x + start_of(row), column, columns));
      for (int k = 0; k < size; ++k) x.at[k] = fmaf(fmaf(x.at[k], scale[k], -pivot[k]), factor[k], offset[k]);
      vectorized::store(p.y + start_of(row), column, columns, vectorized::pack<T>(x));
    }
  }
}

template <class T, class G>
void one_launch(const BatchNormTrain<T, G>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  const int run = p.layout == ChannelLayout::channels_first ? static_cast<int>(p.pixels) : 1;
  int across = 8;  // threads that share the vectors of a row
  while (across < tile_threads && across * vectorized::vector_size<T> < run) across *= 2;
  const unsigned tiles = welford::blocks_for(p.channels, run > 1 ? 1 : across * vectorized::vector_size<T>);
  const int64_t rows = p.samples * p.pixels / run;
  const int64_t blocks = blocks_at_once(batchnorm_one_launch<T, G>, tile_threads, 0);
  const int64_t parts = std::clamp<int64_t>(blocks / tiles, 1, rows * across / tile_threads + 1);
  const dim3 grid(tiles, static_cast<unsigned>(parts)), block(across, tile_threads / across);
  launch(batchnorm_one_launch<T, G>, {.grid = grid, .block = block, .cooperative = parts > 1, .stream = stream}, p,
         RowSplit{rows, p.channels, (rows + parts - 1) / parts}, run);
}
// [/snippet]

}  // namespace worklog::batchnorm

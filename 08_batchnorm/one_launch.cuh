// The kernel that the lesson ends with: two loops about one wait of the grid, for every type and layout.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "08_batchnorm/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

using vectorized::Floats;

// The same in one launch, for every type and layout. A tile's rows are 8 vectors of neighbouring channels. Or, where
// pixels are neighbours, a tile is one channel, and each row of it is that channel's `run` of pixels in one sample.
inline constexpr int tile_threads = 256;
inline constexpr int rows_of_set = 4;

// [snippet: merge_sets]
// Set i is of channel i % channels. Merges the sets of each channel into its first one.
__device__ inline void merge_sets(Moments* sets, int count, int channels, int thread) {
  for (int half = count / 2; half >= channels; half /= 2) {
    __syncthreads();
    for (int i = thread; i < half; i += tile_threads) sets[i] = welford::merge(sets[i], sets[i + half]);
  }
  __syncthreads();
}
// [/snippet]

// [snippet: moments_of_set]
// Of element k of each row's vector, in up to four rows: differences are from the first.
template <class T>
__device__ inline Moments moments_of_set(const Floats<T> (&x)[rows_of_set], int k, int rows, float share, float scale,
                                         float pivot) {
  const float near = fmaf(x[0].at[k], scale, -pivot);
  float sum = 0.0f, squares = 0.0f;
  for (int i = 1; i < rows_of_set; ++i) {
    const float difference = i < rows ? fmaf(x[i].at[k], scale, -pivot) - near : 0.0f;
    sum += difference;
    squares += difference * difference;
  }
  const float rest = sum * share;
  return {static_cast<float>(rows), near + rest, squares - sum * rest};
}
// [/snippet]

// [snippet: place]
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

  // [/snippet]
  // [snippet: first_loop]
  // A channel's pivot is its first value. If that is so large that squares overflow, a power of 2 scales all down.
  float scale[size], pivot[size], factor[size], offset[size];
  for (int k = 0; k < size; ++k) {
    const float value = vectorized::to_float(p.x[int64_t{channel(k)} * run]);
    scale[k] = fabsf(value) > 0x1p50f ? 0x1p-80f : 1.0f;
    pivot[k] = value * scale[k];
  }
  // Four rows at a time: their loads are on their way together, and are one set for Chan's formula.
  Moments mine[size] = {};
  const int step = static_cast<int>(blockDim.y);
  for (int64_t row = begin + threadIdx.y; row < end; row += rows_of_set * step) {
    const int rows = static_cast<int>(min((end - row + step - 1) / step, int64_t{rows_of_set}));
    const float share = 1.0f / static_cast<float>(rows);
    for (int column = threadIdx.x * size; column < columns; column += blockDim.x * size) {
      uint4 bits[rows_of_set];
      for (int i = 0; i < rows_of_set; ++i) {
        bits[i] = vectorized::load(p.x + start_of(row + min(i, rows - 1) * step), column, columns);
      }
      Floats<T> x[rows_of_set];
      for (int i = 0; i < rows_of_set; ++i) x[i] = vectorized::unpack<T>(bits[i]);
      for (int k = 0; k < size && column + k < columns; ++k) {
        mine[k] = welford::merge(mine[k], moments_of_set<T>(x, k, rows, share, scale[k], pivot[k]));
      }
    }
  }
  // [/snippet]
  // [snippet: wait]
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
  // [/snippet]
  // [snippet: second_loop]
  for (int k = 0; k < size; ++k) {
    const Moments all = sets[in_tile(k)];
    const float invstd = rsqrtf(all.m2 / all.count + fmaxf(p.eps * scale[k] * scale[k], 0x1p-126f));  // not 1 / 0
    factor[k] = invstd * (p.gamma ? vectorized::to_float(p.gamma[channel(k)]) : 1.0f);
    offset[k] = (p.beta ? vectorized::to_float(p.beta[channel(k)]) : 0.0f) - all.mean * factor[k];
    if (blockIdx.y > 0 || thread * size + k >= columns / run) continue;
    write_statistics(p, channel(k), all.count, (pivot[k] + all.mean) / scale[k], all.m2 / scale[k] / scale[k],
                     invstd * scale[k]);
  }
  for (int64_t row = end - 1 - threadIdx.y; row >= begin; row -= blockDim.y) {
    for (int column = threadIdx.x * size; column < columns; column += blockDim.x * size) {
      Floats<T> x = vectorized::unpack<T>(vectorized::load(p.x + start_of(row), column, columns));
      for (int k = 0; k < size; ++k) x.at[k] = fmaf(fmaf(x.at[k], scale[k], -pivot[k]), factor[k], offset[k]);
      vectorized::store(p.y + start_of(row), column, columns, vectorized::pack<T>(x));
    }
  }
}
// [/snippet]

// [snippet: launch]
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

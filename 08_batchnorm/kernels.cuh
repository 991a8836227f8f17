// BatchNorm: statistics over the columns. Rows are spread over the GPU, so that what is normalized together is not read
// by one block, and perhaps not by one GPU.
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "04_vectorized/kernels.cuh"
#include "05_welford/kernels.cuh"
#include "common/harness/arguments.h"
#include "common/harness/launch.cuh"

namespace worklog::batchnorm {

using vectorized::Floats;
using vectorized::to_float;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::lanes;
using welford::add_value;
using welford::Moments;

// Throws where the batch variance does not exist, as PyTorch does.
template <class T, class G>
void check_batch(const BatchNormTrain<T, G>& p) {
  if (p.samples * p.pixels == 1) {
    throw std::invalid_argument("training needs more than one value per channel: the variance of one is not defined");
  }
}

// [snippet: update]
// What one channel's batch statistics leave behind. `m2` is the sum of the squared deviations of `count` values.
template <class T, class G>
__device__ inline void write_statistics(const BatchNormTrain<T, G>& p, int channel, float count, float mean, float m2,
                                        float invstd) {
  p.save_mean[channel] = mean;
  p.save_invstd[channel] = invstd;
  if (p.running_mean) p.running_mean[channel] += p.momentum * (mean - p.running_mean[channel]);
  if (p.running_var) p.running_var[channel] += p.momentum * (m2 / (count - 1.0f) - p.running_var[channel]);
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
  for (int part = 0; part < count; ++part) all = welford::merge(all, parts[part * p.channels + channel]);
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

// --- The final kernel ------------------------------------------------------------------------------------------------
//
// One launch. Each block takes its part of the rows of some channels, and reads it forwards through a ring in shared
// memory. The blocks exchange what they found, and wait for each other. Then each reads its part once more, backwards:
// what it read last is still in its ring, and what it read before that is still in the L2 cache. A small problem is in
// the rings altogether, and is read once.
//
// What is summed up and what is written is a type, `Steps`: TrainSteps and BackwardSteps below.

inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them

// [snippet: vector]
// What a thread moves in one piece: 16 bytes, or one element where memory has no alignment to offer.
template <class T, int size>
struct alignas(size * sizeof(T)) Vector {
  T at[size];
};

template <class T, int size>
__device__ inline void unpack(const Vector<T, size>& vector, float (&values)[size]) {
  if constexpr (size == vector_size<T>) {
    const Floats<T> floats = welford::unpack<T>(*reinterpret_cast<const uint4*>(&vector));
#pragma unroll
    for (int k = 0; k < size; ++k) values[k] = floats.at[k];
  } else {
    values[0] = to_float(vector.at[0]);
  }
}

template <class T, int size>
__device__ inline Vector<T, size> pack(const float (&values)[size]) {
  Vector<T, size> vector;
  if constexpr (size == vector_size<T>) {
    Floats<T> floats;
#pragma unroll
    for (int k = 0; k < size; ++k) floats.at[k] = values[k];
    *reinterpret_cast<uint4*>(&vector) = vectorized::pack<T>(floats);
  } else {
    vector.at[0] = static_cast<T>(values[0]);
  }
  return vector;
}

// y will not be read again soon: the store asks the L2 cache to give its place up first, and so to keep x.
template <class T, int size>
__device__ inline void store_streaming(T* to, const Vector<T, size>& vector) {
  if constexpr (sizeof(vector) == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
  } else {
    *to = vector.at[0];
  }
}
// [/snippet]

// [snippet: tiling]
// A tensor is `lines` of `line` elements in which the channels repeat: a line is a row [channels], or a sample
// [channels, pixels] where the channels come first. Where a row is no whole number of vectors, several rows are a line:
// four rows of 3 floats are three vectors, whatever the number of rows left over at the end.
//
// A tile is `channels` channels, and the vectors that hold them in each line. Its lines are split among blocks.
struct Tiling {
  int64_t lines;
  int64_t line;       // elements
  int64_t rows_over;  // rows of `channels` elements after the last whole line
  int channels;       // of the tensor
  int run;            // neighbouring elements of one channel: pixels, or 1
  int tile_channels;  // of a tile; the last may have fewer
  int tile_vectors;   // of a tile in a line
  int tiles, splits;
  int64_t lines_of_split;  // of each but the last, which may have fewer
};

// One block's part of a tensor.
template <int size>
struct Part {
  int first_channel, channels;
  int width;           // vectors in a line
  int64_t first;       // element
  int64_t vectors;     // in all
  int64_t rows_over;   // rows after the last line that are this block's
  int64_t first_over;  // element
  int run;
  int64_t line;
  int step;  // vectors from one of a thread's to its next: the threads stand on whole lines where a line is short

  __device__ Part(const Tiling& t, int item) {
    const int tile = item / t.splits;
    const int split = item % t.splits;
    first_channel = tile * t.tile_channels;
    channels = min(t.tile_channels, t.channels - first_channel);
    run = t.run;
    line = t.line;
    const int64_t all = line / size;
    width = static_cast<int>(min(static_cast<int64_t>(t.tile_vectors), all - int64_t{tile} * t.tile_vectors));
    const int64_t begin = split * t.lines_of_split;
    first = begin * line + int64_t{tile} * t.tile_vectors * size;
    vectors = min(t.lines_of_split, t.lines - begin) * width;
    rows_over = split == t.splits - 1 ? t.rows_over : 0;
    first_over = t.lines * line;
    const int threads = static_cast<int>(blockDim.x);
    step = width <= threads ? threads / width * width : threads;
  }

  __device__ int vectors_of(int thread) const {
    return thread < step && thread < vectors ? static_cast<int>((vectors - thread + step - 1) / step) : 0;
  }
  // The channels, counted from first_channel, of the elements of each of this thread's vectors.
  __device__ void find_channels(int (&found)[size]) const {
    const int column = static_cast<int>(threadIdx.x) % width * size;
    int channel = column / run % channels;
    int left = run - column % run;  // elements before the next channel
#pragma unroll
    for (int k = 0; k < size; ++k) {
      found[k] = channel;
      if (--left > 0) continue;
      left = run;
      if (++channel == channels) channel = 0;
    }
  }
};

// The places of a thread's vectors, one after the other, in either direction.
template <int size>
struct Walk {
  int64_t place;  // element
  int vector;     // in the line
  int width, step_vectors;
  int64_t step, wrap;  // elements

  // At the thread's first vector.
  __device__ explicit Walk(const Part<size>& part) {
    const int thread = static_cast<int>(threadIdx.x);
    width = part.width;
    vector = thread % width;
    place = part.first + thread / width * part.line + int64_t{vector} * size;
    step_vectors = part.step % width;
    step = part.step / width * part.line + int64_t{step_vectors} * size;
    wrap = part.line - int64_t{width} * size;
  }
  __device__ void forward() {
    place += step;
    vector += step_vectors;
    if (vector >= width) {
      vector -= width;
      place += wrap;
    }
  }
  __device__ void back() {
    place -= step;
    vector -= step_vectors;
    if (vector < 0) {
      vector += width;
      place -= wrap;
    }
  }
};
// [/snippet]

// [snippet: ring]
// A thread's vectors on their way: those that it has asked for and not yet used, and those that it used last. Each
// thread reads only what it has put there itself, so that there is no barrier: waiting for its own copies is enough.
// Copies are asked for, and waited for, in batches.
template <class T, int size, int inputs, int batches_, int batch_>
struct Ring {
  static constexpr int batches = batches_;
  static constexpr int batch = batch_;  // vectors of each input
  using Bits = Vector<T, size>;
  Bits* slots;  // of this thread; blockDim.x apart

  static constexpr size_t bytes_of_thread = sizeof(Bits) * inputs * batches * batch;

  __device__ Bits* slot(int of_batch, int i, int input) const {
    return slots + ((of_batch % batches * batch + i) * inputs + input) * blockDim.x;
  }
  __device__ void fetch(int of_batch, int i, int input, const T* from) const {
    Bits* const to = slot(of_batch, i, input);
    if constexpr (sizeof(Bits) >= 4) {
      __pipeline_memcpy_async(to, from, sizeof(Bits));
    } else {
      *to = *reinterpret_cast<const Bits*>(from);  // asynchronous copies begin at 4 bytes
    }
  }
  __device__ static void commit() { __pipeline_commit(); }
  // Until no more than the last `batches - 1` are on their way: the oldest has arrived.
  __device__ static void wait_for_oldest() { __pipeline_wait_prior(batches - 1); }
};
// [/snippet]

// [snippet: split_moments]
// Moments whose mean is in two parts: `pivot`, one of the values, and `rest`, the mean of what is left without it. A
// mean of 1e4 in one float is exact to 5e-4; x - pivot is exact, or nearly, where the mean is large.
struct alignas(16) SplitMoments {
  float count;
  float pivot;
  float rest;
  float m2;
};

// Some lanes of a warp, which do something together.
struct Team {
  int size;  // a power of 2
  int lane;

  // This thread's team, where the block's threads do `tasks` things. Its number is threadIdx.x / size.
  __device__ static Team of_block(int tasks) {
    int size = 1;
    while (size < lanes && size * 2 * tasks <= static_cast<int>(blockDim.x)) size *= 2;
    return {size, static_cast<int>(threadIdx.x) % size};
  }

  __device__ float sum(float value) const {
    for (int distance = size / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
    return value;
  }
};

// Chan's formula for any number of sets at once: the means are values whose spread adds to that within the sets.
// part(i) gives the moments of set i. Sums are taken in an order that depends on the shape alone.
template <class GetPart>
__device__ inline SplitMoments merge(const Team& team, int parts, GetPart part) {
  int some = 0;  // a part that is not empty
  while (some + 1 < parts && part(some).count == 0.0f) ++some;
  const float pivot = part(some).pivot;
  // Four at a time, so that their loads are on their way together. Those that are not there are empty.
  constexpr int together = 4;
  const auto for_each = [&](auto f) {
    for (int first = team.lane; first < parts; first += together * team.size) {
      SplitMoments m[together];
#pragma unroll
      for (int j = 0; j < together; ++j) {
        const int i = first + j * team.size;
        m[j] = i < parts ? part(i) : SplitMoments{0.0f, pivot, 0.0f, 0.0f};
      }
#pragma unroll
      for (int j = 0; j < together; ++j) f(m[j]);
    }
  };
  float count = 0.0f;
  float sum = 0.0f;
  for_each([&](const SplitMoments& m) {
    count += m.count;
    sum += m.count * ((m.pivot - pivot) + m.rest);
  });
  count = team.sum(count);
  sum = team.sum(sum);
  const float rest = count > 0.0f ? sum / count : 0.0f;
  float m2 = 0.0f;
  for_each([&](const SplitMoments& m) {
    const float off = (m.pivot - pivot) + m.rest - rest;
    m2 += m.m2 + m.count * off * off;
  });
  return {count, pivot, rest, team.sum(m2)};
}
// [/snippet]

// [snippet: train_steps]
// The steps of training's forward pass. Statistics are those of x * scale. scale is 1, but for channels whose squares
// overflow: there it is a small power of two, by which nothing is rounded.
template <class T_, class G>
struct TrainSteps {
  using T = T_;
  BatchNormTrain<T, G> p;
  static constexpr int inputs = 1;
  __device__ const T* input(int) const { return p.x; }
  __host__ __device__ T* output() const { return p.y; }

  // One thread's sums for one channel, of differences from the first value that it meets. Since that is one of the
  // values that the variance is of, the variance cannot be small against it, and what cancels is at most as many
  // roundings as the thread has values.
  struct Sums {
    float pivot, sum, squares;
  };
  __device__ Sums start(int, float x, float, float scale) const { return {x * scale, 0.0f, 0.0f}; }
  __device__ void add(Sums& sums, float x, float, float scale) const {
    const float d = fmaf(x, scale, -sums.pivot);
    sums.sum += d;
    sums.squares = fmaf(d, d, sums.squares);
  }

  using Partial = SplitMoments;  // of a thread
  __device__ Partial partial(const Sums& sums, int count, int, float) const {
    if (count == 0) return {};
    const float n = static_cast<float>(count);
    const float rest = sums.sum / n;
    return {n, sums.pivot, rest, fmaxf(sums.squares - sums.sum * rest, 0.0f)};
  }
  __device__ Partial partial_of_element(int64_t i, int, float scale) const {
    return {1.0f, to_float(p.x[i]) * scale, 0.0f, 0.0f};
  }
  template <class GetPart>
  __device__ Partial merged(const Team& team, int parts, GetPart part) const {
    return merge(team, parts, part);
  }
  __device__ bool overflowed(const Partial& partial) const { return !isfinite(partial.m2); }

  struct Shared {  // of a block, for the others
    SplitMoments moments;
    float scale;
  };
  __device__ Shared share(const Partial& partial, float scale) const { return {partial, scale}; }
  __device__ bool overflowed(const Shared& shared) const { return overflowed(shared.moments); }

  // Those of several blocks, or of several GPUs, together.
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, GetShared shared) const {
    const auto merged_at = [&](float scale) {
      return merge(team, parts, [&](int i) {
        const Shared s = shared(i);
        if (s.moments.count == 0.0f) return SplitMoments{};
        const float to = scale / s.scale;
        return SplitMoments{s.moments.count, s.moments.pivot * to, s.moments.rest * to, s.moments.m2 * to * to};
      });
    };
    SplitMoments all = merged_at(1.0f);
    if (!__any_sync(all_lanes, overflowed(all))) return {all, 1.0f};  // all lanes of a warp take part in its shuffles
    const SplitMoments scaled = merged_at(small_scale);
    return overflowed(all) ? Shared{scaled, small_scale} : Shared{all, 1.0f};
  }

  // What y needs to know of a channel. `writes`: and what is kept of it is written.
  struct alignas(16) Channel {
    float center, factor, offset, scale;
  };
  __device__ Channel finish(const Shared& shared, int channel, bool writes) const {
    const SplitMoments& all = shared.moments;
    const float scale = shared.scale;
    const float variance = all.m2 / all.count;
    // Scaled down, eps counts only where the variance is nothing.
    const float invstd = scale == 1.0f      ? rsqrtf(variance + p.eps)
                         : variance == 0.0f ? rsqrtf(p.eps) / scale
                                            : rsqrtf(variance);
    if (writes) {
      write_statistics(p, channel, all.count, (all.pivot + all.rest) / scale, all.m2 / scale / scale, invstd * scale);
    }
    const float factor = invstd * (p.gamma ? to_float(p.gamma[channel]) : 1.0f);
    const float beta = p.beta ? to_float(p.beta[channel]) : 0.0f;
    return {all.pivot, factor, fmaf(-all.rest, factor, beta), scale};
  }
  __device__ float result(float x, float, const Channel& c) const {
    return fmaf(fmaf(x, c.scale, -c.center), c.factor, c.offset);
  }
};
// [/snippet]

// [snippet: backward_steps]
// The steps of the backward pass: the sums of dy and of dy * xhat, which are dbeta and dgamma; then dx.
template <class T_, class G>
struct BackwardSteps {
  using T = T_;
  BatchNormBackward<T, G> p;
  float count;  // values of a channel
  static constexpr int inputs = 2;
  __device__ const T* input(int i) const { return i == 0 ? p.dy : p.x; }
  __host__ __device__ T* output() const { return p.dx; }

  struct Sums {
    float mean, dy, dy_centered;
  };
  __device__ Sums start(int channel, float, float, float) const { return {p.save_mean[channel], 0.0f, 0.0f}; }
  __device__ void add(Sums& sums, float dy, float x, float scale) const {
    sums.dy += dy;
    sums.dy_centered = fmaf(dy, (x - sums.mean) * scale, sums.dy_centered);
  }

  struct Partial {
    float dy, dy_xhat;
  };
  __device__ Partial partial(const Sums& sums, int, int channel, float scale) const {
    return {sums.dy, sums.dy_centered * (p.save_invstd[channel] / scale)};
  }
  __device__ Partial partial_of_element(int64_t i, int channel, float) const {
    const float dy = to_float(p.dy[i]);
    return {dy, dy * ((to_float(p.x[i]) - p.save_mean[channel]) * p.save_invstd[channel])};
  }
  template <class GetPart>
  __device__ Partial merged(const Team& team, int parts, GetPart part) const {
    Partial all = {0.0f, 0.0f};
#pragma unroll 4
    for (int i = team.lane; i < parts; i += team.size) {
      const Partial one = part(i);
      all.dy += one.dy;
      all.dy_xhat += one.dy_xhat;
    }
    return {team.sum(all.dy), team.sum(all.dy_xhat)};
  }
  __device__ bool overflowed(const Partial& partial) const {
    return !isfinite(partial.dy_xhat);
  }

  using Shared = Partial;
  __device__ Shared share(const Partial& partial, float) const {
    return partial;
  }

  struct alignas(16) Channel {
    float mean, slope, dy_mean, factor;
  };
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, GetShared shared) const {
    return merged(team, parts, shared);
  }
  __device__ Channel finish(const Shared& all, int channel, bool writes) const {
    if (writes && p.dgamma) p.dgamma[channel] = static_cast<G>(all.dy_xhat);
    if (writes && p.dbeta) p.dbeta[channel] = static_cast<G>(all.dy);
    const float invstd = p.save_invstd[channel];
    const float gamma = p.gamma ? to_float(p.gamma[channel]) : 1.0f;
    return {p.save_mean[channel], all.dy_xhat / count * invstd, all.dy / count, gamma * invstd};
  }
  __device__ float result(float dy, float x, const Channel& c) const {
    return c.factor * fmaf(c.mean - x, c.slope, dy - c.dy_mean);
  }
};
// [/snippet]

// [snippet: read_forwards]
// A thread's sums over its vectors, one for each element of a vector. Returns the place after its last vector.
template <class Ring, class Steps, int size>
__device__ inline Walk<size> read_forwards(const Ring& ring, const Steps& steps, const Part<size>& part,
                                           const int (&channels)[size], float scale,
                                           typename Steps::Sums (&sums)[size]) {
  constexpr int batch = Ring::batch;
  const int vectors = part.vectors_of(static_cast<int>(threadIdx.x));
  Walk<size> walk(part);
  const auto fetch = [&](int of_batch) {
    for (int i = 0; i < batch; ++i) {
      if (of_batch * batch + i >= vectors) break;
      for (int input = 0; input < Steps::inputs; ++input)
        ring.fetch(of_batch, i, input, steps.input(input) + walk.place);
      walk.forward();
    }
    ring.commit();  // also where there was nothing to ask for: the batches are counted
  };

#pragma unroll 1
  for (int b = 0; b < Ring::batches; ++b) fetch(b);
  const int batches = (vectors + batch - 1) / batch;
#pragma unroll 1
  for (int b = 0; b < batches; ++b) {
    ring.wait_for_oldest();
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (b * batch + i >= vectors) break;
      float first[size], second[size];
      unpack(*ring.slot(b, i, 0), first);
      unpack(*ring.slot(b, i, Steps::inputs - 1), second);
      if (i == 0 && b == 0) {
#pragma unroll
        for (int k = 0; k < size; ++k) {
          sums[k] = steps.start(part.first_channel + channels[k], first[k], second[k], scale);
        }
      }
#pragma unroll
      for (int k = 0; k < size; ++k) steps.add(sums[k], first[k], second[k], scale);
    }
    fetch(b + Ring::batches);
  }
  return walk;
}
// [/snippet]

// [snippet: write_backwards]
// y, from the last vector to the first: the ring still holds the last ones. `end` is the place after the last.
template <class Ring, class Steps, int size>
__device__ inline void write_backwards(const Ring& ring, const Steps& steps, const Part<size>& part, Walk<size> end,
                                       const typename Steps::Channel (&channel)[size]) {
  constexpr int batch = Ring::batch;
  const int vectors = part.vectors_of(static_cast<int>(threadIdx.x));
  const int batches = (vectors + batch - 1) / batch;
  Walk<size> writing = end;
  writing.back();
  Walk<size> fetching = writing;
  if (batches > Ring::batches) {
    for (int i = vectors; i > (batches - Ring::batches) * batch; --i) fetching.back();
  }
#pragma unroll 1
  for (int b = batches - 1; b >= 0; --b) {
    ring.wait_for_oldest();
#pragma unroll
    for (int i = batch - 1; i >= 0; --i) {
      if (b * batch + i >= vectors) continue;
      float first[size], second[size], results[size];
      unpack(*ring.slot(b, i, 0), first);
      unpack(*ring.slot(b, i, Steps::inputs - 1), second);
#pragma unroll
      for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], channel[k]);
      store_streaming(steps.output() + writing.place, pack<typename Steps::T>(results));
      writing.back();
    }
    if (b >= Ring::batches) {
      for (int i = batch - 1; i >= 0; --i) {
        for (int input = 0; input < Steps::inputs; ++input) {
          ring.fetch(b - Ring::batches, i, input, steps.input(input) + fetching.place);
        }
        fetching.back();
      }
    }
    ring.commit();
  }
}
// [/snippet]

// [snippet: merge_block]
// The block's partial results for each of its channels, from its threads' `partials`: those of thread t and element k
// at [k * (blockDim.x + 1) + t], so that neighbouring channels are in different banks. Where a thread's vectors are of
// one channel, it has already added up its elements, and only k = 0 is there. done(channel, partial) is called by all
// lanes of a team; `channel` is -1 where there is none left.
template <class Steps, int size, class Done>
__device__ inline void merge_block(const Steps& steps, const Part<size>& part, const typename Steps::Partial* partials,
                                   bool one_channel, float scale, Done done) {
  const int kept = one_channel ? 1 : size;
  const int run = one_channel ? part.run / size : part.run;
  const int threads_of_line = min(part.width, part.step);
  const int columns = threads_of_line * kept;
  const int of_channel = columns / part.channels;  // columns
  const int lines = part.step / threads_of_line;
  const Team team = Team::of_block(part.channels);
  const int own = part.vectors > 0 ? of_channel * lines : 0;
  const int teams = static_cast<int>(blockDim.x) / team.size;
  for (int first = 0; first < part.channels; first += teams) {
    const int wanted = first + static_cast<int>(threadIdx.x) / team.size;
    const bool is_there = wanted < part.channels;
    const int channel = is_there ? wanted : 0;
    const auto get = [&](int i) {
      if (i >= own) {
        const int64_t place = part.first_over + int64_t{i - own} * part.channels + channel;
        return steps.partial_of_element(place, part.first_channel + channel, scale);
      }
      const int nth_line = of_channel == 1 ? i : i / of_channel;
      const int nth = i - nth_line * of_channel;  // of the channel's columns
      const int column = run == 1 ? nth * part.channels + channel : channel * run + nth;
      const int thread = nth_line * threads_of_line + column / kept;
      return partials[column % kept * (blockDim.x + 1) + thread];
    };
    done(team, is_there ? channel : -1, steps.merged(team, own + static_cast<int>(part.rows_over), get));
  }
}
// [/snippet]

// [snippet: kernel]
template <class Steps, int size, class Ring>
__device__ inline void normalize_part(const Steps& steps, const Tiling& tiling, int item, const Ring& ring,
                                      unsigned char* exchange) {
  using Partial = typename Steps::Partial;
  using Shared = typename Steps::Shared;
  using Channel = typename Steps::Channel;
  const Part<size> part(tiling, item);
  const int thread = static_cast<int>(threadIdx.x);
  const int count = part.vectors_of(thread);
  const bool one_channel = part.run % size == 0;
  int my_channels[size];
  part.find_channels(my_channels);
  Walk<size> end(part);
  Shared* const shared = reinterpret_cast<Shared*>(steps.p.workspace);
  const int tile = item / tiling.splits;
  const int split = item % tiling.splits;
  const auto shared_at = [&](int of_split, int channel) -> Shared& {
    return shared[(int64_t{tile} * tiling.splits + of_split) * tiling.tile_channels + channel];
  };

  // Once, and once more for the channels that have overflowed.
  for (float scale = 1.0f;; scale = small_scale) {
    typename Steps::Sums sums[size] = {};
    end = read_forwards(ring, steps, part, my_channels, scale, sums);
    Partial* const partials = reinterpret_cast<Partial*>(exchange);
    Partial mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) mine[k] = steps.partial(sums[k], count, part.first_channel + my_channels[k], scale);
    if (one_channel) mine[0] = steps.merged(Team{1, 0}, size, [&](int k) { return mine[k]; });
#pragma unroll
    for (int k = 0; k < size; ++k) {
      if (k == 0 || !one_channel) partials[k * (blockDim.x + 1) + thread] = mine[k];
    }
    __syncthreads();
    bool overflowed = false;
    merge_block(steps, part, partials, one_channel, scale, [&](const Team& team, int channel, const Partial& merged) {
      overflowed |= steps.overflowed(merged);
      if (channel < 0 || team.lane != 0) return;
      Shared& ours = shared_at(split, channel);
      if (scale == 1.0f || steps.overflowed(ours)) ours = steps.share(merged, scale);
    });
    if (!__syncthreads_or(overflowed) || scale != 1.0f) break;
  }

  // What all blocks of the tile have found is merged, each channel by one of them, and handed to all.
  Channel* const channels = reinterpret_cast<Channel*>(exchange);
  Channel* const finished =
      reinterpret_cast<Channel*>(shared + int64_t{tiling.tiles} * tiling.splits * tiling.tile_channels) +
      int64_t{tile} * tiling.tile_channels;
  if (tiling.splits > 1) cooperative_groups::this_grid().sync();
  const int tasks = (part.channels - split + tiling.splits - 1) / tiling.splits;
  const Team team = Team::of_block(tasks);
  const int teams = static_cast<int>(blockDim.x) / team.size;
  for (int first = 0; first < tasks; first += teams) {
    const int task = first + thread / team.size;
    const int channel = task < tasks ? split + task * tiling.splits : split;
    const bool writes = task < tasks && team.lane == 0;
    const Shared all = steps.combined(team, tiling.splits, [&](int i) { return shared_at(i, channel); });
    const Channel done = steps.finish(all, part.first_channel + channel, writes);
    if (writes) (tiling.splits > 1 ? finished : channels)[channel] = done;
  }
  if (tiling.splits > 1) {
    cooperative_groups::this_grid().sync();
    for (int i = thread; i < part.channels; i += static_cast<int>(blockDim.x)) channels[i] = finished[i];
  }
  __syncthreads();

  if (steps.output()) {
    Channel mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) mine[k] = channels[my_channels[k]];
    write_backwards(ring, steps, part, end, mine);
    for (int i = thread; i < part.rows_over * part.channels; i += static_cast<int>(blockDim.x)) {
      const int64_t place = part.first_over + i;
      const float result = steps.result(to_float(steps.input(0)[place]),
                                        to_float(steps.input(Steps::inputs - 1)[place]), channels[i % part.channels]);
      steps.output()[place] = static_cast<typename Steps::T>(result);
    }
  }
  __syncthreads();  // all have read `channels` before the next tile overwrites it
}

template <class Steps, int size, class Config>
__global__ void __launch_bounds__(Config::threads, 1) normalize_channels(Steps steps, Tiling tiling) {
  using Ring = Ring<typename Steps::T, size, Steps::inputs, Config::template batches<Steps::inputs>, Config::batch>;
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const Ring ring = {reinterpret_cast<typename Ring::Bits*>(memory) + threadIdx.x};
  for (int item = blockIdx.x; item < tiling.tiles * tiling.splits; item += gridDim.x) {
    normalize_part<Steps, size>(steps, tiling, item, ring, memory + Ring::bytes_of_thread * blockDim.x);
  }
}
// [/snippet]

// [snippet: plan]
// What a tensor is to be cut into.
struct Shape {
  int64_t samples, channels, pixels;
  ChannelLayout layout;
};

template <class Batch>
Shape shape_of(const Batch& p) {
  return {p.samples, p.channels, p.pixels, p.layout};
}

// Cuts a tensor whose vectors are `size` elements into tiles for `blocks` blocks of `threads` threads. Returns no tiles
// where a vector would hold what no tile can: then the elements are to be moved one by one.
// `room` bounds the splits: for so many channels can blocks leave what they have found.
inline Tiling tiling_of(const Shape& s, int size, int64_t blocks, int threads, int64_t room) {
  const bool runs = s.layout == ChannelLayout::channels_first && s.pixels > 1;
  const int64_t rows = s.samples * s.pixels;
  Tiling t = {};
  t.channels = static_cast<int>(s.channels);
  t.run = runs ? static_cast<int>(s.pixels) : 1;

  // The least that a tile can be: whole channels in whole vectors.
  int64_t unit_channels;
  if (runs) {
    unit_channels = size / std::gcd<int64_t>(s.pixels, size);
    if (s.channels % unit_channels != 0) return t;
    t.lines = s.samples;
    t.line = s.channels * s.pixels;
  } else {
    const int64_t rows_of_line = size / std::gcd<int64_t>(s.channels, size);
    t.lines = rows / rows_of_line;
    t.line = s.channels * rows_of_line;
    t.rows_over = rows % rows_of_line;
    unit_channels = rows_of_line > 1 ? s.channels : size;
  }
  const int64_t units = s.channels / unit_channels;
  const int64_t unit_vectors = t.line / units / size;
  const int64_t most_vectors = runs ? threads : size > 1 ? 64 : 256;
  const bool fits = runs ? unit_channels == 1 || unit_vectors <= threads : t.line == s.channels || unit_vectors <= 128;
  if (!fits) return t;

  // In vectors: what a round of tiles costs beside its work, and what it costs that blocks wait for each other. Lines
  // of a few bytes cost memory more than their bytes, but a tile that no other block shares is worth it where it is
  // small.
  constexpr int64_t overhead = 6000;
  constexpr int64_t waiting = 16000;
  const int64_t least_width = size > 1 ? 32 : 128;
  const auto handicap = [](int64_t width) { return width >= 8 ? 2 : width >= 4 ? 3 : width >= 2 ? 4 : 10; };  // halves
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t of_tile = 1; of_tile <= units; ++of_tile) {
    const int64_t width = of_tile * unit_vectors;
    if (of_tile > 1 && width > most_vectors) break;
    const bool is_narrow = of_tile < units && width < least_width && (of_tile + 1) * unit_vectors <= most_vectors;
    const int64_t tiles = (units + of_tile - 1) / of_tile;
    const int64_t fit = room / (tiles * of_tile * unit_channels);
    const int64_t most_splits = std::max<int64_t>(1, std::min({blocks / tiles, t.lines, fit}));
    for (const int64_t wanted : {int64_t{1}, is_narrow ? 1 : most_splits}) {
      const int64_t lines = std::max<int64_t>(1, (t.lines + wanted - 1) / wanted);
      const int64_t splits = std::max<int64_t>(1, (t.lines + lines - 1) / lines);
      const int64_t rounds = (tiles * splits + blocks - 1) / blocks;
      const int64_t work = rounds * (lines * width * handicap(width) / 2 + overhead) + (splits > 1 ? waiting : 0);
      if (work >= least) continue;
      least = work;
      t.tile_channels = static_cast<int>(of_tile * unit_channels);
      t.tile_vectors = static_cast<int>(width);
      t.tiles = static_cast<int>(tiles);
      t.splits = static_cast<int>(splits);
      t.lines_of_split = lines;
    }
  }
  return t;
}
// [/snippet]

// [snippet: launch]
// Threads of a block, and vectors of a thread in its ring. The large one fills the 227 KiB of shared memory of a
// Hopper multiprocessor with one block; the small one fits wherever CUDA runs.
template <int threads_, int batches_, int batch_>
struct Config {
  static constexpr int threads = threads_;
  static constexpr int batch = batch_;
  template <int inputs>
  static constexpr int batches = batches_ / inputs;
};
using LargeConfig = Config<512, 10, 2>;
using SmallConfig = Config<256, 4, 1>;

template <int size, class Config, class Steps>
bool launch_tiles(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::T;
  using Ring = Ring<T, size, Steps::inputs, Config::template batches<Steps::inputs>, Config::batch>;
  using Partial = typename Steps::Partial;
  const size_t exchanged =
      std::max(size * sizeof(Partial) * (Config::threads + 1), sizeof(typename Steps::Channel) * Config::threads);
  const size_t bytes = Config::threads * Ring::bytes_of_thread + exchanged;
  const auto kernel = normalize_channels<Steps, size, Config>;
  int resident = 0;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "asking for dynamic shared memory");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, Config::threads, bytes),
             "asking how many blocks fit");
  constexpr int64_t room =
      batchnorm_workspace / int64_t{(sizeof(typename Steps::Shared) + sizeof(typename Steps::Channel)) / sizeof(float)};
  const int blocks = resident * device_attribute(cudaDevAttrMultiProcessorCount);
  const Tiling tiling = tiling_of(shape_of(steps.p), size, blocks, Config::threads, room);
  if (tiling.tiles == 0) return false;
  const int items = tiling.tiles * tiling.splits;
  launch(kernel,
         {.grid = static_cast<unsigned>(std::min(items, blocks)),
          .block = Config::threads,
          .shared_bytes = bytes,
          .cooperative = tiling.splits > 1,
          .stream = stream},
         steps, tiling);
  return true;
}

inline bool is_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

template <class Config, class Steps>
void normalize_with(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (aligned && launch_tiles<vector_size<typename Steps::T>, Config>(steps, stream)) return;
  launch_tiles<1, Config>(steps, stream);
}

template <class Steps>
void normalize(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 227 * 1024) {
    normalize_with<LargeConfig>(steps, aligned, stream);
  } else {
    normalize_with<SmallConfig>(steps, aligned, stream);
  }
}

template <class T, class G>
void batch_norm(const BatchNormTrain<T, G>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  normalize(TrainSteps<T, G>{p}, is_aligned({p.x, p.y}), stream);
}

template <class T, class G>
void batch_norm_backward(const BatchNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  normalize(BackwardSteps<T, G>{p, static_cast<float>(p.samples * p.pixels)}, is_aligned({p.dy, p.x, p.dx}), stream);
}
// [/snippet]

// --- Where the statistics are known ----------------------------------------------------------------------------------

// [snippet: inference]
// Inference: the running statistics, gamma and beta fold into one multiply-add.
template <class T_, class G>
struct InferenceSteps {
  using T = T_;
  BatchNormInference<T, G> p;
  static constexpr int inputs = 1;
  __device__ const T* input(int) const { return p.x; }
  __device__ T* output() const { return p.y; }

  struct Channel {
    float factor, offset;
  };
  __device__ Channel channel(int channel) const {
    const float gamma = p.gamma ? to_float(p.gamma[channel]) : 1.0f;
    const float beta = p.beta ? to_float(p.beta[channel]) : 0.0f;
    const float factor = gamma * rsqrtf(p.running_var[channel] + p.eps);
    return {factor, fmaf(-p.running_mean[channel], factor, beta)};
  }
  __device__ float result(float x, float, const Channel& c) const { return fmaf(x, c.factor, c.offset); }
};

inline constexpr int threads_of_apply = 256;
inline constexpr int vectors_of_apply = 4;  // on their way at once

// One trip through memory: each thread keeps what it needs to know of its channels.
template <class Steps, int size>
__global__ void __launch_bounds__(threads_of_apply) apply_channels(Steps steps, Tiling tiling) {
  using T = typename Steps::T;
  using Bits = Vector<T, size>;
  const Part<size> part(tiling, static_cast<int>(blockIdx.x));
  const int vectors = part.vectors_of(static_cast<int>(threadIdx.x));
  Walk<size> reading(part);
  Walk<size> writing(part);
  typename Steps::Channel mine[size];
  for (int done = 0; done < vectors; done += vectors_of_apply) {
    Bits held[vectors_of_apply][Steps::inputs];
#pragma unroll
    for (int i = 0; i < vectors_of_apply; ++i) {
      if (done + i >= vectors) break;
#pragma unroll
      for (int input = 0; input < Steps::inputs; ++input) {
        held[i][input] = *reinterpret_cast<const Bits*>(steps.input(input) + reading.place);
      }
      reading.forward();
    }
    if (done == 0) {  // while the first vectors are on their way
      int channels[size];
      part.find_channels(channels);
#pragma unroll
      for (int k = 0; k < size; ++k) {
        const bool as_before = k > 0 && part.run % size == 0;
        mine[k] = as_before ? mine[0] : steps.channel(part.first_channel + channels[k]);
      }
    }
#pragma unroll
    for (int i = 0; i < vectors_of_apply; ++i) {
      if (done + i >= vectors) break;
      float first[size], second[size], results[size];
      unpack(held[i][0], first);
      unpack(held[i][Steps::inputs - 1], second);
#pragma unroll
      for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], mine[k]);
      *reinterpret_cast<Bits*>(steps.output() + writing.place) = pack<T>(results);
      writing.forward();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < part.rows_over * part.channels; i += threads_of_apply) {
    const int64_t place = part.first_over + i;
    const float result = steps.result(to_float(steps.input(0)[place]), to_float(steps.input(Steps::inputs - 1)[place]),
                                      steps.channel(i % part.channels));
    steps.output()[place] = static_cast<T>(result);
  }
}

template <int size, class Steps>
bool launch_apply(const Steps& steps, cudaStream_t stream) {
  const Shape shape = shape_of(steps.p);
  const int64_t vectors = shape.samples * shape.pixels * shape.channels / size;
  constexpr int vectors_of_thread =
      2 * size;  // the more elements a vector has, the more there is to know of its channels
  const int64_t blocks = std::clamp<int64_t>(vectors / (threads_of_apply * vectors_of_thread), 1, 1 << 24);
  const Tiling tiling = tiling_of(shape, size, blocks, threads_of_apply, std::numeric_limits<int64_t>::max());
  if (tiling.tiles == 0) return false;
  launch(apply_channels<Steps, size>,
         {.grid = static_cast<unsigned>(tiling.tiles * tiling.splits), .block = threads_of_apply, .stream = stream},
         steps, tiling);
  return true;
}

template <class Steps>
void apply(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (aligned && launch_apply<vector_size<typename Steps::T>>(steps, stream)) return;
  launch_apply<1>(steps, stream);
}

template <class T, class G>
void batch_norm_inference(const BatchNormInference<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  apply(InferenceSteps<T, G>{p}, is_aligned({p.x, p.y}), stream);
}
// [/snippet]

}  // namespace worklog::batchnorm

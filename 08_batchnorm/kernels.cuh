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
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/unpack.cuh"
#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

using vectorized::Floats;
using vectorized::to_float;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::lanes;
using welford::add_value;
using welford::advice_of;
using welford::copy_vector;
using welford::Leaves;
using welford::leaves_of;
using welford::load_vector;
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

// --- The final kernel ------------------------------------------------------------------------------------------------
//
// One launch. Each block takes its part of the rows of some channels, and reads it forwards through a ring in shared
// memory. The blocks of a tile leave each other what they found, and all blocks wait for each other, once. Then each
// merges what its tile's blocks found, and reads its part once more, backwards: what it read last is still in its ring.
// A small problem is in the rings altogether, and is read once.
//
// What runs once, between the two passes, costs the time of its instructions, which must first be fetched. So whatever
// can be divided beforehand is divided on the host, and every channel has a team of lanes from the start.
//
// What is summed up and what is written is a type, `Steps`: TrainSteps and BackwardSteps below.

inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them
inline constexpr float infinity = std::numeric_limits<float>::infinity();

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

template <class Bits>
__device__ inline Bits read_vector(const void* from, [[maybe_unused]] uint64_t advice) {
  Bits bits;
  if constexpr (sizeof(Bits) == sizeof(uint4)) {
    *reinterpret_cast<uint4*>(&bits) = load_vector(from, advice);
  } else {
    bits = *static_cast<const Bits*>(from);
  }
  return bits;
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
// A tile is `tile_channels` channels, and the `tile_vectors` vectors that hold them in each line. Its lines are split
// among blocks: a block is of tile blockIdx.x and of split blockIdx.y. The splits take the lines in turn,
// `lines_at_once` at a time, so that all blocks walk through the tensor together, as those of a copy do.
struct Tiling {
  int64_t lines;
  int64_t line;       // elements
  int64_t rows_over;  // rows of `channels` elements after the last whole line
  int channels;       // of the tensor
  int run;            // neighbouring elements of one channel: pixels, or 1
  int tile_channels;  // the last tile may have fewer; never more than a block has threads
  int tile_vectors;
  int tiles, splits;

  // How the threads of a block stand on a tile: side by side on whole lines, or on a part of one.
  int columns;        // threads on a line
  int lines_at_once;  // lines that have threads; threads that are left over have nothing to do
  int step_vectors;   // where a line is longer than the block: from one of a thread's vectors to its next
  int each, more;     // vectors of every thread; so many have one more, of all splits' threads on lines
  // Where a line is longer than the block, `more` threads of a split have one more. So many splits have one line more
  // than the others, and so many vectors for each thread.
  int longer, each_of_longer, more_of_longer;
  int kept;           // of a thread: 1 partial, where its vectors are of one channel, 2 where of two, or each element's
  int parts;          // partials of one channel in a block
  int parts_of_line;  // of these, on one line
  int team_bits;      // a channel has 2^team_bits lanes
  Leaves leaves;      // when what is read leaves the L2 cache,
  Leaves leaves_at_last;  // and what is read for the last time
};

// What one block has of a tensor, and where in it this thread stands.
template <int size>
struct Part {
  int first_channel, channels;
  int line, column;
  int count;      // vectors of this thread
  int of_all;     // vectors that each thread has at least, if it has any
  int64_t place;  // of its first: element
  int run;
  int rows_over;       // rows after the last line that are this block's
  int64_t first_over;  // element

  __device__ Part(const Tiling& t, int tile, int split) {
    const int thread = static_cast<int>(threadIdx.x);
    line = thread / t.columns;
    column = thread - line * t.columns;
    run = t.run;
    first_channel = tile * t.tile_channels;
    channels = min(t.tile_channels, t.channels - first_channel);
    const int64_t first_vector = int64_t{tile} * t.tile_vectors + column;
    const int64_t first_line = int64_t{split} * t.lines_at_once + line;
    place = first_line * t.line + first_vector * size;
    const bool is_there = line < t.lines_at_once && first_vector * size < t.line;
    const bool is_longer = split < t.longer;
    const int64_t among = t.step_vectors > 0 ? column : first_line;
    of_all = is_longer ? t.each_of_longer : t.each;
    count = is_there ? of_all + (among < (is_longer ? t.more_of_longer : t.more)) : 0;
    const bool is_last = split == t.splits - 1;
    rows_over = is_last ? static_cast<int>(t.rows_over) : 0;
    first_over = t.lines * t.line;
  }

  // The channels, counted from first_channel, of the elements of each of this thread's vectors.
  template <bool images>
  __device__ void find_channels(int (&found)[size]) const {
    const int element = column * size;  // of the tile's line
    int channel = images ? min(element / run, channels - 1) : element % channels;
    int left = images ? run - element % run : 1;  // elements before the next channel
#pragma unroll
    for (int k = 0; k < size; ++k) {
      found[k] = channel;
      if (--left > 0) continue;
      left = run;
      if (++channel == channels) channel = 0;
    }
  }
};

// The places of a thread's vectors, one after the other, in either direction. Where it `wraps`, a thread may have
// several on a line.
template <bool wraps>
struct Walk {
  int64_t place;  // element
  int vector;     // in the line
  int width, step_vectors;
  int64_t step, wrap;  // elements

  template <int size>
  __device__ Walk(const Tiling& t, const Part<size>& part) {
    place = part.place;
    vector = part.column;
    width = t.tile_vectors;
    step_vectors = t.step_vectors;
    const int64_t next_line = int64_t{t.splits} * t.lines_at_once * t.line;
    step = step_vectors > 0 ? step_vectors * size : next_line;
    wrap = next_line - int64_t{width} * size;
  }
  __device__ void forward() {
    place += step;
    if constexpr (wraps) {
      vector += step_vectors;
      if (vector >= width) {
        vector -= width;
        place += wrap;
      }
    }
  }
  __device__ void back() {
    place -= step;
    if constexpr (wraps) {
      vector -= step_vectors;
      if (vector < 0) {
        vector += width;
        place -= wrap;
      }
    }
  }
  __device__ void back(int times) {
    if (step_vectors == 0) {
      place -= times * step;
    } else {
#pragma unroll 1
      for (int i = 0; i < times; ++i) back();
    }
  }
};
// [/snippet]

// [snippet: ring]
// A thread's vectors on their way: those that it has asked for and not yet used, and those that it used last. Each
// thread reads only what it has put there itself, so that there is no barrier: waiting for its own copies is enough.
// Copies are asked for, and waited for, in batches.
template <class T, int size, int inputs, class Config>
struct Ring {
  static constexpr int batches = Config::batches / inputs;
  static constexpr int batch = Config::batch;  // vectors of each input
  static constexpr int held = batches * batch;
  static constexpr bool holds_all = Config::ring_holds_all;
  using Bits = Vector<T, size>;
  static constexpr size_t bytes_of_thread = sizeof(Bits) * inputs * batches * batch;

  Bits* slots;                         // of this thread; those of a block's threads lie side by side
  uint64_t advice_again, advice_last;  // to the L2 cache: of what will be read again, and of what is for the last time

  static constexpr int apart = batch * inputs * Config::threads;  // from one batch to the next
  __device__ Bits* first_slot() const { return slots; }
  __device__ Bits* last_slot() const { return slots + (batches - 1) * apart; }
  // Of the vectors of a batch.
  __device__ static Bits* in_batch(Bits* of_batch, int i, int input) {
    return of_batch + (i * inputs + input) * Config::threads;
  }
  __device__ static void fetch(Bits* to, const T* from, [[maybe_unused]] uint64_t advice) {
    if constexpr (sizeof(Bits) == 16) {
      copy_vector(reinterpret_cast<uint4*>(to), from, advice);
    } else if constexpr (sizeof(Bits) >= 4) {
      __pipeline_memcpy_async(to, from, sizeof(Bits));
    } else {
      *to = *reinterpret_cast<const Bits*>(from);  // asynchronous copies begin at 4 bytes
    }
  }
  __device__ static void commit() { __pipeline_commit(); }
  // Until no more than the last `batches - 1` are on their way: the oldest has arrived.
  __device__ static void wait_for_oldest() { __pipeline_wait_prior(batches - 1); }
  // What to tell the L2 cache of a part's vectors from the first pass's `vector` on.
  __device__ uint64_t advice_at(int vector, const Part<size>& part) const {
    return !holds_all && vector < part.of_all - held ? advice_again : advice_last;
  }
};
// [/snippet]

// [snippet: split_moments]
// Moments whose mean is in two parts: `pivot`, which lies among the values, and `rest`, the mean of what is left
// without it. A mean of 1e4 in one float is exact to 5e-4; x - pivot is exact, or nearly, where the mean is large.
struct alignas(16) SplitMoments {
  float count;
  float pivot;
  float rest;
  float m2;
};

// Some lanes of a warp, which do something together: every `apart`-th, so that neighbouring lanes are of neighbouring
// teams, and read neighbouring channels.
struct Team {
  int size;  // a power of 2
  int apart;
  int lane;  // this thread's in its team

  // Each value becomes the sum of all lanes'.
  template <class... Values>
  __device__ void add_up(Values&... values) const {
#pragma unroll 1
    for (int distance = size * apart / 2; distance >= apart; distance /= 2) {
      ((values += __shfl_xor_sync(all_lanes, values, distance)), ...);
    }
  }
};

// Chan's formula for any number of sets at once: the means are values whose spread adds to that within the sets.
// part(i) gives the moments of set i. The means are taken relative to that of `near`, the moments of one of the sets:
// what then cancels is at most as many roundings as all sets have values for each of that one's. Sums are taken in an
// order that depends on the shape alone. `together` parts are asked for at a time.
template <int together, class GetPart>
__device__ inline SplitMoments merge(const Team& team, int parts, const SplitMoments& near, GetPart part) {
  float count = 0.0f;
  float sum = 0.0f;
  float squares = 0.0f;
#pragma unroll 1
  for (int first = team.lane; first < parts; first += together * team.size) {
    SplitMoments some[together];
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const int i = first + j * team.size;
      some[j] = i < parts ? part(i) : SplitMoments{0.0f, near.pivot, near.rest, 0.0f};
    }
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const SplitMoments& m = some[j];
      const float off = (m.pivot - near.pivot) + (m.rest - near.rest);
      count += m.count;
      sum = fmaf(m.count, off, sum);
      squares += fmaf(m.count * off, off, m.m2);
    }
  }
  team.add_up(count, sum, squares);
  const float mean = count > 0.0f ? sum / count : 0.0f;
  const float m2 = squares - sum * mean;
  return {count, near.pivot, near.rest + mean, m2 < 0.0f ? 0.0f : m2};  // a NaN stays
}
// [/snippet]

// A sum of thousands of values, one after the other, rounds each of them to fit the large sum. A sum of short sums does
// so with few: those that a fold() adds.
struct RunningSum {
  float lately;  // the values since the last fold()
  float before;

  __device__ void fold() {
    before += lately;
    lately = 0.0f;
  }
  __device__ float all() const { return before + lately; }
};

// Asks for what is needed later. `from` may be null.
template <class V>
__device__ inline void prefetch([[maybe_unused]] const V* from, [[maybe_unused]] int i) {
#if defined(__CUDA_ARCH__)
  if (from) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
#endif
}

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

  // What is given of a channel: asked for early, for it is needed where everyone waits.
  struct Given {
    G gamma, beta;
  };
  __device__ Given given(int channel) const {
    prefetch(p.running_mean, channel);
    prefetch(p.running_var, channel);
    return {p.gamma ? p.gamma[channel] : static_cast<G>(1.0f), p.beta ? p.beta[channel] : static_cast<G>(0.0f)};
  }

  // One thread's sums for one channel, of differences from a pivot: the middle of the first two values that it meets.
  // It lies among the values that the variance is of, so that the variance cannot be small against its distance from
  // the mean, and what cancels is at most as many roundings as the thread has values. A pivot z standard deviations
  // from the mean makes the sum of squares 1 + z^2 times as large as it need be, and its roundings; of 50000 channels
  // one has a first value with z = 4.2, where the middle of two has 3.
  struct Sums {
    float pivot;
    RunningSum sum, squares;

    __device__ void fold() {
      sum.fold();
      squares.fold();
    }
  };
  __device__ Sums start(int, float x, float next, float scale) const {
    return {0.5f * (x * scale) + 0.5f * (next * scale), {}, {}};
  }
  __device__ void add(Sums& sums, float x, float, float scale) const {
    const float d = fmaf(x, scale, -sums.pivot);
    sums.sum.lately += d;
    sums.squares.lately = fmaf(d, d, sums.squares.lately);
  }

  using Partial = SplitMoments;  // of a thread
  __device__ Partial partial(const Sums& sums, int count, int, float) const {
    if (count == 0) return {};
    const float n = static_cast<float>(count);
    const float sum = sums.sum.all();
    const float rest = sum * (1.0f / n);  // one division for all of a vector's elements
    const float m2 = sums.squares.all() - sum * rest;
    return {n, sums.pivot, rest, m2 < 0.0f ? 0.0f : m2};
  }
  __device__ Partial partial_of_element(int64_t i, int, float scale) const {
    return {1.0f, to_float(p.x[i]) * scale, 0.0f, 0.0f};
  }
  template <class GetPart>
  __device__ Partial merged(const Team& team, int parts, GetPart part) const {
    return merge<4>(team, parts, part(0), part);
  }
  // The first `count` of one thread's own elements.
  template <int size>
  __device__ Partial merged(const Partial (&own)[size], int count) const {
    if (count == 0) return {};
    Partial all = own[0];
#pragma unroll
    for (int k = 1; k < size; ++k) {
      if (k >= count) break;
      const float off = (own[k].pivot - all.pivot) + (own[k].rest - all.rest);
      const float share = 1.0f / static_cast<float>(k + 1);  // all have as many values
      all.m2 += own[k].m2 + off * off * (own[k].count * (1.0f - share));
      all.rest += off * share;
      all.count += own[k].count;
    }
    return all;
  }
  __device__ bool overflowed(const Partial& partial) const {
    return !isfinite(partial.m2);
  }

  // Of a block, for the others: its moments; those of x * small_scale have their count negative.
  using Shared = SplitMoments;
  __device__ Shared share(const Partial& all, float scale) const {
    return {scale == 1.0f ? all.count : -all.count, all.pivot, all.rest, all.m2};
  }
  // Of x, where its squares have not overflowed.
  __device__ SplitMoments unscaled(const Shared& s) const {
    return {fabsf(s.count), s.pivot, s.rest, s.count < 0.0f ? infinity : s.m2};
  }
  __device__ SplitMoments scaled(const Shared& s) const {
    const float by = s.count < 0.0f ? 1.0f : small_scale;
    return {fabsf(s.count), s.pivot * by, s.rest * by, s.m2 * by * by};
  }

  // Those of several blocks, or of several GPUs, together. `near` is one of them that is not empty.
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, const Shared& near, GetShared shared) const {
    const auto part = [&](int i) { return unscaled(shared(i)); };
    const SplitMoments all =
        parts <= team.size ? merge<1>(team, parts, unscaled(near), part) : merge<8>(team, parts, unscaled(near), part);
    if (!__any_sync(all_lanes, overflowed(all))) return share(all, 1.0f);  // a warp's lanes shuffle together
    const SplitMoments small = merge<1>(team, parts, scaled(near), [&](int i) { return scaled(shared(i)); });
    return overflowed(all) ? share(small, small_scale) : share(all, 1.0f);
  }
  __device__ bool is_empty(const Shared& shared) const {
    return shared.count == 0.0f;
  }

  // What y needs to know of a channel. `writes`: and what is kept of it is written.
  struct alignas(16) Channel {
    float center, factor, offset, scale;
  };
  __device__ Channel finish(const Shared& all, const Given& given) const {
    const float scale = all.count < 0.0f ? small_scale : 1.0f;
    const float factor = invstd_of(all) * to_float(given.gamma);
    return {all.pivot, factor, fmaf(-all.rest, factor, to_float(given.beta)), scale};
  }
  // What the batches before have left.
  struct Past {
    float mean, variance;
  };
  __device__ Past past(int channel) const {
    return {p.running_mean ? p.running_mean[channel] : 0.0f, p.running_var ? p.running_var[channel] : 0.0f};
  }
  // And what is kept of the channel, as in write_statistics().
  __device__ void write(const Shared& all, int channel, const Past& past) const {
    constexpr float up = 1.0f / small_scale;
    const bool scaled = all.count < 0.0f;
    const float by = scaled ? up : 1.0f;
    const float mean = (all.pivot + all.rest) * by;
    const float variance = all.m2 * by * by / (fabsf(all.count) - 1.0f);
    p.save_mean[channel] = mean;
    p.save_invstd[channel] = invstd_of(all) * (scaled ? small_scale : 1.0f);
    if (p.running_mean) p.running_mean[channel] = past.mean + p.momentum * (mean - past.mean);
    if (p.running_var) p.running_var[channel] = past.variance + p.momentum * (variance - past.variance);
  }
  // Of x * scale. Scaled down, eps counts only where the variance is nothing.
  __device__ float invstd_of(const Shared& all) const {
    const float variance = all.m2 / fabsf(all.count);
    if (all.count > 0.0f) return rsqrtf(variance + p.eps);
    return variance == 0.0f ? rsqrtf(p.eps) * (1.0f / small_scale) : rsqrtf(variance);
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

  struct Given {
    float mean, invstd;
    G gamma;
  };
  __device__ Given given(int channel) const {
    return {p.save_mean[channel], p.save_invstd[channel], p.gamma ? p.gamma[channel] : static_cast<G>(1.0f)};
  }

  struct Sums {
    float mean;
    RunningSum dy, dy_centered;

    __device__ void fold() {
      dy.fold();
      dy_centered.fold();
    }
  };
  __device__ Sums start(int channel, float, float, float) const { return {p.save_mean[channel], {}, {}}; }
  __device__ void add(Sums& sums, float dy, float x, float scale) const {
    sums.dy.lately += dy;
    sums.dy_centered.lately = fmaf(dy, (x - sums.mean) * scale, sums.dy_centered.lately);
  }

  struct Partial {
    float dy, dy_xhat;
  };
  __device__ Partial partial(const Sums& sums, int, int channel, float scale) const {
    const float to_xhat = p.save_invstd[channel] * (scale == 1.0f ? 1.0f : 1.0f / small_scale);
    return {sums.dy.all(), sums.dy_centered.all() * to_xhat};
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
    team.add_up(all.dy, all.dy_xhat);
    return all;
  }
  template <int size>
  __device__ Partial merged(const Partial (&own)[size], int count) const {
    Partial all = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < size; ++k) {
      if (k < count) all = {all.dy + own[k].dy, all.dy_xhat + own[k].dy_xhat};
    }
    return all;
  }
  __device__ bool overflowed(const Partial& partial) const {
    return !isfinite(partial.dy_xhat);
  }

  using Shared = Partial;
  __device__ Shared share(const Partial& all, float) const {
    return all;
  }
  template <class GetShared>
  __device__ Shared combined(const Team& team, int parts, const Shared&, GetShared shared) const {
    return merged(team, parts, shared);
  }
  __device__ bool is_empty(const Shared&) const {
    return false;
  }

  struct alignas(16) Channel {
    float mean, slope, dy_mean, factor;
  };
  __device__ Channel finish(const Shared& all, const Given& given) const {
    return {given.mean, all.dy_xhat / count * given.invstd, all.dy / count, to_float(given.gamma) * given.invstd};
  }
  struct Past {};
  __device__ Past past(int) const {
    return {};
  }
  __device__ void write(const Shared& all, int channel, const Past&) const {
    if (p.dgamma) p.dgamma[channel] = static_cast<G>(all.dy_xhat);
    if (p.dbeta) p.dbeta[channel] = static_cast<G>(all.dy);
  }
  __device__ float result(float dy, float x, const Channel& c) const {
    return c.factor * fmaf(c.mean - x, c.slope, dy - c.dy_mean);
  }
};
// [/snippet]

// [snippet: read_forwards]
// Asks for vector `i` of a batch, and goes on to the next.
template <class Ring, class Steps, class Walk>
__device__ inline void fetch_forwards(const Ring& ring, const Steps& steps, Walk& walk, typename Ring::Bits* slot,
                                      int i, uint64_t advice) {
#pragma unroll
  for (int input = 0; input < Steps::inputs; ++input) {
    ring.fetch(ring.in_batch(slot, i, input), steps.input(input) + walk.place, advice);
  }
  walk.forward();
}

// Asks for a thread's first vectors: as many as the ring has room for.
template <class Ring, class Steps, int size, class Walk>
__device__ inline void fill_ring(const Ring& ring, const Steps& steps, const Part<size>& part, Walk& walk) {
  constexpr int batch = Ring::batch;
  typename Ring::Bits* slot = ring.first_slot();
#pragma unroll 1
  for (int asked = 0; asked < Ring::held; asked += batch, slot += Ring::apart) {
    const uint64_t advice = ring.advice_at(asked, part);
    if (asked < part.count) {
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (asked + i < part.count) fetch_forwards(ring, steps, walk, slot, i, advice);
      }
    }
    ring.commit();  // also where there was nothing to ask for: the batches are counted
  }
}

// A thread's sums over its vectors, one for each element of a vector. The ring has been filled. Moves `walk` to the
// place after its last vector, and returns the last batch in the ring. As long as every thread has vectors to use and
// to ask for, nothing is asked for each of them.
template <class Ring, class Steps, int size, class Walk>
__device__ inline typename Ring::Bits* read_forwards(const Ring& ring, const Steps& steps, const Part<size>& part,
                                                     Walk& walk, const int (&channels)[size], float scale,
                                                     typename Steps::Sums (&sums)[size]) {
  using Bits = typename Ring::Bits;
  constexpr int batch = Ring::batch;
  constexpr int held = Ring::held;
  const auto fetch = [&](Bits* slot, int i, uint64_t advice) { fetch_forwards(ring, steps, walk, slot, i, advice); };
  const auto add = [&](Bits* slot, int i) {
    float first[size], second[size];
    unpack(*ring.in_batch(slot, i, 0), first);
    unpack(*ring.in_batch(slot, i, Steps::inputs - 1), second);
#pragma unroll
    for (int k = 0; k < size; ++k) steps.add(sums[k], first[k], second[k], scale);
  };
  const auto fold = [&] {
#pragma unroll
    for (int k = 0; k < size; ++k) sums[k].fold();
  };

  Bits* slot = ring.first_slot();
  if (part.count > 0) {
    float first[size], next[size];
    __pipeline_wait_prior(Ring::batches - 1 - 1 / batch);  // the second vector, too
    unpack(*slot, first);
    unpack(*(part.count > 1 ? ring.in_batch(slot, 1, 0) : slot), next);
#pragma unroll
    for (int k = 0; k < size; ++k) {
      sums[k] = steps.start(part.first_channel + channels[k], first[k], next[k], scale);
    }
  }
  int done = 0;
#pragma unroll 1
  for (; !Ring::holds_all && part.count > 0 && done + 2 * held <= part.of_all; done += held) {
#pragma unroll 1
    for (int b = 0; b < Ring::batches; ++b, slot += Ring::apart) {
      const uint64_t advice = ring.advice_at(done + held + b * batch, part);
      ring.wait_for_oldest();
#pragma unroll
      for (int i = 0; i < batch; ++i) add(slot, i);
#pragma unroll
      for (int i = 0; i < batch; ++i) fetch(slot, i, advice);
      ring.commit();
    }
    slot = ring.first_slot();
    fold();
  }
  int asked = done + held;
  Bits* last = slot;
#pragma unroll 1
  for (; done < part.count; done += batch) {
    ring.wait_for_oldest();
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (done + i < part.count) add(slot, i);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i, ++asked) {
      if (!Ring::holds_all && asked < part.count) fetch(slot, i, ring.advice_last);
    }
    ring.commit();
    last = slot;
    slot += Ring::apart;
    if (!Ring::holds_all && last == ring.last_slot()) {
      slot = ring.first_slot();
      fold();
    }
  }
  return last;
}
// [/snippet]

// [snippet: write_backwards]
// A thread's first vectors, in registers: asked for when the first pass has ended, they are on their way while blocks
// merge and wait for each other. The second pass ends with them.
template <class Ring, class Steps, int size, int vectors>
struct Ahead {
  typename Ring::Bits read[vectors][Steps::inputs];
  bool is_there;  // not where the ring holds all or nearly all

  template <class Walk>
  __device__ void ask(const Ring& ring, const Steps& steps, Walk walk) {
    if (!is_there) return;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
#pragma unroll
      for (int input = 0; input < Steps::inputs; ++input) {
        read[i][input] = read_vector<typename Ring::Bits>(steps.input(input) + walk.place, ring.advice_last);
      }
      walk.forward();
    }
  }
};

template <class Steps, class Bits, int size>
__device__ inline void write_vector(const Steps& steps, int64_t place, const Bits& one, const Bits& other,
                                    const typename Steps::Channel (&channel)[size]) {
  float first[size], second[size], results[size];
  unpack(one, first);
  unpack(other, second);
#pragma unroll
  for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], channel[k]);
  store_streaming(steps.output() + place, pack<typename Steps::T>(results));
}

// y, from the last vector to the first: the ring still holds the last ones. `writing` is the place after the last,
// `slot` the last batch in the ring.
template <class Ring, class Steps, int size, int vectors, class Walk>
__device__ inline void write_backwards(const Ring& ring, const Steps& steps, const Part<size>& part, Walk writing,
                                       typename Ring::Bits* slot, const typename Steps::Channel (&channel)[size],
                                       const Ahead<Ring, Steps, size, vectors>& ahead) {
  constexpr int batch = Ring::batch;
  constexpr int held = Ring::held;
  const int end = ahead.is_there ? vectors : 0;
  int left = (part.count + batch - 1) / batch * batch;  // vectors; the last batch may have fewer
  writing.back();
  Walk fetching = writing;
  if (left > held) fetching.back(part.count - (left - held));
#pragma unroll 1
  while (left > end) {
    if constexpr (!Ring::holds_all) ring.wait_for_oldest();
    const bool is_whole = left <= part.count;
#pragma unroll
    for (int i = batch - 1; i >= 0; --i) {
      if (!is_whole && left - batch + i >= part.count) continue;
      write_vector(steps, writing.place, *ring.in_batch(slot, i, 0), *ring.in_batch(slot, i, Steps::inputs - 1),
                   channel);
      writing.back();
    }
    left -= batch;
    if (!Ring::holds_all && left - held >= end) {
#pragma unroll
      for (int i = batch - 1; i >= 0; --i) {
#pragma unroll
        for (int input = 0; input < Steps::inputs; ++input) {
          ring.fetch(ring.in_batch(slot, i, input), steps.input(input) + fetching.place, ring.advice_last);
        }
        fetching.back();
      }
    }
    if constexpr (!Ring::holds_all) ring.commit();
    slot = slot == ring.first_slot() ? ring.last_slot() : slot - Ring::apart;
  }
  if (!ahead.is_there) return;
#pragma unroll
  for (int i = vectors - 1; i >= 0; --i) {
    write_vector(steps, writing.place, ahead.read[i][0], ahead.read[i][Steps::inputs - 1], channel);
    writing.back();
  }
}
// [/snippet]

// [snippet: merge_block]
// Leaves a thread's partials for its block: partial k of thread t at [k * (threads + 1) + t], so that neighbouring
// channels are in different banks. Where a vector has one or two channels, it has them added up first.
template <int threads, bool images, class Steps, int size>
__device__ inline void keep_partials(const Steps& steps, int kept, const int (&channels)[size],
                                     const typename Steps::Partial (&mine)[size], typename Steps::Partial* partials) {
  typename Steps::Partial* const of_thread = partials + threadIdx.x;
  if (!images || kept == size) {
#pragma unroll
    for (int k = 0; k < size; ++k) of_thread[k * (threads + 1)] = mine[k];
    return;
  }
  int of_first = 0;  // elements of the vector's first channel
  typename Steps::Partial reversed[size];
#pragma unroll
  for (int k = 0; k < size; ++k) {
    of_first += channels[k] == channels[0];
    reversed[k] = mine[size - 1 - k];
  }
  of_thread[0] = steps.merged(mine, of_first);
  if (kept == 2) of_thread[threads + 1] = steps.merged(reversed, size - of_first);
}

// What the block has found of one channel, from what its threads have left. All lanes of a warp call this.
template <int threads, bool images, class Steps, int size>
__device__ inline typename Steps::Partial merge_block(const Steps& steps, const Tiling& tiling, const Part<size>& part,
                                                      const typename Steps::Partial* partials, const Team& team,
                                                      int channel, float scale) {
  using Partial = typename Steps::Partial;
  const int run = images ? part.run : 1;
  const int apart = images ? 1 : part.channels;  // on a line, from one of the channel's partials to the next
  const bool whole_vectors = images && tiling.kept < size;
  const int first = whole_vectors ? channel * run / size : channel * run;
  const auto get = [&](int i) -> Partial {
    const int line = tiling.parts_of_line == 1 ? i : i / tiling.parts_of_line;
    const int column = first + (i - line * tiling.parts_of_line) * apart;
    if (!whole_vectors) return partials[column % size * (threads + 1) + line * tiling.columns + column / size];
    if (column * size >= (channel + 1) * run) return {};  // some channels reach into one vector fewer
    const int k = column * size < channel * run ? 1 : 0;
    return partials[k * (threads + 1) + line * tiling.columns + column];
  };
  const Partial all = steps.merged(team, tiling.parts, get);
  if (images || part.rows_over == 0) return all;
  const int before = tiling.parts > 0 ? 1 : 0;
  return steps.merged(team, before + part.rows_over, [&](int i) {
    if (i < before) return all;
    const int64_t place = part.first_over + int64_t{i - before} * part.channels + channel;
    return steps.partial_of_element(place, part.first_channel + channel, scale);
  });
}
// [/snippet]

// [snippet: kernel]
// `images`: neighbouring elements are of one channel.
template <class Steps, int size, bool images, class Config, class Ring>
__device__ inline void normalize_tile(const Steps& steps, const Tiling& tiling, int tile, const Ring& ring,
                                      unsigned char* exchange) {
  using Partial = typename Steps::Partial;
  using Shared = typename Steps::Shared;
  using Channel = typename Steps::Channel;
  const int thread = static_cast<int>(threadIdx.x);
  const int split = static_cast<int>(blockIdx.y);
  using Walk = Walk<images>;
  const Part<size> part(tiling, tile, split);
  Walk walk(tiling, part);
  wait_for_previous_kernel();
  if constexpr (Ring::holds_all) fill_ring(ring, steps, part, walk);
  int my_channels[size];
  part.template find_channels<images>(my_channels);

  // This thread's team, and its channel. A team without a channel goes along with the first one's, but for a warp that
  // has none at all.
  const int teams = lanes >> tiling.team_bits;  // of a warp
  const int lane = thread % lanes;
  const Team team = {1 << tiling.team_bits, teams, lane >> (5 - tiling.team_bits)};
  const int of_team = thread / lanes * teams + (lane & (teams - 1));
  const int channel = of_team < part.channels ? of_team : 0;
  const bool writes = of_team < part.channels && team.lane == 0;
  const bool merges = thread / lanes * teams < part.channels;  // this warp
  const typename Steps::Given given = steps.given(part.first_channel + channel);

  // Once, and once more for the channels that have overflowed.
  typename Ring::Bits* last = nullptr;
  // Of two tensors, half as many vectors fit in the registers, and nothing was gained, as measured.
  constexpr bool reads_ahead = Steps::inputs == 1 && !Ring::holds_all;
  static_assert(Config::ahead % Ring::batch == 0);
  Ahead<Ring, Steps, size, Config::ahead> ahead;
  ahead.is_there = reads_ahead && steps.output() && part.count >= Ring::held + Config::ahead + Ring::batch;
  Shared found = {};
#pragma unroll 1
  for (float scale = 1.0f;; scale = small_scale) {
    typename Steps::Sums sums[size] = {};
    if constexpr (!Ring::holds_all) {
      walk = Walk(tiling, part);
      fill_ring(ring, steps, part, walk);
    }
    last = read_forwards(ring, steps, part, walk, my_channels, scale, sums);
    if (scale == 1.0f) ahead.ask(ring, steps, Walk(tiling, part));
    Partial* const partials = reinterpret_cast<Partial*>(exchange);
    Partial mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) {
      mine[k] = steps.partial(sums[k], part.count, part.first_channel + my_channels[k], scale);
    }
    keep_partials<Config::threads, images>(steps, tiling.kept, my_channels, mine, partials);
    __syncthreads();
    Partial merged = {};
    if (merges) merged = merge_block<Config::threads, images>(steps, tiling, part, partials, team, channel, scale);
    if (scale == 1.0f || steps.overflowed(found)) found = steps.share(merged, scale);
    if (!__syncthreads_or(steps.overflowed(merged)) || scale != 1.0f) break;
  }

  // What all blocks of the tile have found, each merges for itself: that costs less than to wait for each other again.
  if (tiling.splits > 1) {
    Shared* const all =
        reinterpret_cast<Shared*>(steps.p.workspace) + int64_t{tile} * tiling.splits * tiling.tile_channels + channel;
    if (writes) all[split * tiling.tile_channels] = found;
    cooperative_groups::this_grid().sync();
    if (merges) {
      found = steps.combined(team, tiling.splits, all[0], [&](int i) { return all[i * tiling.tile_channels]; });
    }
  }
  let_next_kernel_start();
  Channel* const channels = reinterpret_cast<Channel*>(exchange);
  const Channel done = steps.finish(found, given);
  if (writes) channels[channel] = done;
  __syncthreads();

  const bool keeps = writes && split == 0;
  typename Steps::Past past = {};
  if (Ring::holds_all && keeps) past = steps.past(part.first_channel + channel);
  if (steps.output()) {
    Channel mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) mine[k] = channels[my_channels[k]];
    write_backwards(ring, steps, part, walk, last, mine, ahead);
    for (int i = thread; i < part.rows_over * part.channels; i += Config::threads) {
      const int64_t place = part.first_over + i;
      const float result = steps.result(to_float(steps.input(0)[place]),
                                        to_float(steps.input(Steps::inputs - 1)[place]), channels[i % part.channels]);
      steps.output()[place] = static_cast<typename Steps::T>(result);
    }
  }
  if (!Ring::holds_all && keeps) past = steps.past(part.first_channel + channel);  // had no register to wait in
  if (keeps) steps.write(found, part.first_channel + channel, past);
}

template <class Steps, int size, bool images, class Config>
__global__ void __launch_bounds__(Config::threads, 1) normalize_channels(Steps steps, Tiling tiling) {
  using Ring = Ring<typename Steps::T, size, Steps::inputs, Config>;
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const Ring ring = {reinterpret_cast<typename Ring::Bits*>(memory) + threadIdx.x, advice_of(tiling.leaves),
                     advice_of(tiling.leaves_at_last)};
  unsigned char* const exchange = memory + Ring::bytes_of_thread * Config::threads;
  if constexpr (Ring::holds_all) {
    normalize_tile<Steps, size, images, Config>(steps, tiling, blockIdx.x, ring, exchange);
  } else {
    for (int tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
      normalize_tile<Steps, size, images, Config>(steps, tiling, tile, ring, exchange);
      __syncthreads();  // all have read what the next tile overwrites
    }
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

inline int run_of(const Shape& s) {
  return s.layout == ChannelLayout::channels_first ? static_cast<int>(s.pixels) : 1;
}

// How `threads` threads stand on the tiles of `t`.
inline void place_threads(Tiling& t, int size, int threads) {
  const bool is_wide = t.tile_vectors > threads;
  t.columns = is_wide ? threads : t.tile_vectors;
  t.step_vectors = is_wide ? threads : 0;
  // As many lines as fit, or a few less, where every split is to have its turn as often as the others.
  const int64_t fit = is_wide ? 1 : threads / t.tile_vectors;
  const int64_t lines_of_split = (t.lines + t.splits - 1) / t.splits;
  const int64_t turns = std::max<int64_t>(1, (lines_of_split + fit - 1) / fit);
  t.lines_at_once = static_cast<int>(std::max<int64_t>(1, (lines_of_split + turns - 1) / turns));
  const auto share_out = [](int64_t things, int64_t among, int& each, int& more) {
    each = static_cast<int>(things / among);
    more = static_cast<int>(things % among);
  };
  if (is_wide) {
    const int64_t lines = t.lines / t.splits;
    t.longer = static_cast<int>(t.lines % t.splits);
    share_out(lines * t.tile_vectors, threads, t.each, t.more);
    share_out((lines + 1) * t.tile_vectors, threads, t.each_of_longer, t.more_of_longer);
  } else {
    t.longer = 0;
    share_out(t.lines, int64_t{t.splits} * t.lines_at_once, t.each, t.more);
  }
  t.kept = t.run % size == 0 ? 1 : t.run > size ? 2 : size;
  t.parts_of_line = t.kept == size ? t.columns * size / t.tile_channels
                    : t.kept == 1  ? t.columns / t.tile_channels
                                   : (t.run - 1 + size - std::gcd(t.run, size)) / size + 1;
  t.parts = t.parts_of_line * static_cast<int>(std::min<int64_t>(t.lines_at_once, t.lines));
  t.team_bits = 0;
  while (t.team_bits < 5 && (t.tile_channels << (t.team_bits + 1)) <= threads) ++t.team_bits;
}

// Cuts a tensor whose vectors are `size` elements into tiles for `blocks` blocks of `threads` threads. Returns no tiles
// where a vector would hold what no tile can: then the elements are to be moved one by one.
// `room` bounds the splits: for so many channels can blocks leave what they have found. `in_cache`: the L2 cache holds
// all that is read and written.
inline Tiling tiling_of(const Shape& s, int size, int64_t blocks, int threads, int64_t room, bool in_cache) {
  const int64_t rows = s.samples * s.pixels;
  Tiling t = {};
  t.channels = static_cast<int>(s.channels);
  t.run = run_of(s);
  const bool runs = t.run > 1;

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
  if (!fits || unit_channels > threads) return t;

  // In vectors, as measured: what a round of tiles costs beside its work, what it costs that blocks wait for each
  // other, and that they read what they tell each other. Pieces of a few bytes cost memory more than their bytes, but
  // a tile that no other block shares is worth it where it is small. A piece that ends within a sector, the 32 bytes
  // that memory moves as one, has that sector read by two blocks, and written by each in part, which costs much more.
  constexpr int64_t overhead = 3000;
  constexpr int64_t waiting = 2500;
  constexpr int64_t cut_sector = 10;
  // Blocks that share a tile have a wide one, where memory is what they wait for. In the cache a narrow piece costs
  // little, and of a narrow tile fewer blocks tell each other of fewer channels. The narrowest piece is half a sector:
  // two blocks fetch each. Few blocks may; where most multiprocessors do, the cache has to hand out everything twice.
  const int64_t least_width = size == 1 ? 128 : in_cache ? 4 : 16;
  const auto handicap = [in_cache, blocks](int64_t width, int64_t tiles) {  // in 32nds
    if (width == 1) return in_cache && 2 * tiles <= blocks ? 96 : 160;
    return width >= 16 ? 32 : width >= 8 ? 33 : width >= 4 ? 48 : 64;
  };
  const int64_t mean = t.lines * t.line / size / blocks;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t of_tile = 1; of_tile <= units; ++of_tile) {
    const int64_t width = of_tile * unit_vectors;
    if (of_tile > 1 && (width > most_vectors || of_tile * unit_channels > threads)) break;
    const bool is_narrow = of_tile < units && width < least_width && (of_tile + 1) * unit_vectors <= most_vectors;
    const int64_t tiles = (units + of_tile - 1) / of_tile;
    const int64_t fit = room / (tiles * of_tile * unit_channels);
    const int64_t most_splits = std::max<int64_t>(1, std::min({blocks / tiles, t.lines, fit}));
    for (const int64_t wanted : {int64_t{1}, is_narrow ? 1 : most_splits}) {
      const int64_t lines = std::max<int64_t>(1, (t.lines + wanted - 1) / wanted);
      const int64_t splits = std::max<int64_t>(1, (t.lines + lines - 1) / lines);
      const int64_t rounds = (tiles * splits + blocks - 1) / blocks;
      const int64_t together = splits > 1 ? waiting + splits * of_tile * unit_channels / 4 : 0;
      const int64_t cut = size > 1 && !in_cache && of_tile < units && width % 2 != 0 ? cut_sector : 0;
      const int64_t of_block = rounds * lines * (width * handicap(width, tiles) + cut * 32) / 32;
      // Memory is shared: where one block has more to do than others, only half of that is lost.
      const int64_t work = (of_block + std::min(of_block, mean)) / 2 + rounds * overhead + together;
      if (work >= least) continue;
      least = work;
      t.tile_channels = static_cast<int>(of_tile * unit_channels);
      t.tile_vectors = static_cast<int>(width);
      t.tiles = static_cast<int>(tiles);
      t.splits = static_cast<int>(splits);
    }
  }
  place_threads(t, size, threads);
  return t;
}
// [/snippet]

// [snippet: launch]
// Threads of a block, vectors of a thread in its ring, and vectors that it reads ahead. The large one fills the 227 KiB
// of shared memory of a Hopper multiprocessor with one block; the small one fits wherever CUDA runs.
template <int threads_, int batches_, int batch_, int ahead_>
struct Config {
  static constexpr int threads = threads_;
  static constexpr int batches = batches_;
  static constexpr int batch = batch_;
  static constexpr int ahead = ahead_;
  static constexpr bool ring_holds_all = false;
};
// Where no thread has more vectors than the ring has room for, nothing is asked for twice: a shorter program. Most of
// it runs once, in all warps alike: so it has half as many, and each thread has twice the room.
template <class C>
struct Once : Config<C::threads / 2, C::batches, 2 * C::batch, C::ahead> {
  static constexpr bool ring_holds_all = true;
};
using LargeConfig = Config<512, 10, 2, 8>;
using SmallConfig = Config<256, 4, 1, 2>;

// As measured: of what is up to so many times the L2 cache, more is hit if the last readings make room; of more, reads
// and writes hinder each other less if y leaves first, as in stage 05.
inline constexpr int caches_to_hit = 4;

// Launches one program. Returns false where the tensor cannot be cut for it, or where its rings are to hold all and do
// not.
template <int size, bool images, class Config, class Steps>
bool launch_program(const Steps& steps, cudaStream_t stream) {
  using Ring = Ring<typename Steps::T, size, Steps::inputs, Config>;
  constexpr size_t exchanged = std::max(size * sizeof(typename Steps::Partial) * (Config::threads + 1),
                                        sizeof(typename Steps::Channel) * Config::threads);
  constexpr size_t bytes = Config::threads * Ring::bytes_of_thread + exchanged;
  const auto kernel = normalize_channels<Steps, size, images, Config>;
  const int64_t blocks = blocks_at_once(kernel, Config::threads, bytes);
  constexpr int64_t room = batchnorm_workspace / int64_t{sizeof(typename Steps::Shared) / sizeof(float)};
  const Shape shape = shape_of(steps.p);
  const int64_t bytes_of_tensor = shape.samples * shape.channels * shape.pixels * int64_t{sizeof(typename Steps::T)};
  const bool in_cache = (Steps::inputs + 1) * bytes_of_tensor <= device_attribute(cudaDevAttrL2CacheSize);
  Tiling tiling = tiling_of(shape, size, blocks, Config::threads, room, in_cache);
  if (tiling.tiles == 0) return false;
  if (Ring::holds_all && std::max(tiling.each, tiling.each_of_longer) >= Ring::held) return false;
  tiling.leaves = leaves_of(bytes_of_tensor * Steps::inputs, caches_to_hit);
  // Nothing need make room where the rings hold all: what is in the cache may stay, for whoever reads it next.
  const bool makes_room = tiling.leaves == Leaves::in_turn && !(Ring::holds_all && in_cache);
  tiling.leaves_at_last = makes_room ? Leaves::first : tiling.leaves;
  const int64_t side_by_side = Ring::holds_all ? tiling.tiles : std::min<int64_t>(tiling.tiles, blocks);
  const bool waits = tiling.splits > 1;
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(side_by_side), static_cast<unsigned>(tiling.splits)),
          .block = Config::threads,
          .shared_bytes = bytes,
          .cooperative = waits,
          .overlap = Ring::holds_all && !waits,
          .stream = stream},
         steps, tiling);
  return true;
}

template <int size, bool images, class Config, class Steps>
bool launch_tiles(const Steps& steps, cudaStream_t stream) {
  return launch_program<size, images, Once<Config>>(steps, stream) ||
         launch_program<size, images, Config>(steps, stream);
}

inline bool is_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

template <bool images, class Config, class Steps>
void normalize_as(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (aligned && launch_tiles<vector_size<typename Steps::T>, images, Config>(steps, stream)) return;
  launch_tiles<1, images, Config>(steps, stream);
}

template <class Config, class Steps>
void normalize_with(const Steps& steps, bool aligned, cudaStream_t stream) {
  if (run_of(shape_of(steps.p)) > 1) {
    normalize_as<true, Config>(steps, aligned, stream);
  } else {
    normalize_as<false, Config>(steps, aligned, stream);
  }
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
// How the channels of a vector's elements stand to each other: they follow each other and may be read as vectors, or
// they are two at most, that of the first and that of the last element, or neither.
enum class Neighbors { in_a_row, two, any };

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
  __device__ float result(float x, float, const Channel& c) const { return fmaf(x, c.factor, c.offset); }

  template <int size>
  __device__ void read_channels(const int (&channels)[size], Neighbors neighbors, Channel (&known)[size]) const {
    if (size > 2 && neighbors == Neighbors::two) {
      const int ends[2] = {channels[0], channels[size - 1]};
      Channel of_end[2];
      read_each<false>(ends, of_end);
#pragma unroll
      for (int k = 0; k < size; ++k) known[k] = channels[k] == ends[0] ? of_end[0] : of_end[1];
    } else if (neighbors == Neighbors::in_a_row) {
      read_each<true>(channels, known);
    } else {
      read_each<false>(channels, known);
    }
  }

 private:
  template <bool in_a_row, int size>
  __device__ void read_each(const int (&channels)[size], Channel (&known)[size]) const {
    float gamma[size], beta[size], mean[size], variance[size];
    read_values<in_a_row>(p.gamma, 1.0f, channels, gamma);
    read_values<in_a_row>(p.beta, 0.0f, channels, beta);
    read_values<in_a_row>(p.running_mean, 0.0f, channels, mean);
    read_values<in_a_row>(p.running_var, 1.0f, channels, variance);
#pragma unroll
    for (int k = 0; k < size; ++k) {
      const float factor = gamma[k] * rsqrtf(variance[k] + p.eps);
      known[k] = {factor, fmaf(-mean[k], factor, beta[k])};
    }
  }
  template <bool in_a_row, class V, int size>
  __device__ static void read_values(const V* from, float otherwise, const int (&channels)[size],
                                     float (&values)[size]) {
    constexpr int together = size < static_cast<int>(vector_size<V>) ? size : static_cast<int>(vector_size<V>);
    if (!from) {
#pragma unroll
      for (int k = 0; k < size; ++k) values[k] = otherwise;
    } else if constexpr (in_a_row) {
#pragma unroll
      for (int first = 0; first < size; first += together) {
        const auto some = *reinterpret_cast<const Vector<V, together>*>(from + channels[0] + first);
#pragma unroll
        for (int k = 0; k < together; ++k) values[first + k] = to_float(some.at[k]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < size; ++k) values[k] = to_float(from[channels[k]]);
    }
  }
};

// Divides by what the host knows: a multiplication and a shift, where a division is some twenty instructions, each of
// which waits for the one before. Of what is below 2^31, by what is.
struct Divisor {
  int64_t by;
  uint32_t factor;  // 2^shift / by, rounded up: too large by less than 1 part in 2^31
  int shift;

  Divisor() : Divisor(1) {}
  explicit Divisor(int64_t by) : by(by), shift(31) {
    while (shift < 62 && int64_t{1} << (shift - 31) < by) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + by - 1) / by);
  }
  static constexpr int64_t end = int64_t{1} << 31;
  __device__ uint32_t quotient(uint32_t of) const { return static_cast<uint32_t>((uint64_t{of} * factor) >> shift); }
  __device__ int64_t quotient(int64_t of) const { return of / by; }  // of any number
  template <class Index>
  __device__ Index remainder(Index of) const {
    return of - quotient(of) * static_cast<Index>(by);
  }
};

// A tensor as vectors one after the other. Those of a thread are whole lines apart, so that they have the same
// channels: `apart` threads side by side have as many stretches of `apart` vectors as each of them has vectors.
struct Flat {
  int64_t vectors;
  int over;         // elements after the last whole vector
  Divisor line;     // vectors after which the channels repeat
  Divisor apart;    // whole lines
  int64_t threads;  // whole stretches
  Divisor channels;
  Divisor run;    // neighbouring elements of one channel
  bool is_short;  // threads, and the elements of a line, can be counted in 31 bits
  Neighbors neighbors;
  Leaves leaves;  // when what is read leaves the L2 cache
};

// The channels of the elements of vector `vector`. Index is what counts a line's elements.
template <class Index, int size>
__device__ inline void channels_of(const Flat& flat, Index vector, int (&found)[size]) {
  const Index element = flat.line.remainder(vector) * size;
  if (flat.neighbors == Neighbors::in_a_row) {
#pragma unroll
    for (int k = 0; k < size; ++k) found[k] = static_cast<int>(element) + k;
    return;
  }
  const Index runs = flat.run.quotient(element);
  int channel = static_cast<int>(flat.channels.remainder(runs));
  // Elements before the next channel.
  int left = static_cast<int>(static_cast<Index>(flat.run.by) - (element - runs * static_cast<Index>(flat.run.by)));
#pragma unroll
  for (int k = 0; k < size; ++k) {
    found[k] = channel;
    if (--left > 0) continue;
    left = static_cast<int>(flat.run.by);
    if (++channel == static_cast<int>(flat.channels.by)) channel = 0;
  }
}
// [/snippet]

// [snippet: apply]
// One trip through memory, as a copy makes it: a thread asks for all that it will write, and only then for what it
// needs to know of its channels.
inline constexpr int threads_of_apply = 128;

template <class Steps, int size, int vectors>
__global__ void __launch_bounds__(threads_of_apply) apply_channels(Steps steps, Flat flat) {
  using T = typename Steps::T;
  using Bits = Vector<T, size>;
  const int64_t thread = int64_t{blockIdx.x} * threads_of_apply + threadIdx.x;
  const uint32_t short_thread = static_cast<uint32_t>(thread);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (thread < flat.threads) {
    const int64_t group = flat.is_short ? flat.apart.quotient(short_thread) : flat.apart.quotient(thread);
    const int64_t place = thread + group * (vectors - 1) * flat.apart.by;  // of the first vector
    const uint64_t advice = advice_of(flat.leaves);
    Bits held[vectors][Steps::inputs];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int64_t vector = place + i * flat.apart.by;
      if (vector >= flat.vectors) continue;
#pragma unroll
      for (int input = 0; input < Steps::inputs; ++input) {
        held[i][input] = read_vector<Bits>(steps.input(input) + vector * size, advice);
      }
    }
    int channels[size];
    if (flat.is_short) {
      channels_of(flat, short_thread, channels);
    } else {
      channels_of(flat, thread, channels);
    }
    typename Steps::Channel known[size];
    steps.read_channels(channels, flat.neighbors, known);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int64_t vector = place + i * flat.apart.by;
      if (vector >= flat.vectors) continue;
      float first[size], second[size], results[size];
      unpack(held[i][0], first);
      unpack(held[i][Steps::inputs - 1], second);
#pragma unroll
      for (int k = 0; k < size; ++k) results[k] = steps.result(first[k], second[k], known[k]);
      *reinterpret_cast<Bits*>(steps.output() + vector * size) = pack<T>(results);
    }
  }
  if (thread < flat.over) {
    const int64_t place = flat.vectors * size + thread;
    const int channel[1] = {static_cast<int>(flat.channels.remainder(flat.run.quotient(place)))};
    typename Steps::Channel known[1];
    steps.read_channels(channel, Neighbors::any, known);
    const float result =
        steps.result(to_float(steps.input(0)[place]), to_float(steps.input(Steps::inputs - 1)[place]), known[0]);
    steps.output()[place] = static_cast<T>(result);
  }
}
// [/snippet]

// [snippet: launch_apply]
// A thread's vectors are as far apart as the tensor allows, or at least `near` vectors, where that is not 0.
template <int size, int vectors, class Steps>
void launch_apply(const Steps& steps, Flat flat, int64_t near, cudaStream_t stream) {
  const int64_t line = flat.line.by;
  const int64_t lines = std::max<int64_t>(1, (flat.vectors + line - 1) / line);
  const int64_t lines_apart = near > 0 ? (near + line - 1) / line : (lines + vectors - 1) / vectors;
  flat.apart = Divisor(lines_apart * line);
  flat.threads = (lines + lines_apart * vectors - 1) / (lines_apart * vectors) * flat.apart.by;
  flat.is_short = flat.threads < Divisor::end && line * size < Divisor::end;
  const int64_t blocks = std::max<int64_t>(1, (flat.threads + threads_of_apply - 1) / threads_of_apply);
  launch(apply_channels<Steps, size, vectors>,
         {.grid = static_cast<unsigned>(blocks), .block = threads_of_apply, .overlap = true, .stream = stream}, steps,
         flat);
}

template <int size, class Steps>
void apply_vectors(const Steps& steps, bool in_a_row, cudaStream_t stream) {
  const Shape shape = shape_of(steps.p);
  const int64_t elements = shape.samples * shape.channels * shape.pixels;
  Flat flat = {};
  const int64_t run = run_of(shape);
  flat.channels = Divisor(shape.channels);
  flat.run = Divisor(run);
  flat.vectors = elements / size;
  flat.over = static_cast<int>(elements % size);
  const int64_t repeats = shape.channels * run;
  flat.line = Divisor(repeats / std::gcd<int64_t>(repeats, size));
  flat.neighbors = run > 1 && run >= size - 1                           ? Neighbors::two
                   : in_a_row && run == 1 && shape.channels % size == 0 ? Neighbors::in_a_row
                                                                        : Neighbors::any;
  flat.leaves = leaves_of(elements * int64_t{sizeof(typename Steps::T)} * Steps::inputs, caches_to_hit);

  // As measured. The more vectors a thread has, the more share what it finds out of its channels; and the more of them
  // wait for each other. Far apart, a thread's vectors do best where the threads that the GPU has room for hold the
  // tensor at once; near each other, where it is larger.
  constexpr int64_t near = 4 * threads_of_apply;
  const int64_t room = int64_t{device_attribute(cudaDevAttrMultiProcessorCount)} *
                       device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  if (flat.vectors <= room / 16) return launch_apply<size, 1>(steps, flat, 0, stream);
  if (flat.vectors <= room / 4) return launch_apply<size, 2>(steps, flat, 0, stream);
  if constexpr (size == 1) {
    launch_apply<size, 8>(steps, flat, 0, stream);
  } else if constexpr (size == 4) {
    if (flat.vectors <= 8 * room) return launch_apply<size, 8>(steps, flat, 0, stream);
    launch_apply<size, 2>(steps, flat, near, stream);
  } else {
    launch_apply<size, 4>(steps, flat, flat.vectors <= 4 * room ? 0 : near, stream);
  }
}

// `aligned` are the tensors; `in_a_row`, what is known of the channels.
template <class Steps>
void apply(const Steps& steps, bool aligned, bool in_a_row, cudaStream_t stream) {
  if (aligned) {
    apply_vectors<vector_size<typename Steps::T>>(steps, in_a_row, stream);
  } else {
    apply_vectors<1>(steps, in_a_row, stream);
  }
}

template <class T, class G>
void batch_norm_inference(const BatchNormInference<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  apply(InferenceSteps<T, G>{p}, is_aligned({p.x, p.y}), is_aligned({p.gamma, p.beta, p.running_mean, p.running_var}),
        stream);
}
// [/snippet]

}  // namespace worklog::batchnorm

// Statistics that hold on every input, and the final forward kernel for every row length.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "common/harness/arguments.h"
#include "common/harness/cluster.cuh"
#include "common/harness/launch.cuh"

namespace worklog::welford {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::load;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::store;
using vectorized::unpack;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

// [snippet: moments]
// What is known of some values: how many they are, their mean, and M2, the sum of their squared deviations from it.
struct Moments {
  float count;
  float mean;
  float m2;
};

// Welford's step [1962]: one more value. The mean moves by the value's share of the difference; M2 grows by the product
// of the differences from the old and from the new mean.
__device__ inline void add_value(Moments& moments, float value) {
  moments.count += 1.0f;
  const float difference = value - moments.mean;
  moments.mean += difference / moments.count;
  moments.m2 += difference * (value - moments.mean);
}

// Chan's formula [Chan, Golub, LeVeque 1979]: the moments of two sets of values together.
__device__ inline Moments merge(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  const float share = count > 0.0f ? b.count / count : 0.0f;  // two empty sets make an empty one
  const float difference = b.mean - a.mean;
  return {count, a.mean + difference * share, a.m2 + b.m2 + difference * difference * a.count * share};
}

// The moments of all lanes' values, in every lane.
__device__ inline Moments merge_lanes(Moments moments) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const Moments other = {__shfl_xor_sync(all_lanes, moments.count, distance),
                           __shfl_xor_sync(all_lanes, moments.mean, distance),
                           __shfl_xor_sync(all_lanes, moments.m2, distance)};
    moments = merge(moments, other);
  }
  return moments;
}

// The moments of all the block's values, in every thread. `scratch` holds one triple for each warp.
__device__ inline Moments merge_block(Moments moments, Moments* scratch) {
  const unsigned lane = threadIdx.x % lanes;
  moments = merge_lanes(moments);
  if (lane == 0) scratch[threadIdx.x / lanes] = moments;
  __syncthreads();
  moments = merge_lanes(lane < blockDim.x / lanes ? scratch[lane] : Moments{});
  __syncthreads();  // all have read `scratch` before the next row overwrites it
  return moments;
}
// [/snippet]

// [snippet: textbook]
// Welford's algorithm as the articles have it: a division for each element, and x read again to normalize.
template <class T, class G>
__global__ void layernorm_textbook(LayerNormForward<T, G> p) {
  __shared__ Moments scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    T* y = p.y + row * p.y_stride;
    const int first = first_column(x) + static_cast<int>(threadIdx.x) * vector_size<T>;

    Moments moments = {};
    for (int col = first; col < cols; col += step) {
      const Floats<T> v = unpack<T>(load(x, col, cols));
      for (int k = 0; k < vector_size<T>; ++k) {
        if (col + k >= 0 && col + k < cols) add_value(moments, v.at[k]);
      }
    }
    moments = merge_block(moments, scratch);
    const float rstd = rsqrtf(moments.m2 / p.cols + p.eps);

    for (int col = first; col < cols; col += step) {
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols,
            pack<T>(vectorized::normalize(unpack<T>(load(x, col, cols)), moments.mean, rstd, gamma, beta)));
    }
    vectorized::write_statistics(p, row, moments.mean, rstd);
  }
}
// [/snippet]

// [snippet: chan]
// A thread's share of a row in registers gives its moments in two small passes, without a division per element; then
// one round of merges does what took two rounds of sums.
template <class T, class G, int vectors>
__global__ void __launch_bounds__(vectorized::most_threads) layernorm_chan(LayerNormForward<T, G> p) {
  __shared__ Moments scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    T* y = p.y + row * p.y_stride;
    const int first = first_column(x) + static_cast<int>(threadIdx.x) * vector_size<T>;

    vectorized::RowInRegisters<T, vectors> held;
    held.load(x, first, step, cols);
    Moments moments = {};
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      const int begin = col < 0 ? 0 : col;
      const int end = col + vector_size<T> < cols ? col + vector_size<T> : cols;
      if (end > begin) moments.count += static_cast<float>(end - begin);
    }
    moments.mean = moments.count > 0.0f ? held.sum() / moments.count : 0.0f;
    moments.m2 = held.squared_deviations(moments.mean, first, step, cols);
    moments = merge_block(moments, scratch);
    const float rstd = rsqrtf(moments.m2 / p.cols + p.eps);

#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols, pack<T>(vectorized::normalize(unpack<T>(held.bits[i]), moments.mean, rstd, gamma, beta)));
    }
    vectorized::write_statistics(p, row, moments.mean, rstd);
  }
}
// [/snippet]

// --- The final kernel ------------------------------------------------------------------------------------------------
//
// Three steps: load, statistics, store. A row belongs to a *team* of threads: some lanes of a warp, a block, or a
// cluster of blocks. The steps know a team only by its size, its thread's number and its sum.

inline constexpr int threads_of_lane_teams = 128;
inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them
inline constexpr int largest_cluster = 8;       // blocks: what every device with clusters can run

// [snippet: teams]
// `width` neighbouring lanes: 32 / width rows to a warp. All lanes of a warp take part in its shuffles, also those
// whose row is beyond the last.
template <int width>
struct LaneTeam {
  __device__ int size() const { return width; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) % width; }
  __device__ int64_t rows_at_once() const { return int64_t{gridDim.x} * blockDim.x / width; }
  __device__ int64_t first_row() const { return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width; }
  __device__ float2 sum(float2 value) const { return {warp_sum<width>(value.x), warp_sum<width>(value.y)}; }
  __device__ bool any(bool value) const { return __any_sync(all_lanes, value); }
};

// The threads of a block.
struct BlockTeam {
  float2* scratch;  // two for each warp, used in turn, so that a sum needs one barrier and not two
  int turn = 0;

  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int64_t rows_at_once() const { return gridDim.x; }
  __device__ int64_t first_row() const { return blockIdx.x; }
  __device__ float2 sum(float2 value) {
    const int lane = thread() % lanes;
    float2* sums = scratch + turn * lanes;
    turn ^= 1;
    value = {warp_sum(value.x), warp_sum(value.y)};
    if (lane == 0) sums[thread() / lanes] = value;
    __syncthreads();
    value = lane < size() / lanes ? sums[lane] : float2{0.0f, 0.0f};
    return {warp_sum(value.x), warp_sum(value.y)};
  }
  __device__ bool any(bool value) const { return value; }  // what sums decide, all threads decide alike
};

// The threads of a cluster of blocks, which can write into each other's shared memory.
struct ClusterTeam {
  Cluster cluster;
  BlockTeam block;
  float2* sums;  // two for each block of the cluster, used in turn
  int turn = 0;

  __device__ int blocks() const { return static_cast<int>(cluster.num_blocks()); }
  __device__ int size() const { return block.size() * blocks(); }
  __device__ int thread() const { return static_cast<int>(cluster.block_rank()) * block.size() + block.thread(); }
  __device__ int64_t rows_at_once() const { return gridDim.x / blocks(); }
  __device__ int64_t first_row() const { return blockIdx.x / blocks(); }
  __device__ float2 sum(float2 value) {
    value = block.sum(value);
    float2* mine = sums + turn * largest_cluster;
    turn ^= 1;
    if (block.thread() < blocks()) cluster.map_shared_rank(mine, block.thread())[cluster.block_rank()] = value;
    cluster.sync();
    float2 total = {0.0f, 0.0f};
    for (int rank = 0; rank < blocks(); ++rank) {
      total.x += mine[rank].x;
      total.y += mine[rank].y;
    }
    return total;
  }
  __device__ bool any(bool value) const { return value; }
};
// [/snippet]

// [snippet: row_share]
// A thread's share of a row: vectors at every team.size()-th place, in registers, in the storage type.
//
// The arithmetic works on x * scale. scale is 1, but for rows whose squares would overflow: there it is a small power
// of two, by which nothing is rounded.
// `whole`: every row is a whole number of aligned vectors. It is known at compile time, because asking for each vector
// costs more instructions than the arithmetic has to spare.
template <class T, int vectors, bool whole>
struct RowShare {
  uint4 bits[vectors];
  int first;  // column of the first vector
  int step;   // columns from one vector to the next
  int cols;
  float scale;

  __device__ int column(int i) const { return first + i * step; }
  __device__ bool is_whole(int col) const { return whole || (col >= 0 && col + vector_size<T> <= cols); }
  __device__ bool has(int col) const { return col >= 0 && col < cols; }

  // Calls f(x) for each of the row's elements in this share.
  template <class Function>
  __device__ void for_each(Function f) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = column(i);
      if (col >= cols) break;
      const Floats<T> x = unpack<T>(bits[i]);
      if (is_whole(col)) {
#pragma unroll
        for (int k = 0; k < vector_size<T>; ++k) f(x.at[k]);
      } else {
#pragma unroll
        for (int k = 0; k < vector_size<T>; ++k) {
          if (has(col + k)) f(x.at[k]);
        }
      }
    }
  }
};
// [/snippet]

// [snippet: load_step]
template <class T, int vectors, bool whole>
__device__ inline void load_row(RowShare<T, vectors, whole>& share, const T* row, int cols, int thread, int team) {
  share.cols = cols;
  share.step = team * vector_size<T>;
  share.first = (whole ? 0 : first_column(row)) + thread * vector_size<T>;
  share.scale = 1.0f;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    share.bits[i] = share.column(i) < cols ? load<whole>(row, share.column(i), cols) : uint4{};
  }
}
// [/snippet]

// [snippet: statistics_step]
// The mean of x * scale in two parts, and 1 / sqrt(variance + eps) of it.
//
// A mean of 1e4 in a float is exact to 5e-4, and where the deviation is 1, so is every output. So the mean of floats is
// kept as `mean`, a float near it, plus `rest`, the mean of what is left of the values without it: x - mean is exact,
// or nearly, wherever a large mean makes it matter, and rest is a small number with all its digits. Values of 16 bits
// have no digits that a float's mean could lose: their rest is 0.
struct Statistics {
  float mean;
  float rest;
  float rstd;
};

template <class T>
inline constexpr bool has_rest = sizeof(T) == 4;

// Two rounds of sums over the team: the mean, then the squares of what is left without it, and what is left itself.
// `for_each(f)` calls f(x) for each of this thread's elements.
template <class T, class Team, class ForEach>
__device__ inline Statistics statistics_at_scale(Team& team, float cols, float eps, float scale, ForEach for_each) {
  const float share = __fdividef(1.0f, cols);  // of an element in the mean
  float sum = 0.0f;
  for_each([&](float x) { sum += x * scale; });
  const float mean = team.sum(float2{sum, 0.0f}).x * share;

  float2 left = {0.0f, 0.0f};
  for_each([&](float x) {
    const float d = x * scale - mean;
    if (has_rest<T>) left.x += d;
    left.y += d * d;
  });
  left = team.sum(left);
  const float rest = left.x * share;
  const float m2 = left.y - left.x * rest;  // rest is tiny against the deviation: nothing cancels here
  return {mean, rest, rsqrtf((m2 < 0.0f ? 0.0f : m2) * share + eps * scale * scale)};
}

// As above; a row whose sums overflow is done again, scaled down.
template <class T, int vectors, bool whole, class Team>
__device__ inline Statistics row_statistics(RowShare<T, vectors, whole>& share, Team& team, float eps) {
  const auto for_each = [&](auto f) { share.for_each(f); };
  Statistics statistics = statistics_at_scale<T>(team, share.cols, eps, 1.0f, for_each);
  const bool overflowed = !(statistics.rstd > 0.0f);
  if (team.any(overflowed)) {
    if (overflowed) share.scale = small_scale;
    statistics = statistics_at_scale<T>(team, share.cols, eps, share.scale, for_each);
  }
  return statistics;
}
// [/snippet]

// [snippet: store_step]
// gamma and beta for a share. Where a thread has one vector they are loaded with it, so that they are there when the
// statistics are; where it has many, registers are dear, and they are loaded as they are used.
template <class T, class G, int vectors, bool whole>
struct Affine {
  static constexpr bool is_early = vectors == 1;
  Parameter<T, G> gamma, beta;

  __device__ void load(const LayerNormForward<T, G>& p, int col) {
    gamma.template load<whole>(p.gamma, col, static_cast<int>(p.cols), 1.0f);
    beta.template load<whole>(p.beta, col, static_cast<int>(p.cols), 0.0f);
  }
};

template <class T, class G, int vectors, bool whole>
__device__ inline void store_row(const RowShare<T, vectors, whole>& share, Affine<T, G, vectors, whole>& affine,
                                 const LayerNormForward<T, G>& p, int64_t row, const Statistics& statistics) {
  T* y = p.y + row * p.y_stride;
  const auto [mean, rest, rstd] = statistics;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int col = share.column(i);
    if (col >= share.cols) break;
    if (!affine.is_early) affine.load(p, col);
    const Floats<T> weight = affine.gamma.unpack();
    const Floats<T> bias = affine.beta.unpack();
    Floats<T> v = unpack<T>(share.bits[i]);
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      const float d = v.at[k] * share.scale - mean;  // first, while it is exact; then the rest
      const float normalized = has_rest<T> ? fmaf(d, rstd, -rest * rstd) : d * rstd;
      v.at[k] = fmaf(normalized, weight.at[k], bias.at[k]);
    }
    store<whole>(y, col, share.cols, pack<T>(v));
  }
}

// What the caller is told is of x, without the scale.
template <class T, class G, int vectors, bool whole>
__device__ inline void write_statistics(const RowShare<T, vectors, whole>& share, const LayerNormForward<T, G>& p,
                                        int64_t row, const Statistics& statistics) {
  if (p.mean) p.mean[row] = (statistics.mean + statistics.rest) / share.scale;
  if (p.rstd) p.rstd[row] = statistics.rstd * share.scale;
}
// [/snippet]

// [snippet: kernel]
// How many rows a warp works on side by side.
template <class Team>
inline constexpr int rows_in_warp = 1;
template <int width>
inline constexpr int rows_in_warp<LaneTeam<width>> = lanes / width;

template <class T, class G, int vectors, bool whole, class Team>
__device__ inline void layernorm_rows(const LayerNormForward<T, G>& p, Team team) {
  const int cols = static_cast<int>(p.cols);
  // The bound is that of the warp's first row: its lanes stay together.
  const int64_t first_of_warp = team.first_row() - team.first_row() % rows_in_warp<Team>;
  const int64_t own = team.first_row() - first_of_warp;
  for (int64_t row = first_of_warp; row < p.rows; row += team.rows_at_once()) {
    const bool is_there = row + own < p.rows;
    const int64_t mine = is_there ? row + own : row;
    RowShare<T, vectors, whole> share;
    load_row(share, p.x + mine * p.x_stride, cols, team.thread(), team.size());
    Affine<T, G, vectors, whole> affine;
    if (affine.is_early) affine.load(p, share.first);
    const Statistics statistics = row_statistics(share, team, p.eps);
    if (!is_there) continue;
    store_row(share, affine, p, mine, statistics);
    if (team.thread() == 0) write_statistics(share, p, mine, statistics);
  }
}

template <class T, class G, int vectors, int width, bool whole>
__global__ void __launch_bounds__(threads_of_lane_teams) layernorm_lanes_per_row(LayerNormForward<T, G> p) {
  layernorm_rows<T, G, vectors, whole>(p, LaneTeam<width>{});
}

template <class T, class G, int vectors, int most_threads, bool whole>
__global__ void __launch_bounds__(most_threads, whole&& most_threads <= 512 ? 2 : 1)
    layernorm_block_per_row(LayerNormForward<T, G> p) {
  __shared__ float2 scratch[2 * lanes];
  layernorm_rows<T, G, vectors, whole>(p, BlockTeam{scratch});
}

template <class T, class G, int vectors, int most_threads, bool whole>
__global__ void __launch_bounds__(most_threads) layernorm_cluster_per_row(LayerNormForward<T, G> p) {
  __shared__ float2 scratch[2 * lanes];
  __shared__ float2 sums[2 * largest_cluster];
  const Cluster cluster = this_cluster();
  layernorm_rows<T, G, vectors, whole>(p, ClusterTeam{cluster, {scratch}, sums});
  cluster.sync();  // no block leaves while another may still write into its shared memory
}
// [/snippet]

// [snippet: reread]
// For rows that fit into no team's registers, and for wide rows on devices without clusters: the same arithmetic, with
// x read anew in each of its three passes.
template <class T, class G>
__global__ void __launch_bounds__(1024) layernorm_reread(LayerNormForward<T, G> p) {
  __shared__ float2 scratch[2 * lanes];
  BlockTeam team{scratch};
  const int cols = static_cast<int>(p.cols);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    RowShare<T, 1, false> share;
    load_row(share, x, cols, team.thread(), team.size());
    const int first = share.first;
    Affine<T, G, 1, false> affine;

    const auto for_each = [&](auto f) {
      for (share.first = first; share.first < cols; share.first += share.step) {
        share.bits[0] = load(x, share.first, cols);
        share.for_each(f);
      }
    };
    Statistics statistics = statistics_at_scale<T>(team, p.cols, p.eps, 1.0f, for_each);
    if (!(statistics.rstd > 0.0f)) {
      share.scale = small_scale;
      statistics = statistics_at_scale<T>(team, p.cols, p.eps, small_scale, for_each);
    }
    for (share.first = first; share.first < cols; share.first += share.step) {
      share.bits[0] = load(x, share.first, cols);
      affine.load(p, share.first);
      store_row(share, affine, p, row, statistics);
    }
    if (team.thread() == 0) write_statistics(share, p, row, statistics);
  }
}
// [/snippet]

// [snippet: dispatch]
struct Device {
  int multiprocessors;
  bool has_clusters;
};

inline Device current_device() {
  int device = 0;
  int multiprocessors = 0;
  int has_clusters = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device), "asking for the device");
  return {multiprocessors, has_clusters != 0};
}

// Whether every row of x and y, and gamma and beta, are whole numbers of aligned vectors.
template <class T, class G>
bool is_whole(const LayerNormForward<T, G>& p) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const auto whole = [](int64_t elements) { return elements % vector_size<T> == 0; };
  return whole(p.cols) && whole(p.x_stride) && whole(p.y_stride) && aligned(p.x) && aligned(p.y) && aligned(p.gamma) &&
         aligned(p.beta);
}

template <class T, class G, int vectors, int width, bool whole>
void launch_lanes(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  const unsigned blocks = blocks_for(p.rows, threads_of_lane_teams / width);
  launch(layernorm_lanes_per_row<T, G, vectors, width, whole>,
         {.grid = blocks, .block = threads_of_lane_teams, .stream = stream}, p);
}

template <class T, class G, int vectors, int most_threads, bool whole>
void launch_block(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  launch(layernorm_block_per_row<T, G, vectors, most_threads, whole>,
         {.grid = blocks_for(p.rows, 1), .block = vectorized::threads_for(p, vectors), .stream = stream}, p);
}

template <class T, class G, int vectors, int most_threads, bool whole>
void launch_cluster(const LayerNormForward<T, G>& p, int64_t row_vectors, unsigned blocks, cudaStream_t stream) {
  const int64_t most_clusters = 0x7fffffff / blocks;
  const auto clusters = static_cast<unsigned>(p.rows < most_clusters ? p.rows : most_clusters);
  const int64_t threads = (row_vectors + vectors * blocks - 1) / (vectors * blocks);
  launch(layernorm_cluster_per_row<T, G, vectors, most_threads, whole>,
         {.grid = clusters * blocks,
          .block = static_cast<unsigned>((threads + lanes - 1) / lanes * lanes),
          .cluster = blocks,
          .stream = stream},
         p);
}

template <class T, class G, bool whole>
void dispatch(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  const int64_t row_vectors = vectorized::vectors_in_row(p.x, p.x_stride, p.cols);
  const Device device = current_device();

  // Narrow rows: two (fp32) or four (16 bits) vectors to a lane, so that each lane has 32 to 64 bytes on their way.
  constexpr int lane_vectors = sizeof(T) == 4 ? 2 : 4;
  if (row_vectors <= 4 * lane_vectors) return launch_lanes<T, G, lane_vectors, 4, whole>(p, stream);
  if (row_vectors <= 8 * lane_vectors) return launch_lanes<T, G, lane_vectors, 8, whole>(p, stream);
  if (row_vectors <= 16 * lane_vectors) return launch_lanes<T, G, lane_vectors, 16, whole>(p, stream);

  // A problem that does not fill the device: what counts is how soon a row is done, so it gets all threads it can use.
  const int64_t resident_threads = int64_t{2048} * device.multiprocessors;
  const bool is_small = p.rows * row_vectors <= resident_threads && row_vectors <= 1024;
  if (is_small) return launch_block<T, G, 1, 1024, whole>(p, stream);

  if (row_vectors <= 32 * lane_vectors) return launch_lanes<T, G, lane_vectors, 32, whole>(p, stream);
  if (row_vectors <= 4 * 512) return launch_block<T, G, 4, 512, whole>(p, stream);
  if (row_vectors <= 8 * 512) return launch_block<T, G, 8, 512, whole>(p, stream);

  // Wide rows: the largest block, then a cluster of as few of them as hold the row.
  if (row_vectors <= 8 * 1024) return launch_block<T, G, 8, 1024, whole>(p, stream);
  if (device.has_clusters) {
    for (unsigned blocks = 2; blocks <= largest_cluster; blocks *= 2) {
      if (row_vectors <= int64_t{8} * 1024 * blocks) {
        return launch_cluster<T, G, 8, 1024, whole>(p, row_vectors, blocks, stream);
      }
    }
  }
  launch(layernorm_reread<T, G>, {.grid = blocks_for(p.rows, 1), .block = 1024, .stream = stream}, p);
}

// The final kernel: LayerNorm over rows of any length up to 2^20, any number of them, any stride and alignment.
template <class T, class G>
void layer_norm(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  is_whole(p) ? dispatch<T, G, true>(p, stream) : dispatch<T, G, false>(p, stream);
}
// [/snippet]

// [snippet: variants]
template <class T, class G>
void textbook(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  launch(layernorm_textbook<T, G>, {.grid = blocks_for(p.rows, 1), .block = 256, .stream = stream}, p);
}

template <class T, class G>
void chan(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const unsigned blocks = blocks_for(p.rows, 1);
  const unsigned threads = vectorized::threads_for(p, 4);
  if (threads <= vectorized::most_threads) {
    launch(layernorm_chan<T, G, 4>, {.grid = blocks, .block = threads, .stream = stream}, p);
  } else {
    launch(layernorm_chan<T, G, 8>, {.grid = blocks, .block = vectorized::threads_for(p, 8), .stream = stream}, p);
  }
}
// [/snippet]

}  // namespace worklog::welford

// Statistics that hold on every input, and the final forward kernel for every row length.
#pragma once

#include <cuda_pipeline.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/packed_rows.cuh"
#include "common/device/arguments.h"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::load;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::store;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::block_sum;
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
  // [task: merge]
  const float count = a.count + b.count;
  const float share = count > 0.0f ? b.count / count : 0.0f;  // two empty sets make an empty one
  const float difference = b.mean - a.mean;
  return {count, a.mean + difference * share, a.m2 + b.m2 + difference * difference * a.count * share};
  // [/task]
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
      const Floats<T> v = vectorized::unpack<T>(load(x, col, cols));
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
            pack<T>(vectorized::normalize(vectorized::unpack<T>(load(x, col, cols)), moments.mean, rstd, gamma, beta)));
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
    // [task: moments]
    Moments moments = {};
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      const int begin = col < 0 ? 0 : col;
      const int end = col + vector_size<T> < cols ? col + vector_size<T> : cols;
      if (end > begin) moments.count += static_cast<float>(end - begin);
    }
    moments.mean = moments.count > 0.0f ? held.sum() / moments.count : 0.0f;
    moments.m2 = held.squared_deviations(moments.mean, first, step, cols);
    // [/task]
    moments = merge_block(moments, scratch);
    const float rstd = rsqrtf(moments.m2 / p.cols + p.eps);

#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Parameter<T, G> gamma, beta;
      gamma.load(p.gamma, col, cols, 1.0f);
      beta.load(p.beta, col, cols, 0.0f);
      store(y, col, cols,
            pack<T>(vectorized::normalize(vectorized::unpack<T>(held.bits[i]), moments.mean, rstd, gamma, beta)));
    }
    vectorized::write_statistics(p, row, moments.mean, rstd);
  }
}
// [/snippet]

// --- The final kernel ------------------------------------------------------------------------------------------------
//
// Three steps: load, statistics, store. A row belongs to a *team* of threads: some lanes of a warp, a block, or a
// cluster of blocks. A thread keeps its share of the row in registers, in the storage type. What the steps do to a row
// is a type, `Steps`: LayerNormSteps below is layer normalization, and stage 06 has the steps of its relatives.

inline constexpr int largest_block_of_lane_teams = 128;
inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them

// [snippet: unpack]
// As stage 04 unpacks; but a bfloat16 is the upper half of a float, so that it takes one instruction, and one that the
// compiler will rather repeat than keep its result in a register.
template <class T>
__device__ inline Floats<T> unpack(uint4 bits) {
  if constexpr (!std::is_same_v<T, __nv_bfloat16>) return vectorized::unpack<T>(bits);
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Floats<T> floats;
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) {
    floats.at[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xffff0000u);
  }
  return floats;
}
// [/snippet]

// [snippet: layout]
// What is known of a launch's rows when it is compiled.
enum class Fit {
  any,      // they start and end anywhere, aligned to the element only
  vectors,  // they are whole 16-byte vectors on 16-byte boundaries
  full,     // and just as many as the threads of a team hold: there is nothing to ask
};

// How a row lies in memory: 16-byte vectors on 16-byte boundaries, and at its two ends the *edges*, elements that fill
// no vector.
template <class T>
struct RowLayout {
  int first;    // column of the first vector
  int vectors;  // in the row
  int edges;    // columns outside of the vectors: at most 31

  __device__ int edge_column(int edge) const { return edge < first ? edge : edge + vectors * vector_size<T>; }
};

// Where not all rows start on a boundary, gamma's vectors do not lie where those of x do: reading 16 bytes of gamma
// takes the two vectors that they straddle. One vector at each end counts among the edges then, so that the two exist.
template <Fit fit, class T>
__device__ inline RowLayout<T> layout_of(const T* row, int cols) {
  if constexpr (fit != Fit::any) return {0, cols / vector_size<T>, 0};
  const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int first = 2 * vector_size<T> - past_boundary;
  const int vectors = cols < first + 2 * vector_size<T> ? 0 : (cols - first) / vector_size<T> - 1;
  return {first, vectors, cols - vectors * vector_size<T>};
}
// [/snippet]

// [snippet: place]
// Which columns of a row a thread holds: vectors `step` columns apart, and perhaps one of the edges.
template <Fit fit>
struct Place {
  int first;  // column of the first vector
  int step;
  int end;   // the vectors lie before this column
  int edge;  // column, or -1

  __device__ int column(int i) const { return first + i * step; }
  __device__ bool has(int i) const { return fit == Fit::full || column(i) < end; }
  __device__ bool has_edge() const { return fit == Fit::any && edge >= 0; }

  // Calls f(x) for each of the thread's elements, read from memory one by one: short code, for what is rarely done.
  template <int vectors, class T, class Function>
  __device__ void for_each(const T* row, Function f) const {
#pragma unroll 1
    for (int i = 0; i < vectors * vector_size<T>; ++i) {
      if (has(i / vector_size<T>)) f(vectorized::to_float(row[column(i / vector_size<T>) + i % vector_size<T>]));
    }
    if (has_edge()) f(vectorized::to_float(row[edge]));
  }

  // Of all lanes of the warp together.
  template <class T, int vectors>
  __device__ int elements_of_warp() const {
    if constexpr (fit == Fit::full) return lanes * vectors * vector_size<T>;
    int elements = __popc(__ballot_sync(all_lanes, has_edge()));
#pragma unroll
    for (int i = 0; i < vectors; ++i) elements += __popc(__ballot_sync(all_lanes, has(i))) * vector_size<T>;
    return elements;
  }
};

// A team's blocks hold one piece of the row each: so many vectors, from this one on.
struct Piece {
  int begin;
  int end;
};

template <class T>
__device__ inline Piece piece_of(const RowLayout<T>& layout, int block, int blocks) {
  const int piece = (layout.vectors + blocks - 1) / blocks;
  const int begin = block * piece;
  return {begin, begin + piece < layout.vectors ? begin + piece : layout.vectors};
}

// `thread` of `threads` counts within the block. The edges are few: one to a thread of the first block.
template <Fit fit, class T>
__device__ inline Place<fit> place_of(const RowLayout<T>& layout, int block, int blocks, int thread, int threads) {
  const auto [begin, end] = piece_of(layout, block, blocks);
  return {layout.first + (begin + thread) * vector_size<T>, threads * vector_size<T>,
          layout.first + end * vector_size<T>, block == 0 && thread < layout.edges ? layout.edge_column(thread) : -1};
}
// [/snippet]

// [snippet: keeping]
// When the lines that are read leave the L2 cache: before others, in turn, or after others. Where tensors are much
// larger than the cache, they leave last. It is not for their own sake: so the lines of y, which are written, leave
// first.
enum class Leaves { first, in_turn, last };

// The same in the form that an instruction takes. A choice and no branch, which the first load would wait for.
__device__ inline uint64_t advice_of([[maybe_unused]] Leaves leaves) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint64_t first, in_turn, last;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(in_turn));
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  return leaves == Leaves::first ? first : leaves == Leaves::in_turn ? in_turn : last;
#else
  return 0;
#endif
}

template <bool advised = true>
__device__ inline uint4 load_vector(const void* from, [[maybe_unused]] uint64_t advice) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (advised) {
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(advice)
                 : "memory");
    return v;
  }
#endif
  return *static_cast<const uint4*>(from);
}

// Into shared memory, asynchronously. A ring whose places hang on a number that is the same for all lanes has to say
// `undivided`, which leaves its addresses as they are: they have 28 bits. Else NVIDIA's assembler may add them up in
// the copy itself, and then names the wrong register for the advice: an illegal instruction, up to CUDA 13.3
// (IST-DASLab/marlin, issue 44).
inline constexpr unsigned undivided = 0x3fffffff;

template <unsigned mask = ~0u>
__device__ inline void copy_vector(uint4* to, const void* from, [[maybe_unused]] uint64_t advice) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to)) & mask;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "l"(advice)
               : "memory");
#else
  __pipeline_memcpy_async(to, from, 16);
#endif
}

// For a launch that reads so much: last, from some times what the cache holds.
inline Leaves leaves_of(int64_t bytes_read, int times) {
  return bytes_read > times * int64_t{device_attribute(cudaDevAttrL2CacheSize)} ? Leaves::last : Leaves::in_turn;
}
// [/snippet]

// [snippet: load_step]
// The way from a row's number to its address is long. Behind this the compiler cannot look: it goes there once for a
// row and not, as it would, for each vector.
template <class T>
__device__ inline T* found_once(T* address) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(address));
#endif
  return address;
}

// A thread's share of a row, in registers and in the storage type: 16 bits stay 16 bits. `advised`: the L2 cache is
// told when its vectors leave. Even to be told that they leave in turn, as they would, takes a little time.
template <class T, int vectors_, bool advised_>
struct RowShare {
  static constexpr int vectors = vectors_;
  static constexpr bool advised = advised_;
  uint4 vector[vectors];
  T edge;

  // All loads are issued before the first value is used.
  template <class Place>
  __device__ void load(const T* row, const Place& place, Leaves leaves = Leaves::in_turn) {
    row = found_once(row);
    const uint64_t advice = advice_of(leaves);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (place.has(i)) vector[i] = load_vector<advised>(row + place.column(i), advice);
    }
    if (place.has_edge()) edge = row[place.edge];
  }

  // Calls f(x) for each element.
  template <class Place, class Function>
  __device__ void for_each(const Place& place, Function f) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (!place.has(i)) continue;
      const Floats<T> x = unpack<T>(vector[i]);
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) f(x.at[k]);
    }
    if (place.has_edge()) f(vectorized::to_float(edge));
  }
};
// [/snippet]

// [snippet: split_moments]
// Moments whose mean is kept in two parts: `pivot`, a float near it, and `rest`, the mean of what is left without it.
//
// A mean of 1e4 in one float is exact to 5e-4, and where the deviation is 1, so would be every output. But x - pivot is
// exact, or nearly, wherever a large mean makes it matter, and rest is a small number with all its digits.
struct SplitMoments {
  float count;
  float pivot;
  float rest;
  float m2;
};

// Deviations are taken from the mean, for a variance; or from zero, for a mean square (stage 06).
enum class About { mean, zero };

// Elements of 16 bits have so few digits that one float holds the mean of a warp's share well enough.
template <class T>
inline constexpr bool splits_mean = sizeof(T) > 2;

// How many values are held together, and the inverse of that (0 for none).
struct Count {
  float count;
  float inverse;

  // Exact where the quotient is a float: a row of equal values has their value as its mean. That is what the second
  // step is for; a division in one would take a function call for the sake of numbers that do not come up here.
  __device__ float mean_of(float sum) const {
    const float quotient = sum * inverse;
    return fmaf(fmaf(-quotient, count, sum), inverse, quotient);
  }
};

__device__ inline Count count_of(float count) {
  return {count, count > 0.0f ? __fdividef(1.0f, count) : 0.0f};
}

// The moments of the values x * scale that `width` lanes hold together, in two small exact passes. for_each(f) calls
// f(x) for those of this thread.
template <class T, About about, int width, class ForEach>
__device__ inline SplitMoments moments_of(ForEach for_each, Count held, float scale) {
  float sum = 0.0f;
  float squares = 0.0f;
  if constexpr (about == About::zero) {
    for_each([&](float x) { squares = fmaf(x * scale, x * scale, squares); });
    return {held.count, 0.0f, 0.0f, warp_sum<width>(squares)};
  }
  for_each([&](float x) { sum = fmaf(x, scale, sum); });
  const float pivot = held.mean_of(warp_sum<width>(sum));

  float left = 0.0f;
  for_each([&](float x) {
    const float d = fmaf(x, scale, -pivot);
    if constexpr (splits_mean<T>) left += d;
    squares = fmaf(d, d, squares);
  });
  squares = warp_sum<width>(squares);
  if constexpr (!splits_mean<T>) return {held.count, pivot, 0.0f, squares};
  left = warp_sum<width>(left);
  const float rest = left * held.inverse;
  return {held.count, pivot, rest, squares - left * rest};  // rest is tiny against the deviation: nothing cancels here
}

// Chan's formula for `width` lanes at once, each with the moments of a part of `all` values. In `one_round` the two
// sums wait for their lanes side by side, and what is too much in the squares is taken away after: at most as many
// times what it leaves as there are parts. Those are some bits, which elements of 16 bits do not miss.
template <About about, int width, bool one_round = false>
__device__ inline SplitMoments merge_lanes(const SplitMoments& part, Count all) {
  if constexpr (about == About::zero) return {all.count, 0.0f, 0.0f, warp_sum<width>(part.m2)};
  const float pivot = __shfl_sync(all_lanes, part.pivot, 0, width);
  const float difference = (part.pivot - pivot) + part.rest;
  if constexpr (one_round) {
    const float moment = part.count * difference;
    const float sum = warp_sum<width>(moment);
    const float squares = warp_sum<width>(fmaf(moment, difference, part.m2));
    const float rest = sum * all.inverse;
    return {all.count, pivot, rest, squares - sum * rest};
  }
  const float rest = warp_sum<width>(part.count * difference) * all.inverse;
  const float off = difference - rest;
  return {all.count, pivot, rest, warp_sum<width>(fmaf(part.count * off, off, part.m2))};
}
// [/snippet]

// [snippet: one_pass]
// The moments of a thread's values in one pass: those of their differences from the mean of its first vector. What the
// formula then takes away is at most as many times what it leaves as the thread has vectors, since the mean of some of
// the values is not far from that of all: a few bits. The first value alone would not do. It may be an outlier.
template <About about>
struct ThreadMoments {
  float pivot = 0.0f;
  float sum = 0.0f;
  float squares = 0.0f;

  // In pairs, so that equal values have their value as their mean.
  template <int count>
  __device__ void begin(const float (&first)[count]) {
    if constexpr (about != About::zero) {
      float sums[count];
#pragma unroll
      for (int k = 0; k < count; ++k) sums[k] = first[k];
#pragma unroll
      for (int half = count / 2; half > 0; half /= 2) {
#pragma unroll
        for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
      }
      pivot = sums[0] * (1.0f / count);
    }
  }
  __device__ void add(float x) {
    const float d = x - pivot;
    if constexpr (about == About::mean) sum += d;
    squares = fmaf(d, d, squares);
  }
  __device__ SplitMoments of(Count held) const {
    const float rest = sum * held.inverse;
    return {held.count, pivot, rest, squares - sum * rest};
  }
};
// [/snippet]

// [snippet: one_round]
// The moments of the values that `width` lanes hold together, as moments_of() finds them; but in one pass and one
// round. The pivot of all is the mean of the first lane's first vector, so that their sums have only to be added. What
// is taken away is at most as many times what it leaves as there are vectors.
template <class T, About about, int width, class Share, class Place>
__device__ inline SplitMoments moments_in_one_round(const Share& share, const Place& place, Count held) {
  ThreadMoments<about> values;
  if (place.has(0)) values.begin(unpack<T>(share.vector[0]).at);
  values.pivot = __shfl_sync(all_lanes, values.pivot, 0, width);
  share.for_each(place, [&](float x) { values.add(x); });
  values.sum = warp_sum<width>(values.sum);
  values.squares = warp_sum<width>(values.squares);
  return values.of(held);
}
// [/snippet]

// [snippet: teams]
// A team merges the moments that its warps have of parts of a row into those of the row, in every thread.

// `width` neighbouring lanes: 32 / width rows to a warp. A part is the row.
template <int width>
struct LaneTeam {
  SplitMoments row;

  __device__ void put(const SplitMoments& part) { row = part; }
  __device__ SplitMoments merge() { return row; }
  // All lanes of a warp take part in its shuffles, so they repeat them together.
  __device__ bool any(bool value) const { return __any_sync(all_lanes, value); }
};

// The threads of a block of at most `warps` warps, a power of 2.
template <About about, int warps, bool one_round>
struct BlockTeam {
  Count all;              // values of the row in the block
  SplitMoments* scratch;  // [warps]

  __device__ void put(const SplitMoments& part) {
    if (threadIdx.x % lanes == 0) scratch[threadIdx.x / lanes] = part;
  }
  __device__ SplitMoments merge() {
    __syncthreads();
    const unsigned part = threadIdx.x % warps;
    return merge_lanes<about, warps, one_round>(part < blockDim.x / lanes ? scratch[part] : SplitMoments{}, all);
  }
  // After a merge all threads hold the same. Where it is repeated, all have read before the next overwrites.
  __device__ bool any(bool value) const {
    if (value) __syncthreads();
    return value;
  }
};

// The threads of a cluster of blocks, which can write into each other's shared memory. barrier_arrive has been called:
// the first merge waits until all blocks have started, and have shared memory to write into.
template <About about, int warps, bool one_round>
struct ClusterTeam {
  Cluster cluster;
  BlockTeam<about, warps, one_round> block;
  Count all;              // values of the row
  SplitMoments* scratch;  // [portable_cluster]
  bool all_have_started = false;

  __device__ void put(const SplitMoments& part) { block.put(part); }
  __device__ SplitMoments merge() {
    const SplitMoments moments = block.merge();
    if (!all_have_started) cluster.barrier_wait();
    all_have_started = true;
    if (threadIdx.x < cluster.num_blocks()) {
      cluster.map_shared_rank(scratch, threadIdx.x)[cluster.block_rank()] = moments;
    }
    cluster.sync();
    const unsigned part = threadIdx.x % portable_cluster;
    return merge_lanes<about, portable_cluster, one_round>(part < cluster.num_blocks() ? scratch[part] : SplitMoments{},
                                                           all);
  }
  __device__ bool any(bool value) const {
    if (value) cluster.sync();
    return value;
  }
};
// [/snippet]

// [snippet: statistics_step]
// Of x * scale: its mean in two parts, and 1 / sqrt(variance + eps). scale is 1 but for rows whose squares, or whose
// sum, overflow: these are done again with a small power of two, by which nothing is rounded.
struct Statistics {
  float scale;
  float pivot;
  float rest;
  float rstd;
};

// Of x * scale. Scaled down, eps is too small for a float. It counts only where the variance is nothing, since where
// sums overflow, values that are not equal differ by far more than eps.
__device__ inline float rstd_of(float variance, float eps, float scale) {
  if (scale == 1.0f) return rsqrtf(variance + eps);
  return variance == 0.0f ? rsqrtf(eps) * (1.0f / small_scale) : rsqrtf(variance);
}

// From the parts that have been put. again(scale) finds this warp's part anew, of x * scale. `whole` counts the values
// of the row.
template <class Team, class Again>
__device__ inline Statistics statistics_of(Team& team, Count whole, float eps, Again again) {
  SplitMoments moments = team.merge();
  float scale = 1.0f;
  const bool overflowed = !isfinite(moments.m2);  // or the row holds a NaN, which will be found again
  if (team.any(overflowed)) {
    if (overflowed) scale = small_scale;
    team.put(again(scale));
    moments = team.merge();
  }
  const float m2 = moments.m2 < 0.0f ? 0.0f : moments.m2;  // rounding may leave a little less than nothing
  return {scale, moments.pivot, moments.rest, rstd_of(m2 * whole.inverse, eps, scale)};
}

// What the caller is told is of x, without the scale.
__device__ inline float mean_of(const Statistics& s) {
  return (s.pivot + s.rest) * (s.scale == 1.0f ? 1.0f : 1.0f / small_scale);
}
__device__ inline float rstd_of(const Statistics& s) {
  return s.rstd * s.scale;
}
// [/snippet]

// [snippet: steps]
// Where the rows of a tensor lie.
struct Rows {
  const void* first;
  int64_t stride;  // elements
};

// The steps of layer normalization. The kernels below know only the names in here.
template <class T, class G>
struct LayerNormSteps {
  using Element = T;
  using Parameter = G;
  static constexpr About about = About::mean;
  static constexpr bool has_beta = true;
  static constexpr int reads = 1;  // tensors
  LayerNormForward<T, G> p;
  Leaves leaves = Leaves::in_turn;  // what is read leaves the L2 cache: the launch knows when

  // The row that is normalized, for a second look at it.
  __device__ const T* row(int64_t i) const { return p.x + i * p.x_stride; }
  __host__ __device__ const G* beta() const { return p.beta; }

  // The load step: a thread's share of row i.
  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    share.load(row(i), place, leaves);
  }
  // The same in two halves, for a kernel that fetches rows ahead: where row i of a tensor lies, and what becomes of the
  // vectors, or elements, that were read at a column.
  __device__ const T* source(int, int64_t i) const { return row(i); }
  template <class Part>
  __device__ Part join(int64_t, int, const Part (&read)[reads]) const {
    return read[0];
  }
  // The same for one element, where vectors are of no use.
  __device__ float load(int64_t i, int64_t col) const { return vectorized::to_float(row(i)[col]); }

  // The store step: elements of y from the normalized ones.
  template <int count>
  __device__ void scale(float (&v)[count], const float (&gamma)[count], const float (&beta)[count]) const {
#pragma unroll
    for (int k = 0; k < count; ++k) v[k] = fmaf(v[k], gamma[k], beta[k]);
  }

  __device__ void write_statistics(int64_t i, const Statistics& s) const {
    if (p.mean) p.mean[i] = mean_of(s);
    if (p.rstd) p.rstd[i] = rstd_of(s);
  }

  // For the launch: the tensors that are walked row by row, and what is known of the parameters.
  std::array<Rows, 2> tensors() const {
    return {{{p.x, p.x_stride}, {p.y, p.y_stride}}};
  }
  bool is_given() const {
    return p.gamma && p.beta;
  }
  void skip(int64_t rows) {
    p.x += rows * p.x_stride;
    p.y += rows * p.y_stride;
    if (p.mean) p.mean += rows;
    if (p.rstd) p.rstd += rows;
  }
};
// [/snippet]

// [snippet: window]
// 16 bytes from an address that is aligned to the element only: from the two vectors that they straddle.
template <class G>
__device__ inline uint4 load_straddling(const G* from) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const unsigned past_boundary = address % 16;
  const uint4* vector = reinterpret_cast<const uint4*>(address - past_boundary);
  const uint4 low = vector[0];
  if (past_boundary == 0) return low;
  const uint4 high = vector[1];
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  // Shift by 8, 4 and 2 bytes, as the address asks for: all threads of a block take the same way.
  if (past_boundary & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (past_boundary & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if constexpr (sizeof(G) == 2) {
    const unsigned bits = past_boundary % 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits);
  }
  return {words[0], words[1], words[2], words[3]};
}

// gamma or beta at the columns of a vector of T, in storage type. fp32 parameters of 16-bit elements take two vectors.
template <class T, class G>
struct ParameterVector {
  static constexpr int parts = vector_size<T> / vector_size<G>;
  static_assert(parts >= 1, "gamma and beta are of x's type or wider");
  uint4 bits[parts];

  // `absent` stands for every element where there is no parameter; `given`: there is one. It is known at compile time,
  // because asking for each vector costs registers that the fastest kernels do not have.
  template <Fit fit, bool given>
  __device__ void load(const G* parameter, int col, float absent) {
    Floats<G> same;
#pragma unroll
    for (int k = 0; k < vector_size<G>; ++k) same.at[k] = absent;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      bits[part] = pack<G>(same);
      if (!given && parameter == nullptr) continue;
      const G* from = parameter + col + part * vector_size<G>;
      bits[part] = fit == Fit::any ? load_straddling(from) : *reinterpret_cast<const uint4*>(from);
    }
  }

  // Here the compiler may not look through: it cannot unpack before a loop what is unpacked in it, into more registers
  // than there are.
  __device__ void keep_packed() {
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      asm volatile("" : "+r"(bits[part].x), "+r"(bits[part].y), "+r"(bits[part].z), "+r"(bits[part].w));
    }
#endif
  }

  __device__ Floats<T> floats() const {
    Floats<T> all;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const Floats<G> some = unpack<G>(bits[part]);
#pragma unroll
      for (int k = 0; k < vector_size<G>; ++k) all.at[part * vector_size<G> + k] = some.at[k];
    }
    return all;
  }
};
// [/snippet]

// [snippet: store_step]
template <About about>
__device__ inline float normalized(float x, const Statistics& s) {
  if constexpr (about == About::zero) return x * s.scale * s.rstd;
  return fmaf(fmaf(x, s.scale, -s.pivot), s.rstd, -s.rest * s.rstd);
}

template <class Steps, class T, class Vector>
__device__ inline void store_vector(const Steps& steps, T* to, uint4 x, const Statistics& s, const Vector& gamma,
                                    const Vector& beta) {
  const Floats<T> weight = gamma.floats();
  const Floats<T> bias = beta.floats();
  Floats<T> v = unpack<T>(x);
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) v.at[k] = normalized<Steps::about>(v.at[k], s);
  steps.scale(v.at, weight.at, bias.at);
  *reinterpret_cast<uint4*>(to) = pack<T>(v);
}

template <class Steps>
__device__ inline void store_element(const Steps& steps, int64_t row, int64_t col, float x, const Statistics& s) {
  const float weight[1] = {steps.p.gamma ? vectorized::to_float(steps.p.gamma[col]) : 1.0f};
  const float bias[1] = {steps.beta() ? vectorized::to_float(steps.beta()[col]) : 0.0f};
  float v[1] = {normalized<Steps::about>(x, s)};
  steps.scale(v, weight, bias);
  steps.p.y[row * steps.p.y_stride + col] = static_cast<typename Steps::Element>(v[0]);
}
// [/snippet]

// [snippet: row_of_a_team]
// What happens when depends on how many rows there are.
//   many           Each hides behind others' work. gamma and beta are loaded when they are used, into few registers.
//   few            They hide behind nobody's, so that gamma and beta are loaded with x: that saves a trip to memory.
//   few_blocks     The same, a block to a row. There gamma and beta come first: behind x, the store of a fused h, which
//                  waits for x, would hold them up.
//   fewest_blocks  And those of the next kernel find places beside them. It is told so when a thread has the moments of
//                  its values: earlier, that would hold up what is on its way to them.
enum class Amount { many, few, few_blocks, fewest_blocks };

// Where rows are so few, the time is that of one row's way through the kernel: each round of shuffles counts.
template <class T, Amount amount>
inline constexpr bool one_round_for = amount != Amount::many && !splits_mean<T>;

// And each branch that the loads wait behind: whether a row has values is not asked.
template <Amount amount>
__device__ inline Count count_of_row(int cols) {
  const auto count = static_cast<float>(cols);
  if constexpr (amount == Amount::many) return count_of(count);
  return {count, __fdividef(1.0f, count)};
}

// One row by one team, of which this is `thread`. `width` lanes hold a part of the row, `held` values; the row has
// `whole`. A team without a row has an empty place, and keeps the others of its warp company.
template <Fit fit, bool given, Amount amount, int width, int vectors, class Steps, class Team>
__device__ inline void normalize_row(const Steps& steps, int64_t row, const Place<fit>& place, int thread, Count held,
                                     Count whole, Team team) {
  using T = typename Steps::Element;
  constexpr bool are_blocks = amount == Amount::few_blocks || amount == Amount::fewest_blocks;
  wait_for_previous_kernel();
  ParameterVector<T, typename Steps::Parameter> gamma[vectors], beta[vectors];
  const auto load_parameters = [&](int i) {
    gamma[i].template load<fit, given>(steps.p.gamma, place.column(i), 1.0f);
    beta[i].template load<fit, given && Steps::has_beta>(steps.beta(), place.column(i), 0.0f);
  };
  const auto load_all_parameters = [&] {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (place.has(i)) load_parameters(i);
    }
  };
  if constexpr (are_blocks) load_all_parameters();
  RowShare<T, vectors, amount == Amount::many> share;  // few rows fit into the cache: there is nothing to tell
  steps.load(share, row, place);
  if constexpr (amount == Amount::few) load_all_parameters();
  if constexpr (!are_blocks) let_next_kernel_start();

  const auto first_moments = [&] {
    if constexpr (one_round_for<T, amount> && Steps::about == About::mean) {
      return moments_in_one_round<T, Steps::about, width>(share, place, held);
    } else {
      return moments_of<T, Steps::about, width>([&](auto f) { share.for_each(place, f); }, held, 1.0f);
    }
  };
  const SplitMoments first = first_moments();
  if constexpr (amount == Amount::fewest_blocks) let_next_kernel_start_at_once();
  team.put(first);
  const auto again = [&](float scale) {
    const auto for_each = [&](auto f) { place.template for_each<vectors>(steps.row(row), f); };
    return moments_of<T, Steps::about, width>(for_each, held, scale);
  };
  const Statistics statistics = statistics_of(team, whole, steps.p.eps, again);

  T* y = steps.p.y + row * steps.p.y_stride;
  if constexpr (fit != Fit::any || sizeof(T) == 2) y = found_once(y);  // elsewhere there are no registers for it
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (!place.has(i)) continue;
    if constexpr (amount == Amount::many) load_parameters(i);
    store_vector(steps, y + place.column(i), share.vector[i], statistics, gamma[i], beta[i]);
  }
  if (place.has_edge()) store_element(steps, row, place.edge, vectorized::to_float(share.edge), statistics);
  if (thread == 0 && row < steps.p.rows) steps.write_statistics(row, statistics);
}
// [/snippet]

// [snippet: rows_of_teams]
// The warps of a block, rounded up to a power of 2.
template <int threads>
inline constexpr int warps_of = std::bit_ceil(unsigned{threads} / lanes);

template <class Steps, Fit fit, bool given, int vectors, int width, Amount amount = Amount::many>
__global__ void __launch_bounds__(largest_block_of_lane_teams) normalize_lanes_per_row(Steps steps) {
  const int thread = static_cast<int>(threadIdx.x) % width;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width;
  const int cols = static_cast<int>(steps.p.cols);
  Place<fit> place = place_of<fit>(layout_of<fit>(steps.row(row), cols), 0, 1, thread, width);
  if (row >= steps.p.rows) place = {0, 0, 0, -1};
  const Count whole = count_of_row<amount>(cols);
  normalize_row<fit, given, amount, width, vectors>(steps, row, place, thread, whole, whole, LaneTeam<width>{});
}

// `resident` blocks are to fit on a multiprocessor: that bounds the registers.
template <class Steps, Fit fit, bool given, Amount amount, int vectors, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident)) normalize_block_per_row(Steps steps) {
  constexpr int warps = warps_of<threads>;
  __shared__ SplitMoments scratch[warps];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const Place<fit> place =
      place_of<fit>(layout_of<fit>(steps.row(row), cols), 0, 1, thread, static_cast<int>(blockDim.x));
  using T = typename Steps::Element;
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Count whole = count_of_row<amount>(cols);
  normalize_row<fit, given, amount, lanes, vectors>(
      steps, row, place, thread, held, whole, BlockTeam<Steps::about, warps, one_round_for<T, amount>>{whole, scratch});
}

// `whole_blocks`: all blocks have `threads` threads. Then the distance between a thread's vectors is known here, and no
// register.
template <class Steps, Fit fit, bool whole_blocks, bool given, Amount amount, int vectors, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident)) normalize_cluster_per_row(Steps steps) {
  constexpr int warps = warps_of<threads>;
  __shared__ SplitMoments block_scratch[warps];
  __shared__ SplitMoments cluster_scratch[portable_cluster];
  const Cluster cluster = this_cluster();
  cluster.barrier_arrive();
  const int64_t row = blockIdx.x / cluster.num_blocks();
  const int block = static_cast<int>(cluster.block_rank());
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const auto layout = layout_of<fit>(steps.row(row), cols);
  const Place<fit> place =
      place_of<fit>(layout, block, blocks, thread, whole_blocks ? threads : static_cast<int>(blockDim.x));
  using T = typename Steps::Element;
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Piece piece = piece_of(layout, block, blocks);
  const int vectors_of_block = piece.begin < piece.end ? piece.end - piece.begin : 0;
  const Count in_block =
      count_of(static_cast<float>(vectors_of_block * vector_size<T> + (block == 0 ? layout.edges : 0)));
  const Count whole = count_of_row<amount>(cols);
  const ClusterTeam<Steps::about, warps, one_round_for<T, amount>> team{
      cluster, {in_block, block_scratch}, whole, cluster_scratch};
  normalize_row<fit, given, amount, lanes, vectors>(steps, row, place, block + thread, held, whole, team);
}
// [/snippet]

// --- Wide rows -------------------------------------------------------------------------------------------------------
//
// A row that takes a cluster of blocks has a long way from its first load to its last store: the blocks start together,
// load, meet, and store. So here the clusters stay, and walk rows. While a row is normalized, the next are on their way
// to shared memory; and gamma and beta, which each row would ask the second-level cache for, stay in registers.

// [snippet: mean_as_pivot]
// With the mean itself as the pivot, as near as a float can be. Nothing is lost: the rest is what the rounding of
// pivot + rest takes away [Knuth, TwoSum].
__device__ inline SplitMoments with_mean_as_pivot(const SplitMoments& moments) {
  const float pivot = moments.pivot + moments.rest;
  const float added = pivot - moments.pivot;
  const float rest = (moments.pivot - (pivot - added)) + (moments.rest - added);
  return {moments.count, pivot, rest, moments.m2};
}
// [/snippet]

// [snippet: staying_team]
// A cluster that has a row after the other. Between put() and merge() a thread may do other work, and the wait for the
// other blocks is hidden. The next row's moments go where nobody reads this row's.
template <About about, int warps, class Exchange>
struct StayingTeam {
  Exchange exchange;
  Count all;               // values of the row
  Count in_block;          // and of its piece in this block
  SplitMoments* of_warps;  // [2][warps]
  float4* of_blocks;       // [2][most_blocks_of_cluster], each a SplitMoments
  int half = 0;
  bool is_here = false;

  __device__ void put(const SplitMoments& part) {
    SplitMoments* parts = of_warps + half * warps;
    if (threadIdx.x % lanes == 0) parts[threadIdx.x / lanes] = part;
    __syncthreads();
    if (threadIdx.x / lanes == warps - 1) {  // the last warp: the first has the edges to care for
      const unsigned other = threadIdx.x % lanes;
      const SplitMoments moments = merge_lanes<about, warps>(parts[other % warps], in_block);
      if (other < exchange.cluster.num_blocks()) {
        exchange.send(other, of_blocks + half * most_blocks_of_cluster + exchange.cluster.block_rank(),
                      {moments.count, moments.pivot, moments.rest, moments.m2});
      }
    }
    exchange.all_sent();
  }
  // Until the moments of all blocks are here. merge() waits if nobody has.
  __device__ void wait() {
    if (!is_here) exchange.wait();
    is_here = true;
  }
  __device__ SplitMoments merge() {
    wait();
    is_here = false;
    const unsigned other = threadIdx.x % most_blocks_of_cluster;
    SplitMoments moments = {};
    if (other < exchange.cluster.num_blocks()) {
      const float4 sent = of_blocks[half * most_blocks_of_cluster + other];
      moments = {sent.x, sent.y, sent.z, sent.w};
    }
    half ^= 1;
    return merge_lanes<about, most_blocks_of_cluster>(moments, all);
  }
  __device__ bool any(bool value) const { return value; }
};
// [/snippet]

// [snippet: row_ring]
// A cluster's rows: `count` of them, `step` apart, which all start equally far past a 16-byte boundary.
struct RowWalk {
  int64_t first;
  int64_t step;
  int count;
};

// A block's piece of `stages` rows in shared memory, of each tensor that is read. Copies start on their way and are
// waited for later. A thread copies what it will read itself, so that it needs no barrier to read it; and as soon as it
// has read a vector for the last time, the copy of the row that is `stages` rows later starts into its place.
//
// An edge is copied as the 4 bytes that it lies in. They may hold an element of the neighbouring row too, which another
// cluster may be writing: that half is not looked at.
template <class Steps, Fit fit, int vectors, int threads, int stages>
struct RowRing {
  using T = typename Steps::Element;
  static constexpr int reads = Steps::reads;
  // Of rows so long that no more than three pieces fit, two are of the first tensor and one is of the second. When the
  // two are joined, the second's place is free, and the copy of its next row starts into it.
  static constexpr bool second_has_one_place = reads == 2 && stages == 2;
  static_assert(!second_has_one_place || fit != Fit::any);
  static constexpr int slot_vectors = (second_has_one_place ? 1 : reads) * vectors * threads;
  static constexpr int ring_vectors = (stages + (second_has_one_place ? 1 : 0)) * slot_vectors;
  static constexpr int most_edges = lanes;
  // All threads have the first `certain` vectors, which the launch sees to: what is not asked takes no branch.
  static constexpr int certain = vectors <= 4 ? vectors - 1 : vectors - 2;
  static constexpr size_t bytes = ring_vectors * sizeof(uint4) + stages * reads * most_edges * sizeof(unsigned);

  const Steps& steps;
  const Place<fit>& place;
  RowWalk walk;
  uint4* cells;           // [stages][reads][vectors][threads], from this thread's on
  unsigned* edges;        // [stages][reads][most_edges], from this thread's on
  int copied = 0;         // rows whose copies have started
  const T* ahead[reads];  // this thread's first vector of the row to copy next

  __device__ RowRing(const Steps& steps, const Place<fit>& place, const RowWalk& walk)
      : steps(steps),
        place(place),
        walk(walk),
        cells(dynamic_shared<uint4>() + threadIdx.x),
        edges(reinterpret_cast<unsigned*>(dynamic_shared<uint4>() + ring_vectors) + threadIdx.x) {
    look_ahead();
  }

  __device__ int64_t row(int turn) const { return walk.first + turn * walk.step; }
  __device__ bool has(int i) const { return i < certain || place.has(i); }
  __device__ uint4* cell(int slot, int tensor, int i) const {
    if (second_has_one_place && tensor == 1) return cells + stages * slot_vectors + i * threads;
    return cells + slot * slot_vectors + (tensor * vectors + i) * threads;
  }
  __device__ T* edge(int slot, int tensor, int turn) const {
    const auto address = reinterpret_cast<uintptr_t>(steps.source(tensor, row(turn)) + place.edge);
    return reinterpret_cast<T*>(edges + (slot * reads + tensor) * most_edges) + address % sizeof(unsigned) / sizeof(T);
  }

  // Where the second tensor has one place: its first row. The others start in for_each().
  __device__ void start_second() const {
    if constexpr (second_has_one_place) {
#pragma unroll
      for (int i = 0; i < vectors; ++i) start_copy_of_second(second_of(0), 0, i);
    }
  }
  // Starts the copies of a thread's vector, then of its next. end_row() when those of a row have all started.
  __device__ void start_copy(int slot, int i) const {
    if (copied >= walk.count || !has(i)) return;
#pragma unroll
    for (int tensor = 0; tensor < (second_has_one_place ? 1 : reads); ++tensor) {
      copy_vector<undivided>(cell(slot, tensor, i), ahead[tensor] + i * place.step, advice_of(Leaves::last));
    }
  }
  __device__ void end_row(int slot) {
    if (place.has_edge() && copied < walk.count) copy_edge(slot);
    __pipeline_commit();
    ++copied;
    look_ahead();
  }

  // Reads a row for the first time: f(x) gets its elements, and begin(first) before that the thread's first vector.
  template <class Begin, class Function>
  __device__ void for_each(int slot, int turn, Begin begin, Function f) const {
    const T* second = nullptr;
    if constexpr (second_has_one_place) second = second_of(turn + 1);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (!has(i)) continue;
      uint4 read[reads];
#pragma unroll
      for (int tensor = 0; tensor < reads; ++tensor) read[tensor] = *cell(slot, tensor, i);
      const uint4 bits = steps.join(row(turn), place.column(i), read);
      if constexpr (reads > 1) *cell(slot, 0, i) = bits;
      if constexpr (second_has_one_place) start_copy_of_second(second, turn + 1, i);
      const Floats<T> x = unpack<T>(bits);
      if (i == 0) begin(x.at);
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) f(x.at[k]);
    }
    if (place.has_edge()) {
      T read[reads];
#pragma unroll
      for (int tensor = 0; tensor < reads; ++tensor) read[tensor] = *edge(slot, tensor, turn);
      const T x = steps.join(row(turn), place.edge, read);
      if constexpr (reads > 1) *edge(slot, 0, turn) = x;
      f(vectorized::to_float(x));
    }
    if constexpr (second_has_one_place) __pipeline_commit();
  }

 private:
  // This thread's first vector of the second tensor's row, and the copy of its i-th.
  __device__ const T* second_of(int turn) const {
    return found_once(steps.source(1, row(turn)) + place.first);
  }
  __device__ void start_copy_of_second(const T* first, int turn, int i) const {
    if (turn < walk.count && has(i)) {
      copy_vector<undivided>(cell(0, 1, i), first + i * place.step, advice_of(Leaves::last));
    }
  }

  // The way from a row's number to an address is long. It is taken once for a row: not, as the compiler would, for each
  // vector.
  __device__ void look_ahead() {
#pragma unroll
    for (int tensor = 0; tensor < reads; ++tensor) ahead[tensor] = steps.source(tensor, row(copied)) + place.first;
  }

  // What lies around a tensor is not ours to read: its first row's edges, and its last's, are copied as they are.
  __device__ void copy_edge(int slot) const {
    const bool amid = row(copied) > 0 && row(copied) < steps.p.rows - 1;
#pragma unroll
    for (int tensor = 0; tensor < reads; ++tensor) {
      const T* from = steps.source(tensor, row(copied)) + place.edge;
      if (amid) {
        const auto address = reinterpret_cast<uintptr_t>(from);
        __pipeline_memcpy_async(edges + (slot * reads + tensor) * most_edges,
                                reinterpret_cast<const void*>(address - address % sizeof(unsigned)), sizeof(unsigned));
      } else {
        *edge(slot, tensor, copied) = *from;
      }
    }
  }
};
// [/snippet]

// [snippet: walk_rows]
// The next row's values are added up before this row's moments are asked for, so that the cluster's threads have work
// while they wait for each other.
//
// y, and in stage 06 h, may be a tensor that is read: a row is written by the threads that have read it, after they
// have; and the rows that are fetched ahead are this cluster's own, which nobody else writes.
template <class Steps, Fit fit, int vectors, int threads, int stages, class Team>
__device__ inline void walk_rows(RowRing<Steps, fit, vectors, threads, stages> ring, Team& team, Count held,
                                 Count whole, bool writes_statistics) {
  using T = typename Steps::Element;
  // Where the schedulers have most to do, the warp's moments are merged only when those of the other blocks are here,
  // so that the shuffles of the two merges wait side by side. Elsewhere it is better to do that while waiting.
  constexpr bool merges_together = sizeof(T) == 2 && fit != Fit::any && Steps::reads == 1;
  // Where no more than two rows have room, the one that is stored first makes room for the row after the next, and that
  // is on its way while the cluster's threads wait.
  constexpr bool looks_ahead = !RowRing<Steps, fit, vectors, threads, stages>::second_has_one_place;
  const Steps& steps = ring.steps;
  const Place<fit>& place = ring.place;
  ring.start_second();
#pragma unroll 1
  for (int slot = 0; slot < stages; ++slot) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) ring.start_copy(slot, i);
    ring.end_row(slot);
  }
  ParameterVector<T, typename Steps::Parameter> gamma[vectors], beta[vectors];
  float own = 0.0f;  // elements of this thread
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (!ring.has(i)) continue;
    gamma[i].template load<fit, true>(steps.p.gamma, place.column(i), 1.0f);
    beta[i].template load<fit, Steps::has_beta>(steps.beta(), place.column(i), 0.0f);
    own += vector_size<T>;
  }
  float edge_gamma[1] = {1.0f};
  float edge_beta[1] = {0.0f};
  if (place.has_edge()) {
    own += 1.0f;
    edge_gamma[0] = vectorized::to_float(steps.p.gamma[place.edge]);
    if constexpr (Steps::has_beta) edge_beta[0] = vectorized::to_float(steps.beta()[place.edge]);
  }
  const Count in_thread = count_of(own);

  using Values = ThreadMoments<Steps::about>;
  const auto look_at = [&](int slot, int turn) {
    Values values;
    ring.for_each(
        slot, turn, [&](const auto& first) { values.begin(first); }, [&](float x) { values.add(x); });
    return values;
  };
  const auto of_warp = [&](const Values& values) {
    return with_mean_as_pivot(merge_lanes<Steps::about, lanes>(values.of(in_thread), held));
  };
  // Of a row that is here, or of none.
  const auto find_next = [&](int slot, int turn) {
    Values values;
    if (turn < ring.walk.count) values = look_at(slot, turn);
    if constexpr (merges_together) team.wait();
    return of_warp(values);
  };
  __pipeline_wait_prior(stages - 1);
  team.put(of_warp(look_at(0, 0)));
  int slot = 0;
#pragma unroll 1
  for (int turn = 0; turn < ring.walk.count; ++turn) {
    const int next_slot = slot == stages - 1 ? 0 : slot + 1;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      gamma[i].keep_packed();
      if constexpr (Steps::has_beta) beta[i].keep_packed();
    }
    SplitMoments next;
    if constexpr (looks_ahead) {
      __pipeline_wait_prior(stages - 2);  // the next row is here
      next = find_next(next_slot, turn + 1);
    }

    const int64_t row = ring.row(turn);
    const auto again = [&](float scale) {
      const auto for_each = [&](auto f) { place.template for_each<vectors>(steps.row(row), f); };
      return moments_of<T, Steps::about, lanes>(for_each, held, scale);
    };
    const Statistics statistics = statistics_of(team, whole, steps.p.eps, again);
    if constexpr (looks_ahead) team.put(next);

    T* y = steps.p.y + row * steps.p.y_stride;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (ring.has(i)) store_vector(steps, y + place.column(i), *ring.cell(slot, 0, i), statistics, gamma[i], beta[i]);
      ring.start_copy(slot, i);
    }
    if (place.has_edge()) {
      float v[1] = {normalized<Steps::about>(vectorized::to_float(*ring.edge(slot, 0, turn)), statistics)};
      steps.scale(v, edge_gamma, edge_beta);
      y[place.edge] = static_cast<T>(v[0]);
    }
    ring.end_row(slot);
    if (writes_statistics) steps.write_statistics(row, statistics);
    if constexpr (!looks_ahead) {
      __pipeline_wait_prior(stages - 1);  // the next row is here, and the one after it is on its way
      team.put(find_next(next_slot, turn + 1));
    }
    slot = next_slot;
  }
  team.merge();  // the last put(), of a row that does not exist
  __pipeline_wait_prior(0);
}

// Cluster i of n takes the rows i, i + n, i + 2 n, ... Rows that are no whole vectors start at other columns of their
// vectors than those before, but every 8th starts like the first (every 4th in fp32); n is a multiple of that, so that
// a cluster's rows are all of one kind, and its threads keep their columns.
template <class Steps, Fit fit, class Exchange, int vectors, int threads, int stages, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident)) normalize_staying_clusters(Steps steps) {
  using T = typename Steps::Element;
  constexpr int warps = threads / lanes;
  static_assert(warps == warps_of<threads>);
  __shared__ SplitMoments of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  __shared__ float sums[lanes];
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int block = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const int64_t first = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;
  const RowWalk walk = {first, clusters, static_cast<int>((steps.p.rows - first + clusters - 1) / clusters)};

  const Place<fit> place = place_of<fit>(layout_of<fit>(steps.row(first), cols), block, blocks, thread, threads);
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Count in_block = count_of(block_sum(thread % lanes == 0 ? held.count : 0.0f, sums));
  const Count whole = count_of(static_cast<float>(cols));
  StayingTeam<Steps::about, warps, Exchange> team{Exchange(cluster, arrivals), whole, in_block, of_warps, of_blocks};
  team.exchange.open();  // all blocks have started, and have shared memory to write into
  walk_rows(RowRing<Steps, fit, vectors, threads, stages>(steps, place, walk), team, held, whole, block + thread == 0);
  let_next_kernel_start();
}
// [/snippet]

// [snippet: elements]
// Short rows that are not whole vectors have hardly any: a lane takes single elements, `width` columns apart.
template <class Steps, int elements, int width>
__global__ void __launch_bounds__(largest_block_of_lane_teams) normalize_elements_per_lane(Steps steps) {
  const int64_t thread = threadIdx.x % width;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width;
  const int left = row < steps.p.rows ? static_cast<int>(steps.p.cols - thread) : 0;  // columns from the first on
  wait_for_previous_kernel();
  float x[elements];
#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * width < left) x[k] = steps.load(row, thread + k * width);
  }
  let_next_kernel_start();

  const Count whole = count_of(static_cast<float>(steps.p.cols));
  const auto moments = [&](float scale) {
    const auto for_each = [&](auto f) {
#pragma unroll
      for (int k = 0; k < elements; ++k) {
        if (k * width < left) f(x[k]);
      }
    };
    return moments_of<typename Steps::Element, Steps::about, width>(for_each, whole, scale);
  };
  LaneTeam<width> team = {moments(1.0f)};
  const Statistics statistics = statistics_of(team, whole, steps.p.eps, moments);

#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * width < left) store_element(steps, row, thread + k * width, x[k], statistics);
  }
  if (thread == 0 && row < steps.p.rows) steps.write_statistics(row, statistics);
}
// [/snippet]

// [snippet: packed]
// One row of a tile in shared memory by one team, in place. A team without a row has an empty place.
template <class Steps, int each, int width>
__device__ inline void normalize_in_tile(const Steps& steps, int64_t row, typename Steps::Element* cells,
                                         const UnitPlace<each, width>& place, Count whole,
                                         const LaneShare<each, width>& gamma, const LaneShare<each, width>& beta) {
  using T = typename Steps::Element;
  LaneShare<each, width> x;
  x.load(cells, place);
  const auto moments = [&](float scale) {
    return moments_of<T, Steps::about, width>([&](auto f) { x.for_each(place, f); }, whole, scale);
  };
  LaneTeam<width> team = {moments(1.0f)};
  const Statistics statistics = statistics_of(team, whole, steps.p.eps, moments);

#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
#pragma unroll
    for (int j = 0; j < each; ++j) x.at[k][j] = normalized<Steps::about>(x.at[k][j], statistics);
    steps.scale(x.at[k], gamma.at[k], beta.at[k]);
    store_unit(cells + place.column(k), x.at[k]);
  }
  if (place.lane == 0 && place.has_row()) steps.write_statistics(row, statistics);
}

// A tile that has come to shared memory: `cells` hold it for each tensor that is read, `room` elements each, and y
// takes the place of the first.
template <class Steps, int each, int width>
__device__ inline void normalize_tile(const Steps& steps, const PackedTile<typename Steps::Element>& tile,
                                      typename Steps::Element* cells, int room, UnitPlace<each, width> place,
                                      const LaneShare<each, width>& gamma, const LaneShare<each, width>& beta) {
  if constexpr (Steps::reads > 1) {
    const auto join = [&]<class Part>(Part& cell, int i) {
      const Part read[2] = {cell, *reinterpret_cast<const Part*>(cells + room + i)};
      cell = steps.join(tile.first_row, i, read);
    };
    tile.for_each([&](int i) { join(*reinterpret_cast<uint4*>(cells + i), i); }, [&](int i) { join(cells[i], i); });
  }
  __syncthreads();
  const int cols = place.cols;
  const Count whole = count_of(static_cast<float>(cols));
#pragma unroll 1
  for (int first = 0; first < tile.rows; first += threads_of_tile / width) {
    const int row = first + static_cast<int>(threadIdx.x) / width;
    place.cols = row < tile.rows ? cols : 0;
    normalize_in_tile(steps, tile.first_row + row, cells + row * cols, place, whole, gamma, beta);
  }
  __syncthreads();
  tile.copy_out(steps.p.y + tile.first_row * cols, cells);
}

// A block has one tile, and while it waits for it or stores it, others of the multiprocessor normalize. Where there is
// most to do for a byte, that leaves the schedulers without work too often: there the block stays and takes more tiles,
// and the next is on its way while it normalizes one.
template <class Steps>
inline constexpr bool takes_more_tiles = Steps::reads == 1 && Steps::about == About::mean &&
                                         sizeof(typename Steps::Element) == 2;
inline constexpr int resident_blocks_of_tiles = 6;

template <class Steps, int each, int width>
__global__ void __launch_bounds__(threads_of_tile, blocks_that_fit(threads_of_tile, resident_blocks_of_tiles))
    normalize_packed_rows(Steps steps) {
  using T = typename Steps::Element;
  constexpr int height = rows_of_tile<T, width>;
  const int cols = static_cast<int>(steps.p.cols);
  const int room = height * cols;
  T* cells = dynamic_shared<T>();           // [reads][height][cols]
  T* others = cells + Steps::reads * room;  // as many again, for the next tile
  const uint64_t advice = advice_of(steps.leaves);
  const auto start_copies = [&](const PackedTile<T>& tile, T* to) {
#pragma unroll
    for (int tensor = 0; tensor < Steps::reads; ++tensor) {
      tile.copy_in(to + tensor * room, found_once(steps.source(tensor, tile.first_row)),
                   [&](uint4* to, const T* from) { copy_vector<undivided>(to, from, advice); });
    }
    __pipeline_commit();
  };
  PackedTile<T> tile = tile_of<T>(blockIdx.x, height, steps.p.rows, cols);
  wait_for_previous_kernel();
  start_copies(tile, cells);
  if constexpr (!takes_more_tiles<Steps>) let_next_kernel_start();

  // A lane has the same columns in all rows, and reads gamma and beta once.
  const UnitPlace<each, width> place = {static_cast<int>(threadIdx.x) % width, cols};
  LaneShare<each, width> gamma, beta;
  gamma.load_parameter(steps.p.gamma, place, 1.0f);
  beta.load_parameter(steps.beta(), place, 0.0f);

  if constexpr (takes_more_tiles<Steps>) {
#pragma unroll 1
    for (int64_t next = blockIdx.x + gridDim.x; tile.rows > 0; next += gridDim.x) {
      const PackedTile<T> next_tile = tile_of<T>(next, height, steps.p.rows, cols);
      start_copies(next_tile, others);
      __pipeline_wait_prior(1);
      normalize_tile(steps, tile, cells, room, place, gamma, beta);
      tile = next_tile;
      T* const empty = cells;
      cells = others;
      others = empty;
    }
  } else {
    __pipeline_wait_prior(0);
    normalize_tile(steps, tile, cells, room, place, gamma, beta);
  }
}
// [/snippet]

// [snippet: reread]
// What is left: rows that fit into no team's registers, wide rows on devices without clusters, and tensors whose rows
// do not lie alike between 16-byte boundaries. The same arithmetic, an element at a time, each read three times.
inline constexpr int threads_of_reread = 1024;

template <class Steps>
__global__ void __launch_bounds__(threads_of_reread) normalize_reread(Steps steps) {
  __shared__ float scratch[lanes];
  const int64_t row = blockIdx.x;
  const auto sum_over_row = [&](auto value, auto f) {
    float sum = 0.0f;
    for (int64_t col = threadIdx.x; col < steps.p.cols; col += blockDim.x) sum += f(value(col));
    return block_sum(sum, scratch);
  };
  wait_for_previous_kernel();
  const auto first_value = [&](int64_t col) { return steps.load(row, col); };
  const auto value = [&](int64_t col) { return vectorized::to_float(steps.row(row)[col]); };

  Statistics s = {1.0f, sum_over_row(first_value, [](float v) { return v; }) / steps.p.cols, 0.0f, 0.0f};
  for (;;) {
    if constexpr (Steps::about == About::zero) {
      s.pivot = 0.0f;
    } else {
      // [task: rest]
      s.rest = sum_over_row(value, [&](float v) { return fmaf(v, s.scale, -s.pivot); }) / steps.p.cols;
      // [/task]
    }
    const float m2 = sum_over_row(value, [&](float v) {
      // [task: deviation]
      const float d = fmaf(v, s.scale, -s.pivot) - s.rest;
      // [/task]
      return d * d;
    });
    s.rstd = rstd_of(m2 / steps.p.cols, steps.p.eps, s.scale);
    if (isfinite(m2) || s.scale != 1.0f) break;
    s.scale = small_scale;
    s.pivot = sum_over_row(value, [&](float v) { return v * s.scale; }) / steps.p.cols;
  }
  for (int64_t col = threadIdx.x; col < steps.p.cols; col += blockDim.x) store_element(steps, row, col, value(col), s);
  if (threadIdx.x == 0) steps.write_statistics(row, s);
}
// [/snippet]

// [snippet: dispatch]
template <class T>
bool starts_on_boundary(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// True where row i of all tensors starts equally far past a 16-byte boundary, for each i.
template <class T, size_t count>
bool lie_alike(const std::array<Rows, count>& tensors, int64_t rows) {
  for (const Rows& each : tensors) {
    const auto apart = reinterpret_cast<uintptr_t>(each.first) - reinterpret_cast<uintptr_t>(tensors[0].first);
    if (apart % 16 != 0) return false;
    if (rows > 1 && (each.stride - tensors[0].stride) % vector_size<T> != 0) return false;
  }
  return true;
}

// Threads that hold `vectors` vectors, `each` to a thread: whole warps.
inline unsigned threads_for(int64_t vectors, int64_t each) {
  const int64_t threads = (vectors + each - 1) / each;
  return static_cast<unsigned>((threads + lanes - 1) / lanes * lanes + (threads == 0 ? lanes : 0));
}

inline unsigned blocks_of_lane_teams(int64_t rows, int64_t width) {
  const int64_t rows_in_block = largest_block_of_lane_teams / width;
  return static_cast<unsigned>((rows + rows_in_block - 1) / rows_in_block);
}

template <Fit fit, bool given, int vectors, int width, Amount amount = Amount::many, class Steps>
void launch_lanes(const Steps& steps, cudaStream_t stream) {
  launch(normalize_lanes_per_row<Steps, fit, given, vectors, width, amount>,
         {.grid = blocks_of_lane_teams(steps.p.rows, width),
          .block = largest_block_of_lane_teams,
          .overlap = true,
          .stream = stream},
         steps);
}

// Rows of whole vectors, and the kernel that asks nothing where they fill all lanes of all blocks.
template <bool given, int vectors, int width, Amount amount = Amount::many, class Steps>
void launch_lanes(const Steps& steps, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  if (length == vectors * width && steps.p.rows % (largest_block_of_lane_teams / width) == 0) {
    launch_lanes<Fit::full, given, vectors, width, amount>(steps, stream);
  } else {
    launch_lanes<Fit::vectors, given, vectors, width, amount>(steps, stream);
  }
}

template <int elements, int width, class Steps>
void launch_elements(const Steps& steps, cudaStream_t stream) {
  launch(normalize_elements_per_lane<Steps, elements, width>,
         {.grid = blocks_of_lane_teams(steps.p.rows, width),
          .block = largest_block_of_lane_teams,
          .overlap = true,
          .stream = stream},
         steps);
}

template <Fit fit, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
void launch_block(const Steps& steps, cudaStream_t stream) {
  const int64_t row_vectors = steps.p.cols / vector_size<typename Steps::Element>;
  launch(normalize_block_per_row < Steps, fit, given, amount, vectors, threads, given ? resident : 1 >,
         {.grid = static_cast<unsigned>(steps.p.rows),
          .block = threads_for(row_vectors, vectors),
          .overlap = true,
          .stream = stream},
         steps);
}

// True where as many blocks as the row takes can work together: one, or a cluster where the device has them.
// `whole_blocks`: and where the row fills all their threads.
template <Fit fit, bool whole_blocks, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
bool launch_clusters(const Steps& steps, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  const int64_t blocks = (length + vectors * threads - 1) / (vectors * threads);
  if (blocks > portable_cluster || (blocks > 1 && device_attribute(cudaDevAttrClusterLaunch) == 0)) return false;
  if (whole_blocks && length != blocks * vectors * threads) return false;
  launch(normalize_cluster_per_row < Steps, fit, whole_blocks, given, amount, vectors, threads, given ? resident : 1 >,
         {.grid = static_cast<unsigned>(steps.p.rows * blocks),
          .block = threads_for((length + blocks - 1) / blocks, vectors),
          .cluster = static_cast<unsigned>(blocks),
          .overlap = true,
          .stream = stream},
         steps);
  return true;
}

// True where clusters of blocks of `threads` threads stay and walk the rows: where the device has them, each has some
// rows, and all threads the vectors that are not asked for.
template <Fit fit, class Exchange, int vectors, int threads, int stages, int resident, class Steps>
bool launch_staying_clusters(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  using Ring = RowRing<Steps, fit, vectors, threads, stages>;
  const int64_t length = steps.p.cols / vector_size<T>;
  const int64_t blocks = (length + vectors * threads - 1) / (vectors * threads);
  if (blocks < 2 || blocks > most_blocks_of_cluster) return false;
  // Rows that straddle have up to 3 vectors less, the one or the other.
  for (int64_t vectors_of_row = fit == Fit::any ? length - 3 : length; vectors_of_row <= length; ++vectors_of_row) {
    const int64_t last_piece = vectors_of_row - (blocks - 1) * ((vectors_of_row + blocks - 1) / blocks);
    if (last_piece < Ring::certain * threads) return false;
  }
  if (!block_can_have(Ring::bytes)) return false;

  const auto kernel = normalize_staying_clusters<Steps, fit, Exchange, vectors, threads, stages, resident>;
  const int at_once = clusters_at_once(kernel, static_cast<unsigned>(blocks), threads, Ring::bytes);
  const int64_t stride = steps.tensors()[0].stride;
  const int64_t period = fit == Fit::any ? vector_size<T> / std::gcd<int64_t>(vector_size<T>, stride) : 1;
  // Clusters are not equally fast, and a multiple of the period leaves places empty. So odd rows have more clusters
  // than there is room for, which take the places in turns: as many turns as measured faster.
  constexpr int64_t of_16_bits = Steps::about == About::zero ? 4 : 2;
  constexpr int64_t turns = fit != Fit::any ? 1 : Steps::reads == 2 ? 2 : sizeof(T) == 2 ? of_16_bits : 1;
  const int64_t places = steps.p.rows < 4 * turns * at_once ? at_once : turns * at_once;
  const int64_t clusters = places / period * period;
  if (clusters == 0 || steps.p.rows < 4 * clusters) return false;
  // Not overlapped: where the kernel before it still holds places, a cluster may find no room, and start when others
  // end.
  launch(kernel,
         {.grid = static_cast<unsigned>(clusters * blocks),
          .block = threads,
          .shared_bytes = Ring::bytes,
          .cluster = static_cast<unsigned>(blocks),
          .stream = stream},
         steps);
  return true;
}

// Which kernel takes which length, in vectors, was found by measuring: wide loads in flight against the registers that
// they take. True where one of them does.
//
// Rows of whole vectors, of steps that read one tensor.
template <bool given, class Steps>
bool normalize_vectors_of_one(const Steps& steps, int64_t length, cudaStream_t stream) {
  constexpr Fit full = Fit::full;
  constexpr Fit some = Fit::vectors;
  constexpr Amount many = Amount::many;
  constexpr bool wide_elements = sizeof(typename Steps::Element) == 4;
  constexpr bool wide_parameters = sizeof(typename Steps::Parameter) > sizeof(typename Steps::Element);
  if (length <= 4 * 4) return launch_lanes<given, 4, 4>(steps, stream), true;
  if (length <= 4 * 8) return launch_lanes<given, 4, 8>(steps, stream), true;
  if (length <= 4 * 16) return launch_lanes<given, 4, 16>(steps, stream), true;
  if (length <= 4 * 32) return launch_lanes<given, 4, 32>(steps, stream), true;
  if (length <= 5 * 32) return launch_lanes<given, 5, 32>(steps, stream), true;
  if (!wide_elements && length <= 7 * 32) return launch_lanes<some, given, 7, 32>(steps, stream), true;
  if (wide_elements && length <= 2 * 256) {
    if (length % (2 * lanes) == 0) return launch_block<full, given, many, 2, 256, 6>(steps, stream), true;
    return launch_block<some, given, many, 2, 256, 6>(steps, stream), true;
  }
  if (length <= 4 * 512) {
    constexpr bool narrow = !wide_elements && !wide_parameters;
    // Without a mean to subtract, twice the threads with half the vectors have enough registers.
    if constexpr (narrow && Steps::about == About::zero) {
      if (length % (2 * lanes) == 0 && length >= 2 * 256 && length <= 2 * 512) {
        return launch_block<full, given, many, 2, 512, 4>(steps, stream), true;
      }
    }
    // Of whole blocks of 16 bits three fit at once, if they ask for their vectors; of smaller ones, if their registers
    // are bounded.
    const bool three_fit = length == 4 * 512 && narrow;
    if constexpr (narrow && Steps::about == About::mean) {
      if (length % (4 * lanes) == 0 && length <= 4 * 384) {
        return launch_block<full, given, many, 4, 384, 3>(steps, stream), true;
      }
    }
    if (length % (4 * lanes) == 0 && !three_fit) {
      return launch_block<full, given, many, 4, 512, 2>(steps, stream), true;
    }
    return launch_block < some, given, many, 4, 512, wide_parameters ? 2 : 3 > (steps, stream), true;
  }
  if constexpr (wide_elements) {
    if (length == 8 * 512) return launch_block<full, given, many, 8, 512, 2>(steps, stream), true;
  }
  if (length <= 8 * 512) {
    return launch_block<some, given, many, 8, 512, 2>(steps, stream), true;
  }
  if constexpr (given) {
    if (launch_staying_clusters < some, ClusterBarrier, wide_parameters ? 4 : 8, 256, 3, 2 > (steps, stream))
      return true;
    if constexpr (wide_elements) {  // rows twice as long: of such blocks a multiprocessor has room for one
      if (length > 56 * 1024 && launch_staying_clusters<some, ClusterBarrier, 8, 512, 3, 1>(steps, stream)) return true;
    }
  }
  // 16-bit elements are left to be asked for: else the compiler keeps them as floats, for which there is no room.
  constexpr Fit filled = wide_elements ? full : some;
  if (length <= 8 * 1024 && launch_clusters<filled, true, given, many, 8, 1024, 1>(steps, stream)) return true;
  if (length <= 64 * 256 && launch_clusters<filled, true, given, many, 8, 256, 4>(steps, stream)) return true;
  if (length <= 64 * 512 && launch_clusters<filled, true, given, many, 8, 512, 2>(steps, stream)) return true;
  if (length <= 7 * 1024) return launch_clusters<some, false, given, many, 7, 1024, 1>(steps, stream);
  if (length <= 56 * 256) return launch_clusters<some, false, given, many, 7, 256, 4>(steps, stream);
  if (length <= 56 * 512) return launch_clusters<some, false, given, many, 7, 512, 2>(steps, stream);
  if constexpr (wide_elements) {
    if (length > 56 * 1024) return launch_clusters<some, false, given, many, 8, 1024, 1>(steps, stream);
  }
  return launch_clusters<some, false, given, many, 7, 1024, 1>(steps, stream);
}

// Of steps that read two tensors: twice the loads to a vector.
template <bool given, class Steps>
bool normalize_vectors_of_two(const Steps& steps, int64_t length, cudaStream_t stream) {
  constexpr Fit full = Fit::full;
  constexpr Fit some = Fit::vectors;
  constexpr Amount many = Amount::many;
  if (length <= 2 * 8) return launch_lanes<given, 2, 8>(steps, stream), true;
  if (length <= 2 * 16) return launch_lanes<given, 2, 16>(steps, stream), true;
  if (length <= 2 * 32) return launch_lanes<given, 2, 32>(steps, stream), true;
  if (length <= 4 * 256) return launch_block<some, given, many, 4, 256, 4>(steps, stream), true;
  if (length <= 4 * 512) {
    if (length % (4 * lanes) == 0) return launch_block<full, given, many, 4, 512, 2>(steps, stream), true;
    return launch_block<some, given, many, 4, 512, 2>(steps, stream), true;
  }
  if constexpr (given) {
    if (length > 4 * 1024) {
      if (launch_staying_clusters<some, ClusterBarrier, 4, 256, 3, 2>(steps, stream)) return true;
      if (launch_staying_clusters<some, ClusterBarrier, 4, 512, 3, 1>(steps, stream)) return true;
    }
    if constexpr (sizeof(typename Steps::Element) == 4) {
      if (length > 56 * 1024 && launch_staying_clusters<some, ClusterBarrier, 8, 512, 2, 1>(steps, stream)) return true;
    }
  }
  // 16-bit elements would be kept as floats where nothing is asked, and there is no room for them.
  if constexpr (sizeof(typename Steps::Element) == 4) {
    if (length == 8 * 512) return launch_block<full, given, many, 8, 512, 2>(steps, stream), true;
    if (length > 4 * 1024) {
      if (length <= 64 * 256 && launch_clusters<full, true, given, many, 8, 256, 4>(steps, stream)) return true;
      if (length <= 64 * 512 && launch_clusters<full, true, given, many, 8, 512, 2>(steps, stream)) return true;
    }
  }
  if (length <= 4 * 1024) return launch_block<some, given, many, 4, 1024, 1>(steps, stream), true;
  if (length <= 32 * 512) return launch_clusters<some, false, given, many, 4, 512, 2>(steps, stream);
  if constexpr (sizeof(typename Steps::Element) == 4) {
    if (length > 32 * 1024) {
      if (launch_clusters<full, true, given, many, 8, 1024, 1>(steps, stream)) return true;
      return launch_clusters<some, false, given, many, 8, 1024, 1>(steps, stream);
    }
  }
  return launch_clusters<some, false, given, many, 4, 1024, 1>(steps, stream);
}

// Few rows are all under way at the same time, and none hides behind another's work: each thread has few vectors, and
// gamma and beta are on their way with them. So many vectors that a multiprocessor reads are few, measured from a
// graph:
inline constexpr int64_t few_vectors = 4096;
// A row that a warp can hold needs no barrier there, but it gives each thread four vectors. Measured with one tensor to
// read: from so many on it is faster by warps, and from so many on not even gamma and beta need to be early.
inline constexpr int64_t fewest_by_warps = 1024;
inline constexpr int64_t most_by_warps = 2048;

// And so few that the blocks of two kernels find places beside each other, where a row's thread has two of them. Of
// more, the next kernel's take what this one's need.
inline constexpr int64_t fewest_vectors = 512;

template <bool given, Amount amount, int threads, class Steps>
void launch_few(const Steps& steps, int64_t length, cudaStream_t stream) {
  if (length % (2 * lanes) == 0) return launch_block<Fit::full, given, amount, 2, threads, 1>(steps, stream);
  launch_block<Fit::vectors, given, amount, 2, threads, 1>(steps, stream);
}

template <bool given, int threads, class Steps>
void launch_few(const Steps& steps, int64_t length, cudaStream_t stream) {
  if (steps.p.rows * length <= fewest_vectors * device_attribute(cudaDevAttrMultiProcessorCount)) {
    return launch_few<given, Amount::fewest_blocks, threads>(steps, length, stream);
  }
  launch_few<given, Amount::few_blocks, threads>(steps, length, stream);
}

template <bool given, class Steps>
bool normalize_vectors(const Steps& steps, cudaStream_t stream) {
  constexpr Amount few = Amount::few;
  constexpr int reads = Steps::reads;
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  if (length <= 2 * 1) return launch_lanes<given, 2, 1>(steps, stream), true;
  if (length <= 2 * 2) return launch_lanes<given, 2, 2>(steps, stream), true;
  if (length <= 2 * 4) return launch_lanes<given, 2, 4>(steps, stream), true;
  const int64_t read_by_each = reads * steps.p.rows * length / multiprocessors;
  if (length > 64 && length <= 128) {
    if (read_by_each < (reads == 1 ? fewest_by_warps : few_vectors)) {
      return launch_few<given, 128>(steps, length, stream), true;
    }
    if constexpr (reads == 1) {
      if (read_by_each < most_by_warps) return launch_lanes<given, 4, 32, few>(steps, stream), true;
    }
  } else if (length > 128 && length <= 2 * 512 && read_by_each < few_vectors) {
    if (length <= 2 * 128) return launch_few<given, 128>(steps, length, stream), true;
    return launch_few<given, 512>(steps, length, stream), true;
  }
  if (length > 2 * 512 && steps.p.rows * length <= 2048 * multiprocessors) {
    if (launch_clusters<Fit::vectors, false, given, few, 2, 512, 1>(steps, stream)) return true;
    // Of blocks with four vectors to a thread, a multiprocessor has room for one.
    if (steps.p.rows * length <= 1024 * multiprocessors &&
        launch_clusters<Fit::vectors, false, given, few, 4, 512, 1>(steps, stream)) {
      return true;
    }
  }
  if constexpr (Steps::reads == 1) {
    return normalize_vectors_of_one<given>(steps, length, stream);
  } else {
    return normalize_vectors_of_two<given>(steps, length, stream);
  }
}

// Rows that start and end anywhere, but those of all tensors alike between 16-byte boundaries.
template <bool given, class Steps>
bool normalize_straddling(const Steps& steps, cudaStream_t stream) {
  constexpr Fit any = Fit::any;
  constexpr Amount many = Amount::many;
  constexpr bool wide_elements = sizeof(typename Steps::Element) == 4;
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  if (length <= 4 * 32) return launch_lanes<any, given, 4, 32>(steps, stream), true;
  if constexpr (Steps::reads == 1) {
    if (length <= 5 * 32) return launch_lanes<any, given, 5, 32>(steps, stream), true;
    if (length <= (wide_elements ? 7 : 8) * 32) return launch_lanes<any, given, 8, 32>(steps, stream), true;
    if constexpr (wide_elements) {
      if (length <= 4 * 512) return launch_block<any, given, many, 4, 512, 2>(steps, stream), true;
      if (length <= 7 * 512) return launch_block<any, given, many, 7, 512, 2>(steps, stream), true;
    } else {
      if (length <= 8 * 512) return launch_block<any, given, many, 8, 512, 2>(steps, stream), true;
    }
    if constexpr (given) {
      constexpr bool wide_parameters = sizeof(typename Steps::Parameter) > sizeof(typename Steps::Element);
      if (launch_staying_clusters < any, ClusterMail, wide_parameters ? 4 : 7, 512, 3, 1 > (steps, stream)) return true;
      if (launch_staying_clusters < any, ClusterMail, wide_parameters ? 4 : 8, 256, 3, 2 > (steps, stream)) return true;
    }
    if (length <= 56 * 256) return launch_clusters<any, false, given, many, 7, 256, 4>(steps, stream);
    return launch_clusters<any, false, given, many, 7, 512, 2>(steps, stream);
  } else {
    if (length <= 4 * 512) return launch_block<any, given, many, 4, 512, 2>(steps, stream), true;
    if (length <= 4 * 1024) return launch_block<any, given, many, 4, 1024, 1>(steps, stream), true;
    if constexpr (given) {
      if (launch_staying_clusters<any, ClusterMail, 4, 512, 3, 1>(steps, stream)) return true;
      if (launch_staying_clusters<any, ClusterMail, 4, 256, 3, 2>(steps, stream)) return true;
    }
    if (length <= 64 * 256) return launch_clusters<any, false, given, many, 8, 256, 3>(steps, stream);
    return launch_clusters<any, false, given, many, 8, 512, 1>(steps, stream);
  }
}

// Rows shorter than a kilobyte that are no whole vectors, in any tensors.
template <class Steps>
bool normalize_elements(const Steps& steps, cudaStream_t stream) {
  constexpr int each = sizeof(typename Steps::Element) == 4 ? 4 : 8;
  if (steps.p.cols <= 32) return launch_elements<each, 32 / each>(steps, stream), true;
  if (steps.p.cols <= 64) return launch_elements<each, 64 / each>(steps, stream), true;
  if (steps.p.cols <= 128) return launch_elements<each, 128 / each>(steps, stream), true;
  if (steps.p.cols <= 256) return launch_elements<8, 32>(steps, stream), true;
  return false;
}

// True where the rows of all tensors follow each other without gaps, from a 16-byte boundary on.
template <class Steps>
bool lies_packed(const Steps& steps) {
  for (const Rows& each : steps.tensors()) {
    if (each.stride != steps.p.cols || !starts_on_boundary(each.first)) return false;
  }
  return true;
}

template <int each, int width, class Steps>
void launch_packed(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  constexpr bool stays = takes_more_tiles<Steps>;
  constexpr int64_t height = rows_of_tile<T, width>;
  const int64_t tiles = (steps.p.rows + height - 1) / height;
  const size_t shared_bytes = (stays ? 2 : 1) * Steps::reads * height * steps.p.cols * sizeof(T);
  const auto kernel = normalize_packed_rows<Steps, each, width>;
  int64_t blocks = tiles;
  if constexpr (stays) {  // as many as work at the same time, and no more than measured faster
    const int64_t wished = int64_t{resident_blocks_of_tiles} * device_attribute(cudaDevAttrMultiProcessorCount);
    blocks = std::min({tiles, wished, blocks_at_once(kernel, threads_of_tile, shared_bytes)});
  }
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads_of_tile,
          .shared_bytes = shared_bytes,
          .overlap = !stays,
          .stream = stream},
         steps);
}

template <int width, class Steps>
void launch_packed(const Steps& steps, cudaStream_t stream) {
  if constexpr (sizeof(typename Steps::Element) == 2) {
    if (steps.p.cols % 2 == 0) return launch_packed<2, width>(steps, stream);
  }
  launch_packed<1, width>(steps, stream);
}

// The same rows up to 512 columns, where they have no gaps, and there are enough of them for all multiprocessors.
template <class Steps>
bool normalize_packed(const Steps& steps, cudaStream_t stream) {
  constexpr int64_t bytes_of_few = 24 * 1024;  // for a multiprocessor
  const int64_t cols = steps.p.cols;
  const int64_t bytes = steps.p.rows * cols * int64_t{sizeof(typename Steps::Element)};
  if (!lies_packed(steps) || bytes < bytes_of_few * device_attribute(cudaDevAttrMultiProcessorCount)) return false;
  if (cols <= 1 * elements_of_lane) return launch_packed<1>(steps, stream), true;
  if (cols <= 2 * elements_of_lane) return launch_packed<2>(steps, stream), true;
  if (cols <= 4 * elements_of_lane) return launch_packed<4>(steps, stream), true;
  if (cols <= 8 * elements_of_lane) return launch_packed<8>(steps, stream), true;
  if (cols <= 16 * elements_of_lane) return launch_packed<16>(steps, stream), true;
  if (cols <= 32 * elements_of_lane) return launch_packed<32>(steps, stream), true;
  return false;
}

// As many rows as a grid can have. `given`: there are a gamma and, where the steps have one, a beta.
template <bool given, class Steps>
void normalize_rows_of_a_grid(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  const auto& p = steps.p;
  const bool alike = lie_alike<T>(steps.tensors(), p.rows);
  const Rows first = steps.tensors()[0];
  const bool whole_vectors = alike && starts_on_boundary(first.first) && starts_on_boundary(p.gamma) &&
                             starts_on_boundary(steps.beta()) && p.cols % vector_size<T> == 0 &&
                             (p.rows == 1 || first.stride % vector_size<T> == 0);
  if (whole_vectors && normalize_vectors<given>(steps, stream)) return;
  if (!whole_vectors && normalize_packed(steps, stream)) return;
  if (!whole_vectors && normalize_elements(steps, stream)) return;
  if (!whole_vectors && alike && normalize_straddling<given>(steps, stream)) return;
  launch(normalize_reread<Steps>,
         {.grid = static_cast<unsigned>(p.rows), .block = threads_of_reread, .overlap = true, .stream = stream}, steps);
}

// The final kernel, whatever its steps: rows of any length up to 2^20, any number of them, any stride and alignment.
// Statistics in fp32 whatever the type; gamma and beta of x's type or wider. Asynchronous in `stream`.
template <class Steps>
void normalize_rows(Steps steps, cudaStream_t stream) {
  const int64_t rows = steps.p.rows;
  const int64_t largest_grid = int64_t{1} << 27;  // rows; a grid has at most 2^31 - 1 blocks, 8 of them to a row
  const int64_t bytes_read = rows * steps.p.cols * int64_t{sizeof(typename Steps::Element)} * Steps::reads;
  steps.leaves = leaves_of(bytes_read, 2);
  for (int64_t done = 0; done < rows; done += largest_grid) {
    steps.p.rows = rows - done < largest_grid ? rows - done : largest_grid;
    if (steps.is_given()) {
      normalize_rows_of_a_grid<true>(steps, stream);
    } else {
      normalize_rows_of_a_grid<false>(steps, stream);
    }
    steps.skip(largest_grid);
  }
}

template <class T, class G>
void layer_norm(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  normalize_rows(LayerNormSteps<T, G>{p}, stream);
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

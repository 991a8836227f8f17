// The backward pass: dx reduces along the rows, dgamma and dbeta along the columns, over the same data.
#pragma once

#include <cuda_pipeline.h>

#include <algorithm>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/kernels.cuh"
#include "common/harness/arguments.h"
#include "common/harness/cluster.cuh"
#include "common/harness/launch.cuh"

namespace worklog::backward {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::load;
using vectorized::pack;
using vectorized::store;
using vectorized::to_float;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::block_sum;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;
using welford::Fit;
using welford::ParameterVector;
using welford::unpack;

// --- One row -----------------------------------------------------------------------------------------------------

// [snippet: row]
// The forward pass's statistics of a row.
struct RowStatistics {
  float mean;
  float rstd;
};

// Subtract first: x and the mean are near each other where both are large, and their difference is exact there.
__device__ inline float xhat_of(float x, const RowStatistics& s) {
  return (x - s.mean) * s.rstd;
}

// What a row's dx needs to know of the whole row, with wdy = dy * gamma.
struct RowSums {
  float wdy;       // sum of wdy
  float wdy_xhat;  // sum of wdy * xhat
};

// [task: gradient]
// dx = rstd * (wdy - mean(wdy) - xhat * mean(wdy * xhat)), with what is the same for the whole row taken together.
struct Gradient {
  float rstd;
  float offset;  // rstd * mean(wdy)
  float slope;   // rstd * mean(wdy * xhat)

  __device__ float operator()(float wdy, float xhat) const { return fmaf(wdy, rstd, -fmaf(xhat, slope, offset)); }
};

__device__ inline Gradient gradient_of(const RowStatistics& s, const RowSums& sums, int64_t cols) {
  const float each = s.rstd / static_cast<float>(cols);
  return {s.rstd, sums.wdy * each, sums.wdy_xhat * each};
}
// [/task]
// [/snippet]

// --- The steps on the way ------------------------------------------------------------------------------------------

inline constexpr int threads_of_row = 256;  // of a block that works on one row at a time

// [snippet: dx]
// dx of one row by one block, which reads x and dy twice. Calls add(col, dy, xhat) for each element on the way: what
// dgamma and dbeta are made of.
template <class T, class G, class Add>
__device__ inline void dx_of_row(const LayerNormBackward<T, G>& p, int64_t row, float* scratch, Add add) {
  const RowStatistics s = {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};  // RMSNorm has no mean
  const auto at = [row](auto* tensor, int64_t stride) { return tensor + row * stride; };
  const auto wdy_of = [&](int64_t col) {
    return to_float(at(p.dy, p.dy_stride)[col]) * (p.gamma ? to_float(p.gamma[col]) : 1.0f);
  };

  RowSums sums = {0.0f, 0.0f};
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float xhat = xhat_of(to_float(at(p.x, p.x_stride)[col]), s);
    // [task: row_sums]
    const float wdy = wdy_of(col);
    sums.wdy += wdy;
    sums.wdy_xhat += wdy * xhat;
    // [/task]
    add(col, to_float(at(p.dy, p.dy_stride)[col]), xhat);
  }
  sums = {p.mean ? block_sum(sums.wdy, scratch) : 0.0f, block_sum(sums.wdy_xhat, scratch)};
  if (!p.dx) return;

  const Gradient gradient = gradient_of(s, sums, p.cols);
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float xhat = xhat_of(to_float(at(p.x, p.x_stride)[col]), s);
    const float past_the_norm = p.dh ? to_float(at(p.dh, p.dh_stride)[col]) : 0.0f;
    at(p.dx, p.dx_stride)[col] = static_cast<T>(gradient(wdy_of(col), xhat) + past_the_norm);
  }
}
// [/snippet]

// [snippet: separate]
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row) dx_only(LayerNormBackward<T, G> p) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [](int64_t, float, float) {});
  }
}

// A block has 32 columns, a warp every 32nd row of them; the warps' sums meet in shared memory. A warp reads 32
// neighbouring elements of a row, and so whole sectors.
template <class T, class G>
__global__ void __launch_bounds__(lanes* lanes) columns_only(LayerNormBackward<T, G> p) {
  __shared__ float dgamma[lanes][lanes + 1];  // one float more to a row, so that a column lies in 32 banks
  __shared__ float dbeta[lanes][lanes + 1];
  const int64_t col = int64_t{blockIdx.x} * lanes + threadIdx.x;
  float gamma_sum = 0.0f;
  float beta_sum = 0.0f;
  if (col < p.cols) {
    for (int64_t row = threadIdx.y; row < p.rows; row += lanes) {
      const float dy = to_float(p.dy[row * p.dy_stride + col]);
      const float mean = p.mean ? p.mean[row] : 0.0f;
      gamma_sum += dy * xhat_of(to_float(p.x[row * p.x_stride + col]), {mean, p.rstd[row]});
      beta_sum += dy;
    }
  }
  // [task: meet]
  dgamma[threadIdx.y][threadIdx.x] = gamma_sum;
  dbeta[threadIdx.y][threadIdx.x] = beta_sum;
  __syncthreads();
  gamma_sum = warp_sum(dgamma[threadIdx.x][threadIdx.y]);  // warp y adds up column y
  beta_sum = warp_sum(dbeta[threadIdx.x][threadIdx.y]);
  // [/task]
  const int64_t own = int64_t{blockIdx.x} * lanes + threadIdx.y;
  if (threadIdx.x != 0 || own >= p.cols) return;
  if (p.dgamma) p.dgamma[own] = static_cast<G>(gamma_sum);
  if (p.dbeta) p.dbeta[own] = static_cast<G>(beta_sum);
}
// [/snippet]

// [snippet: sum_partials]
// Sums of columns, still to be added up: for each of `count` partial rows cols floats of dgamma, then cols of dbeta.
struct PartialRows {
  float* first;
  int64_t count;
  int64_t cols;

  __device__ float* dgamma(int64_t i) const { return first + 2 * i * cols; }
  __device__ float* dbeta(int64_t i) const { return first + (2 * i + 1) * cols; }
};

// A tile of `width` columns to a block, of dgamma (blockIdx.y is 0) or dbeta. Which thread adds what, and in which
// order, hangs on the shape alone. Few columns make few tiles: narrow ones then, of one sector to a row.
template <class G, int width, int rows>
__global__ void __launch_bounds__(width* rows) sum_partials(PartialRows partial, G* dgamma, G* dbeta) {
  constexpr int warps = width * rows / lanes;
  __shared__ float sums[rows][width + 1];  // one float more to a row, so that a column lies in many banks
  wait_for_previous_kernel();
  G* out = blockIdx.y == 0 ? dgamma : dbeta;
  if (!out) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * width;
  const int64_t col = first + thread % width;
  float sum = 0.0f;
  if (col < partial.cols) {
    const float* column = partial.first + blockIdx.y * partial.cols + col;
#pragma unroll 8
    for (int64_t i = thread / width; i < partial.count; i += rows) sum += column[2 * i * partial.cols];
  }
  sums[thread / width][thread % width] = sum;
  __syncthreads();
  for (int own = thread / lanes; own < width; own += warps) {
    float part = 0.0f;
    for (int row = thread % lanes; row < rows; row += lanes) part += sums[row][own];
    part = warp_sum(part);
    if (thread % lanes == 0 && first + own < partial.cols) out[first + own] = static_cast<G>(part);
  }
}

template <int width, int rows, class T, class G>
void launch_sum_of_tiles(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  const auto kernel = sum_partials<G, width, rows>;
  // As much shared memory as the kernel before it has: where it has to be divided anew, the two cannot overlap.
  check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout, 100),
      "asking for shared memory");
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>((p.cols + width - 1) / width), 2),
          .block = width * rows,
          .overlap = true,
          .stream = stream},
         PartialRows{p.workspace, partial_rows, p.cols}, p.dgamma, p.dbeta);
}

template <class T, class G>
void launch_sum(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  if (!p.dgamma && !p.dbeta) return;
  if (p.cols > 32 * 1024) {
    launch_sum_of_tiles<32, 8>(p, partial_rows, stream);
  } else if (p.cols > 8 * 1024 || partial_rows <= 128) {
    launch_sum_of_tiles<32, 16>(p, partial_rows, stream);
  } else {
    launch_sum_of_tiles<8, 64>(p, partial_rows, stream);
  }
}
// [/snippet]

// [snippet: atomics]
// One partial row for all: every block adds each of its elements to it.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row) dx_and_atomics(LayerNormBackward<T, G> p, PartialRows partial) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [&](int64_t col, float dy, float xhat) {
      atomicAdd(partial.dgamma(0) + col, dy * xhat);
      atomicAdd(partial.dbeta(0) + col, dy);
    });
  }
}
// [/snippet]

// [snippet: grouped]
// `partial.count` partial rows, each with a lock: row i of x adds to partial row i % count. Whoever comes first adds
// first, so that the order of a sum's terms, and with it its rounding, is another on every run.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row)
    dx_and_groups(LayerNormBackward<T, G> p, PartialRows partial, int* locks) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [](int64_t, float, float) {});
    const int64_t group = row % partial.count;
    const RowStatistics s = {p.mean[row], p.rstd[row]};
    if (threadIdx.x == 0) {
      while (atomicCAS(locks + group, 0, 1) != 0) {
      }
      __threadfence();  // nothing of what follows is read before the lock is ours
    }
    __syncthreads();
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      const float dy = to_float(p.dy[row * p.dy_stride + col]);
      float* dgamma = partial.dgamma(group) + col;
      float* dbeta = partial.dbeta(group) + col;
      // Past the first-level cache, which may hold what was there before another block's addition.
      *dgamma = __ldcg(dgamma) + dy * xhat_of(to_float(p.x[row * p.x_stride + col]), s);
      *dbeta = __ldcg(dbeta) + dy;
    }
    __threadfence();  // each thread's sums are there for all before the lock is given back
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(locks + group, 0);
  }
}
// [/snippet]

// [snippet: steps_on_the_way]
inline constexpr int64_t most_blocks_of_rows = int64_t{1} << 20;

template <class T, class G>
LaunchShape block_per_row(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  return {
      .grid = static_cast<unsigned>(std::min(p.rows, most_blocks_of_rows)), .block = threads_of_row, .stream = stream};
}

template <class T, class G>
void separate(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.rows > 0 && p.dx) launch(dx_only<T, G>, block_per_row(p, stream), p);
  if (!p.dgamma && !p.dbeta) return;
  launch(columns_only<T, G>,
         {.grid = static_cast<unsigned>((p.cols + lanes - 1) / lanes), .block = dim3(lanes, lanes), .stream = stream},
         p);
}

template <class T, class G>
void atomics(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const PartialRows partial = {p.workspace, 1, p.cols};
  check_cuda(cudaMemsetAsync(p.workspace, 0, 2 * p.cols * sizeof(float), stream), "clearing the sums");
  if (p.rows > 0) launch(dx_and_atomics<T, G>, block_per_row(p, stream), p, partial);
  launch_sum(p, 1, stream);
}

// As many groups as the Triton article has at its widest rows, or as there is room for beside the locks.
template <class T, class G>
void grouped(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t groups = std::min<int64_t>(64, backward_partial_rows(p.cols) - 1);
  const PartialRows partial = {p.workspace, groups, p.cols};
  int* locks = reinterpret_cast<int*>(p.workspace + 2 * groups * p.cols);
  const size_t bytes = 2 * groups * p.cols * sizeof(float) + groups * sizeof(int);
  check_cuda(cudaMemsetAsync(p.workspace, 0, bytes, stream), "clearing the sums and the locks");
  if (p.rows > 0) launch(dx_and_groups<T, G>, block_per_row(p, stream), p, partial, locks);
  launch_sum(p, groups, stream);
}
// [/snippet]

// --- The final kernel ------------------------------------------------------------------------------------------------
//
// Blocks stay. A *team* of threads, some lanes of a warp, a block or a cluster of blocks, takes every n-th row, and
// each of its threads has the same columns in all of them: their dgamma and dbeta add up in its registers, in fp32. The
// rows to come are on their way to shared memory meanwhile.

// [snippet: problem]
// LayerNorm's backward pass, or RMSNorm's, which has no mean and no dbeta (`centered` is false); with dh or without.
template <class T_, class G_, bool centered_, bool adds_dh_>
struct Pass {
  using T = T_;
  using G = G_;
  static constexpr bool centered = centered_;
  static constexpr bool adds_dh = adds_dh_;
  static constexpr int tensors = adds_dh ? 3 : 2;  // that are read
  LayerNormBackward<T, G> p;

  __device__ const T* tensor(int i) const { return i == 0 ? p.x : i == 1 ? p.dy : p.dh; }
  __device__ int64_t stride(int i) const { return i == 0 ? p.x_stride : i == 1 ? p.dy_stride : p.dh_stride; }
  __device__ RowStatistics statistics(int64_t row) const {
    if (row >= p.rows) return {0.0f, 0.0f};
    return {centered ? p.mean[row] : 0.0f, p.rstd[row]};
  }
};
// [/snippet]

// [snippet: columns]
// The columns of a row that a thread has, whichever row: `units` pieces of `unit` elements. Where all rows lie on
// 16-byte boundaries a unit is a vector, and else one element.
template <Fit fit, class T>
inline constexpr int unit = fit == Fit::any ? 1 : vector_size<T>;

struct Columns {
  int64_t begin;  // of the block's piece of the row
  int count;      // columns of the piece
  int thread;     // of the team's threads in this block
  int threads;

  template <int unit>
  __device__ int at(int i) const {  // from the piece's begin
    return (thread + i * threads) * unit;
  }
};

template <int unit>
struct Unit {
  float at[unit];
};
template <Fit fit, class T>
__device__ inline Unit<unit<fit, T>> read_unit(const T* from) {
  Unit<unit<fit, T>> floats;
  if constexpr (fit == Fit::any) {
    floats.at[0] = to_float(*from);
  } else {
    const Floats<T> all = unpack<T>(*reinterpret_cast<const uint4*>(from));
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) floats.at[k] = all.at[k];
  }
  return floats;
}

template <Fit fit, class T>
__device__ inline void write_unit(T* to, const Unit<unit<fit, T>>& floats) {
  if constexpr (fit == Fit::any) {
    *to = static_cast<T>(floats.at[0]);
  } else {
    Floats<T> all;
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) all.at[k] = floats.at[k];
    *reinterpret_cast<uint4*>(to) = pack<T>(all);
  }
}
// [/snippet]

// [snippet: ring]
// Pieces of `stages` rows in shared memory, of each tensor. Copies of 16 bytes start on their way and are waited for
// later. A vector is copied as it lies in global memory, so that a row that starts off a boundary brings some of its
// neighbours' elements along.
template <class Pass, Fit fit, int units, int stages>
struct Ring {
  using T = typename Pass::T;
  const Pass& pass;
  Columns columns;
  uint4* first;
  int piece_vectors;  // room for one tensor's piece of a row

  __host__ __device__ static constexpr int vectors_for(int threads) {
    return fit == Fit::any ? (units * threads * static_cast<int>(sizeof(T)) + 14) / 16 + 1 : units * threads;
  }

  __device__ uint4* cell(int slot, int tensor) const { return first + (slot * Pass::tensors + tensor) * piece_vectors; }
  __device__ const T* source(int tensor, int64_t row) const {
    return pass.tensor(tensor) + row * pass.stride(tensor) + columns.begin;
  }
  // Where the piece's first column is in shared memory.
  __device__ const T* piece(int slot, int tensor, int64_t row) const {
    const T* elements = reinterpret_cast<const T*>(cell(slot, tensor));
    if constexpr (fit != Fit::any) return elements;
    return elements + reinterpret_cast<uintptr_t>(source(tensor, row)) % 16 / sizeof(T);
  }

  __device__ void start_copy(int slot, int64_t row) const {
    if (row < pass.p.rows) {
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) copy_piece(slot, tensor, row);
    }
    __pipeline_commit();
  }

 private:
  __device__ void copy_piece(int slot, int tensor, int64_t row) const {
    const T* from = source(tensor, row);
    uint4* to = cell(slot, tensor);
    if constexpr (fit != Fit::any) {
#pragma unroll
      for (int i = 0; i < units; ++i) {
        const int at = columns.at<vector_size<T>>(i);
        if (at < columns.count) __pipeline_memcpy_async(to + at / vector_size<T>, from + at, 16);
      }
    } else {
      const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
      const T* boundary = from - past_boundary;
      const int vectors = (past_boundary + columns.count + vector_size<T> - 1) / vector_size<T>;
      const T* begin = pass.tensor(tensor);
      const T* end = begin + (pass.p.rows - 1) * pass.stride(tensor) + pass.p.cols;
      for (int i = columns.thread; i < vectors; i += columns.threads) {
        const T* vector = boundary + i * vector_size<T>;
        if (vector >= begin && vector + vector_size<T> <= end) {
          __pipeline_memcpy_async(to + i, vector, 16);
        } else {  // the tensor's first or last: what lies around it is not ours to read
          for (int k = 0; k < vector_size<T>; ++k) {
            if (vector + k >= begin && vector + k < end) reinterpret_cast<T*>(to + i)[k] = vector[k];
          }
        }
      }
    }
  }
};
// [/snippet]

// [snippet: teams]
// A team adds up its threads' sums of a row: put() hands a thread's share in, and get() has the sums of all, in every
// thread. What a thread does between the two hides the wait for the others. In a turn every thread calls get() for one
// row and then put() for the next. Between two get() the team meets at a barrier that orders shared memory.

template <int width_>
struct LaneTeam {
  static constexpr int width = width_;  // lanes
  RowSums sums = {};

  __device__ void sync() const { __syncwarp(); }
  __device__ void put(const RowSums& s) { sums = {warp_sum<width>(s.wdy), warp_sum<width>(s.wdy_xhat)}; }
  __device__ RowSums get() {
    __syncwarp();
    return sums;
  }
};

// The lanes' sums of both, the first in even lanes and the second in odd ones: the first step leaves each lane one of
// the two, so that five shuffles do what takes ten.
__device__ inline float sum_of_lanes(const RowSums& s) {
  const bool odd = threadIdx.x % 2 != 0;
  const float kept = odd ? s.wdy_xhat : s.wdy;
  const float given = odd ? s.wdy : s.wdy_xhat;
  float sum = kept + __shfl_xor_sync(all_lanes, given, 1);
  for (int distance = lanes / 2; distance > 1; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  return sum;
}

// The sums of up to `parts` threads, warps or blocks, in every thread.
template <int parts>
__device__ inline RowSums sum_of_parts(const RowSums* sums, unsigned count) {
  const unsigned part = threadIdx.x % parts;
  const RowSums s = part < count ? sums[part] : RowSums{0.0f, 0.0f};
  return {warp_sum<parts>(s.wdy), warp_sum<parts>(s.wdy_xhat)};
}

__device__ inline void put_sum_of_lanes(RowSums* sums, const RowSums& s) {
  const float of_lanes = sum_of_lanes(s);
  if (threadIdx.x % lanes == 0) sums[threadIdx.x / lanes].wdy = of_lanes;
  if (threadIdx.x % lanes == 1) sums[threadIdx.x / lanes].wdy_xhat = of_lanes;
}

// One barrier to a row: the next row's sums go to the other half of the scratch memory.
template <int warps>
struct BlockTeam {
  RowSums* scratch;  // [2][warps]
  int half = 0;

  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) { put_sum_of_lanes(scratch + half * warps, s); }
  __device__ RowSums get() {
    __syncthreads();
    const RowSums sums = sum_of_parts<warps>(scratch + half * warps, blockDim.x / lanes);
    half ^= 1;
    return sums;
  }
};

inline constexpr int most_blocks_of_cluster = 16;

// The blocks write their sums into each other's shared memory, arrive at the cluster's barrier, and go on: they wait
// there only when they need the sums.
template <int warps>
struct ClusterTeam {
  Cluster cluster;
  RowSums* of_warps;   // [warps]
  RowSums* of_blocks;  // [2][most_blocks_of_cluster]
  int half = 0;

  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) {
    put_sum_of_lanes(of_warps, s);
    __syncthreads();
    if (threadIdx.x < lanes) {
      const RowSums sums = sum_of_parts<warps>(of_warps, warps);
      if (threadIdx.x < cluster.num_blocks()) {
        RowSums* there = cluster.map_shared_rank(of_blocks, threadIdx.x);
        there[half * most_blocks_of_cluster + cluster.block_rank()] = sums;
      }
    }
    cluster.barrier_arrive();
  }
  __device__ RowSums get() {
    cluster.barrier_wait();
    const RowSums sums =
        sum_of_parts<most_blocks_of_cluster>(of_blocks + half * most_blocks_of_cluster, cluster.num_blocks());
    half ^= 1;
    return sums;
  }
};
// [/snippet]

// [snippet: column_sums]
template <int each>
__device__ inline void write_sums(float* to, const float (&sums)[each]) {
  if constexpr (each % 4 == 0) {
#pragma unroll
    for (int k = 0; k < each; k += 4) {
      *reinterpret_cast<float4*>(to + k) = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
    }
  } else {
#pragma unroll
    for (int k = 0; k < each; ++k) to[k] = sums[k];
  }
}

// What a thread keeps from its first row to its last.
template <class Pass, Fit fit, int units>
struct ColumnSums {
  static constexpr int each = unit<fit, typename Pass::T>;
  float dgamma[units][each] = {};
  float dbeta[units][each] = {};

  __device__ void add(int i, int k, float dy, float xhat) {
    dgamma[i][k] = fmaf(dy, xhat, dgamma[i][k]);
    if constexpr (Pass::centered) dbeta[i][k] += dy;
  }
  // The sums of lanes `distance` apart, in both of them.
  __device__ void add_lane(int distance) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        dgamma[i][k] += __shfl_xor_sync(all_lanes, dgamma[i][k], distance);
        if constexpr (Pass::centered) dbeta[i][k] += __shfl_xor_sync(all_lanes, dbeta[i][k], distance);
      }
    }
  }
  __device__ void write(float* to_dgamma, float* to_dbeta, const Columns& columns) const {
#pragma unroll
    for (int i = 0; i < units; ++i) {
      const int at = columns.at<each>(i);
      if (at >= columns.count) continue;
      write_sums(to_dgamma + columns.begin + at, dgamma[i]);
      if constexpr (Pass::centered) write_sums(to_dbeta + columns.begin + at, dbeta[i]);
    }
  }
};

// gamma at a thread's columns, in the storage type.
template <class Pass, Fit fit, int units>
struct Weights {
  using T = typename Pass::T;
  using G = typename Pass::G;
  std::conditional_t<fit == Fit::any, float, ParameterVector<T, G>> held[units];

  __device__ void load(const G* gamma, const Columns& columns) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
      const int at = columns.at<unit<fit, T>>(i);
      const bool has = at < columns.count;
      if constexpr (fit == Fit::any) {
        held[i] = gamma && has ? to_float(gamma[columns.begin + at]) : 1.0f;
      } else {
        held[i].template load<fit, false>(has ? gamma : nullptr, static_cast<int>(columns.begin) + at, 1.0f);
      }
    }
  }
  __device__ Unit<unit<fit, T>> get(int i) const {
    Unit<unit<fit, T>> floats;
    if constexpr (fit == Fit::any) {
      floats.at[0] = held[i];
    } else {
      const Floats<T> all = held[i].floats();
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) floats.at[k] = all.at[k];
    }
    return floats;
  }
};
// [/snippet]

// [snippet: walk]
// A thread's share of a row's sums; its columns' sums grow by the row.
template <class Pass, Fit fit, int units, int stages>
__device__ inline RowSums add_row(const Ring<Pass, fit, units, stages>& ring, int slot, int64_t row,
                                  const RowStatistics& s, const Weights<Pass, fit, units>& weights,
                                  ColumnSums<Pass, fit, units>& column_sums) {
  constexpr int each = unit<fit, typename Pass::T>;
  const auto* x = ring.piece(slot, 0, row);
  const auto* dy = ring.piece(slot, 1, row);
  RowSums sums = {0.0f, 0.0f};
  if (row >= ring.pass.p.rows) return sums;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    const int at = ring.columns.template at<each>(i);
    if (at >= ring.columns.count) continue;
    const Unit<each> xs = read_unit<fit>(x + at);
    const Unit<each> dys = read_unit<fit>(dy + at);
    const Unit<each> gammas = weights.get(i);
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const float xhat = xhat_of(xs.at[k], s);
      const float wdy = dys.at[k] * gammas.at[k];
      if constexpr (Pass::centered) sums.wdy += wdy;
      sums.wdy_xhat = fmaf(wdy, xhat, sums.wdy_xhat);
      column_sums.add(i, k, dys.at[k], xhat);
    }
  }
  return sums;
}

// A thread's share of a row's dx, once the row's sums are known.
template <class Pass, Fit fit, int units, int stages>
__device__ inline void write_dx(const Ring<Pass, fit, units, stages>& ring, int slot, int64_t row,
                                const RowStatistics& s, const RowSums& sums, const Weights<Pass, fit, units>& weights) {
  constexpr int each = unit<fit, typename Pass::T>;
  const auto& p = ring.pass.p;
  if (!p.dx || row >= p.rows) return;
  const auto* x = ring.piece(slot, 0, row);
  const auto* dy = ring.piece(slot, 1, row);
  const Gradient gradient = gradient_of(s, sums, p.cols);
  auto* dx = p.dx + row * p.dx_stride + ring.columns.begin;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    const int at = ring.columns.template at<each>(i);
    if (at >= ring.columns.count) continue;
    const Unit<each> xs = read_unit<fit>(x + at);
    const Unit<each> dys = read_unit<fit>(dy + at);
    const Unit<each> gammas = weights.get(i);
    Unit<each> dxs;
#pragma unroll
    for (int k = 0; k < each; ++k) dxs.at[k] = gradient(dys.at[k] * gammas.at[k], xhat_of(xs.at[k], s));
    if constexpr (Pass::adds_dh) {
      const Unit<each> dhs = read_unit<fit>(ring.piece(slot, 2, row) + at);
#pragma unroll
      for (int k = 0; k < each; ++k) dxs.at[k] += dhs.at[k];
    }
    write_unit<fit>(dx + at, dxs);
  }
}

// Rows first_row, first_row + step, ... by one team, in `turns` turns. The row after this one is added up before this
// one's sums are asked for, so that the team's threads have work while they wait for each other. A team that has run
// out of rows keeps the others of its warp company.
template <class Pass, Fit fit, int units, int stages, class Team>
__device__ inline void walk_rows(const Pass& pass, Team team, const Ring<Pass, fit, units, stages>& ring,
                                 int64_t first_row, int64_t step, int64_t turns,
                                 ColumnSums<Pass, fit, units>& column_sums) {
  // Where a thread reads only what it has copied itself, it waits for that. Else the copies are waited for a barrier
  // earlier, and their place is given away a barrier later.
  constexpr bool reads_own = fit != Fit::any;
  static_assert(stages >= (reads_own ? 3 : 4));
  for (int i = 0; i < stages - 1; ++i) ring.start_copy(i, first_row + i * step);
  Weights<Pass, fit, units> weights;
  weights.load(pass.p.gamma, ring.columns);
  RowStatistics now = pass.statistics(first_row);
  RowStatistics next = pass.statistics(first_row + step);
  __pipeline_wait_prior(reads_own ? stages - 2 : stages - 3);
  team.sync();
  team.put(add_row(ring, 0, first_row, now, weights, column_sums));

  int slot = 0;
  int64_t row = first_row;
  for (int64_t turn = 0; turn < turns; ++turn, row += step) {
    const int next_slot = slot == stages - 1 ? 0 : slot + 1;
    const int freed_slot = slot == 0 ? stages - 1 : slot - 1;  // of the row before this one
    const RowStatistics after_next = pass.statistics(row + 2 * step);
    if constexpr (reads_own) {
      ring.start_copy(freed_slot, row + (stages - 1) * step);
      __pipeline_wait_prior(stages - 2);  // the next row is here
    }
    const RowSums next_share = add_row(ring, next_slot, row + step, next, weights, column_sums);
    if constexpr (!reads_own) __pipeline_wait_prior(stages - 4);  // the row after the next is here
    const RowSums sums = team.get();
    team.put(next_share);
    if constexpr (!reads_own) ring.start_copy(freed_slot, row + (stages - 1) * step);
    write_dx(ring, slot, row, now, sums, weights);
    slot = next_slot;
    now = next;
    next = after_next;
  }
  team.get();  // the last put(), of a row that does not exist
  __pipeline_wait_prior(0);
}
// [/snippet]

// [snippet: kernels]
// Several rows to a block: `width` lanes to a row. Before the block writes its partial row, its teams' sums are added
// up: first those of a warp's lanes, then those of the warps, in shared memory.
template <class Pass, Fit fit, int units, int stages, int width, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_lanes_per_row(Pass pass, PartialRows partial) {
  constexpr int teams = threads / width;
  constexpr int warps = threads / lanes;
  using TheRing = Ring<Pass, fit, units, stages>;
  constexpr int piece_vectors = TheRing::vectors_for(width);
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(pass.p.cols);
  const Columns columns = {0, cols, thread % width, width};
  uint4* shared = dynamic_shared<uint4>();
  const TheRing ring{pass, columns, shared + thread / width * (stages * Pass::tensors * piece_vectors), piece_vectors};

  const int64_t step = int64_t{gridDim.x} * teams;
  const int64_t first = int64_t{blockIdx.x} * teams + thread / width;
  const int64_t first_of_warp = int64_t{blockIdx.x} * teams + thread / lanes * (lanes / width);
  const int64_t turns = first_of_warp < pass.p.rows ? (pass.p.rows - first_of_warp + step - 1) / step : 0;
  wait_for_previous_kernel();
  ColumnSums<Pass, fit, units> sums;
  walk_rows<Pass, fit, units, stages>(pass, LaneTeam<width>{}, ring, first, step, turns, sums);
  let_next_kernel_start();
  if (!partial.first) return;

  for (int distance = width; distance < lanes; distance *= 2) sums.add_lane(distance);
  __syncthreads();                            // nobody reads the ring any more
  float* of_warps = dynamic_shared<float>();  // [warps][2][cols]
  if (thread % lanes < width) {
    float* own = of_warps + thread / lanes * 2 * cols;
    sums.write(own, own + cols, columns);
  }
  __syncthreads();
  for (int i = thread; i < (Pass::centered ? 2 : 1) * cols; i += threads) {
    float sum = 0.0f;
    for (int warp = 0; warp < warps; ++warp) sum += of_warps[warp * 2 * cols + i];
    partial.dgamma(blockIdx.x)[i] = sum;
  }
}

template <class Pass, Fit fit, int units, int stages, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_block_per_row(Pass pass, PartialRows partial) {
  constexpr int warps = threads / lanes;
  using TheRing = Ring<Pass, fit, units, stages>;
  __shared__ RowSums scratch[2 * warps];
  const int block_threads = static_cast<int>(blockDim.x);
  const Columns columns = {0, static_cast<int>(pass.p.cols), static_cast<int>(threadIdx.x), block_threads};
  const TheRing ring{pass, columns, dynamic_shared<uint4>(), TheRing::vectors_for(block_threads)};
  const int64_t turns = (pass.p.rows - blockIdx.x + gridDim.x - 1) / gridDim.x;
  wait_for_previous_kernel();
  ColumnSums<Pass, fit, units> sums;
  walk_rows<Pass, fit, units, stages>(pass, BlockTeam<warps>{scratch}, ring, blockIdx.x, gridDim.x, turns, sums);
  let_next_kernel_start();
  if (partial.first) sums.write(partial.dgamma(blockIdx.x), partial.dbeta(blockIdx.x), columns);
}

// Each block of a cluster has one piece of its rows.
template <class Pass, Fit fit, int units, int stages, int threads>
__global__ void __launch_bounds__(threads, 1) backward_cluster_per_row(Pass pass, PartialRows partial) {
  constexpr int warps = threads / lanes;
  using T = typename Pass::T;
  using TheRing = Ring<Pass, fit, units, stages>;
  __shared__ RowSums of_warps[warps];
  __shared__ RowSums of_blocks[2 * most_blocks_of_cluster];
  const Cluster cluster = this_cluster();
  const int64_t blocks = cluster.num_blocks();
  const int64_t row_units = (pass.p.cols + unit<fit, T> - 1) / unit<fit, T>;
  const int64_t piece = (row_units + blocks - 1) / blocks * unit<fit, T>;
  const int64_t begin = cluster.block_rank() * piece;
  const int64_t left = pass.p.cols - begin;
  const int count = static_cast<int>(left < 0 ? 0 : left < piece ? left : piece);
  const Columns columns = {count == 0 ? 0 : begin, count, static_cast<int>(threadIdx.x), threads};
  const TheRing ring{pass, columns, dynamic_shared<uint4>(), TheRing::vectors_for(threads)};

  const int64_t clusters = gridDim.x / blocks;
  const int64_t first = blockIdx.x / blocks;
  const int64_t turns = (pass.p.rows - first + clusters - 1) / clusters;
  wait_for_previous_kernel();
  cluster.sync();  // all blocks have started, and have shared memory to write into
  ColumnSums<Pass, fit, units> sums;
  walk_rows<Pass, fit, units, stages>(pass, ClusterTeam<warps>{cluster, of_warps, of_blocks}, ring, first, clusters,
                                      turns, sums);
  let_next_kernel_start();
  if (partial.first) sums.write(partial.dgamma(first), partial.dbeta(first), columns);
}
// [/snippet]

// [snippet: launch]
// Shared memory beside the dynamic one: what the runtime takes of a block's, and the scratch memory of the teams.
inline constexpr int64_t shared_beside_ring = 1024 + 1024;

template <class Pass>
PartialRows partial_rows_of(const Pass& pass, int64_t count) {
  const bool wanted = pass.p.dgamma || pass.p.dbeta;
  return {wanted ? pass.p.workspace : nullptr, count, pass.p.cols};
}

// As many teams as work at the same time, so that none waits for a place. Where there are few rows, a team has four of
// them if that leaves none of the multiprocessors without: each team's partial row has to be read again.
inline int64_t teams_for(int64_t rows, int64_t at_once, int64_t cols) {
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t wished = std::min(rows, std::max(multiprocessors, rows / 4));
  return std::max<int64_t>(1, std::min({wished, at_once, backward_partial_rows(cols)}));
}

inline bool fits(int64_t shared_bytes) {
  return shared_bytes + shared_beside_ring <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

// Blocks of `kernel` that the whole device holds at the same time.
template <class Kernel>
int64_t blocks_at_once(Kernel kernel, int threads, size_t shared_bytes) {
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "asking for dynamic shared memory");
  int blocks = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<const void*>(kernel), threads,
                                                           shared_bytes),
             "asking how many blocks fit");
  return int64_t{blocks} * device_attribute(cudaDevAttrMultiProcessorCount);
}

template <Fit fit, int units, int stages, int width, int threads, int resident, class Pass>
bool launch_lanes(const Pass& pass, cudaStream_t stream) {
  constexpr int teams = threads / width;
  constexpr size_t shared_bytes =
      size_t{teams} * stages * Pass::tensors * Ring<Pass, fit, units, stages>::vectors_for(width) * sizeof(uint4);
  if (!fits(shared_bytes)) return false;
  const auto kernel = backward_lanes_per_row<Pass, fit, units, stages, width, threads, resident>;
  const int64_t rows_of_teams = (pass.p.rows + teams - 1) / teams;
  const int64_t blocks = teams_for(rows_of_teams, blocks_at_once(kernel, threads, shared_bytes), pass.p.cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, blocks));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <Fit fit, int units, int stages, int threads, int resident, class Pass>
bool launch_block(const Pass& pass, cudaStream_t stream) {
  using T = typename Pass::T;
  const int64_t row_units = (pass.p.cols + unit<fit, T> - 1) / unit<fit, T>;
  const unsigned block_threads = welford::threads_for(row_units, units);
  const size_t shared_bytes = size_t{stages} * Pass::tensors * sizeof(uint4) *
                              Ring<Pass, fit, units, stages>::vectors_for(static_cast<int>(block_threads));
  if (!fits(shared_bytes)) return false;
  const auto kernel = backward_block_per_row<Pass, fit, units, stages, threads, resident>;
  const int64_t at_once = blocks_at_once(kernel, static_cast<int>(block_threads), shared_bytes);
  const int64_t blocks = teams_for(pass.p.rows, at_once, pass.p.cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = block_threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, blocks));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <Fit fit, int units, int stages, int threads, class Pass>
bool launch_cluster(const Pass& pass, cudaStream_t stream) {
  using T = typename Pass::T;
  const int64_t row_units = (pass.p.cols + unit<fit, T> - 1) / unit<fit, T>;
  unsigned size = 2;
  while (row_units > int64_t{size} * units * threads) size *= 2;
  constexpr size_t shared_bytes =
      size_t{stages} * Pass::tensors * sizeof(uint4) * Ring<Pass, fit, units, stages>::vectors_for(threads);
  if (size > most_blocks_of_cluster || !fits(shared_bytes)) return false;
  if (device_attribute(cudaDevAttrClusterLaunch) == 0) return false;
  const auto kernel = backward_cluster_per_row<Pass, fit, units, stages, threads>;
  const void* const address = reinterpret_cast<const void*>(kernel);
  check_cuda(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize, int{shared_bytes}),
             "asking for dynamic shared memory");
  if (size > welford::largest_cluster) {
    check_cuda(cudaFuncSetAttribute(address, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "asking for a cluster of 16 blocks");
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = size;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = size;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int at_once = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&at_once, address, &config), "asking how many clusters fit");
  if (at_once == 0) return false;
  const int64_t clusters = teams_for(pass.p.rows, at_once, pass.p.cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(clusters * size),
          .block = threads,
          .shared_bytes = shared_bytes,
          .cluster = size,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, clusters));
  launch_sum(pass.p, clusters, stream);
  return true;
}
// [/snippet]

// [snippet: dispatch]
// The stages of a large ring: what compute capability 9.0 has room for.
template <class Pass>
inline constexpr int stages_in_room = Pass::adds_dh ? 4 : 6;

// Which shape takes which length was found by measuring on an H200.
template <class Pass>
bool rows_of_vectors(const Pass& pass, cudaStream_t stream) {
  constexpr Fit fit = Fit::vectors;
  constexpr bool wide_elements = sizeof(typename Pass::T) == 4;
  constexpr int deep = stages_in_room<Pass>;
  const int64_t length = pass.p.cols / vector_size<typename Pass::T>;
  if (length <= 2 * 4) return launch_lanes<fit, 2, 4, 4, 256, 2>(pass, stream);
  if (length <= 2 * 8) return launch_lanes<fit, 2, 4, 8, 256, 2>(pass, stream);
  if (length <= 2 * 16) return launch_lanes<fit, 2, 4, 16, 256, 2>(pass, stream);
  if (length <= 2 * 32) return launch_lanes<fit, 2, 4, 32, 256, 2>(pass, stream);
  if (!wide_elements && length <= 2 * 256) return launch_block<fit, 2, 3, 512, 1>(pass, stream);
  if (length <= 2 * 512) return launch_block<fit, 2, deep, 512, 1>(pass, stream);
  if constexpr (!Pass::adds_dh) {  // with a third tensor the rings of these two are too large
    if (length <= 4 * 512) return launch_block<fit, 4, 3, 512, 1>(pass, stream);
    if constexpr (wide_elements) return launch_cluster<fit, 4, 3, 512>(pass, stream);
  }
  return launch_cluster<fit, 2, deep, 512>(pass, stream);
}

template <class Pass>
bool rows_of_elements(const Pass& pass, cudaStream_t stream) {
  constexpr Fit fit = Fit::any;
  if (pass.p.cols <= 2 * 8) return launch_lanes<fit, 2, 4, 8, 256, 2>(pass, stream);
  if (pass.p.cols <= 4 * 32) return launch_lanes<fit, 4, 4, 32, 256, 2>(pass, stream);
  if constexpr (sizeof(typename Pass::T) == 4) {
    if (pass.p.cols <= 8 * 512) return launch_block<fit, 8, stages_in_room<Pass>, 512, 1>(pass, stream);
    return launch_cluster<fit, 8, stages_in_room<Pass>, 512>(pass, stream);
  } else {
    if (pass.p.cols <= 16 * 256) return launch_block<fit, 16, 4, 256, 2>(pass, stream);
    return launch_cluster<fit, 16, stages_in_room<Pass>, 512>(pass, stream);
  }
}

template <class T, class G, bool centered, bool adds_dh>
void persistent_pass(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const Pass<T, G, centered, adds_dh> pass = {p};
  const auto whole = [&](const void* first, int64_t stride) {
    return reinterpret_cast<uintptr_t>(first) % 16 == 0 && (p.rows == 1 || stride % vector_size<T> == 0);
  };
  const bool whole_vectors = p.cols % vector_size<T> == 0 && whole(p.x, p.x_stride) && whole(p.dy, p.dy_stride) &&
                             whole(p.dh, p.dh_stride) && whole(p.dx, p.dx_stride) && whole(p.gamma, 0);
  if (whole_vectors ? rows_of_vectors(pass, stream) : rows_of_elements(pass, stream)) return;
  separate(p, stream);  // rows too wide for the device's clusters, or a device that has none
}

template <class T, class G, bool centered>
void persistent_any(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.dh) {
    persistent_pass<T, G, centered, true>(p, stream);
  } else {
    persistent_pass<T, G, centered, false>(p, stream);
  }
}

// The final kernels: rows of any length, any number of them, any stride and alignment. Asynchronous in `stream`. The
// same bits on every run: no sum's order hangs on which block comes first.
template <class T, class G>
void layer_norm_backward(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, true>(p, stream);
}

template <class T, class G>
void rms_norm_backward(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, false>({p.dy, p.x, p.dh, p.gamma, nullptr, p.rstd, p.dx, p.dgamma, nullptr, p.workspace, p.rows,
                               p.cols, p.dy_stride, p.x_stride, p.dh_stride, p.dx_stride},
                              stream);
}
// [/snippet]

}  // namespace worklog::backward

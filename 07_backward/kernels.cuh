// The backward pass: dx reduces along the rows, dgamma and dbeta along the columns, over the same data.
#pragma once

#include <cuda_pipeline.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/packed_rows.cuh"
#include "05_welford/final/parameters.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/unpack.cuh"
#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

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
using welford::advice_of;
using welford::copy_vector;
using welford::elements_of_lane;
using welford::LaneShare;
using welford::Leaves;
using welford::leaves_of;
using welford::PackedTile;
using welford::ParameterVector;
using welford::UnitPlace;
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
// order, hangs on the shape alone. Few columns make few tiles: narrow ones then, of one sector to a row. It adds up in
// fp64: there is little to add, and the sums that come here have been rounded once already.
template <class G, int width, int rows>
__global__ void __launch_bounds__(width* rows) sum_partials(PartialRows partial, G* dgamma, G* dbeta) {
  constexpr int warps = width * rows / lanes;
  __shared__ double sums[rows][width + 1];  // one more to a row, so that a column lies in many banks
  wait_for_previous_kernel();
  G* out = blockIdx.y == 0 ? dgamma : dbeta;
  if (!out) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * width;
  const int64_t col = first + thread % width;
  double sum = 0.0;
  if (col < partial.cols) {
    const float* column = partial.first + blockIdx.y * partial.cols + col;
#pragma unroll 8
    for (int64_t i = thread / width; i < partial.count; i += rows) sum += column[2 * i * partial.cols];
  }
  sums[thread / width][thread % width] = sum;
  __syncthreads();
  for (int own = thread / lanes; own < width; own += warps) {
    double part = 0.0;
    for (int row = thread % lanes; row < rows; row += lanes) part += sums[row][own];
    for (int distance = lanes / 2; distance > 0; distance /= 2) part += __shfl_xor_sync(all_lanes, part, distance);
    if (thread % lanes == 0 && first + own < partial.cols) out[first + own] = static_cast<G>(static_cast<float>(part));
  }
}

// Where there are few partial rows, and so many columns that each may have a thread of its own.
inline constexpr int few_partial_rows = 16;
inline constexpr int threads_of_few = 256;
template <class G>
__global__ void __launch_bounds__(threads_of_few) sum_few_partials(PartialRows partial, G* dgamma, G* dbeta) {
  wait_for_previous_kernel();
  G* out = blockIdx.y == 0 ? dgamma : dbeta;
  const int64_t col = int64_t{blockIdx.x} * threads_of_few + threadIdx.x;
  if (!out || col >= partial.cols) return;
  const float* column = partial.first + blockIdx.y * partial.cols + col;
  double sum = 0.0;
#pragma unroll 8
  for (int64_t i = 0; i < partial.count; ++i) sum += column[2 * i * partial.cols];
  out[col] = static_cast<G>(static_cast<float>(sum));
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
  if (p.cols > 32 * 1024 && partial_rows <= few_partial_rows) {
    launch(sum_few_partials<G>,
           {.grid = dim3(static_cast<unsigned>((p.cols + threads_of_few - 1) / threads_of_few), 2),
            .block = threads_of_few,
            .overlap = true,
            .stream = stream},
           PartialRows{p.workspace, partial_rows, p.cols}, p.dgamma, p.dbeta);
  } else if (p.cols > 32 * 1024) {
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
// Blocks stay. A *team* of threads, some lanes of a warp, a block or a cluster of blocks, takes a share of the rows,
// and each of its threads has the same columns in all of them: their dgamma and dbeta add up in its registers, in fp32.
// The rows to come are on their way to shared memory meanwhile.

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
  Leaves leaves;  // when what is read leaves the L2 cache, as in stage 05
  float inverse_cols;

  __device__ const T* tensor(int i) const { return i == 0 ? p.x : i == 1 ? p.dy : p.dh; }
  __device__ int64_t stride(int i) const { return i == 0 ? p.x_stride : i == 1 ? p.dy_stride : p.dh_stride; }
  __device__ RowStatistics statistics(int64_t row) const { return {centered ? p.mean[row] : 0.0f, p.rstd[row]}; }
};

// How the rows lie.
enum class Layout {
  whole,  // they are whole 16-byte vectors on 16-byte boundaries
  alike,  // they start and end anywhere, but row i of all tensors starts equally far past a boundary
  apart,  // row i of one tensor starts otherwise than row i of another
};
// [/snippet]

// [snippet: shares]
// A team's rows: the first of them, and how many. `turns` is the largest count of the teams that must keep step with
// this one.
struct Share {
  int64_t first;
  int count;
  int turns;
};

// Who takes which rows: teams take turns, so that the rows that are worked on at the same time are neighbours.
//
// A thread reads 16-byte vectors on 16-byte boundaries. Where rows are no whole vectors, the columns that such a vector
// holds change from row to row; but every `period`-th row starts equally far past a boundary, and is of one *kind* with
// it. There the number of teams is a multiple of the period: a team's rows are all of one kind, and its threads keep
// their columns.
template <Layout layout>
struct Split {
  int64_t rows;
  int64_t step;        // from a team's row to its next: how many teams take turns
  int64_t advance[3];  // and the elements from the one to the other in x, dy and dh
  int64_t advance_dx;
  float inverse_cols;

  __device__ Share share_of(int64_t team) const {
    const int count = team < rows ? static_cast<int>((rows - team + step - 1) / step) : 0;
    return {team, count, count};
  }
};

// Rows in parts of nearly the same size: the first `larger` parts have one row more than the others.
struct Parts {
  int64_t size;
  int64_t larger;

  __device__ int64_t begin_of(int64_t part) const { return part * size + (part < larger ? part : larger); }
};

// Clusters are few, and those beyond a multiple of the period are too many to do without. They take the last rows.
// These are put in an order, first all of one kind, then all of the next, and each of these clusters has a *stretch* of
// it. Where the kind changes, so do the columns, and the cluster begins anew, with another partial row.
template <Layout layout>
struct ClusterSplit {
  int period;
  int kind_count;          // the period, or how many last rows there are if they are fewer
  int turning;             // clusters that take turns, with the first rows
  Split<layout> split[2];  // of those; and from a row to the next of its kind
  Parts kinds;             // of the last rows
  Parts stretches;

  __device__ bool takes_turns(int cluster) const { return layout != Layout::alike || cluster < turning; }
  __device__ const Split<layout>& split_of(int cluster) const { return split[takes_turns(cluster) ? 0 : 1]; }
  // The kinds to ask share_of() for.
  __device__ int kinds_of(int cluster) const { return takes_turns(cluster) ? 1 : kind_count; }
  // The cluster's rows of a kind. None has a partial row too, if the kind begins where the stretch ends; below zero the
  // kind is not the cluster's.
  __device__ Share share_of(int cluster, int kind) const {
    if (takes_turns(cluster)) return split[0].share_of(cluster);
    const int64_t begin = stretches.begin_of(cluster - turning);
    const int64_t end = stretches.begin_of(cluster - turning + 1);
    const int64_t first = kinds.begin_of(kind);
    const int64_t next = kinds.begin_of(kind + 1);
    if (first > end || next <= begin) return {0, -1, 0};
    const int64_t from = begin < first ? first : begin;
    const int count = static_cast<int>((end < next ? end : next) - from);
    return {split[0].rows + kind + (from - first) * period, count, count};
  }
};
// [/snippet]

// [snippet: columns]
template <int count>
struct Unit {
  float at[count];
};

// The columns of a row that a thread has: units of one vector, or of one element where the rows lie apart.
//
// Where rows lie alike, the first vector begins with the last elements of the row before, and the last one ends with
// the first of the row after. Where there is room, the row's own last elements take the place of the former, so that
// the two are one unit: such a row has no more units than one that starts on a boundary.
template <Layout layout, class T>
struct Columns {
  static constexpr int unit = layout == Layout::apart ? 1 : vector_size<T>;
  int begin;  // of the block's piece of the row, which ends before `end`: below 0 where neighbours come first
  int end;
  int row_end;  // of the row, without the moved elements
  int moved;    // elements of the row's end that are in the first vector
  int tail;     // where the row's last vector begins, if it is not whole: else the row's length
  int last;     // elements of it
  int thread;   // of the team's threads in this block
  int threads;

  __device__ int column(int i) const { return begin + (thread + i * threads) * unit; }
  __device__ bool has(int i) const { return column(i) < end; }
  // The column of element k of the unit that begins at column `first`; -1 where it is not the row's.
  __device__ int column_of_element(int first, int k) const {
    if (first + k < 0) return k < moved ? row_end + k : -1;
    return first + k < row_end ? first + k : -1;
  }
  __device__ int column(int i, int k) const { return column_of_element(column(i), k); }
};

// Those of a team whose rows start like row `row`; the team has `pieces` blocks, of which this is number `piece`.
template <Layout layout, class Pass>
__device__ inline Columns<layout, typename Pass::T> columns_of(const Pass& pass, int64_t row, int thread, int threads,
                                                               int piece = 0, int pieces = 1) {
  using T = typename Pass::T;
  constexpr int unit = Columns<layout, T>::unit;
  const int cols = static_cast<int>(pass.p.cols);
  int past_boundary = 0;
  int moved = 0;
  int last = 0;  // elements of the last vector, where it is not whole
  if constexpr (layout == Layout::alike) {
    const auto address = reinterpret_cast<uintptr_t>(pass.p.x + row * pass.p.x_stride);
    past_boundary = static_cast<int>(address % 16 / sizeof(T));
    last = (past_boundary + cols) % unit;
    if (last <= past_boundary) moved = last;
  }
  const int row_end = cols - moved;
  const int row_units = (past_boundary + row_end + unit - 1) / unit;
  const int piece_units = (row_units + pieces - 1) / pieces;
  const int begin = piece * piece_units * unit - past_boundary;
  const int end = begin + piece_units * unit;
  return {begin, end < row_end ? end : row_end, row_end, moved, cols - last, last, thread, threads};
}
// [/snippet]

// [snippet: ring]
// Pieces of `stages` rows in shared memory, of each tensor. Copies of 16 bytes start on their way and are waited for
// later. A thread copies the vectors that it will read itself: it needs no barrier to read them. As soon as it has read
// one for the last time, the copy of the row that is `stages` rows later starts into its place.
//
// Two lanes ask for a sector of 32 bytes together only if they write into one sector of shared memory as well. Half of
// the rows that lie alike start in mid-sector. In the ring the vectors of such a row are one place further on, in a
// circle of a warp's places. So a copy may go where another lane has read, but always one of its own warp.
//
// Where rows lie alike, the first vector of a row and the last are *edges*: they hold elements of its neighbours too.
// They come like all others, whole, so that nobody waits for them. (Should dx lie in the place of x or dy, a
// neighbour's elements may be old or new: they are overwritten before anyone uses them.) What has to be done for single
// elements is done by as many lanes of the edge's warp, at once: were it one thread that did them one by one, all the
// team would wait for it in every row.
template <class Pass, Layout layout, int units, int stages_>
struct Ring {
  using T = typename Pass::T;
  using Its = Columns<layout, T>;
  static constexpr int stages = stages_;
  static constexpr bool reads_own = true;
  static constexpr bool has_edges = layout == Layout::alike;
  static constexpr int elements = vector_size<T>;
  const Pass& pass;
  const Split<layout>& split;
  Its columns;
  Share share;
  uint4* cells;   // [stages][tensors][vectors_for(threads)], from this thread's on
  int slot_size;  // vectors
  uint64_t advice;

  int on_in_even = 0;  // how far the thread's vectors are moved on in the row of an even turn,
  int on_in_odd = 0;   // and in that of an odd one

  const T* from[Pass::tensors];  // the thread's first column in the row that is copied next
  int copied = 0;                // rows whose copies have started
  int units_of_thread = 0;       // that the thread has
  int units_copied = 0;          // without the last, where that is the row's last vector and an edge
  bool edge_in_warp = false;
  bool writes_edge = false;  // an element of it,
  int edge_offset = 0;       // so far from the thread's first column

  // Vectors of a tensor's piece of a row. Behind those of the threads is that of the elements that have to be moved; in
  // one of two places, as it moves on with the others.
  __host__ __device__ static constexpr int vectors_for(int threads) { return units * threads + (has_edges ? 2 : 0); }
  // Vectors of the whole ring. The last are a row's two edges of dx.
  __host__ __device__ static constexpr int size_for(int threads) {
    return stages * Pass::tensors * vectors_for(threads) + (has_edges ? 2 : 0);
  }

  __device__ Ring(const Pass& pass, const Split<layout>& split, const Its& columns, const Share& share, uint4* shared)
      : pass(pass),
        split(split),
        columns(columns),
        share(share),
        cells(shared + columns.thread),
        slot_size(Pass::tensors * vectors_for(columns.threads)),
        advice(advice_of(pass.leaves)) {
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
      from[tensor] = pass.tensor(tensor) + share.first * pass.stride(tensor) + columns.column(0);
    }
#pragma unroll
    for (int i = 0; i < units; ++i) units_of_thread += columns.has(i) ? 1 : 0;
    units_copied = units_of_thread;
    if constexpr (has_edges) {
      find_edges();
      find_places();
      for (int slot = 0; slot < stages && starts_before_row(0) && columns.moved == 0; ++slot) {
        for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
          for (int on = 0; on < 2; ++on) *cell(slot * slot_size + on, tensor, units) = {0, 0, 0, 0};
        }
      }
    } else {
      // A unit that the thread does not have is zeros, which add nothing to a sum: it need not be asked for.
#pragma unroll
      for (int i = 0; i < units; ++i) {
        for (int slot = 0; slot < stages && !has(i); ++slot) {
          for (int tensor = 0; tensor < Pass::tensors; ++tensor) *cell(slot * slot_size, tensor, i) = {0, 0, 0, 0};
        }
      }
    }
  }

  __device__ bool has(int i) const {
    return i < units_of_thread;
  }
  // What is behind the ring.
  __device__ uint4* end() const {
    return cells - columns.thread + size_for(columns.threads);
  }
  // Where the thread's vectors of a turn's row are in the ring.
  __device__ int place_of(int slot, int turn) const {
    return slot * slot_size + (!has_edges ? 0 : turn % 2 == 0 ? on_in_even : on_in_odd);
  }
  // The column that write() and write_edges() count from.
  __device__ int first_column() const {
    return columns.column(0);
  }
  // Asking costs a branch, not asking the arithmetic on zeros: of many units it is worth asking. And a place that moves
  // on does not stay zeros.
  __device__ bool reads(int i) const {
    return (units <= 2 && !has_edges) || has(i);
  }
  __device__ auto read(int place, int tensor, int i, int) const {
    const Floats<T> all = unpack<T>(*cell(place, tensor, i));
    Unit<elements> floats;
#pragma unroll
    for (int k = 0; k < elements; ++k) floats.at[k] = all.at[k];
    return floats;
  }
  // Before the first read, by whole warps: puts what the row's last vector has, and zeros behind that, in the place of
  // the neighbour's elements in the first.
  __device__ void prepare(int place, bool has_row) const {
    if constexpr (has_edges) {
      if (columns.begin >= 0 || columns.thread >= lanes) return;
      __syncwarp();
      if (has_row && columns.thread < -columns.begin) {
#pragma unroll
        for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
          first_vector(place, tensor)[columns.thread] = moved(place, tensor)[columns.thread];
        }
      }
      __syncwarp();
    }
  }
  // After the last read: unit i of a row of dx, of which this is the thread's first column. An edge is left for
  // write_edges().
  __device__ void write(T* dx, int i, const Unit<elements>& floats) const {
    if (!has(i)) return;
    Floats<T> all;
#pragma unroll
    for (int k = 0; k < elements; ++k) all.at[k] = floats.at[k];
    // Two stores, since one to an address of either kind of memory is slower.
    if (has_edges && (starts_before_row(i) || i >= units_copied)) {
      edges_of_dx()[starts_before_row(i) ? 0 : 1] = pack<T>(all);
    } else {
      *reinterpret_cast<uint4*>(dx + i * columns.threads * elements) = pack<T>(all);
    }
  }
  // By whole warps.
  __device__ void write_edges(T* dx, bool has_row) const {
    if constexpr (has_edges) {
      if (!edge_in_warp) return;
      __syncwarp();
      if (has_row && writes_edge) {
        dx[edge_offset] = reinterpret_cast<const T*>(edges_of_dx())[columns.thread % lanes];
      }
    }
  }

  // Starts the copies of a thread's unit, then of its next. end_row() when all of a row have started.
  __device__ void start_copy(int place, int i) const {
    if (copied >= share.count || i >= units_copied) return;
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
      constexpr unsigned address = has_edges ? welford::undivided : ~0u;
      copy_vector<address>(cell(place, tensor, i), from[tensor] + i * columns.threads * elements, advice);
    }
  }
  __device__ void end_row(int place) {
    if (copied < share.count && copies_row_end()) {
      const int i = units_copied < units_of_thread ? units_copied : units;
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        copy_first(cell(place, tensor, i), from[tensor] + (columns.tail - columns.column(0)), columns.last);
      }
    }
    __pipeline_commit();
    ++copied;
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) from[tensor] += split.advance[tensor];
  }
  // A whole row: one of a share's first.
  __device__ void start_row(int slot) {
    const int place = place_of(slot, copied);
    const bool starts_before_tensor = starts_before_row(0) && share.first == 0 && copied == 0;
    if (starts_before_tensor && share.count > 0) {  // what lies before the tensor is not ours to read
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        for (int k = -columns.begin; k < elements; ++k) first_vector(place, tensor)[k] = from[tensor][k];
      }
    }
#pragma unroll
    for (int i = 0; i < units; ++i) {
      if (i > 0 || !starts_before_tensor) start_copy(place, i);
    }
    end_row(place);
  }

 private:
  __device__ uint4* cell(int place, int tensor, int i) const {
    return cells + place + tensor * vectors_for(columns.threads) + i * columns.threads;
  }
  // Of the team's first thread.
  __device__ T* first_vector(int place, int tensor) const {
    return reinterpret_cast<T*>(cell(place, tensor, 0) - columns.thread);
  }
  // The row's elements that have to be moved, and zeros.
  __device__ T* moved(int place, int tensor) const {
    return reinterpret_cast<T*>(cell(place, tensor, units) - columns.thread);
  }
  __device__ uint4* edges_of_dx() const {
    return end() - 2;
  }
  __device__ bool starts_before_row(int i) const {
    return has_edges && i == 0 && columns.column(0) < 0;
  }
  // The last vector, where it is not whole: one of the thread's units, or to be moved to its first.
  __device__ bool copies_row_end() const {
    return has_edges && (units_copied < units_of_thread || (columns.moved > 0 && starts_before_row(0)));
  }

  // A share's first row starts in mid-sector or not. The next one does what it does, or the two alternate.
  __device__ void find_places() {
    const int circle = columns.threads < lanes ? columns.threads : lanes;
    const int next = columns.thread % circle == circle - 1 ? 1 - circle : 1;
    const auto apart = reinterpret_cast<uintptr_t>(from[0]) ^ reinterpret_cast<uintptr_t>(cells);
    on_in_even = apart / 16 % 2 == 0 ? 0 : next;
    on_in_odd = split.advance[0] / elements % 2 == 0 ? on_in_even : next - on_in_even;
  }
  // A lane for each element of the first vector, then one for each of the last.
  __device__ void find_edges() {
    const int warp = columns.thread / lanes;
    const int lane = columns.thread % lanes;
    if (columns.begin < 0 && warp == 0) {
      edge_in_warp = true;
      if (lane < elements) find_edge_element(columns.begin, lane);
    }
    if (columns.tail < columns.begin || columns.tail >= columns.end) return;
    const int unit = (columns.tail - columns.begin) / elements;
    if (unit % columns.threads == columns.thread) --units_copied;
    if (unit % columns.threads / lanes == warp) {
      edge_in_warp = true;
      if (lane / elements == 1) find_edge_element(columns.tail, lane - elements);
    }
  }
  __device__ void find_edge_element(int first, int k) {
    const int column = columns.column_of_element(first, k);
    writes_edge = column >= 0;
    edge_offset = column - columns.column(0);
  }

  // Starts the copy of a vector's first `count` elements, and of zeros behind them: nothing is read there. The
  // runtime's function has a branch for each number of zeros, where the instruction has an operand.
  __device__ static void copy_first(uint4* to, const T* from, int count) {
    const int bytes = count * static_cast<int>(sizeof(T));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(bytes)
        : "memory");
#else
    __pipeline_memcpy_async(to, from, 16, 16 - bytes);
#endif
  }
};

// The ring of rows that lie apart. It takes the aligned vectors that cover a piece of a row, with some of its
// neighbours' elements, and a thread's columns are single elements in them. It reads what other threads have copied.
template <class Pass, int units, int stages_>
struct Ring<Pass, Layout::apart, units, stages_> {
  using T = typename Pass::T;
  using Its = Columns<Layout::apart, T>;
  static constexpr int stages = stages_;
  static constexpr bool reads_own = false;
  static constexpr bool has_edges = false;
  const Pass& pass;
  const Split<Layout::apart>& split;
  Its columns;
  Share share;
  uint4* cells;  // [stages][tensors][vectors_for(threads)]
  int copied = 0;

  __host__ __device__ static constexpr int vectors_for(int threads) {
    return (units * threads * static_cast<int>(sizeof(T)) + 14) / 16 + 1;
  }
  __host__ __device__ static constexpr int size_for(int threads) {
    return stages * Pass::tensors * vectors_for(threads);
  }

  __device__ Ring(const Pass& pass, const Split<Layout::apart>& split, const Its& columns, const Share& share,
                  uint4* shared)
      : pass(pass), split(split), columns(columns), share(share), cells(shared) {}

  __device__ int place_of(int slot, int) const { return slot; }
  __device__ uint4* cell(int slot, int tensor) const {
    return cells + (slot * Pass::tensors + tensor) * vectors_for(columns.threads);
  }
  __device__ const T* source(int tensor, int turn) const {
    return pass.tensor(tensor) + (share.first + turn * split.step) * pass.stride(tensor) + columns.begin;
  }
  __device__ Unit<1> read(int slot, int tensor, int i, int turn) const {
    const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(source(tensor, turn)) % 16 / sizeof(T));
    const T* piece = reinterpret_cast<const T*>(cell(slot, tensor)) + past_boundary;
    return {{to_float(piece[columns.column(i) - columns.begin])}};
  }
  __device__ uint4* end() const { return cell(stages, 0); }
  __device__ int first_column() const { return 0; }
  __device__ bool reads(int i) const { return columns.has(i); }
  __device__ void prepare(int, bool) const {}
  __device__ void write_edges(T*, bool) const {}
  __device__ void write(T* dx, int i, const Unit<1>& floats) const {
    dx[columns.column(i)] = static_cast<T>(floats.at[0]);
  }

  __device__ void start_row(int slot) {
    if (copied < share.count) {
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) copy_piece(cell(slot, tensor), tensor);
    }
    __pipeline_commit();
    ++copied;
  }

 private:
  __device__ void copy_piece(uint4* to, int tensor) const {
    const T* from = source(tensor, copied);
    const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
    const int vectors = (past_boundary + columns.end - columns.begin + vector_size<T> - 1) / vector_size<T>;
    const T* begin = pass.tensor(tensor);
    const T* end = begin + (pass.p.rows - 1) * pass.stride(tensor) + pass.p.cols;
    for (int i = columns.thread; i < vectors; i += columns.threads) {
      const T* vector = from - past_boundary + i * vector_size<T>;
      if (vector >= begin && vector + vector_size<T> <= end) {
        __pipeline_memcpy_async(to + i, vector, 16);
      } else {  // the tensor's first or last: what lies around it is not ours to read
        for (int k = 0; k < vector_size<T>; ++k) {
          if (vector + k >= begin && vector + k < end) reinterpret_cast<T*>(to + i)[k] = vector[k];
        }
      }
    }
  }
};
// [/snippet]

// [snippet: teams]
// A team adds up its threads' sums of a row: put() hands a thread's share in, and get() has the sums of all, in every
// thread. What a thread does between the two hides the wait for the others. In a turn every thread calls get() for one
// row and then put() for the next. Between two get() the team meets at a barrier that orders shared memory. open()
// comes before the first put(), and may wait until all of the team have started.

template <int width_>
struct LaneTeam {
  static constexpr int width = width_;  // lanes
  RowSums sums = {};

  __device__ void open() const {}
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

template <int least>
inline constexpr int power_of_2_from = static_cast<int>(std::bit_ceil(static_cast<unsigned>(least)));

// What blocks send each other has 16 bytes.
__device__ inline float4 message_of(const RowSums& s) {
  return {s.wdy, s.wdy_xhat, 0.0f, 0.0f};
}
__device__ inline RowSums sums_in(const float4& message) {
  return {message.x, message.y};
}
__device__ inline RowSums sums_in(const RowSums& s) {
  return s;
}

// The sums of up to `parts` threads, warps or blocks, a power of 2, in every thread.
template <int parts, class Sums>
__device__ inline RowSums sum_of_parts(const Sums* sums, unsigned count) {
  const unsigned part = threadIdx.x % parts;
  const RowSums s = part < count ? sums_in(sums[part]) : RowSums{0.0f, 0.0f};
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

  __device__ void open() const {}
  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) { put_sum_of_lanes(scratch + half * warps, s); }
  __device__ RowSums get() {
    __syncthreads();
    const RowSums sums = sum_of_parts<warps>(scratch + half * warps, blockDim.x / lanes);
    half ^= 1;
    return sums;
  }
};

// The blocks send each other their sums, and go on: they wait only when they need those of all. Here too the next row's
// sums go to the other half, those of the warps as well as those of the blocks.
template <int warps, class Exchange>
struct ClusterTeam {
  Cluster cluster;
  Exchange exchange;
  RowSums* of_warps;  // [2][warps]
  float4* of_blocks;  // [2][most_blocks_of_cluster]
  int half = 0;

  __device__ void open() { exchange.open(); }
  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) {
    put_sum_of_lanes(of_warps + half * warps, s);
    __syncthreads();
    if (threadIdx.x < lanes) {
      const RowSums sums = sum_of_parts<power_of_2_from<warps>>(of_warps + half * warps, warps);
      if (threadIdx.x < cluster.num_blocks()) {
        exchange.send(threadIdx.x, of_blocks + half * most_blocks_of_cluster + cluster.block_rank(), message_of(sums));
      }
    }
    exchange.all_sent();
  }
  __device__ RowSums get() {
    exchange.wait();
    const RowSums sums =
        sum_of_parts<most_blocks_of_cluster>(of_blocks + half * most_blocks_of_cluster, cluster.num_blocks());
    half ^= 1;
    return sums;
  }
};

// Blocks anywhere on the device, for rows that no cluster can hold. Their mail lies in global memory. A sum travels
// with the number of its turn, in one word: who reads the number has the sum, and nobody needs a fence. A turn's mail
// goes where that of the turn before the last was; a block sends it after it has read that of all in the last turn, and
// so all have read the one before.
using Letter = unsigned long long;
template <int threads>
struct GridTeam {
  static constexpr int warps = threads / lanes;
  Letter* mail;  // [2][blocks][2], which have zeros when the kernel starts
  int block;
  int blocks;         // as many as there are threads at most
  RowSums* of_warps;  // [warps]
  RowSums* of_mail;   // [warps]
  unsigned turn = 1;

  __device__ void sync() const { __syncthreads(); }
  __device__ Letter* letters_of(int sender) const { return mail + (turn % 2 * blocks + sender) * 2; }
  __device__ void put(const RowSums& s) const {
    put_sum_of_lanes(of_warps, s);
    __syncthreads();
    if (threadIdx.x >= lanes) return;
    const RowSums sums = sum_of_parts<power_of_2_from<warps>>(of_warps, warps);
    const float own = threadIdx.x == 0 ? sums.wdy : sums.wdy_xhat;
    if (threadIdx.x < 2) atomicExch(letters_of(block) + threadIdx.x, Letter{turn} << 32 | __float_as_uint(own));
  }
  __device__ RowSums get() {
    const int sender = static_cast<int>(threadIdx.x);
    RowSums sums = {0.0f, 0.0f};
    if (sender < blocks) sums = {sum_in(letters_of(sender)), sum_in(letters_of(sender) + 1)};
    put_sum_of_lanes(of_mail, sums);
    __syncthreads();
    ++turn;
    return sum_of_parts<power_of_2_from<warps>>(of_mail, warps);
  }

 private:
  __device__ float sum_in(const Letter* letter) const {
    Letter read = __ldcg(letter);
    while (read >> 32 != turn) {
      __nanosleep(20);
      read = __ldcg(letter);
    }
    return __uint_as_float(static_cast<unsigned>(read));
  }
};

// Nor does mail within a cluster. Rows that lie alike gain by that, and all rows where two blocks share a
// multiprocessor; but whole vectors in one large block are faster with the barrier, though it waits for all stores.
template <Layout layout, int resident>
using ExchangeOf = std::conditional_t<layout == Layout::alike || resident == 2, ClusterMail, ClusterBarrier>;
// [/snippet]

// [snippet: column_sums]
// What a thread keeps from its first row to its last.
template <class Pass, Layout layout, int units>
struct ColumnSums {
  using Its = Columns<layout, typename Pass::T>;
  static constexpr int each = Its::unit;
  float dgamma[units][each] = {};
  float dbeta[units][each] = {};

  __device__ void add(int i, int k, float dy, float xhat) {
    dgamma[i][k] = fmaf(dy, xhat, dgamma[i][k]);
    if constexpr (Pass::centered) dbeta[i][k] += dy;
  }
  // Takes what another has added up, which begins anew.
  __device__ void take(ColumnSums& other) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        dgamma[i][k] += other.dgamma[i][k];
        if constexpr (Pass::centered) dbeta[i][k] += other.dbeta[i][k];
      }
    }
    other = {};
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
  // To a partial row, by all threads of a block.
  __device__ void write_row(float* to_dgamma, float* to_dbeta, const Its& columns) const {
    if constexpr (layout == Layout::alike) {
      write_through_shared(to_dgamma, dgamma, columns);
      if constexpr (Pass::centered) write_through_shared(to_dbeta, dbeta, columns);
    } else {
      write(to_dgamma, to_dbeta, columns);
    }
  }
  // By each thread for itself.
  __device__ void write(float* to_dgamma, float* to_dbeta, const Its& columns) const {
#pragma unroll
    for (int i = 0; i < units; ++i) {
      if (!columns.has(i)) continue;
      write_unit(to_dgamma, columns, i, dgamma[i]);
      if constexpr (Pass::centered) write_unit(to_dbeta, columns, i, dbeta[i]);
    }
  }

 private:
  // A lane has neighbouring columns, and no boundary to write them to as vectors: if each wrote its own, a store of a
  // warp would go to as many sectors as it has lanes. So they change places in shared memory, where the ring was.
  __device__ static void write_through_shared(float* row, const float (&sums)[units][each], const Its& columns) {
    float* of_block = dynamic_shared<float>();  // [units][threads][each]
    __syncthreads();                            // nobody reads what was there before
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) of_block[(columns.thread + i * columns.threads) * each + k] = sums[i][k];
    }
    __syncthreads();
    for (int k = columns.thread; k < columns.end - columns.begin; k += columns.threads) {
      const int column = columns.column_of_element(columns.begin + k - k % each, k % each);
      if (column >= 0) row[column] = of_block[k];
    }
    __syncthreads();
  }
  __device__ static void write_unit(float* row, const Its& columns, int i, const float (&sums)[each]) {
    if constexpr (layout == Layout::whole) {
#pragma unroll
      for (int k = 0; k < each; k += 4) {
        *reinterpret_cast<float4*>(row + columns.column(i) + k) = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
      }
    } else {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        const int column = columns.column(i, k);
        if (column >= 0) row[column] = sums[k];
      }
    }
  }
};

// gamma at a thread's columns: floats in registers where there are few, and else in the storage type, in shared memory
// behind the ring. A thread reads there what it has written itself.
template <class Pass, Layout layout, int units>
struct Weights {
  using T = typename Pass::T;
  using G = typename Pass::G;
  using Its = Columns<layout, T>;
  static constexpr int each = Its::unit;
  static constexpr bool in_registers = units * each <= 16;
  union Vector {
    ParameterVector<T, G> packed;
    G element[vector_size<T>];
  };
  Unit<each> held[in_registers ? units : 1];
  Vector* shared;  // unit 0
  int threads;

  // Vectors of shared memory.
  __host__ __device__ static constexpr int vectors_for(int threads) {
    return in_registers ? 0 : units * threads * ParameterVector<T, G>::parts;
  }

  __device__ void load(const G* gamma, const Its& columns, uint4* behind_ring) {
    shared = reinterpret_cast<Vector*>(behind_ring) + columns.thread;
    threads = columns.threads;
#pragma unroll
    for (int i = 0; i < units; ++i) {
      const bool has = gamma && columns.has(i);
      if constexpr (layout == Layout::apart) {
        held[i].at[0] = has ? to_float(gamma[columns.column(i)]) : 1.0f;
        continue;
      }
      Vector vector;
      if constexpr (layout == Layout::whole) {
        vector.packed.template load<welford::Fit::vectors, false>(has ? gamma : nullptr, columns.column(i), 1.0f);
      } else {
        // Each element is read, if need be column 0's: were it asked first, each read would wait for the one before.
#pragma unroll
        for (int k = 0; k < each; ++k) {
          const int column = has ? columns.column(i, k) : -1;
          const G element = gamma ? gamma[column < 0 ? 0 : column] : static_cast<G>(1.0f);
          vector.element[k] = column < 0 ? static_cast<G>(1.0f) : element;
        }
      }
      if constexpr (in_registers) {
        const Floats<T> all = vector.packed.floats();
#pragma unroll
        for (int k = 0; k < each; ++k) {
          held[i].at[k] = all.at[k];
          keep(held[i].at[k]);
        }
      } else {
        shared[i * threads] = vector;
      }
    }
  }
  __device__ Unit<each> get(int i) const {
    if constexpr (in_registers) {
      return held[i];
    } else {
      const Floats<T> all = shared[i * threads].packed.floats();
      Unit<each> floats;
#pragma unroll
      for (int k = 0; k < each; ++k) floats.at[k] = all.at[k];
      return floats;
    }
  }

 private:
  // The compiler would rather unpack it anew for each row than keep it in a register.
  __device__ static void keep(float& value) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(value));
#else
    static_cast<void>(value);
#endif
  }
};
// [/snippet]

// [snippet: walk]
// A thread's share of a row's sums; its columns' sums grow by the row.
template <class Pass, Layout layout, int units, int stages>
__device__ inline RowSums add_row(const Ring<Pass, layout, units, stages>& ring, int place, int turn,
                                  const RowStatistics& s, const Weights<Pass, layout, units>& weights,
                                  ColumnSums<Pass, layout, units>& column_sums) {
  RowSums sums = {0.0f, 0.0f};
  ring.prepare(place, turn < ring.share.count);
  if (turn >= ring.share.count) return sums;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!ring.reads(i)) continue;
    const auto xs = ring.read(place, 0, i, turn);
    const auto dys = ring.read(place, 1, i, turn);
    const auto gammas = weights.get(i);
#pragma unroll
    for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) {
      const float xhat = xhat_of(xs.at[k], s);
      const float wdy = dys.at[k] * gammas.at[k];
      if constexpr (Pass::centered) sums.wdy += wdy;
      sums.wdy_xhat = fmaf(wdy, xhat, sums.wdy_xhat);
      column_sums.add(i, k, dys.at[k], xhat);
    }
  }
  return sums;
}

// A thread's share of a row's dx, once the row's sums are known. The row is then read for the last time, and the copy
// of another starts.
template <class Pass, Layout layout, int units, int stages>
__device__ inline void write_dx(Ring<Pass, layout, units, stages>& ring, int place, int place_of_copy, int turn,
                                typename Pass::T* dx, const RowStatistics& s, const Gradient& gradient,
                                const Weights<Pass, layout, units>& weights) {
  using TheRing = Ring<Pass, layout, units, stages>;
  const bool writes = ring.pass.p.dx && turn < ring.share.count;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (writes && ring.reads(i)) {
      const auto xs = ring.read(place, 0, i, turn);
      const auto dys = ring.read(place, 1, i, turn);
      const auto gammas = weights.get(i);
      auto dxs = xs;
#pragma unroll
      for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) {
        dxs.at[k] = gradient(dys.at[k] * gammas.at[k], xhat_of(xs.at[k], s));
      }
      if constexpr (Pass::adds_dh) {
        const auto dhs = ring.read(place, 2, i, turn);
#pragma unroll
        for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) dxs.at[k] += dhs.at[k];
      }
      ring.write(dx, i, dxs);
    }
    if constexpr (TheRing::has_edges) __syncwarp();  // lanes read where others copy to
    if constexpr (TheRing::reads_own) ring.start_copy(place_of_copy, i);
  }
  ring.write_edges(dx, writes);
  if constexpr (TheRing::reads_own) ring.end_row(place_of_copy);
}

// gradient_of, with 1 / cols at hand: a multiplication for each row in the place of a division.
__device__ inline Gradient gradient_with(const RowStatistics& s, const RowSums& sums, float inverse_cols) {
  const float each = s.rstd * inverse_cols;
  return {s.rstd, sums.wdy * each, sums.wdy_xhat * each};
}

// A share of rows by one team. The row after this one is added up before this one's sums are asked for, so that the
// team's threads have work while they wait for each other. A team that has run out of rows keeps the others of its warp
// company.
//
// The error of a sum grows with the root of how many terms are added one after the other. Where a thread has registers
// for that, it adds up `rows_of_sum` rows at a time, and then those sums. That is where elements have 32 bits: those of
// 16 are themselves rounded so much that it would not be seen.
inline constexpr int rows_of_sum = 8;
template <class Pass, Layout layout, int units, int stages, class Team>
__device__ inline void walk_rows(const Pass& pass, Team& team, Ring<Pass, layout, units, stages> ring,
                                 ColumnSums<Pass, layout, units>& column_sums) {
  // Where a thread reads only what it has copied itself, it waits for that. Else the copies are waited for a barrier
  // earlier, and their place is given away a barrier later.
  constexpr bool reads_own = Ring<Pass, layout, units, stages>::reads_own;
  static_assert(stages >= (reads_own ? 3 : 4));
  constexpr bool in_steps = units * ColumnSums<Pass, layout, units>::each <= 8;
  ColumnSums<Pass, layout, units> of_step;
  ColumnSums<Pass, layout, units>& growing = in_steps ? of_step : column_sums;
  const Share share = ring.share;
  const auto statistics = [&](int turn) {
    const int64_t row = share.first + turn * ring.split.step;
    return turn < share.count ? pass.statistics(row) : RowStatistics{0.0f, 0.0f};
  };
  for (int slot = 0; slot < (reads_own ? stages : stages - 1); ++slot) ring.start_row(slot);
  Weights<Pass, layout, units> weights;
  weights.load(pass.p.gamma, ring.columns, ring.end());
  RowStatistics now = statistics(0);
  RowStatistics next = statistics(1);
  __pipeline_wait_prior(reads_own ? stages - 1 : stages - 3);
  if constexpr (!reads_own) team.sync();
  team.put(add_row(ring, ring.place_of(0, 0), 0, now, weights, growing));

  typename Pass::T* dx = pass.p.dx + share.first * pass.p.dx_stride + ring.first_column();
  int slot = 0;
  for (int turn = 0; turn < share.turns; ++turn, dx += ring.split.advance_dx) {
    const int next_slot = slot == stages - 1 ? 0 : slot + 1;
    const RowStatistics after_next = statistics(turn + 2);
    if constexpr (reads_own) __pipeline_wait_prior(stages - 2);  // the next row is here
    const RowSums next_share = add_row(ring, ring.place_of(next_slot, turn + 1), turn + 1, next, weights, growing);
    if constexpr (!reads_own) __pipeline_wait_prior(stages - 4);  // the row after the next is here
    const RowSums sums = team.get();
    team.put(next_share);
    if constexpr (!reads_own) ring.start_row(slot == 0 ? stages - 1 : slot - 1);  // where the row before this one was
    write_dx(ring, ring.place_of(slot, turn), ring.place_of(slot, turn + stages), turn, dx, now,
             gradient_with(now, sums, ring.split.inverse_cols), weights);
    slot = next_slot;
    now = next;
    next = after_next;
    if (in_steps && turn % rows_of_sum == rows_of_sum - 1) column_sums.take(of_step);
  }
  if constexpr (in_steps) column_sums.take(of_step);
  team.get();  // the last put(), of a row that does not exist
  __pipeline_wait_prior(0);
}
// [/snippet]

// [snippet: kernels]
// Several rows to a block: `width` lanes to a row. Before the block writes its partial row, its teams' sums are added
// up: first those of a warp's lanes, then those of the warps, in shared memory. Where rows lie alike, those of a team
// are of one kind, since its step of rows is a multiple of 8; and so are those of a warp, since its teams' are 8 apart.
template <class Pass, Layout layout, int units, int stages, int width, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_lanes_per_row(Pass pass, PartialRows partial, Split<layout> split) {
  constexpr int teams = threads / width;
  constexpr int warps = threads / lanes;
  constexpr bool in_order = layout != Layout::alike;  // of the teams' rows, or every `warps`-th to a warp
  static_assert(in_order || warps == 8);
  static_assert(Weights<Pass, layout, units>::in_registers);
  using TheRing = Ring<Pass, layout, units, stages>;
  constexpr int ring_size = TheRing::size_for(width);
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(pass.p.cols);
  const auto rows_from = [&](int64_t first) {
    return first < split.rows ? static_cast<int>((split.rows - first + split.step - 1) / split.step) : 0;
  };
  const int warp = thread / lanes;
  const int team_in_warp = thread % lanes / width;
  const int64_t first_of_warp = int64_t{blockIdx.x} * teams + warp * (in_order ? lanes / width : 1);
  const int64_t first = first_of_warp + team_in_warp * (in_order ? 1 : warps);
  const Share share = {first, rows_from(first), rows_from(first_of_warp)};
  const auto columns = columns_of<layout>(pass, first, thread % width, width);

  wait_for_previous_kernel();
  ColumnSums<Pass, layout, units> sums;
  LaneTeam<width> team;
  walk_rows(pass, team, TheRing(pass, split, columns, share, dynamic_shared<uint4>() + thread / width * ring_size),
            sums);
  let_next_kernel_start();
  if (!partial.first) return;

  for (int distance = width; distance < lanes; distance *= 2) sums.add_lane(distance);
  __syncthreads();                            // nobody reads the ring any more
  float* of_warps = dynamic_shared<float>();  // [warps][2][cols]
  if (thread % lanes < width) {
    float* own = of_warps + warp * 2 * cols;
    sums.write(own, own + cols, columns);
  }
  __syncthreads();
  for (int i = thread; i < (Pass::centered ? 2 : 1) * cols; i += threads) {
    double sum = 0.0;
    for (int each = 0; each < warps; ++each) sum += of_warps[each * 2 * cols + i];
    partial.dgamma(blockIdx.x)[i] = static_cast<float>(sum);
  }
}

template <class Pass, Layout layout, int units, int stages, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_block_per_row(Pass pass, PartialRows partial, Split<layout> split) {
  constexpr int most_warps = power_of_2_from<threads / lanes>;
  __shared__ RowSums scratch[2 * most_warps];
  BlockTeam<most_warps> team{scratch};
  wait_for_previous_kernel();
  const Share share = split.share_of(blockIdx.x);
  const int block_threads = units > 2 ? threads : static_cast<int>(blockDim.x);
  const auto columns = columns_of<layout>(pass, share.first, static_cast<int>(threadIdx.x), block_threads);
  ColumnSums<Pass, layout, units> sums;
  walk_rows(pass, team, Ring<Pass, layout, units, stages>(pass, split, columns, share, dynamic_shared<uint4>()), sums);
  let_next_kernel_start();
  if (partial.first) sums.write_row(partial.dgamma(blockIdx.x), partial.dbeta(blockIdx.x), columns);
}

// The rows of one kind of team `number`, of which each of the team's `pieces` blocks has one piece.
template <int units, int stages, int threads, Layout layout, class Pass, class Team>
__device__ inline void walk_kind(const Pass& pass, Team& team, const PartialRows& partial,
                                 const ClusterSplit<layout>& rows, int number, int kind, int piece, int pieces) {
  const Share share = rows.share_of(number, kind);
  if (share.count < 0) return;
  const auto columns = columns_of<layout>(pass, share.first, static_cast<int>(threadIdx.x), threads, piece, pieces);
  ColumnSums<Pass, layout, units> sums;
  if (share.count > 0) {
    walk_rows(pass, team,
              Ring<Pass, layout, units, stages>(pass, rows.split_of(number), columns, share, dynamic_shared<uint4>()),
              sums);
  }
  if (partial.first) sums.write_row(partial.dgamma(number + kind), partial.dbeta(number + kind), columns);
}

template <class Pass, Layout layout, int units, int stages, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_cluster_per_row(Pass pass, PartialRows partial, ClusterSplit<layout> rows) {
  constexpr int warps = threads / lanes;
  __shared__ RowSums of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  ClusterTeam<warps, ExchangeOf<layout, resident>> team{cluster, {cluster, arrivals}, of_warps, of_blocks};
  team.open();
  const int number = static_cast<int>(blockIdx.x) / blocks;
  for (int kind = 0; kind < rows.kinds_of(number); ++kind) {
    walk_kind<units, stages, threads>(pass, team, partial, rows, number, kind, static_cast<int>(cluster.block_rank()),
                                      blocks);
  }
  let_next_kernel_start();
}

// `blocks` to a team, which all run at the same time.
template <class Pass, Layout layout, int units, int stages, int threads>
__global__ void __launch_bounds__(threads, 1)
    backward_grid_per_row(Pass pass, PartialRows partial, ClusterSplit<layout> rows, Letter* mail, int blocks) {
  constexpr int warps = threads / lanes;
  __shared__ RowSums of_warps[warps], of_mail[warps];
  const int number = static_cast<int>(blockIdx.x) / blocks;
  const int piece = static_cast<int>(blockIdx.x) % blocks;
  GridTeam<threads> team{mail + number * 4 * blocks, piece, blocks, of_warps, of_mail};
  for (int kind = 0; kind < rows.kinds_of(number); ++kind) {
    walk_kind<units, stages, threads>(pass, team, partial, rows, number, kind, piece, blocks);
  }
  let_next_kernel_start();
}
// [/snippet]

// [snippet: packed]
// Narrow rows that are no whole vectors, without gaps between them, go by tiles as in stage 05: some rows that are one
// stretch of memory. A block stays and takes every so many tiles. They come through a ring, dx takes the place of x in
// it, and goes out from there.
inline constexpr int threads_of_packed = welford::threads_of_tile;

template <class Pass, int width, int stages>
struct PackedRing {
  using T = typename Pass::T;
  static constexpr int height = welford::rows_of_tile<T, width> / 2;  // with more tensors in a ring, half as high
  const Pass& pass;
  int cols;
  uint64_t advice;

  // Bytes of a tile: its tensors, then rstd and the mean of its rows.
  __host__ __device__ static constexpr int bytes_of_slot(int cols) {
    return height * (Pass::tensors * cols * static_cast<int>(sizeof(T)) + 2 * static_cast<int>(sizeof(float)));
  }
  __device__ T* cells(int slot, int tensor) const {
    return reinterpret_cast<T*>(dynamic_shared<unsigned char>() + slot * bytes_of_slot(cols)) + tensor * height * cols;
  }
  __device__ float* rstd(int slot) const { return reinterpret_cast<float*>(cells(slot, Pass::tensors)); }
  __device__ RowStatistics statistics(int slot, int row) const {
    return {Pass::centered ? rstd(slot)[height + row] : 0.0f, rstd(slot)[row]};
  }
  __device__ PackedTile<T> tile(int64_t index) const { return welford::tile_of<T>(index, height, pass.p.rows, cols); }

  // A tile that does not exist counts, too.
  __device__ void start_copy(int64_t index, int slot) const {
    const PackedTile<T> copied = tile(index);
    if (copied.rows > 0) {
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        copied.copy_in(cells(slot, tensor), pass.tensor(tensor) + copied.first_row * cols,
                       [&](uint4* to, const T* from) { copy_vector<welford::undivided>(to, from, advice); });
      }
      for (int row = static_cast<int>(threadIdx.x); row < copied.rows; row += threads_of_packed) {
        __pipeline_memcpy_async(rstd(slot) + row, pass.p.rstd + copied.first_row + row, sizeof(float));
        if constexpr (Pass::centered) {
          __pipeline_memcpy_async(rstd(slot) + height + row, pass.p.mean + copied.first_row + row, sizeof(float));
        }
      }
    }
    __pipeline_commit();
  }
};

// What a lane adds up over all its rows.
template <int each, int width>
struct LaneSums {
  LaneShare<each, width> dgamma = {};
  LaneShare<each, width> dbeta = {};
};

// One row of a tile by one team. A team without a row has an empty place.
template <class Pass, int each, int width, int stages>
__device__ inline void dx_in_tile(const PackedRing<Pass, width, stages>& ring, int slot, int row,
                                  const UnitPlace<each, width>& place, const LaneShare<each, width>& gamma,
                                  LaneSums<each, width>& column_sums, float inverse_cols) {
  const auto row_of = [&](int tensor) { return ring.cells(slot, tensor) + row * ring.cols; };
  const RowStatistics s = place.has_row() ? ring.statistics(slot, row) : RowStatistics{0.0f, 0.0f};
  LaneShare<each, width> xhat, wdy;
  xhat.load(row_of(0), place);
  wdy.load(row_of(1), place);
  RowSums sums = {0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const float dy = wdy.at[k][j];
      xhat.at[k][j] = xhat_of(xhat.at[k][j], s);
      wdy.at[k][j] *= gamma.at[k][j];
      if constexpr (Pass::centered) sums.wdy += wdy.at[k][j];
      sums.wdy_xhat = fmaf(wdy.at[k][j], xhat.at[k][j], sums.wdy_xhat);
      column_sums.dgamma.at[k][j] = fmaf(dy, xhat.at[k][j], column_sums.dgamma.at[k][j]);
      if constexpr (Pass::centered) column_sums.dbeta.at[k][j] += dy;
    }
  }
  LaneTeam<width> team;
  team.put(sums);
  if (!ring.pass.p.dx) return;
  const Gradient gradient = gradient_with(s, team.get(), inverse_cols);
  LaneShare<each, width> dh;
  if constexpr (Pass::adds_dh) dh.load(row_of(2), place);
#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
    float dx[each];
#pragma unroll
    for (int j = 0; j < each; ++j) {
      dx[j] = gradient(wdy.at[k][j], xhat.at[k][j]);
      if constexpr (Pass::adds_dh) dx[j] += dh.at[k][j];
    }
    welford::store_unit(row_of(0) + place.column(k), dx);
  }
}

template <class Pass, int each, int width, int stages>
__global__ void __launch_bounds__(threads_of_packed, blocks_that_fit(threads_of_packed, 4))
    backward_packed_rows(Pass pass, PartialRows partial, float inverse_cols) {
  using TheRing = PackedRing<Pass, width, stages>;
  constexpr int teams = threads_of_packed / width;
  constexpr int warps = threads_of_packed / lanes;
  const int cols = static_cast<int>(pass.p.cols);
  const int thread = static_cast<int>(threadIdx.x);
  const TheRing ring = {pass, cols, advice_of(pass.leaves)};
  UnitPlace<each, width> place = {thread % width, cols};
  wait_for_previous_kernel();
  for (int ahead = 0; ahead < stages; ++ahead) ring.start_copy(blockIdx.x + int64_t{ahead} * gridDim.x, ahead);
  LaneShare<each, width> gamma;
  gamma.load_parameter(pass.p.gamma, place, 1.0f);
  LaneSums<each, width> sums;

  int slot = 0;
  int64_t index = blockIdx.x;
  for (; ring.tile(index).rows > 0; index += gridDim.x, slot = slot == stages - 1 ? 0 : slot + 1) {
    const auto tile = ring.tile(index);
    __pipeline_wait_prior(stages - 1);
    __syncthreads();  // all threads' copies are here
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += teams) {
      const int row = first + thread / width;
      place.cols = row < tile.rows ? cols : 0;
      dx_in_tile(ring, slot, row, place, gamma, sums, inverse_cols);
    }
    __syncthreads();  // all rows of dx are there, and dy has been read
    if (pass.p.dx) tile.copy_out(pass.p.dx + tile.first_row * cols, ring.cells(slot, 0));
    ring.start_copy(index + int64_t{stages} * gridDim.x, slot);
  }
  __pipeline_wait_prior(0);
  let_next_kernel_start();
  if (!partial.first) return;

  // The sums of a warp's teams, then those of the warps.
  place.cols = cols;
  __syncthreads();                            // nobody reads the ring any more
  float* of_warps = dynamic_shared<float>();  // [warps][2][cols]
  const auto hand_in = [&](const LaneShare<each, width>& of_lane, float* to) {
    of_lane.for_each_place(place, [&](float sum, int column) {
      for (int distance = width; distance < lanes; distance *= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
      if (thread % lanes < width && column < cols) to[column] = sum;
    });
  };
  hand_in(sums.dgamma, of_warps + thread / lanes * 2 * cols);
  if constexpr (Pass::centered) hand_in(sums.dbeta, of_warps + (thread / lanes * 2 + 1) * cols);
  __syncthreads();
  for (int i = thread; i < (Pass::centered ? 2 : 1) * cols; i += threads_of_packed) {
    double sum = 0.0;
    for (int warp = 0; warp < warps; ++warp) sum += of_warps[warp * 2 * cols + i];
    partial.dgamma(blockIdx.x)[i] = static_cast<float>(sum);
  }
}
// [/snippet]

// [snippet: side_by_side]
// A small problem lies in the second-level cache, and there reading x and dy twice costs less than a second kernel that
// waits for the first. Some blocks then find dx, a row to a team, while others find dgamma and dbeta, a tile of columns
// of all rows to a block. Nobody waits for anybody, and there are no partial rows.
inline constexpr int threads_side_by_side = 256;

// A block's tile of columns is `tile` vectors wide, and so many neighbouring lanes have a row of it. Narrow tiles are
// more blocks with fewer rows to a thread.
template <int tile, class T>
inline constexpr int tile_columns = (tile * vector_size<T>);

// The rows of a thread whose loads are on their way together.
template <int tile>
inline constexpr int tile_batch = tile == 4 ? 8 : 4;

// The sums of the columns of tile `number`. A thread has every 128th row of a tile of 2 vectors, or every 8th of one
// of 32.
template <int tile, class Pass>
__device__ inline void sum_tile(const Pass& pass, int number) {
  using T = typename Pass::T;
  using G = typename Pass::G;
  constexpr int columns = tile_columns<tile, T>;
  constexpr int groups = threads_side_by_side / tile;
  constexpr int warps = threads_side_by_side / lanes;
  constexpr int batch = tile_batch<tile>;
  __shared__ float of_warps[warps][2][columns];
  const auto& p = pass.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % tile * vector_size<T>;  // in the tile
  const int64_t first_column = int64_t{number} * columns;
  const bool has = first_column + column < p.cols;
  float dgamma[vector_size<T>] = {};
  float dbeta[vector_size<T>] = {};

  for (int64_t first = thread / tile; first < p.rows && has; first += batch * groups) {
    uint4 x[batch], dy[batch];
    RowStatistics s[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int64_t row = first + i * groups;
      if (row >= p.rows) break;
      x[i] = *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + first_column + column);
      dy[i] = *reinterpret_cast<const uint4*>(p.dy + row * p.dy_stride + first_column + column);
      s[i] = pass.statistics(row);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (first + i * groups >= p.rows) break;
      const Floats<T> xs = unpack<T>(x[i]);
      const Floats<T> dys = unpack<T>(dy[i]);
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) {
        dgamma[k] = fmaf(dys.at[k], xhat_of(xs.at[k], s[i]), dgamma[k]);
        if constexpr (Pass::centered) dbeta[k] += dys.at[k];
      }
    }
  }

  let_next_kernel_start_at_once();  // here, as in stage 05: before, it would hold up what is on its way
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) {
    for (int distance = tile; distance < lanes; distance *= 2) {
      dgamma[k] += __shfl_xor_sync(all_lanes, dgamma[k], distance);
      if constexpr (Pass::centered) dbeta[k] += __shfl_xor_sync(all_lanes, dbeta[k], distance);
    }
    if (thread % lanes < tile) {
      of_warps[thread / lanes][0][column + k] = dgamma[k];
      of_warps[thread / lanes][1][column + k] = dbeta[k];
    }
  }
  __syncthreads();
  for (int i = thread; i < 2 * columns; i += threads_side_by_side) {
    const int own = i % columns;
    const int which = i / columns;  // of the two sums
    G* out = which == 0 ? p.dgamma : p.dbeta;
    if (!out || first_column + own >= p.cols) continue;
    float sum = 0.0f;
    for (int warp = 0; warp < warps; ++warp) sum += of_warps[warp][which][own];
    out[first_column + own] = static_cast<G>(sum);
  }
}

// The columns of thread `thread` of `threads` that have a whole row.
template <class Pass>
__device__ inline Columns<Layout::whole, typename Pass::T> columns_of_row(const Pass& pass, int thread, int threads) {
  const int cols = static_cast<int>(pass.p.cols);
  return {0, cols, cols, 0, cols, 0, thread, threads};
}

// dx of a row by a team, of whose threads this one has `columns`. A row of which the team has none is out of range.
template <int units, class Pass, class Team>
__device__ inline void dx_in_registers(const Pass& pass, int64_t row,
                                       const Columns<Layout::whole, typename Pass::T>& columns, Team team) {
  using T = typename Pass::T;
  const auto& p = pass.p;
  const bool has_row = row < p.rows;
  const auto vector_of = [&](const T* tensor, int64_t stride, int i) {
    return *reinterpret_cast<const uint4*>(tensor + row * stride + columns.column(i));
  };
  uint4 x[units], dy[units];
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    x[i] = vector_of(p.x, p.x_stride, i);
    dy[i] = vector_of(p.dy, p.dy_stride, i);
  }
  ParameterVector<T, typename Pass::G> gamma[units];
#pragma unroll
  for (int i = 0; i < units; ++i) {
    gamma[i].template load<welford::Fit::vectors, false>(columns.has(i) ? p.gamma : nullptr, columns.column(i), 1.0f);
  }
  team.open();
  const RowStatistics s = has_row ? pass.statistics(row) : RowStatistics{0.0f, 0.0f};

  RowSums sums = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    const Floats<T> xs = unpack<T>(x[i]);
    const Floats<T> dys = unpack<T>(dy[i]);
    const Floats<T> gammas = gamma[i].floats();
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      const float wdy = dys.at[k] * gammas.at[k];
      if constexpr (Pass::centered) sums.wdy += wdy;
      sums.wdy_xhat = fmaf(wdy, xhat_of(xs.at[k], s), sums.wdy_xhat);
    }
  }
  let_next_kernel_start_at_once();
  team.put(sums);
  constexpr bool dh_comes_early = Pass::adds_dh && units <= 4;  // where there are registers for it
  uint4 dh[units];
#pragma unroll
  for (int i = 0; i < units && dh_comes_early; ++i) {
    if (has_row && columns.has(i)) dh[i] = vector_of(p.dh, p.dh_stride, i);
  }
  const Gradient gradient = gradient_with(s, team.get(), pass.inverse_cols);
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    const Floats<T> xs = unpack<T>(x[i]);
    const Floats<T> dys = unpack<T>(dy[i]);
    const Floats<T> gammas = gamma[i].floats();
    Floats<T> dxs;
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      dxs.at[k] = gradient(dys.at[k] * gammas.at[k], xhat_of(xs.at[k], s));
    }
    if constexpr (Pass::adds_dh) {
      const Floats<T> dhs = unpack<T>(dh_comes_early ? dh[i] : vector_of(p.dh, p.dh_stride, i));
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) dxs.at[k] += dhs.at[k];
    }
    *reinterpret_cast<uint4*>(p.dx + row * p.dx_stride + columns.column(i)) = pack<T>(dxs);
  }
}

// The first `tiles` blocks have tiles of columns, the others rows: one to a block, or one to a warp.
template <class Pass, int units, bool warp_per_row, int tile>
__global__ void __launch_bounds__(threads_side_by_side, 2) backward_side_by_side(Pass pass, int tiles) {
  constexpr int warps = threads_side_by_side / lanes;
  wait_for_previous_kernel();
  const int block = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  if (block < tiles) {
    sum_tile<tile>(pass, block);
  } else if constexpr (warp_per_row) {
    dx_in_registers<units>(pass, int64_t{block - tiles} * warps + thread / lanes,
                           columns_of_row(pass, thread % lanes, lanes), LaneTeam<lanes>{});
  } else {
    __shared__ RowSums scratch[warps];
    dx_in_registers<units>(pass, block - tiles, columns_of_row(pass, thread, threads_side_by_side),
                           BlockTeam<warps>{scratch});
  }
}

// Rows that are few and long: a cluster to a row, and tiles for those whose blocks come after `blocks_of_rows`.
template <class Pass, int units>
__global__ void __launch_bounds__(threads_side_by_side, 2)
    backward_clusters_side_by_side(Pass pass, int blocks_of_rows) {
  constexpr int warps = threads_side_by_side / lanes;
  __shared__ RowSums of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  wait_for_previous_kernel();
  const int block = static_cast<int>(blockIdx.x);
  if (block >= blocks_of_rows) return sum_tile<lanes>(pass, block - blocks_of_rows);
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int row = block / blocks;
  dx_in_registers<units>(pass, row,
                         columns_of<Layout::whole>(pass, row, static_cast<int>(threadIdx.x), threads_side_by_side,
                                                   static_cast<int>(cluster.block_rank()), blocks),
                         ClusterTeam<warps, ClusterMail>{cluster, {cluster, arrivals}, of_warps, of_blocks});
}
// [/snippet]

// [snippet: launch]
template <class Pass>
PartialRows partial_rows_of(const Pass& pass, int64_t count) {
  const bool wanted = pass.p.dgamma || pass.p.dbeta;
  return {wanted ? pass.p.workspace : nullptr, count, pass.p.cols};
}

// As many teams as work at the same time, so that none waits for a place. Where there are few rows, a team has four of
// them if that leaves none of the multiprocessors without: each team's partial row has to be read again. `more` partial
// rows come on top.
inline int64_t teams_for(int64_t rows, int64_t at_once, int64_t cols, int64_t more = 0) {
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t wished = std::min(rows, std::max(multiprocessors, rows / 4));
  return std::max<int64_t>(1, std::min({wished, at_once, backward_partial_rows(cols) - more}));
}

// How many rows on a row starts equally far past a 16-byte boundary again.
template <Layout layout, class Pass>
int period_of(const Pass& pass) {
  constexpr int64_t elements = vector_size<typename Pass::T>;
  return layout == Layout::alike ? static_cast<int>(elements / std::gcd(elements, pass.p.x_stride)) : 1;
}

// `teams`, or as many less as make them a multiple of the period; but one to each kind of row.
inline int64_t teams_of_kinds(int64_t teams, int64_t period, int64_t rows) {
  return teams < period ? std::clamp<int64_t>(rows, 1, period) : teams / period * period;
}

template <Layout layout, class Pass>
Split<layout> split_of(const Pass& pass, int64_t rows, int64_t step) {
  const auto& p = pass.p;
  return {rows,
          step,
          {step * p.x_stride, step * p.dy_stride, step * p.dh_stride},
          step * p.dx_stride,
          1.0f / static_cast<float>(p.cols)};
}

// Of `count` rows in `parts`.
inline Parts parts_of(int64_t count, int64_t parts) {
  return parts > 0 ? Parts{count / parts, count % parts} : Parts{0, 0};
}

template <Layout layout, class Pass>
ClusterSplit<layout> cluster_split_of(const Pass& pass, int64_t clusters, int64_t period) {
  const int64_t turning = clusters / period * period;
  const int64_t first_rows = pass.p.rows * turning / clusters;
  const int64_t last_rows = pass.p.rows - first_rows;
  const int64_t kinds = std::min(period, last_rows);
  return {static_cast<int>(period),
          static_cast<int>(kinds),
          static_cast<int>(turning),
          {split_of<layout>(pass, first_rows, turning), split_of<layout>(pass, last_rows, period)},
          parts_of(last_rows, kinds),
          parts_of(last_rows, clusters - turning)};
}

template <Layout layout>
int64_t partial_rows_of(const ClusterSplit<layout>& rows, int64_t teams) {
  return rows.turning + (rows.kind_count > 0 ? teams - rows.turning + rows.kind_count - 1 : 0);
}

template <Layout layout, class T>
int64_t units_of_row(int64_t cols) {
  constexpr int64_t unit = Columns<layout, T>::unit;
  return (cols + unit - 1) / unit;
}

// Bytes for a team's threads in a block: the ring, and gamma behind it.
template <class Pass, Layout layout, int units, int stages>
constexpr size_t shared_of_ring(int threads) {
  const int ring = Ring<Pass, layout, units, stages>::size_for(threads);
  return sizeof(uint4) * (ring + Weights<Pass, layout, units>::vectors_for(threads));
}

template <Layout layout, int units, int stages, int width, int threads, int resident, class Pass>
bool launch_lanes(const Pass& pass, cudaStream_t stream) {
  constexpr int teams = threads / width;
  constexpr size_t shared_bytes = teams * shared_of_ring<Pass, layout, units, stages>(width);
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_lanes_per_row<Pass, layout, units, stages, width, threads, resident>;
  const int64_t rows_of_teams = (pass.p.rows + teams - 1) / teams;
  const int64_t blocks = teams_for(rows_of_teams, blocks_at_once(kernel, threads, shared_bytes), pass.p.cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, blocks), split_of<layout>(pass, pass.p.rows, blocks * teams));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <Layout layout, int units, int stages, int threads, int resident, class Pass>
bool launch_block(const Pass& pass, cudaStream_t stream) {
  // With many units the compiler needs to know how many threads there are: else registers run out.
  const unsigned block_threads =
      units > 2 ? threads : welford::threads_for(units_of_row<layout, typename Pass::T>(pass.p.cols), units);
  const size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(static_cast<int>(block_threads));
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_block_per_row<Pass, layout, units, stages, threads, resident>;
  const int64_t at_once = blocks_at_once(kernel, static_cast<int>(block_threads), shared_bytes);
  const int64_t blocks =
      teams_of_kinds(teams_for(pass.p.rows, at_once, pass.p.cols), period_of<layout>(pass), pass.p.rows);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = block_threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, blocks), split_of<layout>(pass, pass.p.rows, blocks));
  launch_sum(pass.p, blocks, stream);
  return true;
}

// A cluster's blocks for rows of so many units, of which a block has room for `of_block`: a power of 2.
inline unsigned blocks_for(int64_t row_units, int64_t of_block) {
  unsigned size = 2;
  while (row_units > size * of_block) size *= 2;
  return size;
}

// `size` blocks to a cluster, `resident` to a multiprocessor. Without overlap: beside what is left of the kernel before
// it, a cluster may find no room, and would begin with its rows when all others are through with theirs.
template <Layout layout, int units, int stages, int threads, int resident, class Pass>
bool launch_cluster(const Pass& pass, unsigned size, cudaStream_t stream) {
  constexpr size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(threads);
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_cluster_per_row<Pass, layout, units, stages, threads, resident>;
  const int at_once = clusters_at_once(kernel, size, threads, shared_bytes);
  if (at_once == 0) return false;
  const int64_t period = period_of<layout>(pass);
  const int64_t clusters = teams_for(pass.p.rows, at_once, pass.p.cols, period - 1);
  const ClusterSplit<layout> rows = cluster_split_of<layout>(pass, clusters, period);
  const int64_t partial_rows = partial_rows_of(rows, clusters);
  launch(kernel,
         {.grid = static_cast<unsigned>(clusters * size),
          .block = threads,
          .shared_bytes = shared_bytes,
          .cluster = size,
          .stream = stream},
         pass, partial_rows_of(pass, partial_rows), rows);
  launch_sum(pass.p, partial_rows, stream);
  return true;
}

// As many teams as hold a row each in their blocks' rings at the same time; they share out all blocks that there is
// room for. The mail lies where there would be one partial row more.
template <Layout layout, int units, int stages, int threads, class Pass>
bool launch_grid(const Pass& pass, cudaStream_t stream) {
  constexpr size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(threads);
  if (!block_can_have(shared_bytes) || !pass.p.workspace) return false;
  if (device_attribute(cudaDevAttrCooperativeLaunch) == 0) return false;
  const auto kernel = backward_grid_per_row<Pass, layout, units, stages, threads>;
  const int64_t at_once = blocks_at_once(kernel, threads, shared_bytes);
  const int64_t row_units = units_of_row<layout, typename Pass::T>(pass.p.cols);
  const int64_t least_blocks = (row_units + units * threads - 1) / (units * threads);
  if (least_blocks > std::min<int64_t>(at_once, threads)) return false;
  const int64_t period = period_of<layout>(pass);
  const int64_t teams = teams_for(pass.p.rows, at_once / least_blocks, pass.p.cols, period);
  const int64_t blocks = std::min<int64_t>(at_once / teams, threads);
  const ClusterSplit<layout> rows = cluster_split_of<layout>(pass, teams, period);
  const int64_t partial_rows = partial_rows_of(rows, teams);
  Letter* const mail = reinterpret_cast<Letter*>(pass.p.workspace + 2 * partial_rows * pass.p.cols);
  check_cuda(cudaMemsetAsync(mail, 0, teams * blocks * 4 * sizeof(Letter), stream), "clearing the mail");
  launch(kernel,
         {.grid = static_cast<unsigned>(teams * blocks),
          .block = threads,
          .shared_bytes = shared_bytes,
          .cooperative = true,
          .stream = stream},
         pass, partial_rows_of(pass, partial_rows), rows, mail, static_cast<int>(blocks));
  launch_sum(pass.p, partial_rows, stream);
  return true;
}

template <int each, int width, int stages, class Pass>
bool launch_packed(const Pass& pass, cudaStream_t stream) {
  using TheRing = PackedRing<Pass, width, stages>;
  const auto kernel = backward_packed_rows<Pass, each, width, stages>;
  const int cols = static_cast<int>(pass.p.cols);
  const size_t shared_bytes = stages * TheRing::bytes_of_slot(cols);
  if (!block_can_have(shared_bytes)) return false;
  const int64_t tiles = (pass.p.rows + TheRing::height - 1) / TheRing::height;
  const int64_t blocks = teams_for(tiles, blocks_at_once(kernel, threads_of_packed, shared_bytes), cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads_of_packed,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass, blocks), 1.0f / static_cast<float>(cols));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <int width, class Pass>
bool launch_packed(const Pass& pass, cudaStream_t stream) {
  constexpr int stages = 2;
  if constexpr (sizeof(typename Pass::T) == 2) {
    if (pass.p.cols % 2 == 0) return launch_packed<2, width, stages>(pass, stream);
  }
  return launch_packed<1, width, stages>(pass, stream);
}

// `rows` to a block that finds dx.
template <int units, bool warp_per_row, int tile, class Pass>
bool launch_side_by_side(const Pass& pass, cudaStream_t stream) {
  const int64_t rows_of_block = warp_per_row ? threads_side_by_side / lanes : 1;
  constexpr int64_t columns = tile_columns<tile, typename Pass::T>;
  const int64_t tiles = (pass.p.cols + columns - 1) / columns;
  const int64_t blocks_of_rows = pass.p.dx ? (pass.p.rows + rows_of_block - 1) / rows_of_block : 0;
  launch(backward_side_by_side<Pass, units, warp_per_row, tile>,
         {.grid = static_cast<unsigned>(tiles + blocks_of_rows),
          .block = threads_side_by_side,
          .overlap = true,
          .stream = stream},
         pass, static_cast<int>(tiles));
  return true;
}
template <int units, class Pass>
bool launch_clusters_side_by_side(const Pass& pass, unsigned size, cudaStream_t stream) {
  const auto kernel = backward_clusters_side_by_side<Pass, units>;
  if (clusters_at_once(kernel, size, threads_side_by_side, 0) == 0) return false;
  constexpr int64_t columns = tile_columns<lanes, typename Pass::T>;
  const int64_t tiles = pass.p.dgamma || pass.p.dbeta ? (pass.p.cols + columns - 1) / columns : 0;
  const int64_t blocks_of_rows = pass.p.dx ? pass.p.rows * size : 0;
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks_of_rows + (tiles + size - 1) / size * size),
          .block = threads_side_by_side,
          .cluster = size,
          .overlap = true,
          .stream = stream},
         pass, static_cast<int>(blocks_of_rows));
  return true;
}
// [/snippet]

// [snippet: dispatch]
// The stages of a large ring: what compute capability 9.0 has room for.
template <class Pass>
inline constexpr int stages_in_room = Pass::adds_dh ? 4 : 6;

// And whether three stages of four vectors to a thread have: not of three tensors, nor beside a gamma that is wider
// than the elements.
template <class Pass>
inline constexpr bool has_room_for_four = !Pass::adds_dh && sizeof(typename Pass::G) == sizeof(typename Pass::T);

// The vectors of a row that a thread of a small problem keeps in registers: half as many beside a gamma that is wider
// than the elements, which takes as many registers as both of their tensors.
template <class Pass>
inline constexpr int most_units_side_by_side = sizeof(typename Pass::G) == sizeof(typename Pass::T) ? 8 : 4;

// The form of clusters that is fastest where it fits: two blocks of 224 threads to a multiprocessor, with four vectors
// to a thread. Their rows have nothing to do with each other, so that one works while the other waits.
inline constexpr int threads_of_pair = 224;

// Its blocks for rows of `length` vectors; 0 where they would be more than a portable cluster has. Seven fill the 16 or
// 18 multiprocessors of a group, which a cluster may not leave, worse than eight.
inline unsigned pair_blocks_for(int64_t length) {
  constexpr int64_t of_block = 4 * threads_of_pair;
  const int64_t blocks = (length + of_block - 1) / of_block;
  return blocks <= 6 ? static_cast<unsigned>(blocks) : blocks <= 8 ? 8 : 0;
}

// True where x and dy together take a small part of the second-level cache, and no block has many rows of a tile to
// read or a row that is too long for it.
template <class Pass>
bool is_small(const Pass& pass) {
  constexpr int64_t element = sizeof(typename Pass::T);
  constexpr int64_t longest_row = int64_t{threads_side_by_side} * most_units_side_by_side<Pass> * 16;
  const auto& p = pass.p;
  return (p.dgamma || p.dbeta) && p.rows <= 2048 && p.rows * p.cols * element <= (int64_t{8} << 20) &&
         p.cols * element >= 512 && p.cols * element <= longest_row;
}

// Likewise where rows are longer, or so few that one block to each is slow: up to 16 blocks have a row. As measured,
// the rows take half of the multiprocessors, if that is enough blocks for them; the others have the tiles.
template <class Pass>
bool launch_few_long_rows(const Pass& pass, int64_t length, cudaStream_t stream) {
  constexpr int64_t threads = threads_side_by_side;
  constexpr int most_units = most_units_side_by_side<Pass>;
  const auto& p = pass.p;
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  if (length <= (p.rows <= 8 ? 2 : 8) * threads || bytes > (int64_t{8} << 20)) return false;
  if (p.rows == 0 || (!p.dx && !p.dgamma && !p.dbeta)) return false;
  unsigned size = std::min<unsigned>(most_blocks_of_cluster, blocks_for(length, threads / 4));
  while (size > blocks_for(length, most_units * threads) &&
         2 * p.rows * size > device_attribute(cudaDevAttrMultiProcessorCount)) {
    size /= 2;
  }
  if (length <= size * 2 * threads) return launch_clusters_side_by_side<2>(pass, size, stream);
  if (length <= size * 4 * threads) return launch_clusters_side_by_side<4>(pass, size, stream);
  if constexpr (most_units == 8) {
    if (length <= size * 8 * threads) return launch_clusters_side_by_side<8>(pass, size, stream);
  }
  return false;
}

// A block to a row, `units` vectors to a thread. As measured, there are at most 128 tiles, and 64 where rows are few:
// more blocks would not fit beside those of the rows.
template <int units, class Pass>
bool launch_rows_and_tiles(const Pass& pass, cudaStream_t stream) {
  if (pass.p.rows <= 64) return launch_side_by_side<units, false, 4 * units>(pass, stream);
  return launch_side_by_side<units, false, 2 * units>(pass, stream);
}

template <class Pass>
bool launch_small(const Pass& pass, int64_t length, cudaStream_t stream) {
  constexpr int64_t threads = threads_side_by_side;
  // Many short rows: a warp to each.
  if (length <= 2 * lanes || (length <= 4 * lanes && pass.p.rows > 128)) {
    return launch_side_by_side<4, true, 2>(pass, stream);
  }
  if constexpr (most_units_side_by_side<Pass> == 8) {
    if (length <= 8 * lanes && pass.p.rows > 512) return launch_side_by_side<8, true, 2>(pass, stream);
    if (length <= 8 * lanes && pass.p.rows > 256) return launch_side_by_side<8, true, 4>(pass, stream);
  }
  if (length <= 2 * threads) return launch_rows_and_tiles<2>(pass, stream);
  if constexpr (most_units_side_by_side<Pass> == 8) {
    if (length > 4 * threads) return launch_rows_and_tiles<8>(pass, stream);
  }
  return launch_rows_and_tiles<4>(pass, stream);
}

// Which shape takes which length was found by measuring on an H200; but what is small by counting.
template <class Pass>
bool rows_of_vectors(const Pass& pass, cudaStream_t stream) {
  constexpr Layout whole = Layout::whole;
  constexpr bool wide_elements = sizeof(typename Pass::T) == 4;
  constexpr int deep = stages_in_room<Pass>;
  const int64_t length = pass.p.cols / vector_size<typename Pass::T>;
  // Up to 8 rows of more than four vectors to a thread are faster by clusters.
  const bool small = is_small(pass);
  if (small && (length <= 4 * threads_side_by_side || pass.p.rows > 8)) return launch_small(pass, length, stream);
  if (launch_few_long_rows(pass, length, stream)) return true;
  if (small) return launch_small(pass, length, stream);
  if (length <= 2 * 4) return launch_lanes<whole, 2, 4, 4, 256, 2>(pass, stream);
  if (length <= 2 * 8) return launch_lanes<whole, 2, 4, 8, 256, 2>(pass, stream);
  if (length <= 2 * 16) return launch_lanes<whole, 2, 4, 16, 256, 2>(pass, stream);
  if (length <= 2 * 32) return launch_lanes<whole, 2, 4, 32, 256, 2>(pass, stream);
  if (!wide_elements && length <= 2 * 256) return launch_block<whole, 2, 3, 512, 1>(pass, stream);
  if (length <= 2 * 512) return launch_block<whole, 2, deep, 512, 1>(pass, stream);
  if constexpr (has_room_for_four<Pass>) {
    if (length <= 4 * 512) return launch_block<whole, 4, 3, 512, 1>(pass, stream);
    unsigned pairs = pair_blocks_for(length);
    if (length > 8 * 1024 && length <= 16 * 4 * threads_of_pair) pairs = 16;
    if (pairs > 0) return launch_cluster<whole, 4, 3, threads_of_pair, 2>(pass, pairs, stream);
    if (launch_cluster<whole, 4, 3, 512, 1>(pass, blocks_for(length, 4 * 512), stream)) return true;
  } else {
    if (launch_cluster<whole, 2, deep, 512, 1>(pass, blocks_for(length, 2 * 512), stream)) return true;
  }
  return launch_grid<whole, 2, deep, 512>(pass, stream);
}

// Rows that start and end anywhere, in all tensors alike, of more than 128 elements.
template <class Pass>
bool rows_alike(const Pass& pass, cudaStream_t stream) {
  constexpr Layout alike = Layout::alike;
  constexpr int deep = stages_in_room<Pass>;
  const int64_t length = units_of_row<alike, typename Pass::T>(pass.p.cols);
  if (length <= 2 * 16) return launch_lanes<alike, 2, 4, 16, 256, 2>(pass, stream);
  if (length <= 2 * 32) return launch_lanes<alike, 2, 4, 32, 256, 2>(pass, stream);
  if constexpr (sizeof(typename Pass::T) == 2) {
    if (length <= 2 * 256) return launch_block<alike, 2, 3, 512, 1>(pass, stream);
    // A little longer, a multiprocessor has registers for one such block in the place of two.
    if constexpr (sizeof(typename Pass::G) == sizeof(typename Pass::T)) {
      constexpr int stages = Pass::adds_dh ? 3 : 4;
      if (length <= 3 * 192) return launch_block<alike, 3, stages, 192, 2>(pass, stream);
    }
  }
  if (length <= 2 * 512) return launch_block<alike, 2, deep, 512, 1>(pass, stream);
  if constexpr (has_room_for_four<Pass>) {
    if (length <= 4 * 512) return launch_block<alike, 4, 3, 512, 1>(pass, stream);
    const unsigned pairs = pair_blocks_for(length);
    if (pairs > 0) return launch_cluster<alike, 4, 3, threads_of_pair, 2>(pass, pairs, stream);
    // Longer rows take the fewest blocks that are no more than 8; and few threads with many vectors have fewer
    // instructions that do not hang on their number.
    if (length <= 8 * 4 * 256) return launch_cluster<alike, 4, 3, 256, 2>(pass, 8, stream);
    if (length <= 8 * 5 * 320) return launch_cluster<alike, 5, 3, 320, 1>(pass, 8, stream);
    if (launch_cluster<alike, 8, 3, 256, 1>(pass, blocks_for(length, 8 * 256), stream)) return true;
  } else {
    if constexpr (sizeof(typename Pass::T) == 4) {  // a cluster of two would leave up to half of its places empty
      if (length <= 3 * 512 && launch_block<alike, 3, 3, 512, 1>(pass, stream)) return true;
    }
    if (launch_cluster<alike, 2, deep, 512, 1>(pass, blocks_for(length, 2 * 512), stream)) return true;
  }
  return launch_grid<alike, 2, deep, 512>(pass, stream);
}

template <class Pass>
bool rows_of_elements(const Pass& pass, cudaStream_t stream) {
  constexpr Layout apart = Layout::apart;
  constexpr int deep = stages_in_room<Pass>;
  if (pass.p.cols <= 2 * 8) return launch_lanes<apart, 2, 4, 8, 256, 2>(pass, stream);
  if (pass.p.cols <= 4 * 32) return launch_lanes<apart, 4, 4, 32, 256, 2>(pass, stream);
  if constexpr (sizeof(typename Pass::T) == 4) {
    if (pass.p.cols <= 8 * 512) return launch_block<apart, 8, deep, 512, 1>(pass, stream);
    if (launch_cluster<apart, 8, deep, 512, 1>(pass, blocks_for(pass.p.cols, 8 * 512), stream)) return true;
    return launch_grid<apart, 8, deep, 512>(pass, stream);
  } else {
    if (pass.p.cols <= 16 * 256) return launch_block<apart, 16, 4, 256, 2>(pass, stream);
    if (launch_cluster<apart, 16, deep, 512, 1>(pass, blocks_for(pass.p.cols, 16 * 512), stream)) return true;
    return launch_grid<apart, 16, deep, 512>(pass, stream);
  }
}

// Narrow rows that start anywhere, without gaps between them, if there are enough for all multiprocessors.
template <class Pass>
bool rows_packed(const Pass& pass, cudaStream_t stream) {
  const auto& p = pass.p;
  const auto is_packed = [&](const typename Pass::T* first, int64_t stride) {
    return !first || (stride == p.cols && reinterpret_cast<uintptr_t>(first) % 16 == 0);
  };
  constexpr int64_t bytes_of_few = 8 * 1024;  // for a multiprocessor
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  if (bytes < bytes_of_few * device_attribute(cudaDevAttrMultiProcessorCount)) return false;
  if (!is_packed(p.x, p.x_stride) || !is_packed(p.dy, p.dy_stride)) return false;
  if (!is_packed(p.dh, p.dh_stride) || !is_packed(p.dx, p.dx_stride)) return false;
  if (p.cols <= 1 * elements_of_lane) return launch_packed<1>(pass, stream);
  if (p.cols <= 2 * elements_of_lane) return launch_packed<2>(pass, stream);
  if (p.cols <= 4 * elements_of_lane) return launch_packed<4>(pass, stream);
  if (p.cols <= 8 * elements_of_lane) return launch_packed<8>(pass, stream);
  if (p.cols <= 16 * elements_of_lane) return launch_packed<16>(pass, stream);
  return false;
}

template <class T, class G, bool centered, bool adds_dh>
void persistent_pass(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t bytes_read = p.rows * p.cols * int64_t{sizeof(T)} * (adds_dh ? 3 : 2);
  const Pass<T, G, centered, adds_dh> pass = {p, leaves_of(bytes_read, 4), 1.0f / static_cast<float>(p.cols)};
  // A tensor that is not there lies like any other.
  const auto starts_like_x = [&](const T* first, int64_t stride) {
    const auto apart = reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(p.x);
    return !first || (apart % 16 == 0 && (p.rows == 1 || (stride - p.x_stride) % vector_size<T> == 0));
  };
  const bool alike =
      starts_like_x(p.dy, p.dy_stride) && starts_like_x(p.dh, p.dh_stride) && starts_like_x(p.dx, p.dx_stride);
  const bool whole_vectors = alike && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.cols % vector_size<T> == 0 &&
                             (p.rows == 1 || p.x_stride % vector_size<T> == 0) &&
                             reinterpret_cast<uintptr_t>(p.gamma) % 16 == 0;
  if (!whole_vectors && rows_packed(pass, stream)) return;
  const bool done = whole_vectors              ? rows_of_vectors(pass, stream)
                    : alike && p.cols > 4 * 32 ? rows_alike(pass, stream)
                                               : rows_of_elements(pass, stream);
  if (!done) separate(p, stream);  // rows that are longer than all blocks at once have room for, or no workspace
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

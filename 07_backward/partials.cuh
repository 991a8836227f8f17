// Sums of columns that are not complete. Blocks share out the rows, so that each block has a sum of every column over
// its own rows only, and writes it to memory as a partial row. A second kernel adds up the partial rows, in an order
// that is the same on every run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::Floats;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::lanes;

// [snippet: column_of]
// A partial row has its sums in the order of the columns; or in halves: first the lower four of every eight columns,
// then the upper four (final/column_sums.cuh says why).
template <bool in_halves>
__device__ int64_t column_of(int64_t place, int64_t cols) {
  if constexpr (!in_halves) return place;
  const int64_t upper = place < cols / 2 ? 0 : 1;
  const int64_t in_half = place - upper * cols / 2;
  return in_half / 4 * 8 + upper * 4 + in_half % 4;
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
// order, depends on the shape and the GPU alone. Few columns make few tiles: narrow ones then, of one sector to a row.
// It adds up in fp64: there is little to add, and the sums that come here have been rounded once already.
template <class G, int width, int rows, bool in_halves = false>
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
    if (thread % lanes == 0 && first + own < partial.cols) {
      out[column_of<in_halves>(first + own, partial.cols)] = static_cast<G>(static_cast<float>(part));
    }
  }
}
// [/snippet]

// [snippet: launch_sum]
// Where there are few partial rows, and so many columns that each may have a thread of its own.
inline constexpr int few_partial_rows = 16;
inline constexpr int threads_of_few = 256;
template <class G, bool in_halves>
__global__ void __launch_bounds__(threads_of_few) sum_few_partials(PartialRows partial, G* dgamma, G* dbeta) {
  wait_for_previous_kernel();
  G* out = blockIdx.y == 0 ? dgamma : dbeta;
  const int64_t col = int64_t{blockIdx.x} * threads_of_few + threadIdx.x;
  if (!out || col >= partial.cols) return;
  const float* column = partial.first + blockIdx.y * partial.cols + col;
  double sum = 0.0;
#pragma unroll 8
  for (int64_t i = 0; i < partial.count; ++i) sum += column[2 * i * partial.cols];
  out[column_of<in_halves>(col, partial.cols)] = static_cast<G>(static_cast<float>(sum));
}

// The grid's second dimension: dgamma and dbeta, or dgamma alone.
template <class T, class G>
unsigned parameters_of(const LayerNormBackward<T, G>& p) {
  return p.dbeta ? 2 : 1;
}

// A block to a tile of `width` columns.
template <int width, int rows, bool in_halves, class T, class G>
void launch_sum_of_tiles(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  const auto kernel = sum_partials<G, width, rows, in_halves>;
  // As much shared memory as the kernel before it has: where it has to be divided anew, the two cannot overlap.
  check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout, 100),
      "asking for shared memory");
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>((p.cols + width - 1) / width), parameters_of(p)),
          .block = width * rows,
          .overlap = true,
          .stream = stream},
         PartialRows{p.workspace, partial_rows, p.cols}, p.dgamma, p.dbeta);
}

// The sums of very wide rows, for which there are blocks enough.
template <bool in_halves, class T, class G>
void launch_sum_of_wide(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  if (partial_rows > few_partial_rows) return launch_sum_of_tiles<32, 8, in_halves>(p, partial_rows, stream);
  launch(sum_few_partials<G, in_halves>,
         {.grid = dim3(static_cast<unsigned>((p.cols + threads_of_few - 1) / threads_of_few), parameters_of(p)),
          .block = threads_of_few,
          .overlap = true,
          .stream = stream},
         PartialRows{p.workspace, partial_rows, p.cols}, p.dgamma, p.dbeta);
}

// The narrower a tile, the more blocks read at the same time. But four of these blocks of 512 threads fill a
// multiprocessor, and more of them would have to wait. And where partial rows are few, a thread should have several.
template <bool in_halves = false, class T, class G>
void launch_sum(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  if (!p.dgamma && !p.dbeta) return;
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t sums = p.cols * parameters_of(p);
  if (p.cols > 32 * 1024) {
    launch_sum_of_wide<in_halves>(p, partial_rows, stream);
  } else if (partial_rows > multiprocessors && sums <= 8 * multiprocessors) {
    launch_sum_of_tiles<8, 64, in_halves>(p, partial_rows, stream);
  } else if (partial_rows > multiprocessors && sums <= 4 * 16 * multiprocessors) {
    launch_sum_of_tiles<16, 32, in_halves>(p, partial_rows, stream);
  } else {
    launch_sum_of_tiles<32, 16, in_halves>(p, partial_rows, stream);
  }
}
// [/snippet]

// RMSNorm's backward pass in LayerNorm's struct: there is no mean, and no dbeta.
template <class T, class G>
LayerNormBackward<T, G> as_layer_norm(const RmsNormBackward<T, G>& p) {
  return {p.dy,        p.x,    p.dh,   p.gamma,     nullptr,    p.rstd,      p.dx,        p.dgamma,         nullptr,
          p.workspace, p.rows, p.cols, p.dy_stride, p.x_stride, p.dh_stride, p.dx_stride, p.batch_invariant};
}

// [snippet: write_partial_row]
// A thread's sums of a vector of columns, from column `col` on, to partial row i.
template <class T>
__device__ inline void store_sums(const PartialRows& partial, int64_t i, int col, const Floats<T>& dgamma,
                                  const Floats<T>& dbeta) {
  const int cols = static_cast<int>(partial.cols);
  const auto four = [](const float* sums) { return vectorized::pack<float>({sums[0], sums[1], sums[2], sums[3]}); };
#pragma unroll
  for (int k = 0; k < vector_size<T>; k += 4) {
    vectorized::store(partial.dgamma(i), col + k, cols, four(dgamma.at + k));
    vectorized::store(partial.dbeta(i), col + k, cols, four(dbeta.at + k));
  }
}
// [/snippet]

// [snippet: teams]
// Those that the blocks of a pass write: none where neither dgamma nor dbeta is wanted.
template <class T, class G>
PartialRows partial_rows_of(const LayerNormBackward<T, G>& p, int64_t count) {
  return {p.dgamma || p.dbeta ? p.workspace : nullptr, count, p.cols};
}

// A team is what works on a row: a block, or in final/ also some lanes of a warp, or a cluster. As many teams as work
// at the same time, so that none waits for a place. Where there are few rows, a team has four of them if that leaves
// none of the multiprocessors without: each team's partial row has to be read again. `more` partial rows come on top.
inline int64_t teams_for(int64_t rows, int64_t at_once, int64_t cols, int64_t more = 0) {
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t wished = std::min(rows, std::max(multiprocessors, rows / 4));
  return std::max<int64_t>(1, std::min({wished, at_once, backward_partial_rows(cols) - more}));
}

// How many rows on a row starts equally far past a 16-byte boundary again.
template <class T>
int64_t period_of_rows(int64_t stride) {
  return vector_size<T> / std::gcd(int64_t{vector_size<T>}, stride);
}

// `teams`, or as many less as make them a multiple of the period; but one to each kind of row.
inline int64_t teams_of_kinds(int64_t teams, int64_t period, int64_t rows) {
  return teams < period ? std::clamp<int64_t>(rows, 1, period) : teams / period * period;
}
// [/snippet]

}  // namespace worklog::backward

// The scheme of Triton's LayerNorm tutorial: a block to a row, which is read once. The rows are divided into groups;
// those of a group add their share of dgamma and dbeta to the same partial row, one at a time, behind a lock. A second
// kernel adds up the partial rows. See docs/sources.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/held.cuh"
#include "07_backward/held_row.cuh"
#include "07_backward/partials.cuh"
#include "07_backward/row.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::first_column;
using vectorized::to_float;
using warp_shuffle::warp_sum;

// [snippet: groups]
inline constexpr int ints_of_line = 32;  // 128 bytes, what a cache keeps together

// A partial row for each of `count` groups, cols elements of dgamma and then cols of dbeta, and behind them the locks.
// P is the type that sums are kept in between two additions. Row i of x is of group i % count.
template <class P>
struct GroupRows {
  P* first;
  int64_t count;
  int64_t cols;

  __device__ P* dgamma(int64_t i) const { return first + 2 * i * cols; }
  __device__ P* dbeta(int64_t i) const { return first + (2 * i + 1) * cols; }
  // In a line each, so that blocks that ask for one are not in the way of those that ask for another.
  __host__ __device__ int* lock(int64_t i) const {
    return reinterpret_cast<int*>(first + 2 * count * cols) + i * ints_of_line;
  }
};

// What a lock holds. The tutorial has two words, a lock and whether the partial row has been written: one word is one
// trip to the L2 cache instead of two, while others wait.
inline constexpr int never_taken = 0, taken = 1, given_back = 2;

// Waits until the lock is this block's. True for the first block that gets it: there is nothing to add to yet.
__device__ inline bool take(int* lock) {
  int before = taken;
  if (threadIdx.x == 0) {
    while ((before = atomicExch(lock, taken)) == taken) {
    }
    __threadfence();  // nothing of what follows is read before the lock is ours
  }
  return __syncthreads_or(before == never_taken);
}

__device__ inline void give_back(int* lock) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();  // what the block wrote before the barrier is there for all before the lock is given back
  atomicExch(lock, given_back);
}
// [/snippet]

// [snippet: add_to_group]
// A vector's share of a partial row. It is read past the first-level cache, which may hold what was there before
// another block's addition.
template <class P>
__device__ inline uint4 load_ends(const P* row, int col, int cols) {
  Floats<P> sums;
#pragma unroll
  for (int k = 0; k < vector_size<P>; ++k) {
    sums.at[k] = col + k >= 0 && col + k < cols ? to_float(__ldcg(row + col + k)) : 0.0f;
  }
  return vectorized::pack<P>(sums);
}

template <bool whole, class P>
__device__ inline uint4 load_vector(const P* row, int col, int cols) {
  if (!whole && !vectorized::is_whole(row, col, cols)) return load_ends(row, col, cols);
  return __ldcg(reinterpret_cast<const uint4*>(row + col));
}

// Sums of P at the columns of a vector of T: fp32 sums of 16-bit elements are two vectors.
template <class T, class P, bool whole>
struct Sums : Parameter<T, P> {
  using Parameter<T, P>::parts;

  __device__ void load(const P* row, int col, int cols) {
#pragma unroll
    for (int i = 0; i < parts; ++i) this->bits[i] = load_vector<whole>(row, col + i * vector_size<P>, cols);
  }
  __device__ static void store(P* row, int col, int cols, const Floats<T>& sums) {
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      Floats<P> part;
#pragma unroll
      for (int k = 0; k < vector_size<P>; ++k) part.at[k] = sums.at[i * vector_size<P> + k];
      store_vector<whole>(row, col + i * vector_size<P>, cols, vectorized::pack<P>(part));
    }
  }
};

// All loads of two vectors are on their way before the first is waited for. For more a thread has no registers.
template <class T, class P, int vectors, bool whole>
__device__ inline void add_to_group(HeldRow<T, vectors, whole>& held, P* dgamma, P* dbeta, bool is_first) {
  constexpr int at_once = vectors < 2 || vectors > 4 ? 1 : 2;
#pragma unroll
  for (int begin = 0; begin < vectors; begin += at_once) {
    Sums<T, P, whole> of_gamma[at_once] = {}, of_beta[at_once] = {};
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int col = held.col(begin + i);
      if (is_first || col >= held.cols) continue;
      of_gamma[i].load(dgamma, col, held.cols);
      of_beta[i].load(dbeta, col, held.cols);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int col = held.col(begin + i);
      if (col >= held.cols) continue;
      held.keep_packed(begin + i);
      const Floats<T> xhat = held.xhats(begin + i), dy = held.dys(begin + i);
      Floats<T> to_gamma = of_gamma[i].unpack(), to_beta = of_beta[i].unpack();
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) {
        to_gamma.at[k] += dy.at[k] * xhat.at[k];
        to_beta.at[k] += dy.at[k];
      }
      of_gamma[i].store(dgamma, col, held.cols, to_gamma);
      of_beta[i].store(dbeta, col, held.cols, to_beta);
    }
  }
}
// [/snippet]

// [snippet: grouped]
// As in the tutorial up to 8 warps, where a vector of the row is enough for each thread. Beyond that a thread has more
// vectors, and a block up to 16 warps.
template <int vectors>
inline constexpr unsigned most_threads_of_row = vectors < 2 ? 256 : 512;

// Whoever comes first adds first, so that the order of a sum's terms, and with it its rounding, differs from run to
// run.
template <class T, class G, class P, int vectors, bool whole>
__global__ void __launch_bounds__(most_threads_of_row<vectors>,
                                  whole&& vectors < 4 ? 1024 / most_threads_of_row<vectors> : 1)
    dx_and_groups(LayerNormBackward<T, G> p, GroupRows<P> partial) {
  __shared__ float2 scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.x_stride;
    HeldRow<T, vectors, whole> held;
    held.statistics = {p.mean[row], p.rstd[row]};
    held.first = (whole ? 0 : first_column(x)) + static_cast<int>(threadIdx.x) * vector_size<T>;
    held.step = static_cast<int>(blockDim.x) * vector_size<T>;
    held.cols = static_cast<int>(p.cols);
    held.x.template load<whole>(x, held.first, held.step, held.cols);
    held.dy.template load<whole>(p.dy + row * p.dy_stride, held.first, held.step, held.cols);

    if (p.dx) write_dx(p, row, held, scratch);
    if (!partial.first) continue;
    const int64_t group = row % partial.count;
    const bool is_first = take(partial.lock(group));
    add_to_group(held, partial.dgamma(group), partial.dbeta(group), is_first);
    give_back(partial.lock(group));
  }
}
// [/snippet]

// [snippet: sum_groups]
// The second stage for partial rows of 16 bits, in fp32; for those of floats there is launch_sum. A block has 32
// columns of dgamma (blockIdx.y is 0) or dbeta, a warp every 32nd partial row.
template <class G>
__global__ void __launch_bounds__(lanes* lanes) sum_groups(GroupRows<G> partial, G* dgamma, G* dbeta) {
  __shared__ float sums[lanes][lanes + 1];  // one float more to a row, so that a column lies in 32 banks
  G* out = blockIdx.y == 0 ? dgamma : dbeta;
  if (!out) return;
  const int64_t col = int64_t{blockIdx.x} * lanes + threadIdx.x;
  float sum = 0.0f;
  if (col < partial.cols) {
    const G* column = (blockIdx.y == 0 ? partial.dgamma(0) : partial.dbeta(0)) + col;
    for (int64_t i = threadIdx.y; i < partial.count; i += lanes) sum += to_float(column[2 * i * partial.cols]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(sums[threadIdx.x][threadIdx.y]);  // warp y adds up column y
  const int64_t own = int64_t{blockIdx.x} * lanes + threadIdx.y;
  if (threadIdx.x == 0 && own < partial.cols) out[own] = static_cast<G>(sum);
}
// [/snippet]

// [snippet: launch_grouped]
// As few vectors to a thread as there are threads for. The longest rows are of 64 KiB as in the tutorial, less a
// vector, since a row may straddle their boundaries.
template <int vectors = 1, class P, class T, class G>
void launch_groups(const LayerNormBackward<T, G>& p, const GroupRows<P>& partial, cudaStream_t stream) {
  const int64_t in_row = vectorized::vectors_in_row(p.x, p.x_stride, p.cols);
  const unsigned threads = warp_shuffle::blocks_for(in_row, lanes * vectors) * lanes;
  if constexpr (vectors < 8) {
    if (threads > most_threads_of_row<vectors>) return launch_groups<2 * vectors>(p, partial, stream);
  }
  using welford::on_boundaries;
  const bool is_whole = p.cols % vector_size<T> == 0 && on_boundaries(p.x, p.x_stride) &&
                        on_boundaries(p.dy, p.dy_stride) && on_boundaries(p.dh, p.dh_stride) &&
                        on_boundaries(p.dx, p.dx_stride) && on_boundaries(p.gamma, 0);
  launch(is_whole ? dx_and_groups<T, G, P, vectors, true> : dx_and_groups<T, G, P, vectors, false>,
         {.grid = warp_shuffle::blocks_for(p.rows, 1), .block = threads, .stream = stream}, p, partial);
}

// As many groups as the tutorial has, unless there are fewer rows, or no room for so many locks.
template <class P, class T, class G>
int64_t groups_of(const LayerNormBackward<T, G>& p) {
  const int64_t wished = p.cols <= 1024 ? 256 : p.cols <= 4096 ? 128 : p.cols <= 8192 ? 96 : 64;
  const int64_t room = backward_workspace(p.cols) * sizeof(float);
  const int64_t bytes = 2 * p.cols * sizeof(P) + ints_of_line * sizeof(int);
  return std::min({p.rows, wished, room / bytes});
}

template <class P, class T, class G>
void launch_grouped(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const bool any_sums = p.dgamma || p.dbeta;
  const GroupRows<P> partial = {any_sums ? reinterpret_cast<P*>(p.workspace) : nullptr, groups_of<P>(p), p.cols};
  if (any_sums && p.rows > 0) {
    const size_t bytes = partial.count * ints_of_line * sizeof(int);
    check_cuda(cudaMemsetAsync(partial.lock(0), 0, bytes, stream), "clearing the locks");
  }
  if (p.rows > 0) launch_groups(p, partial, stream);
  if constexpr (std::is_same_v<P, float>) {
    launch_sum(p, partial.count, stream);
  } else if (any_sums) {
    const unsigned tiles = static_cast<unsigned>((p.cols + lanes - 1) / lanes);
    launch(sum_groups<P>, {.grid = dim3(tiles, 2), .block = dim3(lanes, lanes), .stream = stream}, partial, p.dgamma,
           p.dbeta);
  }
}

// In the type of the weights, as the tutorial has them: its sums are rounded to 16 bits at each addition.
template <class T, class G>
void grouped(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  launch_grouped<G>(p, stream);
}

template <class T, class G>
void grouped_fp32(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  launch_grouped<float>(p, stream);
}
// [/snippet]

}  // namespace worklog::backward

// The backward pass: dx reduces along the rows, dgamma and dbeta along the columns, over the same data.
// Four simple ways to do both. partials.cuh adds up partial sums of columns; the kernel for every shape is in final/.
#pragma once

#include <algorithm>
#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "07_backward/partials.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::first_column;
using vectorized::most_threads;
using vectorized::Parameter;
using vectorized::to_float;
using warp_shuffle::block_sum;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

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

// [snippet: staying]
inline constexpr int columns_of_thread = 16;  // whose sums, xhat and wdy take 64 of its registers

// A block stays for many rows, and a thread has the same columns in all of them: their sums stay in its registers. x
// and dy are read once, since xhat and wdy stay there too until the row's sums are known.
template <class T, class G>
__global__ void __launch_bounds__(most_threads) dx_and_columns(LayerNormBackward<T, G> p, PartialRows partial) {
  constexpr int vectors = columns_of_thread / vector_size<T>;
  __shared__ float scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  const int first = first_column(p.x + blockIdx.x * p.x_stride) + static_cast<int>(threadIdx.x) * vector_size<T>;

  Parameter<T, G> gamma[vectors];
  Floats<T> dgamma[vectors] = {}, dbeta[vectors] = {};
  for (int i = 0; i < vectors; ++i) gamma[i].load(p.gamma, first + i * step, cols, 1.0f);

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const RowStatistics s = {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};
    vectorized::RowInRegisters<T, vectors> x, dy;
    x.load(p.x + row * p.x_stride, first, step, cols);
    dy.load(p.dy + row * p.dy_stride, first, step, cols);

    Floats<T> xhat[vectors], wdy[vectors];
    RowSums sums = {0.0f, 0.0f};
    for (int i = 0; i < vectors; ++i) {
      const Floats<T> xs = vectorized::unpack<T>(x.bits[i]);
      const Floats<T> dys = vectorized::unpack<T>(dy.bits[i]);
      const Floats<T> gammas = gamma[i].unpack();
      for (int k = 0; k < vector_size<T>; ++k) {
        // Beyond the row's ends dy is 0, but xhat could be infinite, and 0 times infinity is not 0.
        const int col = first + i * step + k;
        xhat[i].at[k] = col >= 0 && col < cols ? xhat_of(xs.at[k], s) : 0.0f;
        wdy[i].at[k] = dys.at[k] * gammas.at[k];
        sums.wdy += wdy[i].at[k];
        sums.wdy_xhat += wdy[i].at[k] * xhat[i].at[k];
        dgamma[i].at[k] += dys.at[k] * xhat[i].at[k];
        dbeta[i].at[k] += dys.at[k];
      }
    }
    sums = {p.mean ? block_sum(sums.wdy, scratch) : 0.0f, block_sum(sums.wdy_xhat, scratch)};
    if (!p.dx) continue;

    const Gradient gradient = gradient_of(s, sums, p.cols);
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      Floats<T> dx = vectorized::unpack<T>(p.dh ? vectorized::load(p.dh + row * p.dh_stride, col, cols) : uint4{});
      for (int k = 0; k < vector_size<T>; ++k) dx.at[k] += gradient(wdy[i].at[k], xhat[i].at[k]);
      vectorized::store(p.dx + row * p.dx_stride, col, cols, vectorized::pack<T>(dx));
    }
  }
  if (!partial.first) return;
  for (int i = 0; i < vectors; ++i) store_sums<T>(partial, blockIdx.x, first + i * step, dgamma[i], dbeta[i]);
}

// Rows of more than 8192 columns, for which a block has no registers, are left to `separate`: five trips.
template <class T, class G>
void staying(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t columns = vectorized::vectors_in_row(p.x, p.x_stride, p.cols) * vector_size<T>;
  const int64_t threads = warp_shuffle::blocks_for(columns, lanes * columns_of_thread) * lanes;
  if (threads > most_threads) return separate(p, stream);
  const int64_t at_once = blocks_at_once(dx_and_columns<T, G>, static_cast<int>(threads), 0);
  // All rows of x that a block has start equally far past a 16-byte boundary, and a thread's vectors with them. Where
  // those of another tensor do not, load() and store() go element by element.
  const int64_t blocks = teams_of_kinds(teams_for(p.rows, at_once, p.cols), period_of_rows<T>(p.x_stride), p.rows);
  launch(dx_and_columns<T, G>,
         {.grid = static_cast<unsigned>(blocks), .block = static_cast<unsigned>(threads), .stream = stream}, p,
         partial_rows_of(p, blocks));
  launch_sum(p, blocks, stream);
}

template <class T, class G>
void staying_rms_norm(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  staying(as_layer_norm(p), stream);
}
// [/snippet]

}  // namespace worklog::backward

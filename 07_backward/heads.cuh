// The backward pass of the norm of q's and k's heads, whose rows take two strides: dx, and then the columns.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "06_fused_residual/heads.cuh"
#include "07_backward/partials.cuh"
#include "07_backward/row.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::first_column;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::unpack;
using warp_shuffle::warp_sum;

inline constexpr int threads_of_heads = 128;

// [snippet: heads]
// The heads of q, or those of k.
template <class T, class G>
struct Heads {
  const T* dy;
  const T* x;
  const G* gamma;
  const float* rstd;
  T* dx;
  int64_t heads, rows;
  HeadStrides dy_stride, x_stride, dx_stride;

  // The same heads, but of row i alone.
  template <class Index>
  __device__ Heads row(Index i) const {
    const auto [token, head] = fused_residual::token_head(i, heads);
    Heads own = *this;
    own.dy += token * dy_stride.token + head * dy_stride.head;
    own.x += token * x_stride.token + head * x_stride.head;
    if (dx) own.dx += token * dx_stride.token + head * dx_stride.head;
    own.rstd += i;
    return own;
  }
};

template <class T, class G>
__host__ __device__ inline Heads<T, G> heads_of(const QkNormBackward<T, G>& p, bool is_k) {
  if (is_k) {
    return {p.dk_out,        p.k,        p.k_gamma,  p.k_rstd, p.dk, p.k_heads, p.tokens * p.k_heads,
            p.dk_out_stride, p.k_stride, p.dk_stride};
  }
  return {p.dq_out,        p.q,        p.q_gamma,  p.q_rstd, p.dq, p.q_heads, p.tokens * p.q_heads,
          p.dq_out_stride, p.q_stride, p.dq_stride};
}
// [/snippet]

// [snippet: dx_of_heads]
// dq and dk, a warp to a row, which is read twice: any head_dim, any strides, any alignment.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_heads) dx_of_heads(QkNormBackward<T, G> p) {
  constexpr int warps = threads_of_heads / lanes;
  constexpr int step = lanes * vector_size<T>;
  const int cols = static_cast<int>(p.head_dim);
  const Heads<T, G> all = heads_of(p, blockIdx.y == 1);
  if (!all.dx) return;
  for (int64_t i = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; i < all.rows; i += int64_t{gridDim.x} * warps) {
    const Heads<T, G> row = all.row(i);
    const RowStatistics s = {0.0f, *row.rstd};
    const int first = first_column(row.x) + static_cast<int>(threadIdx.x) % lanes * vector_size<T>;
    const auto for_each_vector = [&](auto use) {
      for (int col = first; col < cols; col += step) {
        Floats<T> wdy = unpack<T>(vectorized::load(row.dy, col, cols));
        Floats<T> xhat = unpack<T>(vectorized::load(row.x, col, cols));
        Parameter<T, G> gamma;
        gamma.load(row.gamma, col, cols, 1.0f - p.gamma_offset);
        const Floats<T> scales = gamma.unpack();
        for (int k = 0; k < vector_size<T>; ++k) {
          wdy.at[k] *= scales.at[k] + p.gamma_offset;
          // Beyond the row's ends x is 0, but rstd could be infinite, and 0 times infinity is not 0.
          xhat.at[k] = col + k >= 0 && col + k < cols ? xhat_of(xhat.at[k], s) : 0.0f;
        }
        use(col, wdy, xhat);
      }
    };
    float sum = 0.0f;
    for_each_vector([&](int, const Floats<T>& wdy, const Floats<T>& xhat) {
      for (int k = 0; k < vector_size<T>; ++k) sum += wdy.at[k] * xhat.at[k];
    });
    const Gradient gradient = gradient_of(s, {0.0f, warp_sum(sum)}, p.head_dim);
    for_each_vector([&](int col, Floats<T> wdy, const Floats<T>& xhat) {
      for (int k = 0; k < vector_size<T>; ++k) wdy.at[k] = gradient(wdy.at[k], xhat.at[k]);
      vectorized::store(row.dx, col, cols, pack<T>(wdy));
    });
  }
}
// [/snippet]

// [snippet: columns_of_heads]
// Partial row blockIdx.y of dq_gamma, and of dk_gamma (blockIdx.z is 1): a column to a thread, and every
// gridDim.y-th row.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_heads) sum_columns_of_heads(QkNormBackward<T, G> p, PartialRows partial) {
  const int64_t col = int64_t{blockIdx.x} * threads_of_heads + threadIdx.x;
  if (col >= p.head_dim) return;
  const Heads<T, G> all = heads_of(p, blockIdx.z == 1);
  float sum = 0.0f;
  for (int64_t i = blockIdx.y; i < all.rows; i += gridDim.y) {
    const Heads<T, G> row = all.row(i);
    sum += vectorized::to_float(row.dy[col]) * xhat_of(vectorized::to_float(row.x[col]), {0.0f, *row.rstd});
  }
  (blockIdx.z == 1 ? partial.dbeta(blockIdx.y) : partial.dgamma(blockIdx.y))[col] = sum;
}
// [/snippet]

// [snippet: launch_heads]
// The sums of two parameters are made as those of dgamma and dbeta are: dq_gamma's come first, dk_gamma's second.
template <class T, class G>
void launch_sum(const QkNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  LayerNormBackward<T, G> sums = {};
  sums.dgamma = p.dq_gamma;
  sums.dbeta = p.k_heads > 0 ? p.dk_gamma : nullptr;
  sums.workspace = p.workspace;
  sums.cols = p.head_dim;
  launch_sum(sums, partial_rows, stream);
}

template <class T, class G>
bool wants_sums(const QkNormBackward<T, G>& p) {
  return p.dq_gamma || (p.k_heads > 0 && p.dk_gamma);
}

// dq may not be dq_out here, nor dk dk_out: the columns are summed after dq and dk are written.
template <class T, class G>
void warp_per_head(const QkNormBackward<T, G>& p, cudaStream_t stream) {
  const unsigned parts = p.k_heads > 0 ? 2 : 1;
  const int64_t rows = p.tokens * std::max(p.q_heads, p.k_heads);
  if (rows > 0 && (p.dq || p.dk)) {
    launch(dx_of_heads<T, G>,
           {.grid = dim3(warp_shuffle::blocks_for(rows, threads_of_heads / lanes), parts),
            .block = threads_of_heads,
            .stream = stream},
           p);
  }
  if (!wants_sums(p)) return;
  const auto kernel = sum_columns_of_heads<T, G>;
  const int64_t partial_rows = teams_for(rows, blocks_at_once(kernel, threads_of_heads, 0), p.head_dim);
  launch(
      kernel,
      {.grid = dim3(warp_shuffle::blocks_for(p.head_dim, threads_of_heads), static_cast<unsigned>(partial_rows), parts),
       .block = threads_of_heads,
       .stream = stream},
      p, PartialRows{p.workspace, partial_rows, p.head_dim});
  launch_sum(p, partial_rows, stream);
}
// [/snippet]

}  // namespace worklog::backward

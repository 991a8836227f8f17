// RMSNorm of the heads of a packed projection: the address of a row takes two strides, and q and k take one launch.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::first_column;
using vectorized::Floats;
using vectorized::pack;
using vectorized::Parameter;
using vectorized::unpack;
using vectorized::vector_size;
using warp_shuffle::blocks_for;
using warp_shuffle::lanes;
using warp_shuffle::warp_sum;

inline constexpr int threads_of_heads = 256;

// [snippet: head_row]
// Which token's row i is, and which of that token's heads. Unsigned numbers are divided in fewer instructions.
struct TokenHead {
  int64_t token, head;
};

__device__ inline TokenHead token_head(int64_t i, int64_t heads) {
  const auto token = static_cast<int64_t>(static_cast<uint64_t>(i) / static_cast<uint64_t>(heads));
  return {token, i - token * heads};
}

// The row of one head of one token.
template <class T, class G>
struct HeadRow {
  const T* x;
  T* y;
  const G* gamma;
  float* rstd;
};

// Row i of q and k together. The heads of a token are neighbours, q's before k's, as they are in a projection.
template <class T, class G>
__device__ inline HeadRow<T, G> head_row(const QkNormForward<T, G>& p, int64_t i) {
  const auto [token, head] = token_head(i, p.q_heads + p.k_heads);
  const bool is_k = head >= p.q_heads;
  const int64_t own = is_k ? head - p.q_heads : head;  // among the heads of q, or of k
  const HeadStrides from = is_k ? p.k_stride : p.q_stride;
  const HeadStrides to = is_k ? p.k_out_stride : p.q_out_stride;
  float* const rstd = is_k ? p.k_rstd : p.q_rstd;
  return {(is_k ? p.k : p.q) + token * from.token + own * from.head,
          (is_k ? p.k_out : p.q_out) + token * to.token + own * to.head, is_k ? p.k_gamma : p.q_gamma,
          rstd ? rstd + token * (is_k ? p.k_heads : p.q_heads) + own : nullptr};
}
// [/snippet]

// Normalizes a vector of a row and stores it. Without gamma the factor is 1: `gamma` then holds 1 - gamma_offset.
template <bool whole, class T, class G>
__device__ inline void store_head(const QkNormForward<T, G>& p, const HeadRow<T, G>& row, int col, Floats<T> x,
                                  float rstd, const Parameter<T, G>& gamma) {
  const Floats<T> scales = gamma.unpack();
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= rstd;
  if (p.round_before_gamma) x = unpack<T>(pack<T>(x));
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scales.at[k] + p.gamma_offset;
  vectorized::store<whole>(row.y, col, static_cast<int>(p.head_dim), pack<T>(x));
}

// [snippet: warp_per_head]
// A warp to a row, which is read twice: any head_dim, any strides, any alignment. An output may lie where its input
// does: each element is written by the thread that has read it.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_heads) normalize_heads_by_warps(QkNormForward<T, G> p) {
  constexpr int warps = threads_of_heads / lanes;
  constexpr int step = lanes * vector_size<T>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int cols = static_cast<int>(p.head_dim);
  const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
  for (int64_t i = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; i < rows; i += int64_t{gridDim.x} * warps) {
    const HeadRow<T, G> row = head_row(p, i);
    const int first = first_column(row.x) + lane * vector_size<T>;
    float mean_square, scale = 1.0f;
    while (true) {
      float squares = 0.0f;
      for (int col = first; col < cols; col += step) {  // beyond the row's ends there are zeros
        const Floats<T> x = unpack<T>(vectorized::load(row.x, col, cols));
        for (int k = 0; k < vector_size<T>; ++k) squares += x.at[k] * scale * (x.at[k] * scale);
      }
      mean_square = warp_sum(squares) / static_cast<float>(cols);
      if (isfinite(mean_square) || scale < 1.0f) break;
      scale = 0x1p-80f;  // the squares overflow: again, scaled down so that no square can
    }
    const float rstd = rsqrtf(mean_square + p.eps * scale);  // with a small scale, eps only avoids 1 / 0
    for (int col = first; col < cols; col += step) {
      Floats<T> x = unpack<T>(vectorized::load(row.x, col, cols));
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scale;
      Parameter<T, G> gamma;
      gamma.load(row.gamma, col, cols, 1.0f - p.gamma_offset);
      store_head<false>(p, row, col, x, rstd, gamma);
    }
    if (lane == 0 && row.rstd) *row.rstd = mean_square == 0.0f ? rsqrtf(p.eps) : rstd * scale;
  }
}

template <class T, class G>
void warp_per_head(const QkNormForward<T, G>& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
  launch(normalize_heads_by_warps<T, G>,
         {.grid = blocks_for(rows, threads_of_heads / lanes), .block = threads_of_heads, .stream = stream}, p);
}
// [/snippet]

// [snippet: copied]
// What is done where a norm takes one stride: the heads are copied to a tensor of their own, and normalized there. That
// is one more read and one more write. Here the copy goes to the output, where it is normalized in place.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_heads) copy_heads(QkNormForward<T, G> p) {
  constexpr int warps = threads_of_heads / lanes;
  const int cols = static_cast<int>(p.head_dim);
  const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
  for (int64_t i = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; i < rows; i += int64_t{gridDim.x} * warps) {
    const HeadRow<T, G> row = head_row(p, i);
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    for (int col = first_column(row.x) + lane * vector_size<T>; col < cols; col += lanes * vector_size<T>) {
      vectorized::store(row.y, col, cols, vectorized::load(row.x, col, cols));
    }
  }
}

template <class T, class G>
QkNormForward<T, G> copy_heads_first(QkNormForward<T, G> p, cudaStream_t stream) {
  if (p.tokens > 0) {
    const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
    launch(copy_heads<T, G>,
           {.grid = blocks_for(rows, threads_of_heads / lanes), .block = threads_of_heads, .stream = stream}, p);
  }
  p.q = p.q_out;
  p.k = p.k_out;
  p.q_stride = p.q_out_stride;
  p.k_stride = p.k_out_stride;
  return p;
}
// [/snippet]

}  // namespace worklog::fused_residual

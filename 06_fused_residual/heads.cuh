// RMSNorm of the heads of a packed projection: the address of a row takes two strides, and q and k take one launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

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

// [snippet: heads_of]
// Which token's row i is, and which of that token's heads. Unsigned numbers are divided in fewer instructions.
template <class Index>
struct TokenHead {
  Index token, head;
};

template <class Index>
__device__ inline TokenHead<Index> token_head(Index i, int64_t heads) {
  using Unsigned = std::make_unsigned_t<Index>;
  const auto token = static_cast<Index>(static_cast<Unsigned>(i) / static_cast<Unsigned>(heads));
  return {token, i - token * static_cast<Index>(heads)};
}

// The heads of q, or those of k. Row i is one head of one token, and a token's heads are neighbours.
template <class T, class G>
struct Heads {
  const T* x;
  T* y;
  const G* gamma;
  float* rstd;
  int64_t heads, rows;
  HeadStrides x_stride, y_stride;

  // Where row i starts, in elements behind the first row.
  __device__ int64_t offset(int64_t i, HeadStrides stride) const {
    const auto [token, head] = token_head(i, heads);
    return token * stride.token + head * stride.head;
  }
};

template <class T, class G>
__device__ inline Heads<T, G> heads_of(const QkNormForward<T, G>& p, bool is_k) {
  if (is_k) return {p.k, p.k_out, p.k_gamma, p.k_rstd, p.k_heads, p.tokens * p.k_heads, p.k_stride, p.k_out_stride};
  return {p.q, p.q_out, p.q_gamma, p.q_rstd, p.q_heads, p.tokens * p.q_heads, p.q_stride, p.q_out_stride};
}

// Blocks for so many rows of q, and as many again (blockIdx.y is 1) for those of k: where k has fewer, some do nothing.
template <class T, class G>
dim3 grid_of_heads(const QkNormForward<T, G>& p, int rows_of_block) {
  const int64_t rows = p.tokens * std::max(p.q_heads, p.k_heads);
  return dim3(blocks_for(rows, rows_of_block), p.k_heads > 0 ? 2 : 1);
}
// [/snippet]

// What the columns of a vector are multiplied by. Without gamma that is 1: `gamma` then holds 1 - gamma_offset.
template <bool whole, class T, class G>
__device__ inline Floats<T> factors_of_head(const QkNormForward<T, G>& p, const G* gamma, int col) {
  Parameter<T, G> vector;
  vector.template load<whole>(gamma, col, static_cast<int>(p.head_dim), 1.0f - p.gamma_offset);
  Floats<T> factors = vector.unpack();
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) factors.at[k] += p.gamma_offset;
  return factors;
}

// Normalizes a vector of a row and stores it.
template <bool whole, class T, class G>
__device__ inline void store_head(const QkNormForward<T, G>& p, T* y, int col, Floats<T> x, float rstd,
                                  const Floats<T>& factors) {
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= rstd;
  if (p.round_before_gamma) x = unpack<T>(pack<T>(x));
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= factors.at[k];
  vectorized::store<whole>(y, col, static_cast<int>(p.head_dim), pack<T>(x));
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
  const Heads<T, G> all = heads_of(p, blockIdx.y == 1);
  for (int64_t i = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; i < all.rows; i += int64_t{gridDim.x} * warps) {
    const T* const from = all.x + all.offset(i, all.x_stride);
    T* const to = all.y + all.offset(i, all.y_stride);
    const int first = first_column(from) + lane * vector_size<T>;
    float mean_square, scale = 1.0f;
    while (true) {
      float squares = 0.0f;
      for (int col = first; col < cols; col += step) {  // beyond the row's ends there are zeros
        const Floats<T> x = unpack<T>(vectorized::load(from, col, cols));
        for (int k = 0; k < vector_size<T>; ++k) squares += x.at[k] * scale * (x.at[k] * scale);
      }
      mean_square = warp_sum(squares) / static_cast<float>(cols);
      if (isfinite(mean_square) || scale < 1.0f) break;
      scale = 0x1p-80f;  // the squares overflow: again, scaled down so that no square can
    }
    const float rstd = rsqrtf(mean_square + p.eps * scale);  // eps * scale^2 is nothing; this avoids 1 / 0
    for (int col = first; col < cols; col += step) {
      Floats<T> x = unpack<T>(vectorized::load(from, col, cols));
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scale;
      store_head<false>(p, to, col, x, rstd, factors_of_head<false>(p, all.gamma, col));
    }
    if (lane == 0 && all.rstd) all.rstd[i] = mean_square == 0.0f ? rsqrtf(p.eps) : rstd * scale;
  }
}

template <class T, class G>
void warp_per_head(const QkNormForward<T, G>& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  launch(normalize_heads_by_warps<T, G>,
         {.grid = grid_of_heads(p, threads_of_heads / lanes), .block = threads_of_heads, .stream = stream}, p);
}
// [/snippet]

// [snippet: copied]
// What is done where a norm takes one stride: the heads are copied to a tensor of their own, and normalized there. That
// is one more read and one more write. Here the copy goes to the output, where it is normalized in place.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_heads) copy_heads(QkNormForward<T, G> p) {
  constexpr int warps = threads_of_heads / lanes;
  const int cols = static_cast<int>(p.head_dim);
  const Heads<T, G> all = heads_of(p, blockIdx.y == 1);
  for (int64_t i = int64_t{blockIdx.x} * warps + threadIdx.x / lanes; i < all.rows; i += int64_t{gridDim.x} * warps) {
    const T* const from = all.x + all.offset(i, all.x_stride);
    T* const to = all.y + all.offset(i, all.y_stride);
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    for (int col = first_column(from) + lane * vector_size<T>; col < cols; col += lanes * vector_size<T>) {
      vectorized::store(to, col, cols, vectorized::load(from, col, cols));
    }
  }
}

template <class T, class G>
QkNormForward<T, G> copy_heads_first(QkNormForward<T, G> p, cudaStream_t stream) {
  if (p.tokens > 0) {
    launch(copy_heads<T, G>,
           {.grid = grid_of_heads(p, threads_of_heads / lanes), .block = threads_of_heads, .stream = stream}, p);
  }
  p.q = p.q_out;
  p.k = p.k_out;
  p.q_stride = p.q_out_stride;
  p.k_stride = p.k_out_stride;
  return p;
}
// [/snippet]

}  // namespace worklog::fused_residual

// Heads of q and k whose rows are whole 16-byte vectors: a few lanes of a warp to a row, and several rows at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "05_welford/held.cuh"
#include "06_fused_residual/heads.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using warp_shuffle::all_lanes;

inline constexpr int threads_of_final_heads = 128;  // of a block

// [snippet: normalize_heads]
template <class T, int vectors>
__device__ inline float sum_of_squares(const uint4 (&bits)[vectors], float scale) {
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const Floats<T> x = unpack<T>(bits[v]);
    for (int k = 0; k < vector_size<T>; ++k) squares += x.at[k] * scale * (x.at[k] * scale);
  }
  return squares;
}

// `width` lanes to a row, `vectors` vectors of it to a lane, which holds them: a row is read once. And several rows at
// once: all their loads are on their way before a lane waits for the first. q and k have blocks of their own, so that
// a lane multiplies by the same factors in all rows. An output may lie where its input does.
template <class T, class G, int width, int vectors, int rows_at_once>
__global__ void __launch_bounds__(threads_of_final_heads) normalize_heads(QkNormForward<T, G> p) {
  constexpr unsigned rows_of_pass = threads_of_final_heads / width, rows_of_block = rows_of_pass * rows_at_once;
  const Heads<T, G> all = heads_of(p, blockIdx.y == 1);
  const auto rows = static_cast<unsigned>(all.rows);
  const int lane = static_cast<int>(threadIdx.x) % width, cols = static_cast<int>(p.head_dim);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const auto column = [&](int v) { return (lane + v * width) * vector_size<T>; };
  Floats<T> factors[vectors] = {};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (column(v) < cols) factors[v] = factors_of_head<true>(p, all.gamma, column(v));
  }
  for (unsigned first = blockIdx.x * rows_of_block; first < rows; first += gridDim.x * rows_of_block) {
    const auto row = [&](int r) { return first + r * rows_of_pass + threadIdx.x / width; };
    uint4 bits[rows_at_once][vectors] = {};
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (row(r) >= rows || column(v) >= cols) continue;
        bits[r][v] = vectorized::load<true>(all.x + all.offset(row(r), all.x_stride), column(v), cols);
      }
    }
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {  // lanes without a row go along, since shuffles are for a whole warp
      float scale = 1.0f, mean_square = warp_sum<width>(sum_of_squares<T>(bits[r], scale)) * inverse_cols;
      const bool overflows = !isfinite(mean_square);
      if (__any_sync(all_lanes, overflows)) {  // again, so small that no square can; other rows do not change
        if (overflows) scale = 0x1p-80f;
        mean_square = warp_sum<width>(sum_of_squares<T>(bits[r], scale)) * inverse_cols;
      }
      if (row(r) >= rows) continue;
      const float rstd = rsqrtf(mean_square + p.eps * scale);  // with a small scale, eps only avoids 1 / 0
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (column(v) >= cols) continue;
        Floats<T> x = unpack<T>(bits[r][v]);
        if (scale < 1.0f) {
          for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scale;
        }
        store_head<true>(p, all.y + all.offset(row(r), all.y_stride), column(v), x, rstd, factors[v]);
      }
      if (lane == 0 && all.rstd) all.rstd[row(r)] = mean_square == 0.0f ? rsqrtf(p.eps) : rstd * scale;
    }
  }
}
// [/snippet]

// [snippet: launch_heads]
// Whether all vectors of all rows are whole, and on 16-byte boundaries.
template <class T>
bool heads_on_boundaries(const T* heads, HeadStrides stride) {
  return welford::on_boundaries(heads, stride.token) && stride.head % vector_size<T> == 0;
}
template <class T, class G>
bool is_whole(const QkNormForward<T, G>& p) {
  const bool q = heads_on_boundaries(p.q, p.q_stride) && heads_on_boundaries(p.q_out, p.q_out_stride);
  const bool k = heads_on_boundaries(p.k, p.k_stride) && heads_on_boundaries(p.k_out, p.k_out_stride);
  return p.head_dim % vector_size<T> == 0 && q && (p.k_heads == 0 || k) && welford::on_boundaries(p.q_gamma, 0) &&
         welford::on_boundaries(p.k_gamma, 0);
}

template <int width, int vectors, int rows_at_once, class T, class G>
void launch_heads(const QkNormForward<T, G>& p, const char* rule, cudaStream_t stream) {
  constexpr int rows_of_block = threads_of_final_heads / width * rows_at_once;
  launch(normalize_heads<T, G, width, vectors, rows_at_once>,
         {.grid = grid_of_heads(p, rows_of_block), .block = threads_of_final_heads, .rule = rule, .stream = stream}, p);
}

// A vector to a lane and four rows at once, or as many vectors in longer rows. Still longer rows, those that are not
// whole vectors, and more rows than 31 bits count are read twice.
template <class T, class G>
void launch_heads(const QkNormForward<T, G>& p, cudaStream_t stream) {
  const int64_t vectors = p.head_dim / vector_size<T>;
  const bool are_countable = p.tokens * std::max(p.q_heads, p.k_heads) <= INT32_MAX;
  if (p.tokens == 0 || !is_whole(p) || vectors > 128 || !are_countable) return warp_per_head(p, stream);
  if (vectors <= 8) return launch_heads<8, 1, 4>(p, "heads of up to 64 columns of 16 bits", stream);
  if (vectors <= 16) return launch_heads<16, 1, 4>(p, "heads of up to 128 columns of 16 bits", stream);
  if (vectors <= 32) return launch_heads<32, 1, 4>(p, "heads of up to 256 columns of 16 bits", stream);
  if (vectors <= 64) return launch_heads<32, 2, 2>(p, "heads of up to 512 columns of 16 bits", stream);
  launch_heads<32, 4, 1>(p, "heads of up to 1024 columns of 16 bits", stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

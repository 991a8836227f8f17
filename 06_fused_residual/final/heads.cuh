// Heads of q and k whose rows are whole 16-byte vectors: a few lanes of a warp to a row, and several tokens at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "05_welford/held.cuh"
#include "06_fused_residual/heads.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using warp_shuffle::all_lanes;

inline constexpr int threads_of_final_heads = 256;  // of a block

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

// `width` lanes to a row, `vectors` vectors of it to a lane, which holds them: a row is read once. And several tokens
// at once: all their loads are on their way before a lane waits for the first. A block has one head, of q or of k: so
// no row's number has to be divided, and a lane multiplies by the same factors throughout. An output may lie where its
// input does.
template <class T, class G, int width, int vectors, int tokens_at_once>
__global__ void __launch_bounds__(threads_of_final_heads, vectors == 1 ? 8 : 4) normalize_heads(QkNormForward<T, G> p) {
  constexpr unsigned tokens_of_pass = threads_of_final_heads / width, tokens_of_block = tokens_of_pass * tokens_at_once;
  const bool is_k = blockIdx.x >= p.q_heads;
  const Heads<T, G> all = heads_of(p, is_k);
  const int64_t head = is_k ? blockIdx.x - p.q_heads : blockIdx.x;
  const T* const x = all.x + head * all.x_stride.head;
  T* const y = all.y + head * all.y_stride.head;
  const auto tokens = static_cast<unsigned>(p.tokens);
  const int lane = static_cast<int>(threadIdx.x) % width, cols = static_cast<int>(p.head_dim);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const auto column = [&](int v) { return (lane + v * width) * vector_size<T>; };
  Floats<T> factors[vectors] = {};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (column(v) < cols) factors[v] = factors_of_head<true>(p, all.gamma, column(v));
  }
  for (unsigned first = blockIdx.y * tokens_of_block; first < tokens; first += gridDim.y * tokens_of_block) {
    const auto token = [&](int i) { return first + i * tokens_of_pass + threadIdx.x / width; };
    uint4 bits[tokens_at_once][vectors] = {};
#pragma unroll
    for (int i = 0; i < tokens_at_once; ++i) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (token(i) >= tokens || column(v) >= cols) continue;
        bits[i][v] = vectorized::load<true>(x + token(i) * all.x_stride.token, column(v), cols);
      }
    }
#pragma unroll
    for (int i = 0; i < tokens_at_once; ++i) {  // lanes without a row go along: shuffles are for a whole warp
      float scale = 1.0f, mean_square = warp_sum<width>(sum_of_squares<T>(bits[i], scale)) * inverse_cols;
      const bool overflows = !isfinite(mean_square);
      if (__any_sync(all_lanes, overflows)) {  // again, so small that no square can; other rows do not change
        if (overflows) scale = 0x1p-80f;
        mean_square = warp_sum<width>(sum_of_squares<T>(bits[i], scale)) * inverse_cols;
      }
      if (token(i) >= tokens) continue;
      const float rstd = rsqrtf(mean_square + p.eps * scale);  // with a small scale, eps only avoids 1 / 0
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (column(v) >= cols) continue;
        Floats<T> values = unpack<T>(bits[i][v]);
        if (scale < 1.0f) {
          for (int k = 0; k < vector_size<T>; ++k) values.at[k] *= scale;
        }
        store_head<true>(p, y + token(i) * all.y_stride.token, column(v), values, rstd, factors[v]);
      }
      if (lane > 0 || !all.rstd) continue;
      all.rstd[token(i) * all.heads + head] = mean_square == 0.0f ? rsqrtf(p.eps) : rstd * scale;
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

template <int width, int vectors, int tokens_at_once, class T, class G>
void launch_heads(const QkNormForward<T, G>& p, const char* rule, cudaStream_t stream) {
  constexpr int64_t tokens_of_block = threads_of_final_heads / width * tokens_at_once;
  constexpr int64_t largest_y = 65535;  // of a grid
  const int64_t blocks = std::min((p.tokens + tokens_of_block - 1) / tokens_of_block, largest_y);
  launch(normalize_heads<T, G, width, vectors, tokens_at_once>,
         {.grid = dim3(static_cast<unsigned>(p.q_heads + p.k_heads), static_cast<unsigned>(blocks)),
          .block = threads_of_final_heads,
          .rule = rule,
          .stream = stream},
         p);
}

// A vector to a lane and two tokens at once, or as many vectors in longer rows and one token. Still longer rows, those
// that are not whole vectors, and more tokens or heads than 31 bits count are read twice.
template <class T, class G>
void launch_heads(const QkNormForward<T, G>& p, cudaStream_t stream) {
  const int64_t vectors = p.head_dim / vector_size<T>;
  const bool are_countable = p.tokens <= INT32_MAX && p.q_heads + p.k_heads <= INT32_MAX;
  if (p.tokens == 0 || !is_whole(p) || vectors > 128 || !are_countable) return warp_per_head(p, stream);
  if (vectors <= 8) return launch_heads<8, 1, 2>(p, "heads of up to 64 columns of 16 bits", stream);
  if (vectors <= 16) return launch_heads<16, 1, 2>(p, "heads of up to 128 columns of 16 bits", stream);
  if (vectors <= 32) return launch_heads<32, 1, 2>(p, "heads of up to 256 columns of 16 bits", stream);
  if (vectors <= 64) return launch_heads<32, 2, 1>(p, "heads of up to 512 columns of 16 bits", stream);
  launch_heads<32, 4, 1>(p, "heads of up to 1024 columns of 16 bits", stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

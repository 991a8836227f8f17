// Heads of q and k whose rows are whole 16-byte vectors: a few lanes of a warp to a row, and several tokens at once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/held.cuh"
#include "06_fused_residual/heads.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using warp_shuffle::all_lanes;

inline constexpr int threads_of_final_heads = 256;  // of a block

// [snippet: normalize_heads]
template <class T, int vectors>
__device__ inline float sum_of_squares(const uint4 (&bits)[vectors]) {
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const Floats<T> x = unpack<T>(bits[v]);
    for (int k = 0; k < vector_size<T>; ++k) squares += x.at[k] * x.at[k];
  }
  return squares;
}

// For a row whose squares overflow: makes it so small that none can, and returns what it was multiplied by. The whole
// warp comes here, since sums over lanes take shuffles. Its other rows do not change.
template <class T, int width, int vectors>
__device__ inline float scale_down(uint4 (&bits)[vectors], float& mean_square, float inverse_cols) {
  const float scale = isfinite(mean_square) ? 1.0f : 0x1p-80f;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    Floats<T> x = unpack<T>(bits[v]);
    for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scale;
    bits[v] = pack<T>(x);
  }
  mean_square = warp_sum<width>(sum_of_squares<T>(bits)) * inverse_cols;
  return scale;
}

// `width` lanes to a row, `vectors` vectors of it to a lane, which holds them: a row is read once. And several tokens
// at once: all their loads are on their way before a lane waits for the first. The rows of a block are neighbouring
// heads, 2^head_bits of q or of k, and then the same heads of the next token: the statistics of eight heads fill the 32
// bytes that memory writes at once. A lane multiplies by the same factors throughout, and its addresses move by the
// same step. An output may lie where its input does.
template <class T, class G, int width, int vectors, int tokens_at_once>
__global__ void __launch_bounds__(threads_of_final_heads, blocks_that_fit(threads_of_final_heads, vectors == 1 ? 6 : 3))
    normalize_heads(QkNormForward<T, G> p, int head_bits) {
  constexpr unsigned rows = threads_of_final_heads / width;
  const unsigned tokens_of_pass = rows >> head_bits, tokens_of_block = tokens_of_pass * tokens_at_once;
  const unsigned row = threadIdx.x / width;
  const bool is_k = blockIdx.x << head_bits >= p.q_heads;
  const Heads<T, G> all = heads_of(p, is_k);
  const int64_t head = (blockIdx.x << head_bits) + row % (1u << head_bits) - (is_k ? p.q_heads : 0);
  const int lane = static_cast<int>(threadIdx.x) % width, cols = static_cast<int>(p.head_dim);
  const auto column = [&](int v) { return (lane + v * width) * vector_size<T>; };
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  Floats<T> factors[vectors] = {};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (column(v) < cols) factors[v] = factors_of_head<true>(p, all.gamma, column(v));
  }
  const auto tokens = static_cast<unsigned>(p.tokens), tokens_of_grid = gridDim.y * tokens_of_block;
  unsigned token = blockIdx.y * tokens_of_block + (row >> head_bits);
  const T* x = all.x + head * all.x_stride.head + token * all.x_stride.token;
  T* y = all.y + head * all.y_stride.head + token * all.y_stride.token;
  for (unsigned first = blockIdx.y * tokens_of_block; first < tokens; first += tokens_of_grid) {
    uint4 bits[tokens_at_once][vectors] = {};
#pragma unroll
    for (int i = 0; i < tokens_at_once; ++i) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (token + i * tokens_of_pass >= tokens || column(v) >= cols) continue;
        bits[i][v] = vectorized::load<true>(x + i * tokens_of_pass * all.x_stride.token, column(v), cols);
      }
    }
#pragma unroll
    for (int i = 0; i < tokens_at_once; ++i) {  // lanes without a row go along: shuffles are for a whole warp
      float scale = 1.0f, mean_square = warp_sum<width>(sum_of_squares<T>(bits[i])) * inverse_cols;
      if (__any_sync(all_lanes, !isfinite(mean_square))) {
        scale = scale_down<T, width>(bits[i], mean_square, inverse_cols);
      }
      if (token + i * tokens_of_pass >= tokens) continue;
      const float rstd = rsqrtf(mean_square + p.eps * scale);  // eps * scale^2 is nothing; this avoids 1 / 0
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (column(v) >= cols) continue;
        T* const to = y + i * tokens_of_pass * all.y_stride.token;
        store_head<true>(p, to, column(v), unpack<T>(bits[i][v]), rstd, factors[v]);
      }
      if (lane == 0 && all.rstd) all.rstd[int64_t{token + i * tokens_of_pass} * all.heads + head] = rstd * scale;
    }
    token += tokens_of_grid;
    x += tokens_of_grid * all.x_stride.token;
    y += tokens_of_grid * all.y_stride.token;
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
  constexpr unsigned rows = threads_of_final_heads / width;
  constexpr int64_t largest_y = 65535;                                     // of a grid
  const auto heads = static_cast<uint64_t>(p.q_heads | p.k_heads | rows);  // which powers of two are all multiples of?
  const int head_bits = std::countr_zero(heads);
  const int64_t tokens_of_block = int64_t{rows >> head_bits} * tokens_at_once;
  const int64_t blocks = std::min((p.tokens + tokens_of_block - 1) / tokens_of_block, largest_y);
  const auto groups = static_cast<unsigned>((p.q_heads + p.k_heads) >> head_bits);
  launch(normalize_heads<T, G, width, vectors, tokens_at_once>,
         {.grid = dim3(groups, static_cast<unsigned>(blocks)),
          .block = threads_of_final_heads,
          .rule = rule,
          .stream = stream},
         p, head_bits);
}

// A vector to a lane and two tokens at once, or as many vectors in longer rows and one token. Still longer rows, those
// that are not whole vectors, and more rows than 31 bits count are read twice.
template <class T, class G>
void launch_heads(const QkNormForward<T, G>& p, cudaStream_t stream) {
  const int64_t vectors = p.head_dim / vector_size<T>;
  const bool are_countable = p.tokens <= INT32_MAX / (p.q_heads + p.k_heads);
  if (p.tokens == 0 || !is_whole(p) || vectors > 128 || !are_countable) return warp_per_head(p, stream);
  if (vectors <= 8) return launch_heads<8, 1, 2>(p, "heads of up to 64 columns of 16 bits", stream);
  if (vectors <= 16) return launch_heads<16, 1, 2>(p, "heads of up to 128 columns of 16 bits", stream);
  if (vectors <= 32) return launch_heads<32, 1, 2>(p, "heads of up to 256 columns of 16 bits", stream);
  if (vectors <= 64) return launch_heads<32, 2, 1>(p, "heads of up to 512 columns of 16 bits", stream);
  launch_heads<32, 4, 1>(p, "heads of up to 1024 columns of 16 bits", stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

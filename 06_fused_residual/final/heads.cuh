// Heads of q and k whose rows are whole 16-byte vectors: a few lanes of a warp to a row, each with up to four vectors.
#pragma once

#include <cstdint>

#include "05_welford/held.cuh"
#include "06_fused_residual/heads.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using warp_shuffle::all_lanes;

// [snippet: normalize_heads]
// `width` lanes to a row, `vectors` vectors of it to a lane, which holds them: the row is read once. All loads of a
// lane are on their way before it waits for the first. An output may lie where its input does.
template <class T, class G, int width, int vectors>
__global__ void __launch_bounds__(threads_of_heads, blocks_that_fit(threads_of_heads, vectors == 4 ? 3 : 5))
    normalize_heads(QkNormForward<T, G> p) {
  constexpr int rows_of_block = threads_of_heads / width;
  const int lane = static_cast<int>(threadIdx.x) % width;
  const int cols = static_cast<int>(p.head_dim);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
  const auto column = [&](int v) { return (lane + v * width) * vector_size<T>; };
  for (int64_t first = int64_t{blockIdx.x} * rows_of_block; first < rows; first += int64_t{gridDim.x} * rows_of_block) {
    const int64_t i = first + threadIdx.x / width;
    const bool is_row = i < rows;  // lanes without a row go along, since shuffles are for all lanes of a warp
    const HeadRow<T, G> row = head_row(p, is_row ? i : 0);

    uint4 bits[vectors] = {};
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (is_row && column(v) < cols) bits[v] = vectorized::load<true>(row.x, column(v), cols);
    }

    float mean_square, scale = 1.0f;
    while (true) {
      float squares = 0.0f;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const Floats<T> x = unpack<T>(bits[v]);
        for (int k = 0; k < vector_size<T>; ++k) squares += x.at[k] * scale * (x.at[k] * scale);
      }
      mean_square = warp_sum<width>(squares) * inverse_cols;
      const bool overflows = !isfinite(mean_square) && scale == 1.0f;
      if (!__any_sync(all_lanes, overflows)) break;
      if (overflows) scale = 0x1p-80f;  // again, scaled down so that no square can; the warp's other rows do not change
    }
    if (!is_row) continue;
    const float rstd = rsqrtf(mean_square + p.eps * scale);  // with a small scale, eps only avoids 1 / 0
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (column(v) >= cols) continue;
      Floats<T> x = unpack<T>(bits[v]);
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= scale;
      Parameter<T, G> gamma;
      gamma.template load<true>(row.gamma, column(v), cols, 1.0f - p.gamma_offset);
      store_head<true>(p, row, column(v), x, rstd, gamma);
    }
    if (lane == 0 && row.rstd) *row.rstd = mean_square == 0.0f ? rsqrtf(p.eps) : rstd * scale;
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

template <int width, int vectors, class T, class G>
void launch_heads(const QkNormForward<T, G>& p, const char* rule, cudaStream_t stream) {
  const int64_t rows = p.tokens * (p.q_heads + p.k_heads);
  launch(
      normalize_heads<T, G, width, vectors>,
      {.grid = blocks_for(rows, threads_of_heads / width), .block = threads_of_heads, .rule = rule, .stream = stream},
      p);
}

// As few lanes as hold the row in four vectors each, but at least four: the more loads a lane has in flight, the fewer
// shuffles there are to a byte. Longer rows, and those that are not whole vectors, are read twice.
template <class T, class G>
void launch_heads(const QkNormForward<T, G>& p, cudaStream_t stream) {
  const int64_t vectors = p.head_dim / vector_size<T>;
  if (p.tokens == 0 || !is_whole(p) || vectors > 128) return warp_per_head(p, stream);
  if (vectors <= 8) return launch_heads<4, 2>(p, "heads of up to 64 columns of 16 bits", stream);
  if (vectors <= 16) return launch_heads<4, 4>(p, "heads of up to 128 columns of 16 bits", stream);
  if (vectors <= 32) return launch_heads<8, 4>(p, "heads of up to 256 columns of 16 bits", stream);
  if (vectors <= 64) return launch_heads<16, 4>(p, "heads of up to 512 columns of 16 bits", stream);
  launch_heads<32, 4>(p, "heads of up to 1024 columns of 16 bits", stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

// The backward pass of the norm of q's and k's heads, for rows of whole 16-byte vectors: read once, a few lanes to a
// row.
#pragma once

#include <cstdint>

#include "05_welford/held.cuh"
#include "06_fused_residual/final/heads.cuh"
#include "07_backward/heads.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using fused_residual::heads_on_boundaries;

// [snippet: sums_of_block]
// Adds up each column over the block's threads, and writes a partial row. Lanes that are `width` apart have the same
// columns, so they are added by shuffles first.
template <class T, int width, int vectors>
__device__ inline void write_sums(float* out, int cols, Floats<T> (&sums)[vectors], float* scratch) {
  constexpr int warps = threads_of_heads / lanes;
  constexpr int columns = width * vectors * vector_size<T>;
  const int lane = static_cast<int>(threadIdx.x) % lanes, warp = static_cast<int>(threadIdx.x) / lanes;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      float sum = sums[v].at[k];
#pragma unroll
      for (int distance = width; distance < lanes; distance *= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
      if (lane < width) scratch[warp * columns + (lane + v * width) * vector_size<T> + k] = sum;
    }
  }
  __syncthreads();
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += threads_of_heads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += scratch[w * columns + col];
    out[col] = sum;
  }
  __syncthreads();  // all have read `scratch` before k's sums overwrite q's
}
// [/snippet]

// [snippet: heads_backward]
// What a lane has of a row. Where it has none, there are zeros.
template <class T, class G, int vectors>
struct LoadedRow {
  uint4 x[vectors], dy[vectors];
  float rstd;
  T* dx;  // null: not stored
};

// A block stays for many rows, first of q and then of k, and a lane has the same columns in all of them: their sums
// stay in its registers. It asks for the next row before it computes one.
template <class T, class G, int width, int vectors>
__global__ void __launch_bounds__(threads_of_heads, blocks_that_fit(threads_of_heads, 4))
    heads_backward(QkNormBackward<T, G> p, PartialRows partial) {
  constexpr unsigned rows_of_block = threads_of_heads / width;
  __shared__ float scratch[threads_of_heads / lanes * width * vectors * vector_size<T>];
  const int cols = static_cast<int>(p.head_dim);
  const auto column = [&](int v) { return (static_cast<int>(threadIdx.x) % width + v * width) * vector_size<T>; };
  for (int part = 0; part < (p.k_heads > 0 ? 2 : 1); ++part) {
    const Heads<T, G> all = heads_of(p, part == 1);
    const auto rows = static_cast<unsigned>(all.rows);
    Parameter<T, G> gamma[vectors] = {};
    Floats<T> dgamma[vectors] = {};
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (column(v) < cols) gamma[v].template load<true>(all.gamma, column(v), cols, 1.0f - p.gamma_offset);
    }
    const auto load_row = [&](unsigned first) {
      LoadedRow<T, G, vectors> loaded = {};
      const unsigned i = first + threadIdx.x / width;
      if (i >= rows) return loaded;
      const Heads<T, G> row = all.row(i);
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (column(v) >= cols) continue;
        loaded.x[v] = vectorized::load<true>(row.x, column(v), cols);
        loaded.dy[v] = vectorized::load<true>(row.dy, column(v), cols);
      }
      loaded.rstd = *row.rstd;
      loaded.dx = row.dx;
      return loaded;
    };
    LoadedRow<T, G, vectors> next = load_row(blockIdx.x * rows_of_block);
    for (unsigned first = blockIdx.x * rows_of_block; first < rows; first += gridDim.x * rows_of_block) {
      const LoadedRow<T, G, vectors> row = next;
      next = load_row(first + gridDim.x * rows_of_block);
      const RowStatistics s = {0.0f, row.rstd};
      Floats<T> xhat[vectors], wdy[vectors];
      float sum = 0.0f;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        xhat[v] = unpack<T>(row.x[v]);
        wdy[v] = unpack<T>(row.dy[v]);
        const Floats<T> scales = gamma[v].unpack();
        if (column(v) >= cols) continue;  // x is 0 there, but rstd may be infinite, and their product a NaN
#pragma unroll
        for (int k = 0; k < vector_size<T>; ++k) {
          xhat[v].at[k] = xhat_of(xhat[v].at[k], s);
          dgamma[v].at[k] += wdy[v].at[k] * xhat[v].at[k];
          wdy[v].at[k] *= scales.at[k] + p.gamma_offset;
          sum += wdy[v].at[k] * xhat[v].at[k];
        }
      }
      const Gradient gradient = gradient_of(s, {0.0f, warp_sum<width>(sum)}, p.head_dim);
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (!row.dx || column(v) >= cols) continue;
#pragma unroll
        for (int k = 0; k < vector_size<T>; ++k) wdy[v].at[k] = gradient(wdy[v].at[k], xhat[v].at[k]);
        vectorized::store<true>(row.dx, column(v), cols, pack<T>(wdy[v]));
      }
    }
    if (!partial.first) continue;
    float* const out = part == 1 ? partial.dbeta(blockIdx.x) : partial.dgamma(blockIdx.x);
    write_sums<T, width, vectors>(out, cols, dgamma, scratch);
  }
}
// [/snippet]

// [snippet: launch_heads_backward]
template <class T, class G>
bool is_whole(const QkNormBackward<T, G>& p) {
  for (const bool is_k : {false, true}) {
    const Heads<T, G> all = heads_of(p, is_k);
    if (all.heads == 0) continue;
    if (!heads_on_boundaries(all.dy, all.dy_stride) || !heads_on_boundaries(all.x, all.x_stride)) return false;
    if (!heads_on_boundaries(all.dx, all.dx ? all.dx_stride : HeadStrides{}) || !welford::on_boundaries(all.gamma, 0)) {
      return false;
    }
  }
  return p.head_dim % vector_size<T> == 0;
}

template <int width, int vectors, class T, class G>
void launch_heads_backward(const QkNormBackward<T, G>& p, const char* rule, cudaStream_t stream) {
  const auto kernel = heads_backward<T, G, width, vectors>;
  constexpr int64_t rows_of_block = threads_of_heads / width;
  const int64_t units = (p.tokens * std::max(p.q_heads, p.k_heads) + rows_of_block - 1) / rows_of_block;
  const int64_t blocks = teams_for(units, blocks_at_once(kernel, threads_of_heads, 0), p.head_dim);
  launch(kernel, {.grid = static_cast<unsigned>(blocks), .block = threads_of_heads, .rule = rule, .stream = stream}, p,
         PartialRows{wants_sums(p) ? p.workspace : nullptr, blocks, p.head_dim});
  if (wants_sums(p)) launch_sum(p, blocks, stream);
}

// Two vectors of x and two of dy to a lane. Longer rows, those that are not whole vectors, and more rows than 31 bits
// count are read twice or more.
template <class T, class G>
void launch_heads_backward(const QkNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t vectors = p.head_dim / vector_size<T>;
  const bool are_countable = p.tokens * std::max(p.q_heads, p.k_heads) <= INT32_MAX;
  if (!is_whole(p) || vectors > 64 || !are_countable) return warp_per_head(p, stream);
  if (vectors <= 8) return launch_heads_backward<4, 2>(p, "heads of up to 64 columns of 16 bits", stream);
  if (vectors <= 16) return launch_heads_backward<8, 2>(p, "heads of up to 128 columns of 16 bits", stream);
  if (vectors <= 32) return launch_heads_backward<16, 2>(p, "heads of up to 256 columns of 16 bits", stream);
  launch_heads_backward<32, 2>(p, "heads of up to 512 columns of 16 bits", stream);
}
// [/snippet]

}  // namespace worklog::backward

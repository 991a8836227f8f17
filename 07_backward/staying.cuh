// The kernel that the lesson ends with: a block stays for many rows, and a thread's columns add up in its registers.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/held.cuh"
#include "07_backward/partials.cuh"
#include "07_backward/row.cuh"
#include "07_backward/separate.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::first_column;
using vectorized::most_threads;
using vectorized::Parameter;

// [snippet: staying]
inline constexpr int columns_of_thread = 16;  // whose sums, xhat and wdy take 64 of its registers

// A block stays for many rows, and a thread has the same columns in all of them: their sums stay in its registers. x
// and dy are read once, since xhat and wdy stay there too until the row's sums are known.
template <class T, class G, bool whole>
__global__ void __launch_bounds__(most_threads) dx_and_columns(LayerNormBackward<T, G> p, PartialRows partial) {
  constexpr int vectors = columns_of_thread / vector_size<T>;
  __shared__ float2 scratch[lanes];
  const int cols = static_cast<int>(p.cols);
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  const int first =
      (whole ? 0 : first_column(p.x + blockIdx.x * p.x_stride)) + static_cast<int>(threadIdx.x) * vector_size<T>;

  Parameter<T, G> gamma[vectors] = {};
  Floats<T> dgamma[vectors] = {}, dbeta[vectors] = {};
  for (int i = 0; i < vectors; ++i) {
    if (first + i * step < cols) gamma[i].template load<whole>(p.gamma, first + i * step, cols, 1.0f);
  }

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const RowStatistics s = {p.mean ? p.mean[row] : 0.0f, p.rstd[row]};
    vectorized::RowInRegisters<T, vectors> x, dy;
    x.template load<whole>(p.x + row * p.x_stride, first, step, cols);
    dy.template load<whole>(p.dy + row * p.dy_stride, first, step, cols);

    Floats<T> xhat[vectors], wdy[vectors];
    RowSums sums = {0.0f, 0.0f};
    for (int i = 0; i < vectors; ++i) {
      const Floats<T> xs = vectorized::unpack<T>(x.bits[i]);
      const Floats<T> dys = vectorized::unpack<T>(dy.bits[i]);
      const Floats<T> gammas = gamma[i].unpack();
      for (int k = 0; k < vector_size<T>; ++k) {
        // Beyond the row's ends dy is 0, but xhat could be infinite, and 0 times infinity is not 0.
        const int col = first + i * step + (whole ? 0 : k);
        xhat[i].at[k] = col >= 0 && col < cols ? xhat_of(xs.at[k], s) : 0.0f;
        wdy[i].at[k] = dys.at[k] * gammas.at[k];
        sums.wdy += wdy[i].at[k];
        sums.wdy_xhat += wdy[i].at[k] * xhat[i].at[k];
        dgamma[i].at[k] += dys.at[k] * xhat[i].at[k];
        dbeta[i].at[k] += dys.at[k];
      }
    }
    const float2 of_row = welford::block_sums({sums.wdy, sums.wdy_xhat}, scratch);
    if (!p.dx) continue;

    const Gradient gradient = gradient_of(s, {p.mean ? of_row.x : 0.0f, of_row.y}, p.cols);
    for (int i = 0; i < vectors; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      Floats<T> dx = {};
      if (p.dh) dx = vectorized::unpack<T>(vectorized::load<whole>(p.dh + row * p.dh_stride, col, cols));
      for (int k = 0; k < vector_size<T>; ++k) dx.at[k] += gradient(wdy[i].at[k], xhat[i].at[k]);
      vectorized::store<whole>(p.dx + row * p.dx_stride, col, cols, vectorized::pack<T>(dx));
    }
  }
  if (!partial.first) return;
  for (int i = 0; i < vectors; ++i) store_sums<T>(partial, blockIdx.x, first + i * step, dgamma[i], dbeta[i]);
}
// [/snippet]

// [snippet: launch_staying]
template <bool whole, class T, class G>
void launch_staying(const LayerNormBackward<T, G>& p, unsigned threads, cudaStream_t stream) {
  const auto kernel = dx_and_columns<T, G, whole>;
  const int64_t at_once = blocks_at_once(kernel, static_cast<int>(threads), 0);
  // All rows of x that a block has start equally far past a 16-byte boundary, and a thread's vectors with them. Where
  // those of another tensor do not, load() and store() go element by element.
  const int64_t blocks = teams_of_kinds(teams_for(p.rows, at_once, p.cols), period_of_rows<T>(p.x_stride), p.rows);
  launch(kernel, {.grid = static_cast<unsigned>(blocks), .block = threads, .stream = stream}, p,
         partial_rows_of(p, blocks));
  launch_sum(p, blocks, stream);
}
// [/snippet]

// [snippet: choose_staying]
// Rows of more than 8192 columns, for which a block has no registers, are left to `separate`: five trips.
template <class T, class G>
void staying(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t columns = vectorized::vectors_in_row(p.x, p.x_stride, p.cols) * vector_size<T>;
  const unsigned threads = warp_shuffle::blocks_for(columns, lanes * columns_of_thread) * lanes;
  if (threads > most_threads) return separate(p, stream);
  using welford::on_boundaries;
  const bool is_whole = p.cols % vector_size<T> == 0 && on_boundaries(p.x, p.x_stride) &&
                        on_boundaries(p.dy, p.dy_stride) && on_boundaries(p.dh, p.dh_stride) &&
                        on_boundaries(p.dx, p.dx_stride) && on_boundaries(p.gamma, 0);
  if (is_whole) return launch_staying<true>(p, threads, stream);
  launch_staying<false>(p, threads, stream);
}

template <class T, class G>
void staying_rms_norm(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  staying(as_layer_norm(p), stream);
}
// [/snippet]

}  // namespace worklog::backward

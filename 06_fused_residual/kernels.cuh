// Residual add and norm in one trip through memory, and RMSNorm: other operations for stage 05's kernel `held`. The
// kernels for every shape are in final/.
#pragma once

#include "04_vectorized/vectors.cuh"
#include "05_welford/held.cuh"
#include "06_fused_residual/add.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::Floats;
using vectorized::vector_size;
using welford::launch_held;
using welford::LayerNorm;

// [snippet: unfused]
// The sum in a trip of its own, for comparison. A block adds one piece of a row.
template <class T>
struct Addition {
  const T* x;
  const T* residual;
  T* h;
  int64_t rows, cols;
  int64_t x_stride, residual_stride, h_stride;
};

inline constexpr int threads_of_add = 512;

template <class T>
__global__ void __launch_bounds__(threads_of_add) add_rows(Addition<T> p, int64_t pieces) {
  constexpr int piece_cols = threads_of_add * vector_size<T>;
  const int64_t row = blockIdx.x / pieces;
  const int64_t begin = blockIdx.x % pieces * piece_cols;
  const int cols = static_cast<int>(p.cols - begin < piece_cols ? p.cols - begin : piece_cols);
  const T* x = p.x + row * p.x_stride + begin;
  const T* residual = p.residual + row * p.residual_stride + begin;
  T* h = p.h + row * p.h_stride + begin;
  const int col = static_cast<int>(threadIdx.x) * vector_size<T>;
  if (col >= cols) return;
  const uint4 sum = add_vectors<T>(vectorized::load(x, col, cols), vectorized::load(residual, col, cols));
  vectorized::store(h, col, cols, sum);
}

template <class T>
void add(Addition<T> p, cudaStream_t stream) {
  if (p.rows == 0) return;
  // Rows without gaps between them are one long row.
  if (p.x_stride == p.cols && p.residual_stride == p.cols && p.h_stride == p.cols) {
    p.cols *= p.rows;
    p.rows = 1;
  }
  constexpr int64_t piece_cols = threads_of_add * vector_size<T>;
  const int64_t pieces = (p.cols + piece_cols - 1) / piece_cols;
  launch(add_rows<T>, {.grid = static_cast<unsigned>(p.rows * pieces), .block = threads_of_add, .stream = stream}, p,
         pieces);
}
// [/snippet]

// [snippet: rms_norm]
// RMSNorm is layer normalization without a mean: deviations are from zero, and there is no beta.
template <class T, class G>
struct RmsNorm : LayerNorm<T, G> {
  static constexpr bool has_mean = false;
  bool round_before_gamma;  // y = round(x * rstd) * gamma, as LLaMA's code has it

  template <bool whole>
  __device__ void store(int64_t row, int col, Floats<T> x) const {
    if (round_before_gamma) x = vectorized::unpack<T>(vectorized::pack<T>(x));
    LayerNorm<T, G>::template store<whole>(row, col, x);
  }
};
// [/snippet]

// [snippet: add_norm]
// x + residual when a vector is loaded, and from there on `Norm`, for which its x is h: the *rounded* sum. h is stored
// at once, by the thread that has read x and residual there and needs them no more. So h may be either.
template <class Norm>
struct AddNorm : Norm {
  using T = typename Norm::Element;
  static constexpr bool stores_sum = true;
  const T* x;
  const T* residual;
  T* h;
  int64_t x_stride, residual_stride;

  template <bool whole>
  __device__ uint4 load(int64_t row, int col) const {
    const int cols = static_cast<int>(this->p.cols);
    // [task: add_vector]
    const uint4 sum = add_vectors<T>(vectorized::load<whole>(x + row * x_stride, col, cols),
                                     vectorized::load<whole>(residual + row * residual_stride, col, cols));
    this->template store_vector<whole>(h + row * this->p.x_stride, col, sum);
    return sum;
    // [/task]
  }

  bool is_whole() const {
    return Norm::is_whole() && welford::on_boundaries(x, x_stride) && welford::on_boundaries(residual, residual_stride);
  }
};
// [/snippet]

// [snippet: launch]
// The same arguments as the kernel takes them: there is no beta, and no mean to write.
template <class T, class G>
RmsNorm<T, G> operation_of(const RmsNormForward<T, G>& p) {
  return {{{p.x, p.gamma, nullptr, p.y, nullptr, p.rstd, p.rows, p.cols, p.x_stride, p.y_stride, p.eps}},
          p.round_before_gamma};
}

template <class T, class G>
void held_rms_norm(const RmsNormForward<T, G>& p, cudaStream_t stream) {
  launch_held(operation_of(p), stream);
}

// h may be x or residual, and y may be x, residual or h where those are not needed any more; any other overlap of the
// tensors is not allowed.
template <class T, class G>
void held_add_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream) {
  using Operation = AddNorm<LayerNorm<T, G>>;
  launch_held(Operation{{norm_of_sum(p)}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}
template <class T, class G>
void held_add_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream) {
  using Operation = AddNorm<RmsNorm<T, G>>;
  launch_held(Operation{operation_of(norm_of_sum(p)), p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

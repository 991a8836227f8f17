// Residual add and norm in one trip through memory, and RMSNorm: other operations for stage 05's kernel `held`. The
// kernels for every shape are in final/.
#pragma once

#include "04_vectorized/vectors.cuh"
#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::Floats;
using vectorized::vector_size;
using welford::launch_held;
using welford::LayerNorm;

// [snippet: add]
// The sum of two vectors, rounded to T: once, as if it had been exact before.
__device__ inline float add(float a, float b) {
  return a + b;
}
__device__ inline __half2 add(__half2 a, __half2 b) {
  return __hadd2(a, b);
}
__device__ inline __nv_bfloat162 add(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hadd2(a, b);
}

// What one instruction adds: a float, or a pair of 16-bit elements.
template <class T>
struct Lane {
  using type = float;
};
template <>
struct Lane<__half> {
  using type = __half2;
};
template <>
struct Lane<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

template <class T>
__device__ inline uint4 add_vectors(uint4 a, uint4 b) {
  using Lane = typename Lane<T>::type;
  Lane x[4], y[4];
  *reinterpret_cast<uint4*>(x) = a;
  *reinterpret_cast<uint4*>(y) = b;
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = add(x[k], y[k]);
  return *reinterpret_cast<uint4*>(x);
}
// [/snippet]

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

  __device__ void store(int64_t row, int col, uint4 bits, Floats<T> x, float rest, float rstd) const {
    if (round_before_gamma) {
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) x.at[k] *= rstd;
      x = vectorized::unpack<T>(vectorized::pack<T>(x));
      rstd = 1.0f;
    }
    LayerNorm<T, G>::store(row, col, bits, x, rest, rstd);
  }
};
// [/snippet]

// [snippet: add_norm]
// x + residual when a vector is loaded, and from there on `Norm`, for which its x is h: the *rounded* sum. h is stored
// beside y, by the thread that has read x and residual there and needs them no more. So h may be either.
template <class Norm>
struct AddNorm : Norm {
  using T = typename Norm::Element;
  const T* x;
  const T* residual;
  T* h;
  int64_t x_stride, residual_stride;

  __device__ uint4 load(int64_t row, int col) const {
    const int cols = static_cast<int>(this->p.cols);
    return add_vectors<T>(vectorized::load(x + row * x_stride, col, cols),
                          vectorized::load(residual + row * residual_stride, col, cols));
  }
  __device__ void store(int64_t row, int col, uint4 sum, const Floats<T>& v, float rest, float rstd) const {
    this->store_vector(h + row * this->p.x_stride, col, sum);
    Norm::store(row, col, sum, v, rest, rstd);
  }
};
// [/snippet]

// [snippet: launch]
// The norm of h, which is the second half of both operations.
template <class T, class G>
LayerNormForward<T, G> norm_of_sum(const AddLayerNormForward<T, G>& p) {
  return {p.h, p.gamma, p.beta, p.y, p.mean, p.rstd, p.rows, p.cols, p.h_stride, p.y_stride, p.eps};
}
template <class T, class G>
RmsNormForward<T, G> norm_of_sum(const AddRmsNormForward<T, G>& p) {
  return {p.h, p.gamma, p.y, p.rstd, p.rows, p.cols, p.h_stride, p.y_stride, p.eps, p.round_before_gamma};
}

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

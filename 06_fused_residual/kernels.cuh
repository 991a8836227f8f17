// Residual add and norm in one trip through memory, and RMSNorm: other steps for stage 05's kernel.
#pragma once

#include <array>

#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/layer_norm.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/steps.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::vector_size;
using welford::About;
using welford::advice_of;
using welford::LayerNormSteps;
using welford::Leaves;
using welford::load_vector;
using welford::normalize_rows;
using welford::Rows;
using welford::rstd_of;
using welford::Statistics;

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

// [snippet: rms_steps]
// RMSNorm is layer normalization with the moments taken about zero in place of the mean, and without beta.
template <class T, class G>
struct RmsNormSteps {
  using Element = T;
  using Parameter = G;
  static constexpr About about = About::zero;
  static constexpr bool has_beta = false;
  static constexpr int reads = 1;
  RmsNormForward<T, G> p;
  Leaves leaves = Leaves::in_turn;

  __device__ const T* row(int64_t i) const { return p.x + i * p.x_stride; }
  __host__ __device__ const G* beta() const { return nullptr; }

  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    share.load(row(i), place, leaves);
  }
  __device__ const T* source(int, int64_t i) const { return row(i); }
  template <class Part>
  __device__ Part join(int64_t, int, const Part (&read)[reads]) const {
    return read[0];
  }
  __device__ float load(int64_t i, int64_t col) const { return vectorized::to_float(row(i)[col]); }

  template <int count>
  __device__ void scale(float (&v)[count], const float (&gamma)[count], const float (&)[count]) const {
    if (p.round_before_gamma) {
#pragma unroll
      for (int k = 0; k < count; ++k) v[k] = vectorized::to_float(static_cast<T>(v[k]));
    }
#pragma unroll
    for (int k = 0; k < count; ++k) v[k] *= gamma[k];
  }

  __device__ void write_statistics(int64_t i, const Statistics& s) const {
    if (p.rstd) p.rstd[i] = rstd_of(s);
  }

  std::array<Rows, 2> tensors() const {
    return {{{p.x, p.x_stride}, {p.y, p.y_stride}}};
  }
  bool is_given() const {
    return p.gamma != nullptr;
  }
  void skip(int64_t rows) {
    p.x += rows * p.x_stride;
    p.y += rows * p.y_stride;
    if (p.rstd) p.rstd += rows;
  }
};
// [/snippet]

// [snippet: add_steps]
// x + residual in the load step, and from there on the steps of `Norm`, for which its x is h: the *rounded* sum that is
// stored. Each element of h is written by the thread that has read those of x and residual, so that h may be either.
template <class Norm>
struct AddSteps : Norm {
  using T = typename Norm::Element;
  static constexpr int reads = 2;
  const T* x;
  const T* residual;
  T* h;
  int64_t x_stride, residual_stride;

  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    // [task: add_vectors]
    constexpr int batch = Share::vectors < 4 ? Share::vectors : 4;  // 8 loads are on their way at once
    const T* x_row = x + i * x_stride;
    const T* residual_row = residual + i * residual_stride;
    T* h_row = h + i * this->p.x_stride;
    const uint64_t advice = advice_of(this->leaves);
#pragma unroll
    for (int first = 0; first < Share::vectors; first += batch) {
      uint4 a[batch], b[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (!place.has(first + j)) continue;
        a[j] = load_vector<Share::advised>(x_row + place.column(first + j), advice);
        b[j] = load_vector<Share::advised>(residual_row + place.column(first + j), advice);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (!place.has(first + j)) continue;
        const uint4 sum = add_vectors<T>(a[j], b[j]);
        share.vector[first + j] = sum;
        *reinterpret_cast<uint4*>(h_row + place.column(first + j)) = sum;
      }
    }
    if (place.has_edge()) {
      share.edge = sum_of(x_row[place.edge], residual_row[place.edge]);
      h_row[place.edge] = share.edge;
    }
    // [/task]
  }

  __device__ float load(int64_t i, int64_t col) const {
    // [task: add_element]
    const T sum = sum_of(x[i * x_stride + col], residual[i * residual_stride + col]);
    h[i * this->p.x_stride + col] = sum;
    return vectorized::to_float(sum);
    // [/task]
  }

  __device__ const T* source(int tensor, int64_t i) const {
    return tensor == 0 ? x + i * x_stride : residual + i * residual_stride;
  }
  __device__ uint4 join(int64_t i, int col, const uint4 (&read)[reads]) const {
    const uint4 sum = add_vectors<T>(read[0], read[1]);
    *reinterpret_cast<uint4*>(h + i * this->p.x_stride + col) = sum;
    return sum;
  }
  __device__ T join(int64_t i, int col, const T (&read)[reads]) const {
    return h[i * this->p.x_stride + col] = sum_of(read[0], read[1]);
  }

  __device__ static T sum_of(T a, T b) {
    return static_cast<T>(vectorized::to_float(a) + vectorized::to_float(b));
  }

  std::array<Rows, 4> tensors() const {
    const auto [own, y] = Norm::tensors();
    return {{own, y, {x, x_stride}, {residual, residual_stride}}};
  }
  void skip(int64_t rows) {
    Norm::skip(rows);
    x += rows * x_stride;
    residual += rows * residual_stride;
    h += rows * this->p.x_stride;
  }
};
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

// [snippet: launch]
template <class T, class G>
void rms_norm(const RmsNormForward<T, G>& p, cudaStream_t stream) {
  normalize_rows(RmsNormSteps<T, G>{p}, stream);
}

// The norm of h, which is the second half of both operations.
template <class T, class G>
LayerNormForward<T, G> norm_of_sum(const AddLayerNormForward<T, G>& p) {
  return {p.h, p.gamma, p.beta, p.y, p.mean, p.rstd, p.rows, p.cols, p.h_stride, p.y_stride, p.eps};
}
template <class T, class G>
RmsNormForward<T, G> norm_of_sum(const AddRmsNormForward<T, G>& p) {
  return {p.h, p.gamma, p.y, p.rstd, p.rows, p.cols, p.h_stride, p.y_stride, p.eps, p.round_before_gamma};
}

// The final kernels. h may be x or residual, and y may be x, residual or h where those are not needed any more; any
// other overlap of the tensors is not allowed.
template <class T, class G>
void add_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream) {
  using Steps = AddSteps<LayerNormSteps<T, G>>;
  normalize_rows(Steps{{norm_of_sum(p)}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}
template <class T, class G>
void add_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream) {
  using Steps = AddSteps<RmsNormSteps<T, G>>;
  normalize_rows(Steps{{norm_of_sum(p)}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}

template <class T, class G>
void unfused_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream) {
  add<T>({p.x, p.residual, p.h, p.rows, p.cols, p.x_stride, p.residual_stride, p.h_stride}, stream);
  welford::layer_norm(norm_of_sum(p), stream);
}
template <class T, class G>
void unfused_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream) {
  add<T>({p.x, p.residual, p.h, p.rows, p.cols, p.x_stride, p.residual_stride, p.h_stride}, stream);
  rms_norm(norm_of_sum(p), stream);
}
// [/snippet]

}  // namespace worklog::fused_residual

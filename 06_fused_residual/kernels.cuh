// Residual add and norm: the sum in a trip of its own, and what one thread adds. The kernels that add and normalize in
// one trip through memory are in final/.
#pragma once

#include "04_vectorized/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::vector_size;

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

}  // namespace worklog::fused_residual

// x + residual, a vector at a time, and the norm that follows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "common/device/arguments.h"

namespace worklog::fused_residual {

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
struct Addend {
  using type = float;
};
template <>
struct Addend<__half> {
  using type = __half2;
};
template <>
struct Addend<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

template <class T>
__device__ inline uint4 add_vectors(uint4 a, uint4 b) {
  using A = typename Addend<T>::type;
  A x[4], y[4];
  *reinterpret_cast<uint4*>(x) = a;
  *reinterpret_cast<uint4*>(y) = b;
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = add(x[k], y[k]);
  return *reinterpret_cast<uint4*>(x);
}
// [/snippet]

// The norm of h, which is the second half of both operations.
template <class T, class G>
LayerNormForward<T, G> norm_of_sum(const AddLayerNormForward<T, G>& p) {
  return {p.h, p.gamma, p.beta, p.y, p.mean, p.rstd, p.rows, p.cols, p.h_stride, p.y_stride, p.eps, p.batch_invariant};
}
template <class T, class G>
RmsNormForward<T, G> norm_of_sum(const AddRmsNormForward<T, G>& p) {
  return {p.h,
          p.gamma,
          p.y,
          p.rstd,
          p.rows,
          p.cols,
          p.h_stride,
          p.y_stride,
          p.eps,
          p.round_before_gamma,
          p.batch_invariant};
}

}  // namespace worklog::fused_residual

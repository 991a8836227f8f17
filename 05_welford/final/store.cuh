// The store step: elements of x become those of y, by vectors or one by one. The mean is subtracted in its two parts,
// and what gamma and beta do to the result is left to the steps.
#pragma once

#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"

namespace worklog::welford {

using vectorized::Floats;
using vectorized::pack;
using vectorized::unpack;
using vectorized::vector_size;

// [snippet: store_step]
template <About about>
__device__ inline float normalized(float x, const Statistics& s) {
  if constexpr (about == About::zero) return x * s.scale * s.rstd;
  return fmaf(fmaf(x, s.scale, -s.pivot), s.rstd, -s.rest * s.rstd);
}

template <class Steps, class T, class Vector>
__device__ inline void store_vector(const Steps& steps, T* to, uint4 x, const Statistics& s, const Vector& gamma,
                                    const Vector& beta) {
  const Floats<T> weight = gamma.floats();
  const Floats<T> bias = beta.floats();
  Floats<T> v = unpack<T>(x);
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) v.at[k] = normalized<Steps::about>(v.at[k], s);
  steps.scale(v.at, weight.at, bias.at);
  *reinterpret_cast<uint4*>(to) = pack<T>(v);
}

template <class Steps>
__device__ inline void store_element(const Steps& steps, int64_t row, int64_t col, float x, const Statistics& s) {
  const float weight[1] = {steps.p.gamma ? vectorized::to_float(steps.p.gamma[col]) : 1.0f};
  const float bias[1] = {steps.beta() ? vectorized::to_float(steps.beta()[col]) : 0.0f};
  float v[1] = {normalized<Steps::about>(x, s)};
  steps.scale(v, weight, bias);
  steps.p.y[row * steps.p.y_stride + col] = static_cast<typename Steps::Element>(v[0]);
}
// [/snippet]

}  // namespace worklog::welford

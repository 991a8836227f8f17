// RMSNorm: other steps for stage 05's kernels.
#pragma once

#include <array>

#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/steps.cuh"
#include "common/device/arguments.h"

namespace worklog::fused_residual {

using welford::About;
using welford::Eviction;
using welford::Rows;
using welford::rstd_of;
using welford::Statistics;

// [snippet: rms_steps]
// RMSNorm is layer normalization with the moments taken about zero instead of the mean, and without beta.
template <class T, class G>
struct RmsNormSteps {
  using Element = T;
  using Parameter = G;
  static constexpr About about = About::zero;
  static constexpr bool has_beta = false;
  static constexpr int reads = 1;
  RmsNormForward<T, G> p;
  Eviction eviction = Eviction::normal;

  __device__ const T* row(int64_t i) const { return p.x + i * p.x_stride; }
  __host__ __device__ const G* beta() const { return nullptr; }

  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    share.load(row(i), place, eviction);
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

}  // namespace worklog::fused_residual

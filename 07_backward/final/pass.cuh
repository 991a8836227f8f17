// What the final kernels are asked for: which operation, on which tensors, and how their rows lie in memory. It is a
// type, so that a pass without a mean, or without a residual's gradient, has no code for it. What stage 07 takes from
// stage 05 is named here too.
#pragma once

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/parameters.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/share.cuh"
#include "07_backward/row.cuh"
#include "common/device/arguments.h"

namespace worklog::backward {

using vectorized::Floats;
using vectorized::pack;
using vectorized::to_float;
using vectorized::unpack;
using vectorized::vector_size;
using warp_shuffle::all_lanes;
using welford::advice_of;
using welford::copy_vector;
using welford::Eviction;
using welford::eviction_of;
using welford::ParameterVector;

// [snippet: problem]
// LayerNorm's backward pass, or RMSNorm's, which has no mean and no dbeta (`centered` is false); with dh or without.
template <class T_, class G_, bool centered_, bool adds_dh_>
struct Pass {
  using T = T_;
  using G = G_;
  static constexpr bool centered = centered_;
  static constexpr bool adds_dh = adds_dh_;
  static constexpr int tensors = adds_dh ? 3 : 2;  // that are read
  LayerNormBackward<T, G> p;
  Eviction eviction;  // of what is read, in the L2 cache
  float inverse_cols;

  __device__ const T* tensor(int i) const { return i == 0 ? p.x : i == 1 ? p.dy : p.dh; }
  __device__ int64_t stride(int i) const { return i == 0 ? p.x_stride : i == 1 ? p.dy_stride : p.dh_stride; }
  __device__ RowStatistics statistics(int64_t row) const { return {centered ? p.mean[row] : 0.0f, p.rstd[row]}; }
};

// How the rows lie.
enum class Layout {
  whole,        // they are whole 16-byte vectors on 16-byte boundaries
  same_offset,  // they start and end anywhere, but row i of all tensors starts equally far past a boundary
  any_offset,   // row i of one tensor starts otherwise than row i of another
};
// [/snippet]

// [snippet: gradient_with]
// gradient_of, with 1 / cols at hand: a multiplication for each row instead of a division.
__device__ inline Gradient gradient_with(const RowStatistics& s, const RowSums& sums, float inverse_cols) {
  const float each = s.rstd * inverse_cols;
  return {s.rstd, sums.wdy * each, sums.wdy_xhat * each};
}
// [/snippet]

}  // namespace worklog::backward

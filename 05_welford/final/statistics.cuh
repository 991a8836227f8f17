// From a team's moments to the mean and 1 / sqrt(variance + eps) of a row. Rows whose squares overflow, and rows of
// equal values, are found afterwards and done again with more care, so no other row pays for them.
#pragma once

#include "05_welford/final/split_moments.cuh"

namespace worklog::welford {

inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them

// [snippet: statistics_step]
// Of x * scale: its mean in two parts, and 1 / sqrt(variance + eps). scale is 1 but for rows whose squares, or whose
// sum, overflow: these are done again with a small power of two, by which nothing is rounded.
struct Statistics {
  float scale;
  float pivot;
  float rest;
  float rstd;
};

// Of x * scale. Scaled down, eps is too small for a float. It counts only where the variance is nothing, since where
// sums overflow, values that are not equal differ by far more than eps.
__device__ inline float rstd_of(float variance, float eps, float scale) {
  if (scale == 1.0f) return rsqrtf(variance + eps);
  return variance == 0.0f ? rsqrtf(eps) * (1.0f / small_scale) : rsqrtf(variance);
}

// Whether the deviation is less than the spacing of floats near the mean: then the values are equal, or nearly so, and
// what is left of them depends on the last digits of the rest.
template <class T, About about>
__device__ inline bool are_equal(const SplitMoments& moments, Count whole) {
  if (about == About::zero || !splits_mean<T>) return false;
  const float spacing = moments.pivot * 0x1p-23f;
  return moments.m2 * whole.inverse < spacing * spacing;
}

// From the parts that have been put. again(scale) finds this warp's part anew, of x * scale, with an exact rest.
// `whole` counts the values of the row. Lanes whose row is an ordinary one keep what they have: it must not depend on a
// neighbour's row.
template <class T, About about, class Team, class Again>
__device__ inline Statistics statistics_of(Team& team, Count whole, float eps, Again again) {
  SplitMoments moments = team.merge();
  float scale = 1.0f;
  const bool overflowed = !isfinite(moments.m2);  // or the row holds a NaN, which will be found again
  const bool is_extreme = overflowed || are_equal<T, about>(moments, whole);
  if (team.any(is_extreme)) {
    const bool is_large = overflowed || fabsf(moments.pivot) > 0x1p60f;  // what rounding leaves is squared, too
    if (is_extreme && is_large) scale = small_scale;
    team.put(again(scale));
    const SplitMoments anew = team.merge();
    if (is_extreme || !Team::rows_share_warps) moments = anew;
  }
  const float m2 = moments.m2 < 0.0f ? 0.0f : moments.m2;  // rounding may leave a little less than nothing
  return {scale, moments.pivot, moments.rest, rstd_of(m2 * whole.inverse, eps, scale)};
}

// What the caller is told is of x, without the scale.
__device__ inline float mean_of(const Statistics& s) {
  return (s.pivot + s.rest) * (s.scale == 1.0f ? 1.0f : 1.0f / small_scale);
}
__device__ inline float rstd_of(const Statistics& s) {
  return s.rstd * s.scale;
}
// [/snippet]

}  // namespace worklog::welford

// The moments of a row, with the mean in two floats. One float is too coarse for a large mean, and every output would
// be off. Here are the two exact passes over values in registers, and Chan's merge for all parts of a row at once.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "05_welford/final/sums.cuh"
#include "05_welford/held.cuh"

namespace worklog::welford {

using warp_shuffle::all_lanes;
using warp_shuffle::warp_sum;

// [snippet: split_moments]
// Moments whose mean is kept in two floats, pivot + rest: the rest has the digits for which a large pivot has no room.
struct SplitMoments {
  float count, pivot, rest, m2;
};

// With the mean itself as the pivot, as near as a float can be. Nothing is lost: the rest is what the rounding of
// pivot + rest takes away [Knuth, TwoSum].
__device__ inline SplitMoments with_mean_as_pivot(const SplitMoments& moments) {
  const float pivot = moments.pivot + moments.rest;
  const float added = pivot - moments.pivot;
  const float rest = (moments.pivot - (pivot - added)) + (moments.rest - added);
  return {moments.count, pivot, rest, moments.m2};
}

// Deviations are taken from the mean, for a variance; or from zero, for a mean square (stage 06).
enum class About { mean, zero };

// Elements of 16 bits have so few digits that one float holds the mean of a warp's share well enough.
template <class T>
inline constexpr bool splits_mean = sizeof(T) > 2;

// How many values are held together, and the inverse of that (0 for none).
struct Count {
  float count;
  float inverse;

  __device__ float mean_of(float sum) const { return quotient_of(sum, count, inverse); }
};

__device__ inline Count count_of(float count) {
  return {count, count > 0.0f ? __fdividef(1.0f, count) : 0.0f};
}

// Whether the rest is to be exact, too, where it is a float. Only rows of equal values need that (statistics.cuh).
enum class Rest { rounded, exact };

// The moments of the values x * scale that `width` lanes hold together, in two small exact passes. for_each(f) calls
// f(values) for those of this thread, an array of a few at a time: a vector's, whose sum is one of the short ones.
template <class T, About about, int width, Rest how = Rest::exact, bool short_sums = false, class ForEach>
__device__ inline SplitMoments moments_of(ForEach for_each, Count held, float scale) {
  RunningSum sum, squares;
  if constexpr (about == About::zero) {
    for_each([&](const auto& values) {
      squares.add<short_sums>(values, [&](float sum, float x) { return fmaf(x * scale, x * scale, sum); });
    });
    return {held.count, 0.0f, 0.0f, warp_sum<width>(squares.all<short_sums>())};
  }
  for_each([&](const auto& values) {
    sum.add<short_sums>(values, [&](float sum, float x) { return fmaf(x, scale, sum); });
  });
  const float pivot = held.mean_of(warp_sum<width>(sum.all<short_sums>()));

  RunningSum left;
  for_each([&](const auto& values) {
    const auto d = [&](float x) { return fmaf(x, scale, -pivot); };
    if constexpr (splits_mean<T>) left.add<short_sums>(values, [&](float sum, float x) { return sum + d(x); });
    squares.add<short_sums>(values, [&](float sum, float x) { return fmaf(d(x), d(x), sum); });
  });
  const float m2 = warp_sum<width>(squares.all<short_sums>());
  if constexpr (!splits_mean<T>) return {held.count, pivot, 0.0f, m2};
  const float all_left = warp_sum<width>(left.all<short_sums>());
  const float rest = how == Rest::exact ? held.mean_of(all_left) : all_left * held.inverse;
  // The rest is tiny against the deviation, so nothing cancels here.
  const SplitMoments moments = {held.count, pivot, rest, m2 - all_left * rest};
  return how == Rest::exact ? with_mean_as_pivot(moments) : moments;
}
// [/snippet]

// [snippet: merge_lanes]
// How lanes merge the moments of parts. In one round both sums are shuffled at once, about the first part's pivot, and
// the squares are corrected afterwards. With v vectors, at most v times what is left is subtracted: ten bits, which
// elements of 16 bits can spare. In two rounds the mean of all comes first, and then the squares about it. For an exact
// mean, the second round also sums what the rounding of the first took from the mean: where the mean of a part is far
// from that of all, that is more than the last bit.
enum class Merge { one_round, two_rounds, exact_mean };

// Chan's formula for `width` lanes at once, each with the moments of a part of `all` values.
template <About about, int width, Merge how = Merge::two_rounds>
__device__ inline SplitMoments merge_lanes(const SplitMoments& part, Count all) {
  if constexpr (about == About::zero) return {all.count, 0.0f, 0.0f, warp_sum<width>(part.m2)};
  const float pivot = __shfl_sync(all_lanes, part.pivot, 0, width);
  const float difference = (part.pivot - pivot) + part.rest;
  if constexpr (how == Merge::one_round) {
    const float moment = part.count * difference;
    const float sum = warp_sum<width>(moment);
    const float squares = warp_sum<width>(fmaf(moment, difference, part.m2));
    const float rest = sum * all.inverse;
    return {all.count, pivot, rest, squares - sum * rest};
  }
  const float rest = warp_sum<width>(part.count * difference) * all.inverse;
  const float off = difference - rest;
  const float moment = part.count * off;
  const float m2 = warp_sum<width>(fmaf(moment, off, part.m2));
  if constexpr (how == Merge::two_rounds) return {all.count, pivot, rest, m2};
  SplitMoments merged = with_mean_as_pivot({all.count, pivot, rest, m2});
  merged.rest = fmaf(warp_sum<width>(moment), all.inverse, merged.rest);
  return merged;
}
// [/snippet]

}  // namespace worklog::welford

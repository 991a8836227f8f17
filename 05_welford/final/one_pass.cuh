// The moments of split_moments.cuh in one pass and one round of shuffles. A thread, or a warp, takes its differences
// from a pivot that is near the mean and at hand: the mean of its first vector. It costs a few bits, and saves the wait
// for the exact mean.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/split_moments.cuh"

namespace worklog::welford {

using vectorized::unpack;
using warp_shuffle::all_lanes;
using warp_shuffle::warp_sum;

// [snippet: one_pass]
// The moments of a thread's values in one pass, from their differences from the mean of its first vector. With v
// vectors, the formula then subtracts at most v times what it leaves, since the mean of some of the values is not far
// from that of all: that costs a few bits. The first value alone would not do. It may be an outlier.
template <About about, bool short_sums = false>
struct ThreadMoments {
  float pivot = 0.0f;
  RunningSum sum, squares;

  // In pairs, so that equal values have their value as their mean.
  template <int count>
  __device__ void begin(const float (&first)[count]) {
    if constexpr (about != About::zero) {
      float values[count];
#pragma unroll
      for (int k = 0; k < count; ++k) values[k] = first[k];
      pivot = sum_of_pairs(values) * (1.0f / count);
    }
  }
  // A vector's values.
  template <int count>
  __device__ void add(const float (&values)[count]) {
    const auto d = [&](float x) { return x - pivot; };
    if constexpr (about == About::mean) sum.add<short_sums>(values, [&](float sum, float x) { return sum + d(x); });
    squares.add<short_sums>(values, [&](float sum, float x) { return fmaf(d(x), d(x), sum); });
  }
  __device__ SplitMoments of(Count held) const {
    const float total = sum.all<short_sums>();
    const float rest = total * held.inverse;
    return {held.count, pivot, rest, squares.all<short_sums>() - total * rest};
  }
};
// [/snippet]

// [snippet: one_round]
// The moments of the values that `width` lanes hold together, as moments_of() finds them; but in one pass and one
// round. The pivot of all is the mean of the first lane's first vector, so that their sums have only to be added. With
// v vectors in all, at most v times what is left is subtracted.
template <class T, About about, int width, class Share, class Place>
__device__ inline SplitMoments moments_in_one_round(const Share& share, const Place& place, Count held) {
  ThreadMoments<about> values;
  if (place.has(0)) values.begin(unpack<T>(share.vector[0]).at);
  values.pivot = __shfl_sync(all_lanes, values.pivot, 0, width);
  share.for_each(place, [&](const auto& vector) { values.add(vector); });
  values.sum.before = warp_sum<width>(values.sum.before);
  values.squares.before = warp_sum<width>(values.squares.before);
  return values.of(held);
}
// [/snippet]

}  // namespace worklog::welford

// How the moments of many threads, blocks or GPUs become those of one channel, and keep their digits. A thread adds up
// short sums of short sums. A team of lanes merges any number of sets at once with Chan's formula. Channels whose
// squares overflow are summed up once more, scaled down by small_scale.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "05_welford/final/sums.cuh"

namespace worklog::batchnorm {

using warp_shuffle::all_lanes;
using welford::RunningSum;

// Elements of 16 bits have been rounded more than their sums ever are. What spares fp32 a last place is not for them:
// it would cost registers that their kernels do not have.
template <class T>
inline constexpr bool is_exact = sizeof(T) > 2;

inline constexpr float small_scale = 0x1p-80f;  // squares of the largest differences are then 2^98: 2^29 of them fit

// [snippet: split_moments]
// Moments whose mean is in two parts: `pivot`, a number near the values, and `rest`, the mean minus the pivot. A mean
// of 1e4 in one float is exact to 5e-4; x - pivot is exact, or nearly, where the mean is large.
struct alignas(16) SplitMoments {
  float count;
  float pivot;
  float rest;
  float m2;
};

// Some lanes of a warp, which do something together: every `apart`-th, so that neighbouring lanes are of neighbouring
// teams, and read neighbouring channels.
struct Team {
  int size;  // a power of 2
  int apart;
  int lane;  // this thread's in its team

  // Each value becomes the sum of all lanes'.
  template <class... Values>
  __device__ void add_up(Values&... values) const {
#pragma unroll 1
    for (int distance = size * apart / 2; distance >= apart; distance /= 2) {
      ((values += __shfl_xor_sync(all_lanes, values, distance)), ...);
    }
  }
};

// Chan's formula for any number of sets at once: the means are values whose spread adds to that within the sets.
// part(i) gives the moments of set i. The means are taken relative to that of `near`: the nearer it is to the mean of
// all, the less cancels. Sums are taken in an order that depends on the shape alone. `together` parts are asked for at
// a time.
template <int together, class GetPart>
__device__ inline SplitMoments merge(const Team& team, int parts, const SplitMoments& near, GetPart part) {
  float count = 0.0f;
  float sum = 0.0f;
  float squares = 0.0f;
#pragma unroll 1
  for (int first = team.lane; first < parts; first += together * team.size) {
    SplitMoments some[together];
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const int i = first + j * team.size;
      some[j] = i < parts ? part(i) : SplitMoments{0.0f, near.pivot, near.rest, 0.0f};
    }
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const SplitMoments& m = some[j];
      const float off = (m.pivot - near.pivot) + (m.rest - near.rest);
      count += m.count;
      sum = fmaf(m.count, off, sum);
      squares += fmaf(m.count * off, off, m.m2);
    }
  }
  team.add_up(count, sum, squares);
  const float mean = count > 0.0f ? sum / count : 0.0f;
  const float m2 = squares - sum * mean;
  return {count, near.pivot, near.rest + mean, m2 < 0.0f ? 0.0f : m2};  // a NaN stays
}
// [/snippet]

}  // namespace worklog::batchnorm

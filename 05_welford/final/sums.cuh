// Sums inside a thread. One value after the other, a sum rounds each value to the last place of all that came before
// it, and where all have one sign the roundings add up. Shorter sums come first here, and then the sum of those.
#pragma once

#include <cuda_runtime.h>

namespace worklog::welford {

// [snippet: running_sum]
// Whether a thread with so many vectors of T adds up each vector by itself, and then the vectors' sums. That gains
// nothing where the chain is short, unless the row is short, too, so that a thread has much of it. Nor does it with
// elements of 16 bits, which were rounded more coarsely when they were stored.
template <class T, int vectors, bool is_short_row>
inline constexpr bool in_short_sums = sizeof(T) > 2 && vectors > (is_short_row ? 2 : 4);

// A sum of short sums: of those that a fold() ends.
struct RunningSum {
  float lately = 0.0f;  // the values since the last fold()
  float before = 0.0f;

  // A vector's values. add_to(sum, x) returns the sum with what x brings.
  template <bool is_short_sum, int count, class AddTo>
  __device__ void add(const float (&values)[count], AddTo add_to) {
    float& sum = is_short_sum ? lately : before;
#pragma unroll
    for (int k = 0; k < count; ++k) sum = add_to(sum, values[k]);
    if constexpr (is_short_sum) fold();
  }
  __device__ void fold() {
    before += lately;
    lately = 0.0f;
  }
  template <bool are_short_sums = true>
  __device__ float all() const {
    return are_short_sums ? before + lately : before;
  }
};
// [/snippet]

// [snippet: pairwise_sum]
// By pairs: two values, two such sums, two of those, and so on. A value is rounded once for each level, and there are
// log2(n) of them. What waits for its like is kept: one sum of 2^k values for each k that the count of values has as a
// bit. (Of more than 2^levels values, sums of so many are added up one after the other.)
template <int levels>
struct PairwiseSum {
  float waiting[levels] = {};
  float most = 0.0f;  // sums of 2^levels values
  unsigned count = 0;

  __device__ void add(float sum) {
    const unsigned before = count++;
#pragma unroll
    for (int k = 0; k < levels; ++k) {
      if ((before >> k & 1) == 0) {
        waiting[k] = sum;
        return;
      }
      sum += waiting[k];
    }
    most += sum;
  }
  __device__ float all() const {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < levels; ++k) sum += (count >> k & 1) != 0 ? waiting[k] : 0.0f;
    return sum + most;
  }
};

// The sum of an array by pairs, which overwrites it.
template <int count>
__device__ inline float sum_of_pairs(float (&v)[count]) {
#pragma unroll
  for (int half = count / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) v[k] += v[k + half];
  }
  return v[0];
}
// [/snippet]

}  // namespace worklog::welford

// The launch of the second kernel, which adds up partial rows, where blocks and clusters have written them: how wide
// its tiles are.
#pragma once

#include <cstdint>

#include "07_backward/final/column_sums.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/partials.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: second_kernel]
// The narrower a tile, the more blocks read at the same time. But four of these blocks of 512 threads fill a
// multiprocessor, and more of them would have to wait. And where partial rows are few, a thread should have several.
template <Layout layout, class T, class G>
void launch_second_kernel(const LayerNormBackward<T, G>& p, int64_t partial_rows, cudaStream_t stream) {
  constexpr bool in_halves = sums_in_halves<layout, T>;
  if (!p.dgamma && !p.dbeta) return;
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const unsigned parameters = p.dbeta ? 2 : 1;
  const int64_t sums = p.cols * parameters;
  if (p.cols > 32 * 1024) {
    launch_sum_of_wide<in_halves>(p, partial_rows, stream);
  } else if (partial_rows > multiprocessors && sums <= 8 * multiprocessors) {
    launch_sum_of_tiles<8, 64, in_halves>(p, partial_rows, stream, parameters);
  } else if (partial_rows > multiprocessors && sums <= 4 * 16 * multiprocessors) {
    launch_sum_of_tiles<16, 32, in_halves>(p, partial_rows, stream, parameters);
  } else {
    launch_sum_of_tiles<32, 16, in_halves>(p, partial_rows, stream, parameters);
  }
}
// [/snippet]

}  // namespace worklog::backward

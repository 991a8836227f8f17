// Rows that are no whole vectors, in tensors that lie anywhere: a thread takes single elements, a fixed number apart.
// That takes more instructions for a byte. But who has which column, and so the order of each sum, is the same in all
// rows, wherever they start. Where short rows follow each other without gaps, tiles.cuh is faster.
#pragma once

#include <cstdint>

#include "05_welford/final/one_row.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/store.cuh"
#include "05_welford/final/teams.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using warp_shuffle::lanes;

// [snippet: elements]
// One row by a team of `step` threads, of which this is `thread`: up to `elements` of the row's to each. `width` lanes
// hold a part of the row: part_of(all) of all values. A team without a row has no columns.
template <int elements, int width, class Steps, class Team, class PartOf>
__device__ inline void normalize_elements_of_row(const Steps& steps, int64_t row, int cols, int thread, int step,
                                                 Team team, PartOf part_of) {
  const int64_t first = thread;    // 64 bits from here on: else each column's offset is widened by itself
  const int left = cols - thread;  // columns from the first on
  wait_for_previous_kernel();
  float x[elements];
#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * step < left) x[k] = steps.load(row, first + k * step);
  }
  let_next_kernel_start();

  const Count whole = count_of(static_cast<float>(steps.p.cols));
  const Count held = part_of(whole);
  const auto for_each = [&](auto f) {
#pragma unroll
    for (int k = 0; k < elements; ++k) {
      const float one[1] = {x[k]};
      if (k * step < left) f(one);
    }
  };
  using T = typename Steps::Element;
  team.put(moments_of<T, Steps::about, width, Rest::rounded>(for_each, held, 1.0f));
  const Statistics statistics = statistics_of<T, Steps::about>(
      team, whole, steps.p.eps, [&](float scale) { return moments_of<T, Steps::about, width>(for_each, held, scale); });

#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * step < left) store_element(steps, row, first + k * step, x[k], statistics);
  }
  if (thread == 0 && row < steps.p.rows) steps.write_statistics(row, statistics);
}

// Short rows have `width` lanes each.
template <class Steps, int elements, int width>
__global__ void __launch_bounds__(largest_block_of_lane_teams) normalize_elements_per_lane(Steps steps) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width;
  const int cols = row < steps.p.rows ? static_cast<int>(steps.p.cols) : 0;
  const auto thread = static_cast<int>(threadIdx.x % width);
  normalize_elements_of_row<elements, width>(steps, row, cols, thread, width, LaneTeam<width>{},
                                             [](Count whole) { return whole; });
}

// Longer ones a block.
inline constexpr int largest_block_of_elements = 1024;
inline constexpr int elements_of_thread = 16;

template <class Steps>
__global__ void __launch_bounds__(largest_block_of_elements) normalize_elements_per_block(Steps steps) {
  constexpr int warps = warps_of<largest_block_of_elements>;
  __shared__ SplitMoments scratch[warps];
  const int cols = static_cast<int>(steps.p.cols);
  const int step = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  int in_warp = 0;  // columns
  for (int first = thread - thread % lanes; first < cols; first += step) in_warp += min(lanes, cols - first);
  const Count whole = count_of(static_cast<float>(cols));
  normalize_elements_of_row<elements_of_thread, lanes>(
      steps, blockIdx.x, cols, thread, step,
      BlockTeam<Steps::about, warps, merge_for<typename Steps::Element, Amount::many>>{whole, scratch},
      [&](Count) { return count_of(static_cast<float>(in_warp)); });
}
// [/snippet]

// [snippet: launch_elements]
template <int elements, int width, class Steps>
void launch_elements(const Steps& steps, cudaStream_t stream) {
  launch(normalize_elements_per_lane<Steps, elements, width>,
         {.grid = blocks_of_lane_teams(steps.p.rows, width),
          .block = largest_block_of_lane_teams,
          .overlap = true,
          .stream = stream},
         steps);
}

// Rows of up to 256 elements that are no whole vectors, in any tensors.
template <class Steps>
bool normalize_short_rows(const Steps& steps, cudaStream_t stream) {
  constexpr int each = sizeof(typename Steps::Element) == 4 ? 4 : 8;
  if (steps.p.cols <= 32) return launch_elements<each, 32 / each>(steps, stream), true;
  if (steps.p.cols <= 256) return launch_elements<8, 32>(steps, stream), true;
  return false;
}

// Longer ones, up to what a block holds.
template <class Steps>
bool normalize_by_elements(const Steps& steps, cudaStream_t stream) {
  if (steps.p.cols > largest_block_of_elements * elements_of_thread) return false;
  launch(normalize_elements_per_block<Steps>,
         {.grid = static_cast<unsigned>(steps.p.rows),
          .block = threads_for(steps.p.cols, elements_of_thread),
          .overlap = true,
          .stream = stream},
         steps);
  return true;
}
// [/snippet]

}  // namespace worklog::welford

// Short rows that are no whole vectors, in tensors that lie anywhere: a lane takes single elements. That takes more
// instructions for a byte, but such rows have hardly a vector. Where they follow each other without gaps, tiles.cuh is
// faster.
#pragma once

#include <cstdint>

#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/store.cuh"
#include "05_welford/final/teams.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

// [snippet: elements]
// Short rows that are not whole vectors have hardly any: a lane takes single elements, `width` columns apart.
template <class Steps, int elements, int width>
__global__ void __launch_bounds__(largest_block_of_lane_teams) normalize_elements_per_lane(Steps steps) {
  const int64_t thread = threadIdx.x % width;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width;
  const int left = row < steps.p.rows ? static_cast<int>(steps.p.cols - thread) : 0;  // columns from the first on
  wait_for_previous_kernel();
  float x[elements];
#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * width < left) x[k] = steps.load(row, thread + k * width);
  }
  let_next_kernel_start();

  const Count whole = count_of(static_cast<float>(steps.p.cols));
  const auto moments = [&](float scale) {
    const auto for_each = [&](auto f) {
#pragma unroll
      for (int k = 0; k < elements; ++k) {
        const float one[1] = {x[k]};
        if (k * width < left) f(one);
      }
    };
    return moments_of<typename Steps::Element, Steps::about, width>(for_each, whole, scale);
  };
  LaneTeam<width> team = {moments(1.0f)};
  const Statistics statistics = statistics_of(team, whole, steps.p.eps, moments);

#pragma unroll
  for (int k = 0; k < elements; ++k) {
    if (k * width < left) store_element(steps, row, thread + k * width, x[k], statistics);
  }
  if (thread == 0 && row < steps.p.rows) steps.write_statistics(row, statistics);
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
bool normalize_elements(const Steps& steps, cudaStream_t stream) {
  constexpr int each = sizeof(typename Steps::Element) == 4 ? 4 : 8;
  if (steps.p.cols <= 32) return launch_elements<each, 32 / each>(steps, stream), true;
  if (steps.p.cols <= 256) return launch_elements<8, 32>(steps, stream), true;
  return false;
}
// [/snippet]

}  // namespace worklog::welford

// Launches of the kernels in one_row.cuh: how many blocks, how many threads, and whether a row fills them all. Which of
// them takes a row is decided in whole_vectors.cuh and straddling.cuh.
#pragma once

#include <cstdint>

#include "04_vectorized/kernels.cuh"
#include "05_welford/final/one_row.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/teams.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;

// [snippet: launch_one_row]
template <Fit fit, bool given, int vectors, int width, Amount amount = Amount::many, class Steps>
void launch_lanes(const Steps& steps, cudaStream_t stream) {
  launch(normalize_lanes_per_row<Steps, fit, given, vectors, width, amount>,
         {.grid = blocks_of_lane_teams(steps.p.rows, width),
          .block = largest_block_of_lane_teams,
          .overlap = true,
          .stream = stream},
         steps);
}

// Rows of whole vectors, and the kernel that asks nothing where they fill all lanes of all blocks.
template <bool given, int vectors, int width, Amount amount = Amount::many, class Steps>
void launch_lanes(const Steps& steps, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  if (length == vectors * width && steps.p.rows % (largest_block_of_lane_teams / width) == 0) {
    launch_lanes<Fit::full, given, vectors, width, amount>(steps, stream);
  } else {
    launch_lanes<Fit::vectors, given, vectors, width, amount>(steps, stream);
  }
}

template <Fit fit, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
void launch_block(const Steps& steps, cudaStream_t stream) {
  const int64_t row_vectors = steps.p.cols / vector_size<typename Steps::Element>;
  launch(normalize_block_per_row < Steps, fit, given, amount, vectors, threads, given ? resident : 1 >,
         {.grid = static_cast<unsigned>(steps.p.rows),
          .block = threads_for(row_vectors, vectors),
          .overlap = true,
          .stream = stream},
         steps);
}

// True where as many blocks as the row takes can work together: one, or a cluster where the device has them.
// `whole_blocks`: and where the row fills all their threads.
template <Fit fit, bool whole_blocks, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
bool launch_clusters(const Steps& steps, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  const int64_t blocks = (length + vectors * threads - 1) / (vectors * threads);
  if (blocks > portable_cluster || (blocks > 1 && device_attribute(cudaDevAttrClusterLaunch) == 0)) return false;
  if (whole_blocks && length != blocks * vectors * threads) return false;
  launch(normalize_cluster_per_row < Steps, fit, whole_blocks, given, amount, vectors, threads, given ? resident : 1 >,
         {.grid = static_cast<unsigned>(steps.p.rows * blocks),
          .block = threads_for((length + blocks - 1) / blocks, vectors),
          .cluster = static_cast<unsigned>(blocks),
          .overlap = true,
          .stream = stream},
         steps);
  return true;
}
// [/snippet]

}  // namespace worklog::welford

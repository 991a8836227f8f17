// Who shares a row: some lanes of a warp, a block, or a cluster of blocks. Each of these teams merges the moments of
// its parts, and hands those of the row to every thread. A kernel is written for any team, and the row's length decides
// which.
#pragma once

#include <bit>
#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "05_welford/final/plan.h"
#include "05_welford/final/split_moments.cuh"
#include "common/device/cluster.cuh"

namespace worklog::welford {

using warp_shuffle::all_lanes;
using warp_shuffle::lanes;

// [snippet: teams]
// Where rows are few, the time is that of one row's way through the kernel: each round of shuffles counts. Where rows
// are many, a lane may have much of its row, and one round would not be exact enough beside outliers.
template <class T, Amount amount>
inline constexpr Merge merge_for = splits_mean<T>           ? Merge::exact_mean
                                   : amount != Amount::many ? Merge::one_round
                                                            : Merge::two_rounds;

// A team merges the moments that its warps have of parts of a row into those of the row, in every thread.

// `width` neighbouring lanes: 32 / width rows to a warp. A part is the row.
template <int width>
struct LaneTeam {
  static constexpr bool rows_share_warps = true;
  SplitMoments row;

  __device__ void put(const SplitMoments& part) { row = part; }
  __device__ SplitMoments merge() { return row; }
  // All lanes of a warp take part in its shuffles, so they repeat them together.
  __device__ bool any(bool value) const { return __any_sync(all_lanes, value); }
};

inline unsigned blocks_of_lane_teams(int64_t rows, int64_t width) {
  const int64_t rows_in_block = largest_block_of_lane_teams / width;
  return static_cast<unsigned>((rows + rows_in_block - 1) / rows_in_block);
}

// The warps of a block, rounded up to a power of 2.
template <int threads>
inline constexpr int warps_of = std::bit_ceil(unsigned{threads} / lanes);

// The threads of a block of at most `warps` warps, a power of 2.
template <About about, int warps, Merge how>
struct BlockTeam {
  static constexpr bool rows_share_warps = false;
  Count all;              // values of the row in the block
  SplitMoments* scratch;  // [warps]

  __device__ void put(const SplitMoments& part) {
    if (threadIdx.x % lanes == 0) scratch[threadIdx.x / lanes] = part;
  }
  __device__ SplitMoments merge() {
    __syncthreads();
    const unsigned part = threadIdx.x % warps;
    return merge_lanes<about, warps, how>(part < blockDim.x / lanes ? scratch[part] : SplitMoments{}, all);
  }
  // After a merge all threads hold the same moments, and so take the same branch. If the merge is repeated, the barrier
  // makes sure that all have read the scratch before it is overwritten.
  __device__ bool any(bool value) const {
    if (value) __syncthreads();
    return value;
  }
};

// The threads of a cluster of blocks, which can write into each other's shared memory. barrier_arrive has been called:
// the first merge waits until all blocks have started, and have shared memory to write into.
template <About about, int warps, Merge how>
struct ClusterTeam {
  static constexpr bool rows_share_warps = false;
  Cluster cluster;
  BlockTeam<about, warps, how> block;
  Count all;              // values of the row
  SplitMoments* scratch;  // [portable_cluster]
  bool all_have_started = false;

  __device__ void put(const SplitMoments& part) { block.put(part); }
  __device__ SplitMoments merge() {
    const SplitMoments moments = block.merge();
    if (!all_have_started) cluster.barrier_wait();
    all_have_started = true;
    if (threadIdx.x < cluster.num_blocks()) {
      cluster.map_shared_rank(scratch, threadIdx.x)[cluster.block_rank()] = moments;
    }
    cluster.sync();
    const unsigned part = threadIdx.x % portable_cluster;
    return merge_lanes<about, portable_cluster, how>(part < cluster.num_blocks() ? scratch[part] : SplitMoments{}, all);
  }
  __device__ bool any(bool value) const {
    if (value) cluster.sync();
    return value;
  }
};
// [/snippet]

}  // namespace worklog::welford

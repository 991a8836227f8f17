// The teams that have one row after the other. A team sends a row's moments to its other warps, or blocks, and asks for
// theirs later: between the two its threads do other work, which hides the way.
#pragma once

#include "03_warp_shuffle/kernels.cuh"
#include "05_welford/final/split_moments.cuh"
#include "common/device/cluster.cuh"

namespace worklog::welford {

using warp_shuffle::lanes;

// [snippet: persistent_block_team]
// A block that takes one row after another. A warp may still be reading this row's moments when another has the next
// row's: those go into the other half. A half is written again two rows later. A warp gets there only past the next
// row's barrier, and all have read the half before they come to that. So one barrier for a row is enough.
template <About about, int warps, Merge how>
struct PersistentBlockTeam {
  static constexpr bool rows_share_warps = false;
  Count all;               // values of the row
  SplitMoments* of_warps;  // [2][warps]
  int half = 0;

  __device__ void put(const SplitMoments& part) {
    if (threadIdx.x % lanes == 0) of_warps[half * warps + threadIdx.x / lanes] = part;
  }
  __device__ void wait() {}  // merge() does
  __device__ SplitMoments merge() {
    __syncthreads();
    const SplitMoments* parts = of_warps + half * warps;
    half ^= 1;
    return merge_lanes<about, warps, how>(parts[threadIdx.x % warps], all);
  }
  __device__ bool any(bool value) const { return value; }  // all threads hold the same moments
};
// [/snippet]

// [snippet: persistent_cluster_team]
// A cluster that takes one row after another. Between put() and merge() a thread may do other work, which hides the
// wait for the other blocks. The next row's moments go into the other half, where nobody reads this row's.
template <About about, int warps, Merge how, class Exchange>
struct PersistentClusterTeam {
  static constexpr bool rows_share_warps = false;
  Exchange exchange;
  Count all;               // values of the row
  Count in_block;          // and of its piece in this block
  SplitMoments* of_warps;  // [2][warps]
  float4* of_blocks;       // [2][most_blocks_of_cluster], each a SplitMoments
  int half = 0;
  bool is_here = false;

  __device__ void put(const SplitMoments& part) {
    SplitMoments* parts = of_warps + half * warps;
    if (threadIdx.x % lanes == 0) parts[threadIdx.x / lanes] = part;
    __syncthreads();
    if (threadIdx.x / lanes == warps - 1) {  // the last warp: the first has the edges to care for
      const unsigned other = threadIdx.x % lanes;
      const SplitMoments moments = merge_lanes<about, warps, how>(parts[other % warps], in_block);
      if (other < exchange.cluster.num_blocks()) {
        exchange.send(other, of_blocks + half * most_blocks_of_cluster + exchange.cluster.block_rank(),
                      {moments.count, moments.pivot, moments.rest, moments.m2});
      }
    }
    exchange.all_sent();
  }
  // Until the moments of all blocks are here. merge() waits if nobody has.
  __device__ void wait() {
    if (!is_here) exchange.wait();
    is_here = true;
  }
  __device__ SplitMoments merge() {
    wait();
    is_here = false;
    const unsigned other = threadIdx.x % most_blocks_of_cluster;
    SplitMoments moments = {};
    if (other < exchange.cluster.num_blocks()) {
      const float4 sent = of_blocks[half * most_blocks_of_cluster + other];
      moments = {sent.x, sent.y, sent.z, sent.w};
    }
    half ^= 1;
    return merge_lanes<about, most_blocks_of_cluster, how>(moments, all);
  }
  __device__ bool any(bool value) const { return value; }
};
// [/snippet]

}  // namespace worklog::welford

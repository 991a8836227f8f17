// How the threads that share a row add up its two sums: the lanes of a warp, a block, a cluster, or blocks anywhere on
// the device. All four have the same put() and get(), so that the work on a row is written once, for all of them.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/row.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

using warp_shuffle::warp_sum;

// [snippet: teams]
// A team adds up its threads' sums of a row: put() hands a thread's share in, and get() has the sums of all, in every
// thread. What a thread does between the two hides the wait for the others. In a turn every thread calls get() for one
// row and then put() for the next. Between two get() the team meets at a barrier that orders shared memory. open()
// comes before the first put(), and may wait until all of the team have started.

template <int width_>
struct LaneTeam {
  static constexpr int width = width_;  // lanes
  RowSums sums = {};

  __device__ void open() const {}
  __device__ void sync() const { __syncwarp(); }
  __device__ void put(const RowSums& s) { sums = {warp_sum<width>(s.wdy), warp_sum<width>(s.wdy_xhat)}; }
  __device__ RowSums get() {
    __syncwarp();
    return sums;
  }
};

// The lanes' sums of both, the first in even lanes and the second in odd ones: the first step leaves each lane one of
// the two, so that five shuffles do what takes ten.
__device__ inline float sum_of_lanes(const RowSums& s) {
  const bool odd = threadIdx.x % 2 != 0;
  const float kept = odd ? s.wdy_xhat : s.wdy;
  const float given = odd ? s.wdy : s.wdy_xhat;
  float sum = kept + __shfl_xor_sync(all_lanes, given, 1);
  for (int distance = lanes / 2; distance > 1; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  return sum;
}

template <int least>
inline constexpr int power_of_2_from = static_cast<int>(std::bit_ceil(static_cast<unsigned>(least)));

// What blocks send each other has 16 bytes.
__device__ inline float4 message_of(const RowSums& s) {
  return {s.wdy, s.wdy_xhat, 0.0f, 0.0f};
}
__device__ inline RowSums sums_in(const float4& message) {
  return {message.x, message.y};
}
__device__ inline RowSums sums_in(const RowSums& s) {
  return s;
}

// The sums of up to `parts` threads, warps or blocks, a power of 2, in every thread.
template <int parts, class Sums>
__device__ inline RowSums sum_of_parts(const Sums* sums, unsigned count) {
  const unsigned part = threadIdx.x % parts;
  const RowSums s = part < count ? sums_in(sums[part]) : RowSums{0.0f, 0.0f};
  return {warp_sum<parts>(s.wdy), warp_sum<parts>(s.wdy_xhat)};
}

__device__ inline void put_sum_of_lanes(RowSums* sums, const RowSums& s) {
  const float of_lanes = sum_of_lanes(s);
  if (threadIdx.x % lanes == 0) sums[threadIdx.x / lanes].wdy = of_lanes;
  if (threadIdx.x % lanes == 1) sums[threadIdx.x / lanes].wdy_xhat = of_lanes;
}

// One barrier to a row: the next row's sums go to the other half of the scratch memory.
template <int warps>
struct BlockTeam {
  RowSums* scratch;  // [2][warps]
  int half = 0;

  __device__ void open() const {}
  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) { put_sum_of_lanes(scratch + half * warps, s); }
  __device__ RowSums get() {
    __syncthreads();
    const RowSums sums = sum_of_parts<warps>(scratch + half * warps, blockDim.x / lanes);
    half ^= 1;
    return sums;
  }
};

// The blocks send each other their sums, and go on: they wait only when they need those of all. Here too the next row's
// sums go to the other half, those of the warps as well as those of the blocks.
template <int warps, class Exchange>
struct ClusterTeam {
  Cluster cluster;
  Exchange exchange;
  RowSums* of_warps;  // [2][warps]
  float4* of_blocks;  // [2][most_blocks_of_cluster]
  int half = 0;

  __device__ void open() { exchange.open(); }
  __device__ void sync() const { __syncthreads(); }
  __device__ void put(const RowSums& s) {
    put_sum_of_lanes(of_warps + half * warps, s);
    __syncthreads();
    if (threadIdx.x < lanes) {
      const RowSums sums = sum_of_parts<power_of_2_from<warps>>(of_warps + half * warps, warps);
      if (threadIdx.x < cluster.num_blocks()) {
        exchange.send(threadIdx.x, of_blocks + half * most_blocks_of_cluster + cluster.block_rank(), message_of(sums));
      }
    }
    exchange.all_sent();
  }
  __device__ RowSums get() {
    exchange.wait();
    const RowSums sums =
        sum_of_parts<most_blocks_of_cluster>(of_blocks + half * most_blocks_of_cluster, cluster.num_blocks());
    half ^= 1;
    return sums;
  }
};

// Blocks anywhere on the device, for rows that no cluster can hold. They exchange their sums through global memory. A
// sum has the number of its turn beside it, in one 64-bit word, which is read and written as one: no fence is needed. A
// turn's sums go where those of the turn before the last were. A block writes them after it has read the sums of all in
// the last turn, and so all have read the ones before.
using TaggedSum = unsigned long long;
template <int threads>
struct GridTeam {
  static constexpr int warps = threads / lanes;
  TaggedSum* exchanged;  // [2][blocks][2], which have zeros when the kernel starts
  int block;
  int blocks;            // as many as there are threads at most
  RowSums* of_warps;     // [warps]
  RowSums* of_messages;  // [warps]
  unsigned turn = 1;

  __device__ void sync() const { __syncthreads(); }
  __device__ TaggedSum* sums_of(int sender) const { return exchanged + (turn % 2 * blocks + sender) * 2; }
  __device__ void put(const RowSums& s) const {
    put_sum_of_lanes(of_warps, s);
    __syncthreads();
    if (threadIdx.x >= lanes) return;
    const RowSums sums = sum_of_parts<power_of_2_from<warps>>(of_warps, warps);
    const float own = threadIdx.x == 0 ? sums.wdy : sums.wdy_xhat;
    if (threadIdx.x < 2) atomicExch(sums_of(block) + threadIdx.x, TaggedSum{turn} << 32 | __float_as_uint(own));
  }
  __device__ RowSums get() {
    const int sender = static_cast<int>(threadIdx.x);
    RowSums sums = {0.0f, 0.0f};
    if (sender < blocks) sums = {sum_in(sums_of(sender)), sum_in(sums_of(sender) + 1)};
    put_sum_of_lanes(of_messages, sums);
    __syncthreads();
    ++turn;
    return sum_of_parts<power_of_2_from<warps>>(of_messages, warps);
  }

 private:
  __device__ float sum_in(const TaggedSum* word) const {
    TaggedSum read = __ldcg(word);
    while (read >> 32 != turn) {
      __nanosleep(20);
      read = __ldcg(word);
    }
    return __uint_as_float(static_cast<unsigned>(read));
  }
};

// With asynchronous stores no block of a cluster waits for another's stores to dx. Rows of the same offset gain by
// that, and all rows where two blocks share a multiprocessor. Whole vectors in one large block keep the barrier, which
// was faster at 32768 columns (not at 16384 and 50256), though it waits for all stores.
template <Layout layout, int resident>
using ExchangeOf = std::conditional_t<layout == Layout::same_offset || resident == 2, AsyncStores, ClusterBarrier>;
// [/snippet]

}  // namespace worklog::backward

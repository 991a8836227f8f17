// Cooperative groups, clusters, cooperative launches and asynchronous copies of the CPU layer, in every order.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_pipeline.h>

#include <numeric>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

namespace cg = cooperative_groups;

class SimtGroups : public SimtOrderTest {};
INSTANTIATE_FOR_EVERY_ORDER(SimtGroups);

__global__ void block_ranks(unsigned* out) {
  const cg::thread_block block = cg::this_thread_block();
  __shared__ unsigned ranks[24];
  ranks[block.thread_rank()] = block.thread_rank();
  block.sync();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    for (unsigned i = 0; i < block.size(); ++i) out[i] = ranks[i];
  }
}

TEST_P(SimtGroups, ThreadBlock) {
  DeviceArray<unsigned> out(24, 99);
  launch(block_ranks, {.grid = 1, .block = dim3(4, 3, 2)}, out);
  std::vector<unsigned> want(24);
  std::iota(want.begin(), want.end(), 0u);
  EXPECT_EQ(out.values(), want);
}

template <unsigned size>
__global__ void tile_sums(float* sums, int* lowest, int* highest) {
  const auto tile = cg::tiled_partition<size>(cg::this_thread_block());
  const auto i = threadIdx.x;
  sums[i] = cg::reduce(tile, static_cast<float>(i), cg::plus<float>());
  lowest[i] = cg::reduce(tile, static_cast<int>(i), cg::less<int>());
  highest[i] = cg::reduce(tile, static_cast<int>(i), cg::greater<int>());
}

template <unsigned size>
void check_tiles() {
  DeviceArray<float> sums(96);
  DeviceArray<int> lowest(96), highest(96);
  launch(tile_sums<size>, {.grid = 1, .block = 96}, sums, lowest, highest);
  for (int i = 0; i < 96; ++i) {
    const int n = static_cast<int>(size), first = i / n * n;
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(sums.values()[at], static_cast<float>(n * first + n * (n - 1) / 2)) << size;
    ASSERT_EQ(lowest.values()[at], first);
    ASSERT_EQ(highest.values()[at], first + n - 1);
  }
}

// A tile without a parent in its type, as functions take it.
__device__ int sum_of(const cg::thread_block_tile<8>& tile, int value) {
  return cg::reduce(tile, value, cg::plus<int>());
}
__global__ void tile_of_no_parent(int* sums) {
  const cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
  sums[threadIdx.x] = sum_of(cg::tiled_partition<8>(warp), static_cast<int>(threadIdx.x));
}

TEST_P(SimtGroups, ATileIsATileOfAnyParent) {
  DeviceArray<int> sums(64);
  launch(tile_of_no_parent, {.grid = 1, .block = 64}, sums);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sums.values()[i], static_cast<int>(8 * (i / 8 * 8) + 28));
}

// A sum in shared memory, of whatever group it is given.
__device__ int sum_in(const cg::thread_group& group, int* shared, int value) {
  const unsigned rank = group.thread_rank();
  for (unsigned half = group.size() / 2; half > 0; half /= 2) {
    shared[rank] = value;
    group.sync();
    if (rank < half) value += shared[rank + half];
    group.sync();
  }
  return value;  // of all, in the first
}
__global__ void sums_of_groups(int* sums) {
  __shared__ int shared[64];
  const int value = static_cast<int>(threadIdx.x);
  const cg::thread_group tile = cg::tiled_partition(cg::this_thread_block(), 16);
  const int of_tile = sum_in(tile, shared + threadIdx.x / 16 * 16, value);
  if (tile.thread_rank() == 0) sums[threadIdx.x / 16] = of_tile;
  cg::this_thread_block().sync();
  const int of_block = sum_in(cg::this_thread_block(), shared, value);
  if (threadIdx.x == 0) sums[4] = of_block;
}

TEST_P(SimtGroups, AFunctionOfAnyGroup) {
  DeviceArray<int> sums(5);
  launch(sums_of_groups, {.grid = 1, .block = 64}, sums);
  EXPECT_EQ(sums.values(), (std::vector<int>{120, 376, 632, 888, 2016}));
}

TEST_P(SimtGroups, TilesReduce) {
  check_tiles<1>();
  check_tiles<2>();
  check_tiles<4>();
  check_tiles<8>();
  check_tiles<16>();
  check_tiles<32>();
}

struct Moments {
  float mean, m2;
  int count;
};
struct Merge {
  Moments operator()(const Moments& a, const Moments& b) const {
    const int count = a.count + b.count;
    const float delta = b.mean - a.mean;
    return {a.mean + delta * static_cast<float>(b.count) / static_cast<float>(count),
            a.m2 + b.m2 +
                delta * delta * static_cast<float>(a.count) * static_cast<float>(b.count) / static_cast<float>(count),
            count};
  }
};
__global__ void tile_moments(Moments* out) {
  const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  const Moments merged = cg::reduce(tile, Moments{static_cast<float>(threadIdx.x), 0.0f, 1}, Merge());
  if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = merged;
}

TEST_P(SimtGroups, TilesReduceStructs) {
  DeviceArray<Moments> out(2);
  launch(tile_moments, {.grid = 1, .block = 64}, out);
  for (int tile = 0; tile < 2; ++tile) {
    const Moments got = out.values()[static_cast<size_t>(tile)];
    EXPECT_EQ(got.count, 32);
    EXPECT_EQ(got.mean, 32.0f * static_cast<float>(tile) + 15.5f);
    EXPECT_EQ(got.m2, 32.0f * (32 * 32 - 1) / 12);
  }
}

__global__ void tile_shuffles(unsigned* out) {
  const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  unsigned* const mine = out + threadIdx.x * 5;
  mine[0] = tile.shfl(threadIdx.x, 3);
  mine[1] = tile.shfl_up(threadIdx.x, 1);
  mine[2] = tile.shfl_down(threadIdx.x, 2);
  mine[3] = tile.shfl_xor(threadIdx.x, 4);
  mine[4] = tile.ballot(threadIdx.x % 3 == 0);
}

TEST_P(SimtGroups, TilesShuffleAndVote) {
  DeviceArray<unsigned> out(32 * 5);
  launch(tile_shuffles, {.grid = 1, .block = 32}, out);
  const auto got = out.values();
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned first = i / 8 * 8;
    ASSERT_EQ(got[i * 5 + 0], first + 3);
    ASSERT_EQ(got[i * 5 + 1], i == first ? i : i - 1);
    ASSERT_EQ(got[i * 5 + 2], i - first < 6 ? i + 2 : i);
    ASSERT_EQ(got[i * 5 + 3], i ^ 4u);
    unsigned votes = 0;
    for (unsigned rank = 0; rank < 8; ++rank) votes |= ((first + rank) % 3 == 0 ? 1u : 0u) << rank;
    ASSERT_EQ(got[i * 5 + 4], votes);
  }
}

__global__ void coalesced(int* counter, unsigned* out) {
  if (threadIdx.x % 3 != 0) return;
  const auto group = cg::coalesced_threads();
  // One atomic for the whole group, as a filter would do it.
  int base = 0;
  if (group.thread_rank() == 0) base = atomicAdd(counter, static_cast<int>(group.size()));
  base = group.shfl(base, 0);
  out[static_cast<unsigned>(base) + group.thread_rank()] = threadIdx.x;
}

TEST_P(SimtGroups, CoalescedThreads) {
  DeviceArray<int> counter(1);
  DeviceArray<unsigned> out(64, 1000);
  launch(coalesced, {.grid = 1, .block = 64}, counter, out);
  EXPECT_EQ(counter.values()[0], 22);
  auto got = out.values();
  std::sort(got.begin(), got.end());
  for (unsigned i = 0; i < 22; ++i) ASSERT_EQ(got[i], i * 3);
}

__global__ void cluster_sum(const float* x, float* sums, unsigned* ranks) {
  const auto cluster = cg::this_cluster();
  __shared__ float partial;
  __shared__ float elsewhere[2];
  float* const dynamic = dynamic_shared<float>();
  const float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  const float of_warp = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), value, cg::plus<float>());
  if (threadIdx.x == 0) {
    partial = of_warp;
    dynamic[1] = of_warp * 2;
  }
  cluster.sync();
  float sum = 0, doubled = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) {
    sum += *cluster.map_shared_rank(&partial, static_cast<int>(rank));
    doubled += cluster.map_shared_rank(dynamic, static_cast<int>(rank))[1];
  }
  if (threadIdx.x < 2) {  // writes into the next block of the cluster
    const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    cluster.map_shared_rank(elsewhere, static_cast<int>(next))[threadIdx.x] = static_cast<float>(cluster.block_rank());
  }
  cluster.sync();
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = doubled == 2 * sum ? sum : -1.0f;
    ranks[blockIdx.x] = static_cast<unsigned>(elsewhere[0] + elsewhere[1]) / 2;
  }
}

TEST_P(SimtGroups, ClustersShareMemory) {
  for (const unsigned size : {2u, 4u, 8u}) {
    const unsigned blocks = size * 5;
    std::vector<float> values(blocks * 32);
    std::iota(values.begin(), values.end(), 0.0f);
    DeviceArray<float> x(values), sums(blocks);
    DeviceArray<unsigned> ranks(blocks, 77);
    launch(cluster_sum, {.grid = blocks, .block = 32, .shared_bytes = 64, .cluster = size}, x, sums, ranks);
    for (unsigned block = 0; block < blocks; ++block) {
      const unsigned first = block / size * size * 32, n = size * 32;
      ASSERT_EQ(sums.values()[block], static_cast<float>(n * first + n * (n - 1) / 2)) << size;
      ASSERT_EQ(ranks.values()[block], (block % size + size - 1) % size);
    }
  }
}

__global__ void arrive_then_wait(int* out) {
  const auto cluster = cg::this_cluster();
  __shared__ int value;
  if (threadIdx.x == 0) value = static_cast<int>(cluster.block_rank()) + 10;
  __syncthreads();
  for (int round = 0; round < 3; ++round) {
    cluster.barrier_arrive();
    cluster.barrier_wait();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&value, 1 - static_cast<int>(cluster.block_rank()));
  cluster.sync();
}

TEST_P(SimtGroups, ClusterArriveAndWait) {
  DeviceArray<int> out(4);
  launch(arrive_then_wait, {.grid = 4, .block = 48, .cluster = 2}, out);
  EXPECT_EQ(out.values(), (std::vector<int>{11, 10, 11, 10}));
}

__global__ void without_cluster(int* out) {
  const auto cluster = cg::this_cluster();
  __shared__ int value;
  value = 5;
  cluster.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&value, 0) + static_cast<int>(cluster.num_blocks());
}

TEST_P(SimtGroups, ALaunchWithoutClustersHasClustersOfOne) {
  DeviceArray<int> out(3);
  launch(without_cluster, {.grid = 3, .block = 64}, out);
  EXPECT_EQ(out.values(), (std::vector<int>{6, 6, 6}));
}

__global__ void grid_rounds(int* counters, int* failures, int rounds) {
  const auto grid = cg::this_grid();
  for (int round = 0; round < rounds; ++round) {
    atomicAdd(&counters[round], 1);
    grid.sync();
    if (counters[round] != static_cast<int>(grid.size())) atomicAdd(failures, 1);
  }
}

cudaError_t launch_cooperatively(unsigned blocks, unsigned threads, int* counters, int* failures, int rounds) {
  void* arguments[] = {&counters, &failures, &rounds};
  return cudaLaunchCooperativeKernel(grid_rounds, dim3(blocks), dim3(threads), arguments);
}

TEST_P(SimtGroups, GridBarrier) {
  DeviceArray<int> counters(10), failures(1);
  ASSERT_EQ(launch_cooperatively(7, 96, counters, failures, 10), cudaSuccess);
  EXPECT_EQ(counters.values(), std::vector<int>(10, 7 * 96));
  EXPECT_EQ(failures.values()[0], 0);
}

TEST_F(SimtTest, CooperativeLaunchesHaveALimit) {
  int per_multiprocessor = 0, multiprocessors = 0;
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, grid_rounds, 1024, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  const auto most = static_cast<unsigned>(per_multiprocessor * multiprocessors);
  DeviceArray<int> counters(2), failures(1);
  EXPECT_EQ(launch_cooperatively(most, 1024, counters, failures, 2), cudaSuccess);
  EXPECT_EQ(failures.values()[0], 0);
  EXPECT_EQ(launch_cooperatively(most + 1, 1024, counters, failures, 2), cudaErrorCooperativeLaunchTooLarge);
}

__global__ void copy_in_two_batches(const float* x, float* out, bool wait) {
  __shared__ __align__(16) float staged[2][64];
  staged[0][threadIdx.x] = staged[1][threadIdx.x] = -1.0f;
  __syncthreads();
  if (threadIdx.x < 16) __pipeline_memcpy_async(&staged[0][threadIdx.x * 4], x + threadIdx.x * 4, 16);
  __pipeline_commit();
  if (threadIdx.x < 16) __pipeline_memcpy_async(&staged[1][threadIdx.x * 4], x + 64 + threadIdx.x * 4, 16, 8);
  __pipeline_commit();
  if (wait) __pipeline_wait_prior(1);
  __syncthreads();
  out[threadIdx.x] = staged[0][threadIdx.x];
  out[64 + threadIdx.x] = staged[1][threadIdx.x];
  __syncthreads();
  if (wait) __pipeline_wait_prior(0);
  __syncthreads();
  out[128 + threadIdx.x] = staged[1][threadIdx.x];
}

TEST_P(SimtGroups, AsynchronousCopiesArriveWhenWaitedFor) {
  std::vector<float> values(128);
  std::iota(values.begin(), values.end(), 1.0f);
  DeviceArray<float> x(values), out(192);
  launch(copy_in_two_batches, {.grid = 1, .block = 64}, x, out, true);
  auto got = out.values();
  for (unsigned i = 0; i < 64; ++i) {
    ASSERT_EQ(got[i], values[i]);
    ASSERT_EQ(got[64 + i], -1.0f) << "the second batch must not have arrived";
    ASSERT_EQ(got[128 + i], i % 4 < 2 ? values[64 + i] : 0.0f) << "the last 8 of 16 bytes are zeros";
  }
  launch(copy_in_two_batches, {.grid = 1, .block = 64}, x, out, false);
  got = out.values();
  for (unsigned i = 0; i < 64; ++i) ASSERT_EQ(got[i], -1.0f) << "without a wait nothing arrives";
}

}  // namespace
}  // namespace worklog::test

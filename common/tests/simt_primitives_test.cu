// Barriers, shuffles, votes, reductions and atomics of the CPU layer, in every order of threads and blocks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <set>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

class SimtPrimitives : public SimtOrderTest {};
INSTANTIATE_FOR_EVERY_ORDER(SimtPrimitives);

constexpr unsigned all_lanes = 0xffffffffu;

__global__ void write_indices(unsigned* out) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(&out[block * threads + thread], 1u + thread);
}

TEST_P(SimtPrimitives, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 4, 5), block(7, 3, 2);
  const unsigned threads = 7 * 3 * 2, blocks = 3 * 4 * 5;
  DeviceArray<unsigned> out(threads * blocks);
  launch(write_indices, {.grid = grid, .block = block}, out);
  const auto values = out.values();
  for (unsigned i = 0; i < threads * blocks; ++i) ASSERT_EQ(values[i], 1 + i % threads) << i;
}

__global__ void reverse_in_shared(int* data) {
  __shared__ int staged[1024];
  int* const block = data + blockIdx.x * blockDim.x;
  staged[threadIdx.x] = block[threadIdx.x];
  __syncthreads();
  block[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}

TEST_P(SimtPrimitives, BarrierOrdersSharedMemory) {
  for (const unsigned threads : {1u, 31u, 32u, 33u, 100u, 1024u}) {
    std::vector<int> values(threads * 9);
    std::iota(values.begin(), values.end(), 0);
    DeviceArray<int> data(values);
    launch(reverse_in_shared, {.grid = 9, .block = threads}, data);
    const auto got = data.values();
    for (unsigned i = 0; i < threads * 9; ++i) {
      ASSERT_EQ(got[i], static_cast<int>(i / threads * threads + (threads - 1 - i % threads))) << threads;
    }
  }
}

__global__ void tree_sum(const float* x, float* sum) {
  float* const partial = dynamic_shared<float>();
  partial[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum = partial[0];
}

TEST_P(SimtPrimitives, TreeInDynamicSharedMemory) {
  std::vector<float> values(512);
  std::iota(values.begin(), values.end(), 1.0f);
  DeviceArray<float> x(values), sum(1);
  launch(tree_sum, {.grid = 1, .block = 512, .shared_bytes = 512 * sizeof(float)}, x, sum);
  EXPECT_EQ(sum.values()[0], 512 * 513 / 2.0f);
}

__global__ void barrier_results(int* out) {
  const int count = __syncthreads_count(threadIdx.x % 3 == 0);
  const int all = __syncthreads_and(threadIdx.x < blockDim.x);
  const int not_all = __syncthreads_and(threadIdx.x != 5);
  const int any = __syncthreads_or(threadIdx.x == 5);
  const int none = __syncthreads_or(0);
  if (threadIdx.x == blockDim.x - 1) {
    out[0] = count;
    out[1] = all;
    out[2] = not_all;
    out[3] = any;
    out[4] = none;
  }
}

TEST_P(SimtPrimitives, BarriersCountAndVote) {
  DeviceArray<int> out(5, -1);
  launch(barrier_results, {.grid = 1, .block = 100}, out);
  const auto got = out.values();
  EXPECT_EQ(got[0], 34);
  EXPECT_EQ(got[1] != 0, true);
  EXPECT_EQ(got[2], 0);
  EXPECT_EQ(got[3] != 0, true);
  EXPECT_EQ(got[4], 0);
}

__global__ void leave_early(int* out) {
  if (threadIdx.x >= 40) return;  // legal since Volta: who has returned does not count
  atomicAdd(out, 1);
  __syncthreads();
  if (*out != 40) atomicAdd(out + 1, 1);
}

TEST_P(SimtPrimitives, ReturnedThreadsDoNotHoldUpABarrier) {
  DeviceArray<int> out(2);
  launch(leave_early, {.grid = 1, .block = 256}, out);
  EXPECT_EQ(out.values()[0], 40);
  EXPECT_EQ(out.values()[1], 0);
}

template <class T>
__global__ void shuffle_all(T* out) {
  const unsigned lane = threadIdx.x;
  const T value = static_cast<T>(lane * 3 + 1);
  T* const mine = out + lane * 8;
  mine[0] = __shfl_sync(all_lanes, value, 7);
  mine[1] = __shfl_sync(all_lanes, value, static_cast<int>(lane) + 1, 8);
  mine[2] = __shfl_up_sync(all_lanes, value, 3);
  mine[3] = __shfl_up_sync(all_lanes, value, 1, 4);
  mine[4] = __shfl_down_sync(all_lanes, value, 3);
  mine[5] = __shfl_down_sync(all_lanes, value, 2, 16);
  mine[6] = __shfl_xor_sync(all_lanes, value, 5);
  mine[7] = __shfl_xor_sync(all_lanes, value, 1, 2);
}

template <class T>
void check_shuffles() {
  DeviceArray<T> out(32 * 8);
  launch(shuffle_all<T>, {.grid = 1, .block = 32}, out);
  const auto got = out.values();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned from[8] = {7,
                              lane / 8 * 8 + (lane + 1) % 8,
                              lane < 3 ? lane : lane - 3,
                              lane % 4 == 0 ? lane : lane - 1,
                              lane > 28 ? lane : lane + 3,
                              lane % 16 > 13 ? lane : lane + 2,
                              lane ^ 5,
                              lane ^ 1};
    for (unsigned i = 0; i < 8; ++i) {
      ASSERT_EQ(got[lane * 8 + i], static_cast<T>(from[i] * 3 + 1)) << "lane " << lane << " shuffle " << i;
    }
  }
}

TEST_P(SimtPrimitives, Shuffles) {
  check_shuffles<int>();
  check_shuffles<unsigned>();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<long long>();
  check_shuffles<unsigned long long>();
}

template <class T>
__global__ void sum_by_shuffles(T* out, T* by_atomics) {
  T value = T(threadIdx.x % 2 == 0 ? 1.0f : 3.0f);  // sums to 64, and each partial sum has few digits
  atomicAdd(by_atomics, value);
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
  out[threadIdx.x] = value;
}

template <class T>
void check_sixteen_bits() {
  DeviceArray<T> out(32), by_atomics(1, T(0.0f));
  launch(sum_by_shuffles<T>, {.grid = 1, .block = 32}, out, by_atomics);
  EXPECT_EQ(static_cast<float>(by_atomics.values()[0]), 64.0f);
  for (const T& value : out.values()) ASSERT_EQ(static_cast<float>(value), 64.0f);
}

TEST_P(SimtPrimitives, SixteenBitTypes) {
  check_sixteen_bits<__half>();
  check_sixteen_bits<__nv_bfloat16>();
}

__global__ void shuffle_halves_apart(float* out) {
  const unsigned half = threadIdx.x / 16;
  const unsigned mask = half == 0 ? 0x0000ffffu : 0xffff0000u;
  float value = static_cast<float>(threadIdx.x);
  // The upper half takes another path and another number of steps.
  if (half == 0) {
    for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset, 16);
  } else {
    for (int offset = 8; offset > 0; offset /= 2) value = fmaxf(value, __shfl_down_sync(mask, value, offset, 16));
    value = __shfl_sync(mask, value, 0, 16);
  }
  out[threadIdx.x] = value;
}

TEST_P(SimtPrimitives, HalvesOfAWarpOnDifferentPaths) {
  DeviceArray<float> out(32);
  launch(shuffle_halves_apart, {.grid = 1, .block = 32}, out);
  const auto got = out.values();
  for (unsigned lane = 0; lane < 32; ++lane) ASSERT_EQ(got[lane], lane < 16 ? 120.0f : 31.0f) << lane;
}

__global__ void vote(unsigned* out) {
  const unsigned lane = threadIdx.x;
  unsigned* const mine = out + lane * 6;
  mine[0] = __ballot_sync(all_lanes, lane % 2);
  mine[1] = static_cast<unsigned>(__any_sync(all_lanes, lane == 9));
  mine[2] = static_cast<unsigned>(__all_sync(all_lanes, lane != 9));
  mine[3] = __match_any_sync(all_lanes, static_cast<int>(lane / 8));
  int equal = -1;
  mine[4] = __match_all_sync(all_lanes, 3.5f, &equal);
  mine[5] = static_cast<unsigned>(equal);
}

TEST_P(SimtPrimitives, Votes) {
  DeviceArray<unsigned> out(32 * 6);
  launch(vote, {.grid = 1, .block = 32}, out);
  const auto got = out.values();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned* const mine = &got[lane * 6];
    ASSERT_EQ(mine[0], 0xaaaaaaaau);
    ASSERT_EQ(mine[1], 1u);
    ASSERT_EQ(mine[2], 0u);
    ASSERT_EQ(mine[3], 0xffu << lane / 8 * 8);
    ASSERT_EQ(mine[4], all_lanes);
    ASSERT_EQ(mine[5], 1u);
  }
}

__global__ void who_is_here(unsigned* out) {
  if (threadIdx.x % 4 == 1) {
    out[threadIdx.x] = __activemask();
  } else {
    out[threadIdx.x] = __activemask();
  }
}

TEST_P(SimtPrimitives, ActiveMaskIsTheLanesOfThisBranch) {
  DeviceArray<unsigned> out(32);
  launch(who_is_here, {.grid = 1, .block = 32}, out);
  const auto got = out.values();
  for (unsigned lane = 0; lane < 32; ++lane) ASSERT_EQ(got[lane], lane % 4 == 1 ? 0x22222222u : 0xddddddddu) << lane;
}

__global__ void warp_reduce(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[0] = __reduce_add_sync(all_lanes, lane - 20);
  out[1] = __reduce_min_sync(all_lanes, lane - 20);
  out[2] = __reduce_max_sync(all_lanes, lane - 20);
  out[3] = static_cast<int>(__reduce_max_sync(all_lanes, static_cast<unsigned>(lane - 20)));
  out[4] = static_cast<int>(__reduce_or_sync(all_lanes, 1u << (lane % 4)));
  out[5] = static_cast<int>(__reduce_and_sync(all_lanes, 0xf0u | static_cast<unsigned>(lane)));
  out[6] = static_cast<int>(__reduce_xor_sync(all_lanes, static_cast<unsigned>(lane == 3 ? 12 : 0)));
}

TEST_P(SimtPrimitives, WarpReductions) {
  DeviceArray<int> out(7);
  launch(warp_reduce, {.grid = 1, .block = 32}, out);
  EXPECT_EQ(out.values(), (std::vector<int>{31 * 16 - 20 * 32, -20, 11, -1, 15, 0xf0, 12}));
}

__global__ void use_atomics(int* ints, unsigned* unsigneds, unsigned long long* longs, float* floats, double* doubles) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], 1);
  atomicSub(&ints[1], 2);
  atomicMin(&ints[2], -i);
  atomicMax(&ints[3], i);
  atomicOr(&unsigneds[0], 1u << i % 32);
  atomicAnd(&unsigneds[1], ~(1u << i % 31));
  atomicXor(&unsigneds[2], static_cast<unsigned>(i));
  atomicInc(&unsigneds[3], 9);
  atomicAdd(&longs[0], 1ull << 33);
  atomicAdd(&floats[0], 0.5f);
  atomicAdd(&doubles[0], 0.25);
  for (unsigned long long old = longs[1], seen = ~old; old != seen;) {  // a maximum by compare-and-swap
    seen = old;
    old = atomicCAS(&longs[1], seen, max(seen, static_cast<unsigned long long>(i)));
  }
}

TEST_P(SimtPrimitives, AtomicsAcrossBlocks) {
  DeviceArray<int> ints(4);
  DeviceArray<unsigned> unsigneds(std::vector<unsigned>{0, ~0u, 0, 0});
  DeviceArray<unsigned long long> longs(2);
  DeviceArray<float> floats(1);
  DeviceArray<double> doubles(1);
  constexpr int n = 64 * 128;
  launch(use_atomics, {.grid = 64, .block = 128}, ints, unsigneds, longs, floats, doubles);
  EXPECT_EQ(ints.values(), (std::vector<int>{n, -2 * n, -(n - 1), n - 1}));
  EXPECT_EQ(unsigneds.values(), (std::vector<unsigned>{~0u, 1u << 31, 0, n % 10}));
  EXPECT_EQ(longs.values()[0], static_cast<unsigned long long>(n) << 33);
  EXPECT_EQ(longs.values()[1], n - 1u);
  EXPECT_EQ(floats.values()[0], n * 0.5f);
  EXPECT_EQ(doubles.values()[0], n * 0.25);
}

// Of a block or of the system: the same values come out.
__global__ void use_scoped_atomics(int* ints, unsigned* unsigneds, float* sum) {
  const int i = static_cast<int>(threadIdx.x);
  atomicAdd_block(&ints[0], 1);
  atomicSub_block(&ints[1], 2);
  atomicMin_block(&ints[2], -i);
  atomicMax_system(&ints[3], i);
  if (i == 7) atomicExch_block(&ints[4], i);
  atomicCAS_block(&ints[5], i, i + 1);  // in order or not, the first swaps 0 for 1
  atomicOr_block(&unsigneds[0], 1u << i % 32);
  atomicAnd_block(&unsigneds[1], ~(1u << i % 31));
  atomicXor_system(&unsigneds[2], static_cast<unsigned>(i));
  atomicInc_block(&unsigneds[3], 9);
  atomicDec_block(&unsigneds[4], 9);
  atomicAdd_system(sum, 0.5f);
}

TEST_P(SimtPrimitives, AtomicsOfABlockAndOfTheSystem) {
  DeviceArray<int> ints(6);
  DeviceArray<unsigned> unsigneds(std::vector<unsigned>{0, ~0u, 0, 0, 0});
  DeviceArray<float> sum(1);
  launch(use_scoped_atomics, {.grid = 1, .block = 128}, ints, unsigneds, sum);
  const std::vector<int> got = ints.values();
  EXPECT_EQ(std::vector<int>(got.begin(), got.begin() + 5), (std::vector<int>{128, -256, -127, 127, 7}));
  EXPECT_GE(got[5], 1);
  EXPECT_EQ(unsigneds.values(), (std::vector<unsigned>{~0u, 1u << 31, 0, 128 % 10, 10 - 128 % 10}));
  EXPECT_EQ(sum.values()[0], 64.0f);
}

__global__ void read_clocks(long long* out) {
  const clock_t first = clock();
  const long long before = clock64();
  __syncthreads();
  out[threadIdx.x] = clock64() - before;
  out[threadIdx.x + 64] = clock() - first;
}

TEST_P(SimtPrimitives, ClocksDoNotGoBack) {
  DeviceArray<long long> passed(128, -1);
  launch(read_clocks, {.grid = 1, .block = 64}, passed);
  const std::vector<long long> values = passed.values();
  for (const long long value : values) EXPECT_GE(value, 0);
  EXPECT_GT(*std::max_element(values.begin(), values.begin() + 64), 0);
}

__global__ void count_under_lock(int* lock, int* count) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *count = *count + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

TEST_P(SimtPrimitives, SpinLockBetweenThreadsAndBlocks) {
  DeviceArray<int> lock(1), count(1);
  launch(count_under_lock, {.grid = 20, .block = 64}, lock, count);
  EXPECT_EQ(count.values()[0], 20 * 64);
}

__global__ void wait_for_next_block(int* turn) {
  // The first block waits for the last: all must be running at once, though there are fewer OS threads.
  const int mine = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  while (atomicAdd(turn, 0) != mine) {
  }
  atomicAdd(turn, 1);
}

TEST_P(SimtPrimitives, BlocksThatWaitForLaterBlocks) {
  DeviceArray<int> turn(1);
  launch(wait_for_next_block, {.grid = 12, .block = 1}, turn);
  EXPECT_EQ(turn.values()[0], 12);
}

__global__ void poll_plain_memory(volatile int* flag) {
  if (threadIdx.x == 0) {
    while (flag[0] != 31) {
    }
    flag[1] = 1;
  } else {
    atomicAdd(const_cast<int*>(flag), 1);
  }
}

TEST_P(SimtPrimitives, PollingWithoutAtomicsLetsOthersRun) {
  DeviceArray<int> flag(2);
  launch(poll_plain_memory, {.grid = 1, .block = 32}, flag);
  EXPECT_EQ(flag.values()[1], 1);
}

__global__ void vote_until_flag(int* flag) {
  if (threadIdx.x < 32) {
    while (!__any_sync(all_lanes, *static_cast<volatile int*>(flag))) {
    }
  } else if (threadIdx.x == 32) {
    *flag = 1;
  }
}

TEST_P(SimtPrimitives, AWarpThatVotesInALoopLetsOthersRun) {
  DeviceArray<int> flag(1);
  launch(vote_until_flag, {.grid = 1, .block = 64}, flag);
  EXPECT_EQ(flag.values()[0], 1);
}

__global__ void note_order(int* next, int* order) {
  order[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

std::vector<int> order_of_threads() {
  DeviceArray<int> next(1), order(4 * 64);
  launch(note_order, {.grid = 4, .block = 64}, next, order);
  return order.values();
}

TEST_F(SimtTest, TheOrderIsAsAskedFor) {
  simt::Options options = simt::options();
  options.threads = 1;
  simt::set_options(options);
  std::vector<int> ascending(4 * 64);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(order_of_threads(), ascending);

  options.order = simt::Order::reverse;
  simt::set_options(options);
  EXPECT_EQ(order_of_threads(), std::vector<int>(ascending.rbegin(), ascending.rend()));

  options.order = simt::Order::shuffle;
  options.seed = 5;
  simt::set_options(options);
  const auto shuffled = order_of_threads();
  EXPECT_TRUE(std::is_permutation(shuffled.begin(), shuffled.end(), ascending.begin()));
  EXPECT_NE(shuffled, ascending);
  EXPECT_EQ(order_of_threads(), shuffled) << "the same seed must give the same order";
  options.seed = 6;
  simt::set_options(options);
  EXPECT_NE(order_of_threads(), shuffled) << "another seed must give another";
}

__global__ void lean_on_order(int* out) {
  __shared__ int staged[64];
  staged[threadIdx.x] = static_cast<int>(threadIdx.x);
  // No barrier: right only where thread i - 1 always runs before thread i.
  out[threadIdx.x] = threadIdx.x == 0 ? 0 : staged[threadIdx.x - 1];
}

TEST_F(SimtTest, AnotherOrderExposesAMissingBarrier) {
  simt::Options options = simt::options();
  options.order = simt::Order::reverse;
  simt::set_options(options);
  DeviceArray<int> first(64, -1), out(64, -1);
  launch(reverse_in_shared, {.grid = 1, .block = 64}, first);  // leaves other numbers in shared memory
  launch(lean_on_order, {.grid = 1, .block = 64}, out);
  const auto got = out.values();
  int wrong = 0;
  for (int i = 1; i < 64; ++i) wrong += got[static_cast<size_t>(i)] != i - 1;
  EXPECT_GT(wrong, 0);
}

__global__ void read_unwritten(float* out) {
  out[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}

TEST_F(SimtTest, UnwrittenDynamicSharedMemoryIsNan) {
  DeviceArray<float> out(32, 1.0f);
  launch(read_unwritten, {.grid = 1, .block = 32, .shared_bytes = 128}, out);
  for (const float value : out.values()) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace worklog::test

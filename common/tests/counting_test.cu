// What the counter says of kernels whose counts can be worked out by hand; the comments do.
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <simt/counts.h>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

using simt::Counts;
using simt::KernelCounts;
using simt::Operation;

class Counting : public SimtOrderTest {
 protected:
  // Launches once. What is counted does not depend on the order of the threads, and nothing may be found to be wrong.
  template <class... Parameters, class... Arguments>
  KernelCounts count(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
    simt::start_counting();
    launch(kernel, shape, arguments...);
    const std::vector<KernelCounts> launches = simt::take_counts();
    EXPECT_EQ(launches.size(), 1u);
    for (const simt::Finding& finding : launches.at(0).findings) ADD_FAILURE() << finding.text;
    return launches.at(0);
  }
};
INSTANTIATE_FOR_EVERY_ORDER(Counting);

const Counts& of(const KernelCounts& kernel, Operation operation) {
  return kernel.counts[static_cast<size_t>(operation)];
}

// --- Global memory -------------------------------------------------------------------------------------------------

// Lane i reads the element at first + i * stride.
template <class T>
__global__ void read_strided(const T* x, T* y, int first, int stride) {
  const int thread = static_cast<int>(threadIdx.x);
  y[thread] = x[first + thread * stride];
}

struct Strided {
  int first, stride;
  uint64_t sectors;  // of 32 bytes, under the 32 floats of one warp
};

TEST_P(Counting, SectorsFollowTheStride) {
  for (const auto& [first, stride, sectors] : {
           Strided{0, 1, 4},      // 128 bytes in a row: 4 sectors
           Strided{1, 1, 5},      // the same, 4 bytes later: one end sticks out into a fifth
           Strided{8, 1, 4},      // a whole sector later
           Strided{0, 2, 8},      // 256 bytes, of which every other word
           Strided{0, 4, 16},     //
           Strided{0, 8, 32},     // a sector for each lane, and more there cannot be:
           Strided{0, 1000, 32},  // the columns of a row-major matrix
           Strided{5, 0, 1},      // all lanes read one word: a broadcast
       }) {
    DeviceArray<float> x(40'000, 1.0f), y(32);
    const KernelCounts kernel = count(read_strided<float>, {.grid = 1, .block = 32}, x, y, first, stride);
    const Counts& loads = of(kernel, Operation::global_load);
    SCOPED_TRACE(testing::Message() << "first " << first << ", stride " << stride);
    EXPECT_EQ(loads.requests, 1u);
    EXPECT_EQ(loads.lanes, 32u);
    EXPECT_EQ(loads.bytes_asked, 128u);
    EXPECT_EQ(loads.bytes_used, stride == 0 ? 4u : 128u);
    EXPECT_EQ(loads.sectors, sectors);
    EXPECT_EQ(kernel.dram_read_bytes, 32 * sectors);
    EXPECT_EQ(of(kernel, Operation::global_store).sectors, 4u);
    EXPECT_EQ(kernel.dram_write_bytes, 128u);
  }
}

TEST_P(Counting, WiderElementsAreOneRequest) {
  DeviceArray<float4> x4(32, float4{1, 2, 3, 4}), y4(32);
  KernelCounts kernel = count(read_strided<float4>, {.grid = 1, .block = 32}, x4, y4, 0, 1);
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 1u);
  EXPECT_EQ(of(kernel, Operation::global_load).sectors, 16u);  // 512 bytes
  EXPECT_EQ(of(kernel, Operation::global_load).lines, 4u);
  EXPECT_EQ(of(kernel, Operation::global_store).requests, 1u);
  EXPECT_EQ(of(kernel, Operation::global_store).sectors, 16u);

  DeviceArray<float2> x2(32, float2{1, 2}), y2(32);
  kernel = count(read_strided<float2>, {.grid = 1, .block = 32}, x2, y2, 0, 1);
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 1u);
  EXPECT_EQ(of(kernel, Operation::global_load).sectors, 8u);

  DeviceArray<__half> x1(32, __float2half(1.0f)), y1(32, __float2half(0.0f));
  kernel = count(read_strided<__half>, {.grid = 1, .block = 32}, x1, y1, 0, 1);
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 1u);
  EXPECT_EQ(of(kernel, Operation::global_load).bytes_asked, 64u);
  EXPECT_EQ(of(kernel, Operation::global_load).sectors, 2u);
}

// The normalization of stage 01: 32 threads, each of which walks its own row of 64 floats three times.
__global__ void thread_per_row(const float* x, float* y, int cols) {
  x += threadIdx.x * static_cast<unsigned>(cols);
  y += threadIdx.x * static_cast<unsigned>(cols);
  float sum = 0.0f;
  for (int col = 0; col < cols; ++col) sum += x[col];
  const float mean = sum / static_cast<float>(cols);
  float squares = 0.0f;
  for (int col = 0; col < cols; ++col) squares += (x[col] - mean) * (x[col] - mean);
  for (int col = 0; col < cols; ++col) y[col] = (x[col] - mean) * squares;
}

TEST_P(Counting, LoopsWithoutABarrierAreMadeRequestsOfIterationByIteration) {
  constexpr int cols = 64;
  DeviceArray<float> x(32 * cols, 1.0f), y(32 * cols);
  simt::name_memory(static_cast<float*>(x), 32 * cols * sizeof(float), "x");
  const KernelCounts kernel = count(thread_per_row, {.grid = 1, .block = 32}, x, y, cols);
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 3u * cols);
  EXPECT_EQ(of(kernel, Operation::global_load).sectors, 3u * cols * 32);
  EXPECT_EQ(of(kernel, Operation::global_store).sectors, 1u * cols * 32);
  EXPECT_EQ(kernel.dram_read_bytes, 32u * cols * 4);  // each sector once, however often it is asked for
  EXPECT_EQ(kernel.dram_write_bytes, 32u * cols * 4);
  ASSERT_EQ(kernel.memory.size(), 1u);
  EXPECT_EQ(kernel.memory[0].name, "x");
  EXPECT_EQ(kernel.memory[0].bytes_read, 3 * kernel.memory[0].bytes);
  EXPECT_EQ(kernel.most_loads_of_thread, 3u * cols);
}

__global__ void copy_up_to(const float* x, float* y, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) y[i] = x[i];
}

// Thread `busy` of each block reads all; the others wait for it.
__global__ void one_reads_for_all(const float* x, float* y, unsigned busy, int count) {
  __shared__ float sum;
  if (threadIdx.x == busy) {
    sum = 0.0f;
    for (int i = 0; i < count; ++i) sum += x[i];
  }
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum + x[threadIdx.x];
}

TEST_P(Counting, TheLoadsOfTheThreadThatHasMost) {
  DeviceArray<float> x(100, 1.0f), y(128);
  KernelCounts kernel = count(one_reads_for_all, {.grid = 2, .block = 64}, x, y, 40u, 100);
  EXPECT_EQ(kernel.most_loads_of_thread, 101u);  // of one block: another block's threads are others
  kernel = count(copy_up_to, {.grid = 2, .block = 64}, x, y, 100);
  EXPECT_EQ(kernel.most_loads_of_thread, 1u);  // of the launch before nothing is left
}

TEST_P(Counting, OnlyActiveLanesCount) {
  DeviceArray<float> x(100, 1.0f), y(100);
  const KernelCounts kernel = count(copy_up_to, {.grid = 2, .block = 64}, x, y, 100);
  const Counts& loads = of(kernel, Operation::global_load);
  EXPECT_EQ(loads.requests, 4u);  // three full warps, and one in which 4 lanes are left
  EXPECT_EQ(loads.lanes, 100u);
  EXPECT_EQ(loads.sectors, 3u * 4 + 1);
  EXPECT_EQ(of(kernel, Operation::global_store).sectors, 13u);
}

__global__ void read_back(float* x) {
  x[threadIdx.x] = 1.0f;
  __syncthreads();
  const float other = x[threadIdx.x ^ 1];
  __syncthreads();
  x[threadIdx.x] += other;
}

TEST_P(Counting, WhatTheKernelWroteItselfIsNotReadFromDram) {
  DeviceArray<float> x(64);
  const KernelCounts kernel = count(read_back, {.grid = 1, .block = 64}, x);
  EXPECT_EQ(kernel.dram_read_bytes, 0u);
  EXPECT_EQ(kernel.dram_write_bytes, 256u);
}

__global__ void add_all(float* sum, int* count) {
  atomicAdd(sum, 1.0f);
  atomicAdd(&count[threadIdx.x], 1);
}

TEST_P(Counting, AtomicsAreRequestsOfTheirOwn) {
  DeviceArray<float> sum(1);
  DeviceArray<int> counts(64);
  const KernelCounts kernel = count(add_all, {.grid = 4, .block = 64}, sum, counts);
  const Counts& atomics = of(kernel, Operation::global_atomic);
  EXPECT_EQ(atomics.requests, 2u * 4 * 2);              // two instructions in 4 blocks of 2 warps
  EXPECT_EQ(atomics.sectors, 1u * 4 * 2 + 4u * 4 * 2);  // one address; 32 ints
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 0u);
  EXPECT_EQ(sum.values()[0], 256.0f);
}

// --- Shared memory -------------------------------------------------------------------------------------------------

// A 32 x 32 tile is written by rows and read by columns. Without padding, a column is 32 words of one bank.
template <int pitch>
__global__ void transpose(const float* x, float* y) {
  __shared__ float tile[32][pitch];
  tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
  __syncthreads();
  y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

TEST_P(Counting, PaddingTakesTheConflictsOutOfATranspose) {
  DeviceArray<float> x(1024, 1.0f), y(1024);
  const KernelCounts plain = count(transpose<32>, {.grid = 1, .block = dim3(32, 32)}, x, y);
  EXPECT_EQ(of(plain, Operation::shared_store).wavefronts, 32u);
  EXPECT_EQ(of(plain, Operation::shared_load).requests, 32u);
  EXPECT_EQ(of(plain, Operation::shared_load).wavefronts, 32u * 32);
  EXPECT_EQ(of(plain, Operation::shared_load).conflicts, 32u * 31);
  const KernelCounts padded = count(transpose<33>, {.grid = 1, .block = dim3(32, 32)}, x, y);
  EXPECT_EQ(of(padded, Operation::shared_load).wavefronts, 32u);
  EXPECT_EQ(of(padded, Operation::shared_load).conflicts, 0u);
}

// 256 values are added in a tree. Neighbors first: in step s the threads use every 2s-th word.
__global__ void interleaved_tree(float* sum) {
  __shared__ float partial[256];
  const unsigned t = threadIdx.x;
  partial[t] = 1.0f;
  __syncthreads();
  for (unsigned s = 1; s < 256; s *= 2) {
    if (2 * s * t < 256) partial[2 * s * t] += partial[2 * s * t + s];
    __syncthreads();
  }
  if (t == 0) *sum = partial[0];
}

// Halves first: in step s the threads use s words in a row.
__global__ void sequential_tree(float* sum) {
  __shared__ float partial[256];
  const unsigned t = threadIdx.x;
  partial[t] = 1.0f;
  __syncthreads();
  for (unsigned s = 128; s > 0; s /= 2) {
    if (t < s) partial[t] += partial[t + s];
    __syncthreads();
  }
  if (t == 0) *sum = partial[0];
}

TEST_P(Counting, TheOrderOfATreeDecidesOverItsConflicts) {
  // 128, 64, ... 1 threads at work: 4 + 2 + 1 + 1 + 1 + 1 + 1 + 1 = 12 warps, each of which loads twice and stores
  // once. Interleaved, their words lie 2, 4, ... 256 apart, so that 2, 4, 8, 8, 8, 4, 2, 1 of a warp's fall into one
  // bank: 4*2 + 2*4 + 8 + 8 + 8 + 4 + 2 + 1 = 47 wavefronts. Before it 8 warps store, and after it one thread loads.
  DeviceArray<float> sum(1);
  const KernelCounts interleaved = count(interleaved_tree, {.grid = 1, .block = 256}, sum);
  EXPECT_EQ(sum.values()[0], 256.0f);
  EXPECT_EQ(of(interleaved, Operation::shared_load).requests, 2u * 12 + 1);
  EXPECT_EQ(of(interleaved, Operation::shared_load).wavefronts, 2u * 47 + 1);
  EXPECT_EQ(of(interleaved, Operation::shared_store).wavefronts, 8u + 47);
  EXPECT_EQ(of(interleaved, Operation::shared_store).conflicts, 35u);
  EXPECT_EQ(of(interleaved, Operation::barrier).requests, 9u);

  const KernelCounts sequential = count(sequential_tree, {.grid = 1, .block = 256}, sum);
  EXPECT_EQ(sum.values()[0], 256.0f);
  EXPECT_EQ(of(sequential, Operation::shared_load).requests, 2u * 12 + 1);
  EXPECT_EQ(of(sequential, Operation::shared_load).wavefronts, 2u * 12 + 1);
  EXPECT_EQ(of(sequential, Operation::shared_load).conflicts, 0u);
  EXPECT_EQ(of(sequential, Operation::shared_store).conflicts, 0u);
}

__global__ void read_shared_vectors(const float4* x, float4* y) {
  __shared__ float4 values[32];
  values[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = values[31 - threadIdx.x];
  y[threadIdx.x + 32] = values[0];
}

TEST_P(Counting, VectorsTakeAWavefrontForEach128Bytes) {
  DeviceArray<float4> x(32, float4{1, 2, 3, 4}), y(64);
  const KernelCounts kernel = count(read_shared_vectors, {.grid = 1, .block = 32}, x, y);
  EXPECT_EQ(of(kernel, Operation::shared_store).requests, 1u);
  EXPECT_EQ(of(kernel, Operation::shared_store).wavefronts, 4u);
  EXPECT_EQ(of(kernel, Operation::shared_store).conflicts, 0u);
  EXPECT_EQ(of(kernel, Operation::shared_load).requests, 2u);
  EXPECT_EQ(of(kernel, Operation::shared_load).wavefronts, 4u + 2u);  // the second is one value for all
  EXPECT_EQ(of(kernel, Operation::shared_load).conflicts, 0u);
}

// Lane i reads vector chosen[i] of 64, or nothing.
template <class V>
__global__ void read_chosen(const int* chosen, V* y) {
  __shared__ V values[64];
  values[threadIdx.x] = V{};
  values[threadIdx.x + 32] = V{};
  __syncwarp();
  const int own = chosen[threadIdx.x];
  if (own >= 0) y[threadIdx.x] = values[own];
}

// Two lanes that get the same take up the place of one, where all lanes of the warp pair so: neighbors, or each with
// the next but one. A pass hands out 128 bytes: 8 vectors of 16 bytes, or 16 of 8.
struct Chosen {
  const char* what;
  int (*vector)(int lane);
  unsigned of_16, conflicts_of_16, of_8, conflicts_of_8;  // wavefronts
};
const Chosen chosen_vectors[] = {
    {"each its own", [](int lane) { return lane; }, 4, 0, 2, 0},
    {"one for all", [](int) { return 7; }, 2, 0, 1, 0},
    {"neighbors the same", [](int lane) { return lane / 2; }, 2, 0, 1, 0},
    {"the next but one the same", [](int lane) { return lane / 4 * 2 + lane % 2; }, 2, 0, 1, 0},
    {"two in turn", [](int lane) { return lane % 2; }, 2, 0, 1, 0},
    {"four in turn: no such pairs", [](int lane) { return lane % 4; }, 4, 0, 2, 0},
    {"all but two lanes pair", [](int lane) { return lane < 2 ? lane : lane / 2; }, 4, 0, 2, 0},
    {"half of the lanes", [](int lane) { return lane % 2 == 0 ? lane / 2 : -1; }, 2, 0, 1, 0},
    // 128 bytes apart: one bank has two words. As pairs, in each of two groups, and not, in each of four.
    {"two in turn, one bank", [](int lane) { return lane % 2 * 8; }, 4, 2, 1, 0},
    {"four in turn, two to a bank", [](int lane) { return lane % 4 * 4; }, 8, 4, 2, 0},
};

TEST_P(Counting, LanesThatGetTheSameShareAWavefront) {
  for (const Chosen& c : chosen_vectors) {
    std::vector<int> own(32);
    for (int lane = 0; lane < 32; ++lane) own[lane] = c.vector(lane);
    DeviceArray<int> chosen(own);
    DeviceArray<float4> wide(32);
    const Counts by_16 = of(count(read_chosen<float4>, {.grid = 1, .block = 32}, chosen, wide), Operation::shared_load);
    EXPECT_EQ(by_16.requests, 1u) << c.what;
    EXPECT_EQ(by_16.wavefronts, c.of_16) << c.what;
    EXPECT_EQ(by_16.conflicts, c.conflicts_of_16) << c.what;
    DeviceArray<float2> narrow(32);
    const Counts by_8 =
        of(count(read_chosen<float2>, {.grid = 1, .block = 32}, chosen, narrow), Operation::shared_load);
    EXPECT_EQ(by_8.requests, 1u) << c.what;
    EXPECT_EQ(by_8.wavefronts, c.of_8) << c.what;
    EXPECT_EQ(by_8.conflicts, c.conflicts_of_8) << c.what;
  }
}

// --- Lanes and threads together ------------------------------------------------------------------------------------

__global__ void shuffle_and_vote(int* y) {
  int value = static_cast<int>(threadIdx.x);
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (__any_sync(0xffffffffu, value > 0)) y[blockIdx.x * blockDim.x + threadIdx.x] = value;
  __syncthreads();
}

TEST_P(Counting, ShufflesVotesAndBarriers) {
  DeviceArray<int> y(2 * 96);
  const KernelCounts kernel = count(shuffle_and_vote, {.grid = 2, .block = 96}, y);
  EXPECT_EQ(of(kernel, Operation::shuffle).requests, 5u * 3 * 2);
  EXPECT_EQ(of(kernel, Operation::shuffle).lanes, 32u * 5 * 3 * 2);
  EXPECT_EQ(of(kernel, Operation::vote).requests, 3u * 2);
  EXPECT_EQ(of(kernel, Operation::barrier).requests, 2u);
}

__global__ void copy_asynchronously(const float4* x, float4* y) {
  __shared__ float4 staged[64];
  __pipeline_memcpy_async(&staged[threadIdx.x], &x[threadIdx.x], sizeof(float4));
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  y[threadIdx.x] = staged[63 - threadIdx.x];
}

TEST_P(Counting, AsynchronousCopies) {
  DeviceArray<float4> x(64, float4{1, 2, 3, 4}), y(64);
  const KernelCounts kernel = count(copy_asynchronously, {.grid = 1, .block = 64}, x, y);
  EXPECT_EQ(of(kernel, Operation::global_load).requests, 0u);
  EXPECT_EQ(of(kernel, Operation::async_copy_load).requests, 2u);
  EXPECT_EQ(of(kernel, Operation::async_copy_load).sectors, 2u * 16);
  EXPECT_EQ(of(kernel, Operation::async_copy_store).requests, 2u);
  EXPECT_EQ(of(kernel, Operation::async_copy_store).wavefronts, 2u * 4);
  EXPECT_EQ(of(kernel, Operation::shared_load).requests, 2u);
}

__global__ void read_the_other_block(float* y) {
  __shared__ float value[32];
  const auto cluster = cooperative_groups::this_cluster();
  value[threadIdx.x] = static_cast<float>(cluster.block_rank());
  cluster.sync();
  const float* const other = cluster.map_shared_rank(value, static_cast<int>(cluster.block_rank() ^ 1));
  y[blockIdx.x * blockDim.x + threadIdx.x] = other[threadIdx.x];
  cluster.sync();
}

TEST_P(Counting, SharedMemoryOfAnotherBlock) {
  DeviceArray<float> y(8 * 32);
  const KernelCounts kernel = count(read_the_other_block, {.grid = 8, .block = 32, .cluster = 2}, y);
  EXPECT_EQ(y.values()[0], 1.0f);
  EXPECT_EQ(y.values()[32], 0.0f);
  EXPECT_EQ(of(kernel, Operation::shared_store).requests, 8u);
  EXPECT_EQ(of(kernel, Operation::shared_load).requests, 0u);
  EXPECT_EQ(of(kernel, Operation::remote_shared).requests, 8u);
  EXPECT_EQ(of(kernel, Operation::remote_shared).bytes_asked, 8u * 128);
  EXPECT_EQ(of(kernel, Operation::group_barrier).requests, 2u * 8);
}

// --- What the compiler does not tell of ----------------------------------------------------------------------------

[[gnu::noinline]] float4 four_times(float value) {
  return {value, value, value, value};
}
__global__ void store_what_a_call_returns(float4* y) {
  y[threadIdx.x] = four_times(static_cast<float>(threadIdx.x));
}

TEST_P(Counting, AStoreThatTheCompilerDidNotTellOfIsNoticed) {
  DeviceArray<float4> y(32);
  simt::forget_memory(static_cast<float4*>(y), 512);
  const KernelCounts kernel = count(store_what_a_call_returns, {.grid = 1, .block = 32}, y);
  EXPECT_EQ(y.values()[31].w, 31.0f);
  const uint64_t told = of(kernel, Operation::global_store).bytes_asked;
  EXPECT_EQ(simt::bytes_not_written(static_cast<float4*>(y), 512), 512 - told);
}

// --- Lines ---------------------------------------------------------------------------------------------------------

constexpr int line_of_load = __LINE__ + 2;
__global__ void load_then_store(const float* x, float* y) {
  const float value = x[threadIdx.x];
  y[blockIdx.x * 32 + threadIdx.x] = value;
}

TEST_P(Counting, EachLineByItself) {
  DeviceArray<float> x(32, 1.0f), y(3 * 32);
  const KernelCounts kernel = count(load_then_store, {.grid = 3, .block = 32}, x, y);
  ASSERT_EQ(kernel.lines.size(), 2u);
  EXPECT_EQ(kernel.lines[0].file, "common/tests/counting_test.cu");
  EXPECT_EQ(kernel.lines[0].line, line_of_load);
  EXPECT_EQ(kernel.lines[0].counts[static_cast<size_t>(Operation::global_load)].requests, 3u);
  EXPECT_EQ(kernel.lines[1].line, line_of_load + 1);
  EXPECT_EQ(kernel.lines[1].counts[static_cast<size_t>(Operation::global_store)].requests, 3u);
}

}  // namespace
}  // namespace worklog::test

// Bugs, planted: each is found, with the right lines, in every order of the threads. And their right counterparts, in
// which nothing may be found.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <simt/counts.h>

#include <fmt/format.h>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

using simt::Finding;
using simt::FindingKind;

constexpr unsigned all_lanes = 0xffffffffu;

class Findings : public SimtOrderTest {
 protected:
  template <class... Parameters, class... Arguments>
  std::vector<Finding> find(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
    simt::start_counting();
    launch(kernel, shape, arguments...);
    return simt::take_counts().at(0).findings;
  }
  // One of these must be of this kind, with one side at `line` and the other at `other_line`, in either order.
  static void expect(const std::vector<Finding>& findings, FindingKind kind, int line, int other_line = 0) {
    std::string all;
    for (const Finding& finding : findings) {
      const bool same = finding.line == line && finding.other_line == other_line;
      const bool swapped = finding.line == other_line && finding.other_line == line;
      if (finding.kind == kind && (same || swapped)) {
        EXPECT_EQ(finding.file, "common/tests/counting_findings_test.cu");
        EXPECT_NE(finding.text.find(fmt::format("counting_findings_test.cu:{}", finding.line)), std::string::npos)
            << finding.text;
        EXPECT_NE(finding.text.find("block (0, 0, 0), thread ("), std::string::npos) << finding.text;
        return;
      }
      all += "\n" + finding.text;
    }
    ADD_FAILURE() << "no " << name_of(kind) << " at lines " << line << " and " << other_line << " in:" << all;
  }
  static void expect_none(const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) ADD_FAILURE() << finding.text;
  }
};
INSTANTIATE_FOR_EVERY_ORDER(Findings);

// --- Races in shared memory ----------------------------------------------------------------------------------------

constexpr int line_of_tree = __LINE__ + 8;
template <bool is_right>
__global__ void tree(float* sum) {
  __shared__ float partial[128];
  const unsigned t = threadIdx.x;
  partial[t] = 1.0f;
  __syncthreads();
  for (unsigned s = 64; s > 0; s /= 2) {
    const float other = t < s ? partial[t + s] : 0.0f;
    if (t < s) partial[t] += other;
    if (is_right) __syncthreads();
  }
  if (t == 0) *sum = partial[0];
}

TEST_P(Findings, AMissingBarrierInATree) {
  DeviceArray<float> sum(1);
  expect(find(tree<false>, {.grid = 1, .block = 128}, sum), FindingKind::shared_race, line_of_tree, line_of_tree + 1);
  expect_none(find(tree<true>, {.grid = 1, .block = 128}, sum));
}

constexpr int line_of_pass = __LINE__ + 4;
template <bool is_right>
__global__ void pass_to_the_left(float* y) {
  __shared__ float values[32];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (is_right) __syncwarp();
  y[threadIdx.x] = values[(threadIdx.x + 1) % 32];
}

TEST_P(Findings, AMissingSyncwarp) {
  DeviceArray<float> y(32);
  const std::vector<Finding> findings = find(pass_to_the_left<false>, {.grid = 1, .block = 32}, y);
  expect(findings, FindingKind::shared_race, line_of_pass, line_of_pass + 2);
  expect_none(find(pass_to_the_left<true>, {.grid = 1, .block = 32}, y));
}

// A shuffle lets the lanes meet, but what they wrote to memory before need not be there after it.
constexpr int line_of_shuffle = __LINE__ + 4;
__global__ void shuffle_in_place_of_syncwarp(float* y) {
  __shared__ float values[32];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  const int next = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x + 1));
  y[threadIdx.x] = values[next];
}

TEST_P(Findings, AShuffleIsNoBarrierForMemory) {
  DeviceArray<float> y(32);
  expect(find(shuffle_in_place_of_syncwarp, {.grid = 1, .block = 32}, y), FindingKind::shared_race, line_of_shuffle - 1,
         line_of_shuffle + 1);
}

// Halves of a warp, each with a __syncwarp of its own: that orders nothing between them.
constexpr int line_of_halves = __LINE__ + 5;
template <unsigned distance>
__global__ void halves(float* y) {
  __shared__ float values[32];
  const unsigned half = threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u;
  values[threadIdx.x] = 1.0f;
  __syncwarp(half);
  y[threadIdx.x] = values[threadIdx.x ^ distance];
}

TEST_P(Findings, ASyncwarpOrdersTheLanesOfItsMask) {
  DeviceArray<float> y(32);
  expect_none(find(halves<1>, {.grid = 1, .block = 32}, y));
  expect(find(halves<16>, {.grid = 1, .block = 32}, y), FindingKind::shared_race, line_of_halves, line_of_halves + 2);
}

// The second sum overwrites what some have not read yet of the first.
constexpr int line_of_reuse = __LINE__ + 5;
template <bool is_right>
__global__ void reuse(float* y) {
  __shared__ float value;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) value = static_cast<float>(i);
    __syncthreads();
    y[threadIdx.x] += value;
    if (is_right) __syncthreads();
  }
}

TEST_P(Findings, ABarrierIsMissingBeforeTheNextRound) {
  DeviceArray<float> y(64);
  expect(find(reuse<false>, {.grid = 1, .block = 64}, y), FindingKind::shared_race, line_of_reuse, line_of_reuse + 2);
  expect_none(find(reuse<true>, {.grid = 1, .block = 64}, y));
}

__global__ void histogram(int* y) {
  __shared__ int bins[4];
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[threadIdx.x % 4], 1);
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = bins[threadIdx.x];
}

TEST_P(Findings, AtomicsDoNotRaceWithEachOther) {
  DeviceArray<int> y(4);
  expect_none(find(histogram, {.grid = 1, .block = 128}, y));
  EXPECT_EQ(y.values()[3], 32);
}

constexpr int line_of_cluster = __LINE__ + 5;
template <bool is_right>
__global__ void exchange_in_cluster(float* y) {
  __shared__ float value[32];
  const auto cluster = cooperative_groups::this_cluster();
  value[threadIdx.x] = 1.0f;
  cluster.sync();
  const float other = cluster.map_shared_rank(value, static_cast<int>(cluster.block_rank() ^ 1))[threadIdx.x];
  if (is_right) cluster.sync();
  value[threadIdx.x] = 2.0f;
  cluster.sync();
  y[blockIdx.x * 32 + threadIdx.x] = other + value[threadIdx.x];
}

TEST_P(Findings, BlocksOfAClusterRaceToo) {
  DeviceArray<float> y(2 * 32), wide(8 * 32);
  const std::vector<Finding> findings = find(exchange_in_cluster<false>, {.grid = 2, .block = 32, .cluster = 2}, y);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].kind, FindingKind::shared_race);
  EXPECT_EQ(std::min(findings[0].line, findings[0].other_line), line_of_cluster + 2);
  EXPECT_EQ(std::max(findings[0].line, findings[0].other_line), line_of_cluster + 4);
  // Which of the two is told of comes from which was later.
  const bool names_other = findings[0].text.find(" of block (1, 0, 0)") != std::string::npos ||
                           findings[0].text.find(" of block (0, 0, 0)") != std::string::npos;
  EXPECT_TRUE(names_other) << findings[0].text;
  expect_none(find(exchange_in_cluster<true>, {.grid = 8, .block = 32, .cluster = 2}, wide));
}

// --- Global memory -------------------------------------------------------------------------------------------------

constexpr int line_of_two_blocks = __LINE__ + 2;
__global__ void write_one_too_many(float* y, int each) {
  for (int i = static_cast<int>(threadIdx.x); i <= each; i += 32) y[static_cast<int>(blockIdx.x) * each + i] = 1.0f;
}

TEST_P(Findings, TwoBlocksWriteOneElement) {
  DeviceArray<float> y(65);
  const std::vector<Finding> findings = find(write_one_too_many, {.grid = 2, .block = 32}, y, 32);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, FindingKind::global_write_race);
  EXPECT_EQ(findings[0].line, line_of_two_blocks);
  EXPECT_EQ(findings[0].other_line, line_of_two_blocks);
  EXPECT_EQ(findings[0].count, 1u);
}

__global__ void add_under_a_lock(int* lock, float* sum) {
  if (threadIdx.x != 0) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  *sum += 1.0f;
  __threadfence();
  atomicExch(lock, 0);
}

TEST_P(Findings, ALockOrdersTheBlocks) {
  DeviceArray<int> lock(1);
  DeviceArray<float> sum(1);
  expect_none(find(add_under_a_lock, {.grid = 16, .block = 32}, lock, sum));
  EXPECT_EQ(sum.values()[0], 16.0f);
}

constexpr int line_of_off_by_one = __LINE__ + 3;
__global__ void difference(const float* x, float* y, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) y[i] = x[i + 1] - x[i];
}

TEST_P(Findings, AReadPastTheEnd) {
  DeviceArray<float> x(33, 1.0f), y(33);
  simt::name_memory(static_cast<float*>(x), 33 * sizeof(float), "x");
  const std::vector<Finding> findings = find(difference, {.grid = 1, .block = 64}, x, y, 33);
  expect(findings, FindingKind::out_of_bounds, line_of_off_by_one);
  EXPECT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].count, 1u);
  EXPECT_NE(findings[0].text.find("thread (32, 0, 0)"), std::string::npos) << findings[0].text;
  EXPECT_NE(findings[0].text.find("reads 4 bytes 0 bytes past the end of x"), std::string::npos) << findings[0].text;
  expect_none(find(difference, {.grid = 1, .block = 64}, x, y, 32));
}

TEST_P(Findings, AGuardZoneMayNotBeTouched) {
  DeviceArray<float> x(64, 1.0f), y(64);
  expect_none(find(difference, {.grid = 1, .block = 64}, x, y, 33));
  simt::forbid_memory(static_cast<float*>(x) + 33, 4);
  expect(find(difference, {.grid = 1, .block = 64}, x, y, 33), FindingKind::out_of_bounds, line_of_off_by_one);
}

TEST_P(Findings, GlobalMemoryThatNobodyHasWritten) {
  float* fresh = nullptr;
  ASSERT_EQ(cudaMalloc(&fresh, 64 * sizeof(float)), cudaSuccess);
  DeviceArray<float> y(64);
  expect(find(difference, {.grid = 1, .block = 64}, fresh, y, 63), FindingKind::uninitialized_read, line_of_off_by_one);
  ASSERT_EQ(cudaMemset(fresh, 0, 64 * sizeof(float)), cudaSuccess);
  expect_none(find(difference, {.grid = 1, .block = 64}, fresh, y, 63));
  cudaFree(fresh);
}

constexpr int line_of_misaligned = __LINE__ + 2;
__global__ void read_pair(const float* x, float* y) {
  const float2 pair = *reinterpret_cast<const float2*>(x + threadIdx.x * 2 + 1);
  y[threadIdx.x] = pair.x + pair.y;
}

TEST_P(Findings, AMisalignedVector) {
  DeviceArray<float> x(65, 1.0f), y(32);
  expect(find(read_pair, {.grid = 1, .block = 32}, x, y), FindingKind::misaligned, line_of_misaligned);
}

// --- Shared memory that nobody has written -------------------------------------------------------------------------

// The last warp has no sum of its own to leave here when the block has fewer warps than the array has words.
constexpr int line_of_scratch = __LINE__ + 6;
__global__ void read_every_word(float* y, int words) {
  __shared__ float scratch[32];
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = 1.0f;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  y[blockIdx.x * blockDim.x + threadIdx.x] = lane < words ? scratch[lane] : 0.0f;
}

TEST_P(Findings, AnUninitializedWordOfAStaticArray) {
  DeviceArray<float> y(4 * 128);
  const std::vector<Finding> findings = find(read_every_word, {.grid = 4, .block = 128}, y, 5);
  expect(findings, FindingKind::uninitialized_read, line_of_scratch);
  expect_none(find(read_every_word, {.grid = 4, .block = 128}, y, 4));
}

constexpr int line_of_dynamic = __LINE__ + 4;
__global__ void read_dynamic(float* y) {
  float* const values = dynamic_shared<float>();
  if (threadIdx.x != 7) values[threadIdx.x] = 1.0f;
  y[threadIdx.x] = values[threadIdx.x];
}

TEST_P(Findings, AnUninitializedWordOfDynamicSharedMemory) {
  DeviceArray<float> y(32);
  const std::vector<Finding> findings = find(read_dynamic, {.grid = 1, .block = 32, .shared_bytes = 128}, y);
  ASSERT_EQ(findings.size(), 1u);
  expect(findings, FindingKind::uninitialized_read, line_of_dynamic);
  EXPECT_NE(findings[0].text.find("thread (7, 0, 0)"), std::string::npos) << findings[0].text;
}

constexpr int line_of_early = __LINE__ + 7;
template <bool is_right>
__global__ void read_copy(const float* x, float* y) {
  __shared__ float staged[32];
  __pipeline_memcpy_async(&staged[threadIdx.x], &x[threadIdx.x], sizeof(float));
  __pipeline_commit();
  if (is_right) __pipeline_wait_prior(0);
  y[threadIdx.x] = staged[threadIdx.x];
  __pipeline_wait_prior(0);
}

TEST_P(Findings, AnAsynchronousCopyThatNobodyWaitedFor) {
  DeviceArray<float> x(32, 1.0f), y(32);
  expect(find(read_copy<false>, {.grid = 1, .block = 32}, x, y), FindingKind::uninitialized_read, line_of_early);
  expect_none(find(read_copy<true>, {.grid = 1, .block = 32}, x, y));
}

}  // namespace
}  // namespace worklog::test

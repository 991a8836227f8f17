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

// Within a block, as in shared memory: a barrier, or in a warp a __syncwarp, must lie between.
enum class Between { nothing, barrier, syncwarp };
template <Between between>
__device__ void pass() {
  if (between == Between::barrier) __syncthreads();
  if (between == Between::syncwarp) __syncwarp();
}

constexpr int line_of_neighbor = __LINE__ + 4;
template <Between between>
__global__ void read_the_neighbor(float* x, float* y) {
  const unsigned t = threadIdx.x;
  x[t] = static_cast<float>(t);
  pass<between>();
  y[t] = x[(t + 1) % blockDim.x];
}

TEST_P(Findings, ThreadsOfABlockRaceInGlobalMemory) {
  DeviceArray<float> x(64), y(64);
  simt::name_memory(static_cast<float*>(x), 64 * sizeof(float), "x");
  const std::vector<Finding> findings = find(read_the_neighbor<Between::nothing>, {.grid = 1, .block = 64}, x, y);
  expect(findings, FindingKind::global_race, line_of_neighbor, line_of_neighbor + 2);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.kind, FindingKind::global_race);
    EXPECT_NE(finding.text.find("x[byte "), std::string::npos) << finding.text;
    EXPECT_NE(finding.text.find(", and no barrier orders the two"), std::string::npos) << finding.text;
  }
  expect_none(find(read_the_neighbor<Between::barrier>, {.grid = 1, .block = 64}, x, y));
  expect(find(read_the_neighbor<Between::syncwarp>, {.grid = 1, .block = 64}, x, y), FindingKind::global_race,
         line_of_neighbor, line_of_neighbor + 2);
  expect_none(find(read_the_neighbor<Between::syncwarp>, {.grid = 1, .block = 32}, x, y));
}

constexpr int line_of_one_place = __LINE__ + 2;
__global__ void all_write_one_place(int* y) {
  *y = static_cast<int>(threadIdx.x);
}
TEST_P(Findings, ThreadsOfABlockWriteOnePlace) {
  DeviceArray<int> y(1);
  expect(find(all_write_one_place, {.grid = 1, .block = 64}, y), FindingKind::global_race, line_of_one_place,
         line_of_one_place);
}

// Halves of a word: neighbors in memory, and nobody's race.
__global__ void write_halves(unsigned short* x, unsigned char* bytes) {
  x[threadIdx.x] = 1;
  bytes[threadIdx.x] = static_cast<unsigned char>(x[threadIdx.x]);
}
TEST_P(Findings, NeighborsInAWordDoNotRace) {
  DeviceArray<unsigned short> x(64);
  DeviceArray<unsigned char> bytes(64);
  expect_none(find(write_halves, {.grid = 1, .block = 64}, x, bytes));
}

constexpr int line_of_zeroing = __LINE__ + 3;
template <bool is_right>
__global__ void zero_and_add(int* sum) {
  if (threadIdx.x == 0) *sum = 0;
  if (is_right) __syncthreads();
  atomicAdd(sum, 1);
}
TEST_P(Findings, AnAtomicRacesWithAPlainWrite) {
  DeviceArray<int> sum(1);
  expect(find(zero_and_add<false>, {.grid = 1, .block = 64}, sum), FindingKind::global_race, line_of_zeroing,
         line_of_zeroing + 2);
  expect_none(find(zero_and_add<true>, {.grid = 1, .block = 64}, sum));
}

// A compare-and-swap, as the CUDA C++ Programming Guide has it: it begins with a plain read.
__global__ void maximum(unsigned long long* greatest) {
  unsigned long long old = *greatest, seen;
  do {
    seen = old;
    old = atomicCAS(greatest, seen, seen > threadIdx.x ? seen : threadIdx.x);
  } while (old != seen);
}
TEST_P(Findings, ACompareAndSwapMayBeginWithAPlainRead) {
  DeviceArray<unsigned long long> greatest(1);
  expect_none(find(maximum, {.grid = 1, .block = 64}, greatest));
  EXPECT_EQ(greatest.values()[0], 63u);
}

// Data behind a fence and a flag: the flag an atomic, or volatile and polled.
template <bool is_atomic>
__global__ void hand_over(float* data, int* flag, float* y) {
  volatile int* const polled = flag;
  if (threadIdx.x == 40) {
    *data = 5.0f;
    __threadfence();
    is_atomic ? static_cast<void>(atomicExch(flag, 1)) : static_cast<void>(*polled = 1);
  }
  if (threadIdx.x == 3) {
    if (is_atomic) {
      while (atomicAdd(flag, 0) == 0) {
      }
    } else {
      while (*polled == 0) __nanosleep(100);
    }
    __threadfence();
    *y = *data;
  }
}
TEST_P(Findings, AFlagBehindAFenceOrdersABlocksThreads) {
  for (const bool is_atomic : {true, false}) {
    DeviceArray<float> data(1), y(1);
    DeviceArray<int> flag(1);
    expect_none(find(is_atomic ? hand_over<true> : hand_over<false>, {.grid = 1, .block = 64}, data, flag, y));
    EXPECT_EQ(y.values()[0], 5.0f);
  }
}

// The last thread to arrive adds up what the others left.
__global__ void last_one_adds(float* parts, unsigned* arrived, float* sum) {
  parts[threadIdx.x] = 1.0f;
  __threadfence_block();
  if (atomicInc(arrived, blockDim.x - 1) != blockDim.x - 1) return;
  for (unsigned i = 0; i < blockDim.x; ++i) *sum += parts[i];
}
TEST_P(Findings, TheLastToArriveMayReadWhatTheOthersWrote) {
  DeviceArray<float> parts(64), sum(1);
  DeviceArray<unsigned> arrived(1);
  expect_none(find(last_one_adds, {.grid = 1, .block = 64}, parts, arrived, sum));
  EXPECT_EQ(sum.values()[0], 64.0f);
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

// What lies behind a static array is told of where it belongs to no variable: here the bytes up to the next word.
constexpr int line_of_byte = __LINE__ + 4;
__global__ void write_bytes(unsigned char* y, int count) {
  __shared__ unsigned char bytes[5];
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) bytes[i] = 1;
  if (i < 5) y[i] = bytes[i];
}

TEST_P(Findings, AWritePastAStaticArray) {
  DeviceArray<unsigned char> y(5);
  expect_none(find(write_bytes, {.grid = 1, .block = 32}, y, 5));
  const std::vector<Finding> findings = find(write_bytes, {.grid = 1, .block = 32}, y, 6);
  expect(findings, FindingKind::out_of_bounds, line_of_byte);
  EXPECT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].text.find("thread (5, 0, 0)"), std::string::npos) << findings[0].text;
  EXPECT_NE(findings[0].text.find("writes 1 bytes at byte 5 of 'bytes' in shared memory, which has 5"),
            std::string::npos)
      << findings[0].text;
}

constexpr int line_past_dynamic = __LINE__ + 3;
__global__ void write_dynamic(float* y, int count) {
  float* const values = dynamic_shared<float>();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) values[i] = 1.0f;
  y[threadIdx.x] = values[threadIdx.x];
}

TEST_P(Findings, AnAccessPastTheDynamicSharedMemory) {
  DeviceArray<float> y(32);
  expect_none(find(write_dynamic, {.grid = 1, .block = 32, .shared_bytes = 256}, y, 64));
  simt::start_counting();
  EXPECT_THROW(launch(write_dynamic, {.grid = 1, .block = 32, .shared_bytes = 256}, y, 65), CudaError);
  const std::vector<Finding> findings = simt::take_counts().at(0).findings;
  expect(findings, FindingKind::out_of_bounds, line_past_dynamic);
  EXPECT_NE(findings[0].text.find("writes 4 bytes at byte 256 of the dynamic shared memory, which has 256"),
            std::string::npos)
      << findings[0].text;
}

// The array of another kernel may lie right behind; that it is another's is known once that kernel has run.
__global__ void tell_place(float** place) {
  __shared__ float theirs[4];
  theirs[threadIdx.x] = 0.0f;
  *place = &theirs[0];
}
constexpr int line_of_theirs = __LINE__ + 4;
__global__ void write_at(float* const* place) {
  __shared__ float ours[4];
  ours[threadIdx.x] = 1.0f;
  if (threadIdx.x == 2) **place = ours[2];
}

TEST_P(Findings, TheArrayOfAnotherKernel) {
  simt::Options options = simt::options();
  options.threads = 1;
  simt::set_options(options);
  DeviceArray<float*> place(1);
  expect_none(find(tell_place, {.grid = 1, .block = 1}, place));
  const std::vector<Finding> findings = find(write_at, {.grid = 1, .block = 4}, place);
  expect(findings, FindingKind::out_of_bounds, line_of_theirs);
  EXPECT_EQ(findings.size(), 1u);
}

constexpr int line_of_index = __LINE__ + 2;
__global__ void write_index(unsigned x) {
  const_cast<unsigned&>(threadIdx.x) = x;
}

TEST_P(Findings, AWriteOverThreadIdx) {
  expect(find(write_index, {.grid = 1, .block = 1}, 0u), FindingKind::out_of_bounds, line_of_index);
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

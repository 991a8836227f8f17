// Every error of the CPU layer: that it ends soon, and that its message says what, who and where.
#undef NDEBUG  // assert() is one of the errors
#include <algorithm>
#include <cassert>
#include <chrono>
#include <stdexcept>

#include <cooperative_groups.h>
#include <fmt/format.h>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

constexpr unsigned all_lanes = 0xffffffffu;

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

class SimtErrors : public SimtTest {
 protected:
  // Launches a kernel that must fail: with this error, in well under a second, with these words in its message.
  template <class... Parameters, class... Arguments>
  std::string expect_failure(cudaError_t error, const std::vector<std::string>& words, void (*kernel)(Parameters...),
                             const LaunchShape& shape, Arguments... arguments) {
    // A second is a long time, but a busy machine may take it: the best of three counts.
    double seconds = 1e9;
    for (int attempt = 0; attempt < 3 && seconds >= 0.9; ++attempt) {
      simt::clear_error();
      const auto start = std::chrono::steady_clock::now();
      try {
        launch(kernel, shape, arguments...);
        ADD_FAILURE() << "the launch succeeded";
      } catch (const CudaError& failure) {
        EXPECT_EQ(failure.code, error) << failure.what();
      }
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    EXPECT_LT(seconds, 0.9);
    const std::string message = simt::last_error_message();
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is missing in:\n" << message;
    }
    EXPECT_EQ(cudaGetLastError(), error) << "a kernel's failure is sticky";
    EXPECT_EQ(cudaDeviceSynchronize(), error);
    simt::clear_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    // The device still works.
    DeviceArray<int> alive(1);
    launch(
        +[](int* out) { atomicAdd(out, 1); }, {.grid = 3, .block = 64}, alive);
    EXPECT_EQ(alive.values()[0], 3 * 64);
    return message;
  }

  static std::string here(int line) { return fmt::format("simt_errors_test.cu:{}", line); }
};

constexpr int line_of_divergent_barrier = __LINE__ + 3;
__global__ void barrier_against_syncwarp() {
  if (threadIdx.x < 48) {
    __syncthreads();
  } else {
    __syncwarp();  // waits for the first half of this warp, which waits for this half
  }
}

TEST_F(SimtErrors, BarrierThatSomeSkipWhileOthersWait) {
  expect_failure(
      cudaErrorLaunchTimeout,
      {"deadlock", "barrier_against_syncwarp", "block (0, 0, 0)", "thread (0, 0, 0)", here(line_of_divergent_barrier),
       "48 of 64 threads", "__syncthreads()", "16 of 64 threads", "the first of them (48, 0, 0)",
       "__syncwarp() with mask 0xffffffff", here(line_of_divergent_barrier + 2)},
      barrier_against_syncwarp, {.grid = 1, .block = 64});
}

constexpr int line_of_first_barrier = __LINE__ + 4;
__global__ void two_barriers() {
  if (blockIdx.x == 0) return;
  if (threadIdx.x % 64 < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(SimtErrors, DifferentBarriersMeet) {
  expect_failure(cudaErrorLaunchFailure,
                 {"two_barriers", "block (1, 0, 0)", "thread (32, 0, 0)", here(line_of_first_barrier),
                  here(line_of_first_barrier + 2), "meets another barrier", "32 of the block's threads"},
                 two_barriers, {.grid = 2, .block = 64});
}

constexpr int line_of_shuffle_with_returned = __LINE__ + 3;
__global__ void shuffle_with_returned(float* out) {
  if (threadIdx.x % 32 >= 30) return;
  out[threadIdx.x] = __shfl_down_sync(all_lanes, 1.0f, 1);
}

TEST_F(SimtErrors, ShuffleNamesALaneThatHasReturned) {
  DeviceArray<float> out(64);
  for (const auto order : {simt::Order::forward, simt::Order::reverse, simt::Order::shuffle}) {
    simt::Options options = simt::options();
    options.order = order;
    simt::set_options(options);
    expect_failure(cudaErrorLaunchFailure,
                   {"shuffle_with_returned", "block (0, 0, 0)", "__shfl_down_sync()", "0xffffffff", "returned",
                    here(line_of_shuffle_with_returned)},
                   shuffle_with_returned, {.grid = 1, .block = 64}, static_cast<float*>(out));
  }
}

constexpr int line_of_syncwarp = __LINE__ + 2;
__global__ void syncwarp_in_a_short_warp() {
  __syncwarp();
}

TEST_F(SimtErrors, SyncwarpNamesALaneThatDoesNotExist) {
  expect_failure(cudaErrorLaunchFailure,
                 {"syncwarp_in_a_short_warp", "thread (32, 0, 0)", here(line_of_syncwarp), "__syncwarp()", "lanes 8-31",
                  "the block of 40 threads does not have"},
                 syncwarp_in_a_short_warp, {.grid = 1, .block = 40});
}

constexpr int line_of_foreign_mask = __LINE__ + 2;
__global__ void mask_without_caller() {
  __ballot_sync(0xfffffffdu, 1);
}

TEST_F(SimtErrors, MaskLacksTheCaller) {
  expect_failure(cudaErrorLaunchFailure,
                 {"mask_without_caller", "thread (1, 0, 0)", here(line_of_foreign_mask), "__ballot_sync()", "lane 1",
                  "0xfffffffd", "does not name"},
                 mask_without_caller, {.grid = 1, .block = 32});
}

constexpr int line_of_masks = __LINE__ + 3;
__global__ void masks_differ() {
  if (threadIdx.x < 16) {
    __syncwarp(0xffffffffu);
  } else {
    __syncwarp(0xfffffffeu);
  }
}

TEST_F(SimtErrors, MasksThatDiffer) {
  expect_failure(cudaErrorLaunchFailure,
                 {"masks_differ", here(line_of_masks), here(line_of_masks + 2), "meets", "0xffffffff", "0xfffffffe"},
                 masks_differ, {.grid = 1, .block = 32});
}

constexpr int line_of_never_arrives = __LINE__ + 3;
__global__ void lane_never_arrives() {
  if (threadIdx.x != 7) {
    __shfl_xor_sync(all_lanes, 1, 1);
  }
  __syncthreads();
}

TEST_F(SimtErrors, LaneThatNeverArrives) {
  expect_failure(cudaErrorLaunchTimeout,
                 {"deadlock", "lane_never_arrives", here(line_of_never_arrives), "31 of 32 threads",
                  "__shfl_xor_sync() with mask 0xffffffff", "1 of 32 threads, the first of them (7, 0, 0)",
                  here(line_of_never_arrives + 2)},
                 lane_never_arrives, {.grid = 1, .block = 32});
}

__global__ void do_nothing() {}

TEST_F(SimtErrors, RefusedLaunches) {
  const auto refused = [](cudaError_t error, const LaunchShape& shape, const std::vector<std::string>& words) {
    try {
      launch(do_nothing, shape);
      ADD_FAILURE() << "the launch succeeded";
    } catch (const CudaError& failure) {
      EXPECT_EQ(failure.code, error) << failure.what();
    }
    const std::string message = simt::last_error_message();
    EXPECT_NE(message.find("do_nothing"), std::string::npos) << message;
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a refused launch leaves no sticky error";
  };
  refused(cudaErrorInvalidConfiguration, {.grid = 1, .block = 1025}, {"(1025, 1, 1)", "1024"});
  refused(cudaErrorInvalidConfiguration, {.grid = 1, .block = dim3(32, 33)}, {"(32, 33, 1)"});
  refused(cudaErrorInvalidConfiguration, {.grid = 1, .block = dim3(1, 1, 65)}, {"(1, 1, 65)"});
  refused(cudaErrorInvalidConfiguration, {.grid = 1, .block = 0}, {"empty"});
  refused(cudaErrorInvalidConfiguration, {.grid = 0, .block = 32}, {"empty"});
  refused(cudaErrorInvalidConfiguration, {.grid = dim3(1, 65536), .block = 32}, {"65536"});
  refused(cudaErrorInvalidValue, {.grid = 1, .block = 32, .shared_bytes = 227 * 1024 + 1}, {});
  refused(cudaErrorInvalidClusterSize, {.grid = 6, .block = 32, .cluster = 4}, {"(4, 1, 1)", "(6, 1, 1)"});
  refused(cudaErrorInvalidClusterSize, {.grid = 32, .block = 32, .cluster = 16}, {"at most 8"});
}

TEST_F(SimtErrors, DynamicSharedMemoryPast48KBNeedsAsking) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 48 * 1024 + 4;
  // A kernel that nobody else here asks for.
  void (*const kernel)(int*) = +[](int* out) { *out = 1; };
  DeviceArray<int> out(1);
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, static_cast<int*>(out)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, static_cast<int*>(out)), cudaSuccess);
}

constexpr int line_of_wild_write = __LINE__ + 2;
__global__ void write_past_the_end(float* x, int count) {
  x[threadIdx.x + blockIdx.x * blockDim.x + 1] = static_cast<float>(count);
}

TEST_F(SimtErrors, WritePastTheEndOfAnAllocation) {
  DeviceArray<float> x(1024);
  expect_failure(cudaErrorIllegalAddress,
                 {"write_past_the_end", "block (3, 0, 0)", "thread (255, 0, 0)", here(line_of_wild_write),
                  "0 bytes past the end of an allocation of 4096 bytes"},
                 write_past_the_end, {.grid = 4, .block = 256}, static_cast<float*>(x), 1024);
}

TEST_F(SimtErrors, WriteBetweenTheEndAndTheNextPage) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  DeviceArray<float> x(1023);
  expect_failure(cudaErrorIllegalAddress,
                 {"write_past_the_end", "wrote 0 bytes past the end of an allocation of 4092 bytes"},
                 write_past_the_end, {.grid = 1, .block = 1023}, static_cast<float*>(x), 1023);
}

__global__ void write_after_shared() {
  dynamic_shared<float>()[threadIdx.x + 1] = 1.0f;
}

TEST_F(SimtErrors, WritePastDynamicSharedMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  expect_failure(cudaErrorIllegalAddress,
                 {"write_after_shared", "block (0, 0, 0)", "past the end of the 128 bytes of dynamic shared memory"},
                 write_after_shared, {.grid = 1, .block = 32, .shared_bytes = 128});
}

// Three of one kernel, so that at least one lies between the others.
template <int which>
__global__ void write_past_static_shared(int index) {
  __shared__ float partial[32];
  partial[static_cast<int>(threadIdx.x) + index] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) partial[1] += partial[0];
}

// How many of the three end with a message of these words.
int found_past_static_shared(int index, const std::string& words) {
  int found = 0;
  for (void (*const kernel)(int) :
       {write_past_static_shared<0>, write_past_static_shared<1>, write_past_static_shared<2>}) {
    try {
      launch(kernel, {.grid = 2, .block = 32}, index);
    } catch (const CudaError&) {
      const std::string message = simt::last_error_message();
      EXPECT_NE(message.find("write_past_static_shared"), std::string::npos) << message;
      EXPECT_NE(message.find(words), std::string::npos) << message;
      ++found;
    }
    simt::clear_error();
  }
  return found;
}

TEST_F(SimtErrors, WritePastStaticSharedMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  EXPECT_EQ(found_past_static_shared(0, "none of these is wrong"), 0);
  EXPECT_GE(found_past_static_shared(1, "wrote 0 bytes past the end of the 128 bytes of 'partial'"), 1);
  EXPECT_GE(found_past_static_shared(9, "past the end of the 128 bytes of 'partial'"), 1);
  EXPECT_EQ(found_past_static_shared(0, "what was found has been mended"), 0);
}

constexpr int line_of_far_write = __LINE__ + 3;
__global__ void write_far_past_shared(int index) {
  __shared__ float row[32];
  row[static_cast<int>(threadIdx.x) + index] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) row[1] += row[0];
}

// From where this program's static variables end to where the next thread's might begin.
TEST_F(SimtErrors, WriteFarPastStaticSharedMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  for (const int kilobytes : {32, 64, 200, 1000, 4000}) {
    expect_failure(cudaErrorIllegalAddress,
                   {"write_far_past_shared", "block (0, 0, 0)", here(line_of_far_write),
                    "past the end of the 128 bytes of 'row' in shared memory"},
                   write_far_past_shared, {.grid = 1, .block = 32}, kilobytes * 256);
  }
}

constexpr int line_of_dynamic_write = __LINE__ + 2;
__global__ void write_dynamic_shared(int index) {
  dynamic_shared<float>()[static_cast<int>(threadIdx.x) + index] = 1.0f;
}

TEST_F(SimtErrors, WriteFarOutsideOfDynamicSharedMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  const auto expect = [&](size_t shared_bytes, int index, const char* words) {
    expect_failure(cudaErrorIllegalAddress, {"write_dynamic_shared", here(line_of_dynamic_write), words},
                   write_dynamic_shared, {.grid = 1, .block = 1, .shared_bytes = shared_bytes}, index);
  };
  expect(128, 2000, "7872 bytes past the end of the 128 bytes of dynamic shared memory");
  expect(64 << 10, 50'000, "past the end of the 65536 bytes of dynamic shared memory");
  expect(128, 70'000, "past the end of the 128 bytes of dynamic shared memory");
  expect(128, -8, "32 bytes in front of the dynamic shared memory");
  expect(0, 0, "in dynamic shared memory, of which the launch asked for none");
}

constexpr int line_of_read = __LINE__ + 2;
__global__ void read_one(const float* x, float* y) {
  if (threadIdx.x == 3) *y = *x;
}

TEST_F(SimtErrors, NullPointerAndFreedMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
  DeviceArray<float> y(1);
  expect_failure(cudaErrorIllegalAddress, {"read_one", "thread (3, 0, 0)", here(line_of_read), "a null pointer"},
                 read_one, {.grid = 1, .block = 32}, static_cast<const float*>(nullptr), static_cast<float*>(y));
  float* freed = nullptr;
  ASSERT_EQ(cudaMalloc(&freed, 400), cudaSuccess);
  ASSERT_EQ(cudaFree(freed), cudaSuccess);
  expect_failure(cudaErrorIllegalAddress, {"read_one", "thread (3, 0, 0)", here(line_of_read), "has been freed"},
                 read_one, {.grid = 1, .block = 32}, static_cast<const float*>(freed), static_cast<float*>(y));
}

constexpr int line_of_division = __LINE__ + 2;
__global__ void divide(int* x) {
  x[0] /= x[1];
}

TEST_F(SimtErrors, IntegerDivisionByZero) {
  if (sanitized) GTEST_SKIP() << "the sanitizers find this access first, and end the program";
#ifdef __aarch64__
  GTEST_SKIP() << "a division by zero gives 0 on this processor, and no signal; on a GPU it gives something, too";
#endif
  DeviceArray<int> x(2);
  expect_failure(cudaErrorLaunchFailure, {"divide", here(line_of_division), "division by zero"}, divide,
                 {.grid = 1, .block = 1}, static_cast<int*>(x));
}

__device__ int recurse(volatile int* x, int depth) {
  volatile int frame[256];
  frame[depth % 256] = depth;
  if (x[0] != 0) return 0;
  return recurse(x, depth + 1) + frame[depth % 256] + x[0];
}
__global__ void overflow_the_stack(int* x) {
  if (threadIdx.x == 1) x[0] = recurse(x, 0);
}

TEST_F(SimtErrors, StackOverflow) {
  DeviceArray<int> x(1);
  expect_failure(cudaErrorLaunchFailure,
                 {"overflow_the_stack", "thread (1, 0, 0)", "simt_errors_test.cu:", "stack", "overflowed"},
                 overflow_the_stack, {.grid = 1, .block = 32}, static_cast<int*>(x));
}

__global__ void throw_in_kernel() {
  __syncthreads();
  if (threadIdx.x == 9) throw std::runtime_error("no such thing");
  __syncthreads();
}

TEST_F(SimtErrors, ExceptionInAKernel) {
  expect_failure(cudaErrorLaunchFailure, {"throw_in_kernel", "thread (9, 0, 0)", "exception", "no such thing"},
                 throw_in_kernel, {.grid = 2, .block = 64});
}

constexpr int line_of_assert = __LINE__ + 2;
__global__ void assert_in_kernel() {
  assert(threadIdx.x + blockIdx.x < 20);
}

TEST_F(SimtErrors, AssertAndTrap) {
  expect_failure(cudaErrorAssert,
                 {"assert_in_kernel", "thread (20, 0, 0)", here(line_of_assert), "threadIdx.x + blockIdx.x < 20"},
                 assert_in_kernel, {.grid = 1, .block = 32});
  expect_failure(cudaErrorLaunchFailure, {"block (2, 0, 0)", "thread (5, 0, 0)", here(__LINE__ + 2), "__trap()"},
                 +[] {
                   if (blockIdx.x == 2 && threadIdx.x == 5) __trap();
                 },
                 {.grid = 3, .block = 32});
}

constexpr int line_of_spin = __LINE__ + 2;
__global__ void wait_for_ever(int* flag) {
  while (atomicCAS(flag, 1, 2) != 1) {
  }
}

TEST_F(SimtErrors, SpinThatNeverEnds) {
  DeviceArray<int> flag(1);
  expect_failure(cudaErrorLaunchTimeout,
                 {"wait_for_ever", "block (", "thread (", here(line_of_spin), "a wait that does not end"},
                 wait_for_ever, {.grid = 4, .block = 64}, static_cast<int*>(flag));
}

__global__ void lock_twice(int* lock) {
  if (threadIdx.x == 0) {
    while (atomicExch(lock, 1) != 0) {
    }
    while (atomicExch(lock, 1) != 0) {
    }
  }
  __syncthreads();
}

TEST_F(SimtErrors, SpinWhileTheOthersWaitAtABarrier) {
  DeviceArray<int> lock(1);
  expect_failure(cudaErrorLaunchTimeout, {"lock_twice", "thread (0, 0, 0)", "a wait that does not end"}, lock_twice,
                 {.grid = 1, .block = 64}, static_cast<int*>(lock));
}

constexpr int line_of_loop = __LINE__ + 2;
__global__ void loop_for_ever(volatile int* flag) {
  while (*flag == 0) {
  }
}
__global__ void barrier_for_ever(volatile int* flag) {
  while (*flag == 0) __syncthreads();
}

TEST_F(SimtErrors, LoopsThatNeverEndMeetTheBlockLimit) {
  simt::Options options = simt::options();
  options.block_limit = std::chrono::milliseconds(300);
  simt::set_options(options);
  DeviceArray<int> flag(1);
  expect_failure(cudaErrorLaunchTimeout,
                 {"loop_for_ever", "thread (", here(line_of_loop), "no block has started or finished for 300 ms"},
                 loop_for_ever, {.grid = 2, .block = 32}, static_cast<volatile int*>(static_cast<int*>(flag)));
  expect_failure(cudaErrorLaunchTimeout,
                 {"barrier_for_ever", "thread (", "no block has started or finished for 300 ms"}, barrier_for_ever,
                 {.grid = 2, .block = 32}, static_cast<volatile int*>(static_cast<int*>(flag)));
}

// Whenever one looks, nearly all blocks wait. But none for long.
TEST_F(SimtErrors, ManyShortWaitsAreNotALongOne) {
  simt::Options options = simt::options();
  options.spin_limit = std::chrono::milliseconds(20);
  simt::set_options(options);
  launch(
      +[] {
        for (int i = 0; i < 20'000; ++i) cooperative_groups::this_cluster().sync();
      },
      {.grid = 8, .block = 1, .cluster = 8});
  check_cuda(cudaDeviceSynchronize(), "many barriers of a cluster");
}

TEST_F(SimtErrors, LongWorkIsNotAHang) {
  simt::Options options = simt::options();
  options.spin_limit = std::chrono::milliseconds(50);
  simt::set_options(options);
  DeviceArray<int> flag(1);
  // One thread computes for a while without a word; the others spin until it is done.
  launch(
      +[](int* done) {
        if (threadIdx.x == 0) {
          volatile unsigned sink = 0;
          for (unsigned i = 0; i < 300'000'000u; ++i) sink = sink + i;
          atomicExch(done, 1);
        } else {
          while (atomicAdd(done, 0) == 0) {
          }
        }
      },
      {.grid = 1, .block = 8}, static_cast<int*>(flag));
  EXPECT_EQ(flag.values()[0], 1);
}

__global__ void cluster_misses_a_block() {
  if (blockIdx.x % 2 == 0) {
    cooperative_groups::this_cluster().sync();
  } else if (threadIdx.x == 0) {
    cooperative_groups::this_cluster().sync();
  } else {
    __syncthreads();
  }
}

TEST_F(SimtErrors, ClusterBarrierThatABlockCannotReach) {
  expect_failure(cudaErrorLaunchTimeout,
                 {"cluster_misses_a_block", "block (1, 0, 0)", "deadlock", "cluster.sync()", "__syncthreads()"},
                 cluster_misses_a_block, {.grid = 2, .block = 32, .cluster = 2});
}

TEST_F(SimtErrors, MapToARankThatIsNotThere) {
  expect_failure(cudaErrorLaunchFailure, {"map_shared_rank() of rank 2 in a cluster of 2 blocks", here(__LINE__ + 3)},
                 +[] {
                   __shared__ int value;
                   *cooperative_groups::this_cluster().map_shared_rank(&value, 2) = 1;
                 },
                 {.grid = 2, .block = 32, .cluster = 2});
}

TEST_F(SimtErrors, GridBarrierWithoutACooperativeLaunch) {
  expect_failure(cudaErrorLaunchFailure, {"grid.sync()", "cooperatively", here(__LINE__ + 1)},
                 +[] { cooperative_groups::this_grid().sync(); }, {.grid = 2, .block = 32});
}

TEST_F(SimtErrors, TheMessageGoesToStderrOnce) {
  simt::Options options = simt::options();
  options.print_errors = true;
  simt::set_options(options);
  testing::internal::CaptureStderr();
  EXPECT_THROW(launch(mask_without_caller, {.grid = 64, .block = 32}), CudaError);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_EQ(printed, simt::last_error_message() + "\n");
}

}  // namespace
}  // namespace worklog::test

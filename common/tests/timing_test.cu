// The streams move what they say, and the timer times what it is given. On the CPU layer the times mean nothing, but
// the way to them is the same: events, flushes, graphs, the choice of tensors.
#include "common/harness/timing.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/baseline.h"
#include "common/harness/device.h"

namespace worklog {
namespace {

class TimingTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(TimingTest, AStreamWritesTheExclusiveOrOfWhatItReads) {
  constexpr int64_t words = 4 * 1000;  // not a whole number of blocks
  constexpr int64_t bytes = words * 4;
  for (int reads = 1; reads <= max_stream_reads; ++reads) {
    for (int writes = 0; writes <= max_stream_writes; ++writes) {
      const DeviceMemory memory((reads + max_stream_writes) * bytes);
      StreamArrays arrays = {};
      std::vector<uint32_t> want(words);
      for (int k = 0; k < reads; ++k) {
        std::vector<uint32_t> values(words);
        for (int64_t i = 0; i < words; ++i) values[i] = static_cast<uint32_t>((i + 1) * 2654435761u << k);
        for (int64_t i = 0; i < words; ++i) want[i] ^= values[i];
        check_cuda(cudaMemcpy(memory.data() + k * bytes, values.data(), bytes, cudaMemcpyHostToDevice), "uploading");
        arrays.in[k] = memory.data() + k * bytes;
      }
      for (int k = 0; k < max_stream_writes; ++k) arrays.out[k] = memory.data() + (reads + k) * bytes;
      check_cuda(cudaMemset(arrays.out[0], 0, max_stream_writes * bytes), "clearing");

      launch_stream(reads, writes, arrays, bytes, nullptr);
      check_cuda(cudaDeviceSynchronize(), "running a stream");
      for (int k = 0; k < max_stream_writes; ++k) {
        std::vector<uint32_t> got(words);
        check_cuda(cudaMemcpy(got.data(), arrays.out[k], bytes, cudaMemcpyDeviceToHost), "downloading");
        EXPECT_EQ(got, k < writes ? want : std::vector<uint32_t>(words)) << reads << " reads, " << writes << " writes";
      }
    }
  }
}

TEST_F(TimingTest, StreamsThatDoNotExistAreRefused) {
  const DeviceMemory memory(64);
  StreamArrays arrays = {};
  arrays.in[0] = memory.data();
  arrays.out[0] = memory.data() + 16;
  EXPECT_THROW(launch_stream(0, 1, arrays, 16, nullptr), std::invalid_argument);
  EXPECT_THROW(launch_stream(max_stream_reads + 1, 1, arrays, 16, nullptr), std::invalid_argument);
  EXPECT_THROW(launch_stream(1, max_stream_writes + 1, arrays, 16, nullptr), std::invalid_argument);
}

constexpr int64_t small_l2 = 1 << 16;  // so that the flush is short where a CPU does it
constexpr Sampling brief = {.max_seconds = 0.2, .uncertainty = 0.5, .min_samples = 8};

TEST_F(TimingTest, EveryModeTakesSamples) {
  // It takes a moment, but on a machine that does other things the first launches alone may take longer than `brief`.
  constexpr Sampling patient = {.max_seconds = 30, .uncertainty = 0.5, .min_samples = 8};
  Timer timer(small_l2);
  for (const TimingMode mode : all_timing_modes) {
    const Summary summary = timer.time(
        mode, [](int, cudaStream_t stream) { launch_empty(stream); }, 1, patient);
    EXPECT_GE(summary.samples, patient.min_samples) << name_of(mode);
    EXPECT_GT(summary.median, 0) << name_of(mode);
    EXPECT_LE(summary.min, summary.p10) << name_of(mode);
    EXPECT_LE(summary.p90, patient.max_seconds) << name_of(mode);
  }
}

TEST_F(TimingTest, OnlyColdSamplesTakeTurnsAmongTheSets) {
  Timer timer(small_l2);
  for (const TimingMode mode : all_timing_modes) {
    std::set<int> taken;
    timer.time(
        mode,
        [&](int set, cudaStream_t stream) {
          taken.insert(set);
          launch_empty(stream);
        },
        3, brief);
    EXPECT_EQ(taken, mode == TimingMode::cold ? (std::set<int>{0, 1, 2}) : std::set<int>{0}) << name_of(mode);
  }
}

TEST_F(TimingTest, SlowOperationsEndInTime) {
  Timer timer(small_l2);
  constexpr int64_t bytes = 32 << 20;
  const DeviceMemory memory(2 * bytes);
  check_cuda(cudaMemset(memory.data(), 0, 2 * bytes), "clearing");
  StreamArrays arrays = {};
  arrays.in[0] = memory.data();
  arrays.out[0] = memory.data() + bytes;
  int launches = 0;
  const Summary summary =
      timer.time(TimingMode::warm,
                 [&](int, cudaStream_t stream) {
                   ++launches;
                   launch_stream(1, 1, arrays, bytes, stream);
                 },
                 1, {.max_seconds = 1e-3, .uncertainty = 0, .min_samples = 1000000, .max_samples = 1000000});
  EXPECT_GE(summary.samples, 1);
  EXPECT_LT(launches, 2000);
}

TEST_F(TimingTest, ASamplerTakesTheSetsInTurn) {
  Timer timer(small_l2);
  std::vector<int> taken;
  const TimedOperation operation = [&](int set, cudaStream_t stream) {
    taken.push_back(set);
    launch_empty(stream);
  };
  Sampler sampler(timer, TimingMode::cold, operation, 3, 1.0);
  taken.clear();
  for (int i = 0; i < 100; ++i) EXPECT_GT(sampler.next(), 0);
  for (size_t i = 1; i < taken.size(); ++i) EXPECT_EQ(taken[i], (taken[i - 1] + 1) % 3);
}

// A sampler that has little time takes one sample after the other, and none that nobody asks for.
TEST_F(TimingTest, ASamplerTakesNoMoreInAdvanceThanTheTimeAllows) {
  Timer timer(small_l2);
  int calls = 0;
  const TimedOperation operation = [&](int, cudaStream_t stream) {
    ++calls;
    launch_empty(stream);
  };
  Sampler hurried(timer, TimingMode::cold, operation, 1, 1e-9);
  EXPECT_EQ(calls, 3) << "to load it, to see what it takes, to warm up";
  for (int i = 0; i < 5; ++i) hurried.next();
  EXPECT_EQ(calls, 8);
  Sampler patient(timer, TimingMode::cold, operation, 1, 3600);
  calls = 0;
  patient.next();
  const int batch = calls;
  EXPECT_GT(batch, 1);
  for (int i = 1; i < batch; ++i) patient.next();
  EXPECT_EQ(calls, batch) << "a batch is given out before the next one is taken";
  patient.next();
  EXPECT_EQ(calls, 2 * batch);
}

TEST_F(TimingTest, ASampleCostsMoreThanTheOperation) {
  Timer timer(small_l2);
  EXPECT_GT(time_roughly([](int, cudaStream_t stream) { launch_empty(stream); }, timer.stream()), 0);
  const double seconds = 1e-3;
  EXPECT_GT(timer.seconds_per_sample(TimingMode::warm, seconds), seconds);
  EXPECT_GT(timer.seconds_per_sample(TimingMode::cold, seconds), timer.seconds_per_sample(TimingMode::warm, seconds));
  EXPECT_GT(timer.seconds_per_sample(TimingMode::graph, seconds), 2 * seconds);
}

TEST_F(TimingTest, ManySmallSetsAndOneLarge) {
  const Timer timer(int64_t{1} << 20);
  EXPECT_GT(timer.useful_sets(1024), 1);
  EXPECT_EQ(timer.useful_sets(int64_t{1} << 30), 1);
  EXPECT_EQ(timer.useful_sets(0), timer.useful_sets(1));
}

TEST_F(TimingTest, ABaselineMovesAtLeastTheBytesAskedFor) {
  Timer timer(small_l2);
  for (const auto& [reads, writes] : {std::pair{1, 1}, {2, 2}, {3, 1}, {2, 0}}) {
    constexpr int64_t bytes = 100'001;
    Baseline baseline(reads, writes, bytes, 2);
    EXPECT_GE(baseline.bytes(), bytes);
    EXPECT_LT(baseline.bytes(), bytes + 16 * (reads + writes));
    baseline.measure(timer, TimingMode::cold, brief);
    baseline.measure(timer, TimingMode::cold, brief);
    const Baseline::Result result = baseline.result();
    EXPECT_GT(result.median_seconds, 0) << baseline.name();
    const bool copy = reads == 1 && writes == 1;
    EXPECT_TRUE(copy || result.way == "kernel") << "only a copy can be done in another way";
  }
  EXPECT_EQ(Baseline(3, 1, 1024, 1).name(), "3r1w");
}

__global__ void count(int* counter) {
  atomicAdd(counter, 1);
}

// What is timed is what runs: as many times as the operation was called, or as often as its graph was replayed.
TEST_F(TimingTest, AGraphRunsTheOperation) {
  Timer timer(small_l2);
  const DeviceMemory memory(sizeof(int));
  check_cuda(cudaMemset(memory.data(), 0, sizeof(int)), "clearing");
  int calls = 0;
  const Summary summary = timer.time(
      TimingMode::graph,
      [&](int, cudaStream_t stream) {
        ++calls;
        launch(count, {.grid = 1, .block = 1, .stream = stream}, reinterpret_cast<int*>(memory.data()));
      },
      1, brief);
  int runs = 0;
  check_cuda(cudaMemcpy(&runs, memory.data(), sizeof(int), cudaMemcpyDeviceToHost), "downloading");
  EXPECT_GT(runs, calls) << "a graph is captured once and replayed often";
  EXPECT_GE(runs, summary.samples);
}

TEST(DeviceNames, AreThoseOfTheResultFiles) {
  EXPECT_EQ(short_name_of("NVIDIA H200"), "h200");
  EXPECT_EQ(short_name_of("NVIDIA GeForce RTX 4050 Laptop GPU"), "rtx4050");
  EXPECT_EQ(short_name_of("NVIDIA GeForce RTX 4060 Ti"), "rtx4060ti");
  EXPECT_EQ(short_name_of("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(short_name_of("NVIDIA A100-SXM4-40GB"), "a100");
  EXPECT_EQ(short_name_of("Tesla T4"), "t4");
}

}  // namespace
}  // namespace worklog

// Synchronized BatchNorm over any number of pretended ranks, the cumulative average, and what training refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "08_batchnorm/sync.cuh"
#include "common/harness/device_buffer.h"

namespace worklog::batchnorm {
namespace {

using Steps = TrainSteps<float, float>;

template <class T>
struct Memory {
  explicit Memory(int64_t count) : bytes((count + 1) * static_cast<int64_t>(sizeof(T))) {}
  T* get() const { return reinterpret_cast<T*>(bytes.data()); }
  std::vector<T> host(int64_t count) const {
    std::vector<T> values(count);
    check_cuda(cudaMemcpy(values.data(), get(), count * sizeof(T), cudaMemcpyDeviceToHost), "copying");
    return values;
  }
  void set(const T* values, int64_t count) const {
    check_cuda(cudaMemcpy(get(), values, count * sizeof(T), cudaMemcpyHostToDevice), "copying");
  }
  DeviceMemory bytes;
};

constexpr int64_t channels = 20;

struct Batch {
  explicit Batch(const std::vector<float>& values)
      : rows(static_cast<int64_t>(values.size()) / channels), x(rows * channels), y(rows * channels) {
    x.set(values.data(), rows * channels);
    const std::vector<float> zeros(channels, 0.0f);
    running_mean.set(zeros.data(), channels);
    running_var.set(zeros.data(), channels);
  }
  BatchNormTrain<float, float> train(float momentum = 0.1f) const {
    return {x.get(),
            nullptr,
            nullptr,
            y.get(),
            running_mean.get(),
            running_var.get(),
            mean.get(),
            invstd.get(),
            workspace.get(),
            rows,
            channels,
            1,
            ChannelLayout::channels_last,
            momentum,
            1e-5f};
  }
  int64_t rows;
  Memory<float> x, y;
  Memory<float> running_mean{channels}, running_var{channels}, mean{channels}, invstd{channels};
  Memory<float> workspace{batchnorm_workspace};
};

std::vector<float> values_of(int64_t rows, float mean) {
  std::vector<float> values(rows * channels);
  for (size_t i = 0; i < values.size(); ++i) values[i] = mean + std::sin(static_cast<float>(i * i % 1009));
  return values;
}

TEST(SynchronizedBatchNorm, AnyNumberOfRanksGivesWhatOneGives) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{40}, {30, 11}, {0, 25}, {1, 1}, {7, 0, 100}, {5, 6, 0, 0, 64, 1, 2, 3, 33}}) {
    int64_t all_rows = 0;
    for (const int64_t r : rows) all_rows += r;
    const std::vector<float> values = values_of(all_rows, 1e4f);
    const Batch whole(values);
    batch_norm(whole.train(), nullptr);
    const int ranks = static_cast<int>(rows.size());
    Memory<Steps::Shared> found(ranks * channels);
    std::vector<Batch> batches;
    batches.reserve(ranks);
    int64_t first = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto begin = values.begin() + first * channels;
      batches.emplace_back(std::vector<float>(begin, begin + rows[rank] * channels));
      find(Steps{batches.back().train()}, false, found.get() + rank * channels, nullptr);
      first += rows[rank];
    }
    const std::vector<float> y = whole.y.host(all_rows * channels);
    std::vector<float> means, invstds;
    first = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Memory<Steps::Channel> known(channels);
      const Steps steps = {batches[rank].train()};
      merge_found(steps, found.get(), ranks, known.get(), nullptr);
      apply_found(steps, false, known.get(), nullptr);
      check_cuda(cudaDeviceSynchronize(), "running the kernels");
      const std::vector<float> mine = batches[rank].y.host(rows[rank] * channels);
      for (size_t i = 0; i < mine.size(); ++i)
        ASSERT_NEAR(mine[i], y[first * channels + i], 1e-5f) << ranks << " ranks";
      const std::vector<float> mean = batches[rank].mean.host(channels);
      const std::vector<float> invstd = batches[rank].invstd.host(channels);
      if (rank == 0) means = mean, invstds = invstd;
      EXPECT_EQ(std::memcmp(mean.data(), means.data(), channels * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(invstd.data(), invstds.data(), channels * sizeof(float)), 0);
      first += rows[rank];
    }
  }
}

TEST(BatchNorm, TheMomentumOfACumulativeAverageIsOneOverTheBatchesSeen) {
  const Batch batch(values_of(50, 3.0f));
  for (int seen = 1; seen <= 4; ++seen) batch_norm(batch.train(1.0f / seen), nullptr);
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  const std::vector<float> running = batch.running_mean.host(channels);
  const std::vector<float> mean = batch.mean.host(channels);
  for (int64_t i = 0; i < channels; ++i) EXPECT_NEAR(running[i], mean[i], 1e-5f);
}

TEST(BatchNorm, OneValueToAChannelIsRefused) {
  const Batch batch(values_of(1, 0.0f));
  EXPECT_THROW(batch_norm(batch.train(), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace worklog::batchnorm

// Synchronized BatchNorm over any number of pretended ranks, the cumulative average, and what training refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "08_batchnorm/final/batch_norm.cuh"
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

TEST(SynchronizedBatchNorm, TheBackwardPassOverRanksIsThatOfTheWholeBatch) {
  using Backward = BackwardSteps<float, float>;
  const std::vector<int64_t> rows = {7, 0, 100, 1};
  const int ranks = static_cast<int>(rows.size());
  constexpr int64_t all_rows = 108;
  const Batch whole(values_of(all_rows, 3.0f));
  batch_norm(whole.train(), nullptr);
  Memory<float> dy(all_rows * channels), dx(all_rows * channels), dgamma(channels), dbeta(channels);
  std::vector<float> gradients(all_rows * channels);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = std::cos(static_cast<float>(i * i % 613));
  dy.set(gradients.data(), all_rows * channels);
  // Of the rows from `first` on: the tensors lie in the whole batch's.
  const auto of = [&](int64_t first, int64_t count, const Memory<float>& to, const Memory<float>& to_gamma,
                      const Memory<float>& to_beta) {
    return BatchNormBackward<float, float>{dy.get() + first * channels,
                                           whole.x.get() + first * channels,
                                           nullptr,
                                           whole.mean.get(),
                                           whole.invstd.get(),
                                           to.get() + first * channels,
                                           to_gamma.get(),
                                           to_beta.get(),
                                           whole.workspace.get(),
                                           count,
                                           channels,
                                           1,
                                           ChannelLayout::channels_last};
  };
  batch_norm_backward(of(0, all_rows, dx, dgamma, dbeta), nullptr);

  Memory<Backward::Shared> found(ranks * channels);
  Memory<float> parts(all_rows * channels), part_dgamma(channels), part_dbeta(channels);
  int64_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Backward steps = {of(first, rows[rank], parts, part_dgamma, part_dbeta), all_rows};
    find(steps, false, found.get() + rank * channels, nullptr);
    first += rows[rank];
  }
  first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Backward steps = {of(first, rows[rank], parts, part_dgamma, part_dbeta), all_rows};
    Memory<Backward::Channel> known(channels);
    merge_found(steps, found.get(), ranks, known.get(), nullptr);
    apply_found(steps, false, known.get(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "running the kernels");
    for (const auto& [mine, all] : {std::pair(&part_dgamma, &dgamma), std::pair(&part_dbeta, &dbeta)}) {
      const std::vector<float> got = mine->host(channels), want = all->host(channels);
      for (int64_t i = 0; i < channels; ++i) EXPECT_NEAR(got[i], want[i], 1e-4f) << "rank " << rank;
    }
    first += rows[rank];
  }
  const std::vector<float> got = parts.host(all_rows * channels), want = dx.host(all_rows * channels);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5f) << i;
}

// A rank with one row far from all others: its mean must not cost the others' variance its digits.
TEST(SynchronizedBatchNorm, ARankOfOneOutlierCostsNoAccuracy) {
  constexpr int64_t others = 4000;
  std::vector<float> values(channels, 1e3f);
  const std::vector<float> rest = values_of(others, 0.0f);
  values.insert(values.end(), rest.begin(), rest.end());
  double sum = 0, squares = 0;
  for (int64_t row = 0; row <= others; ++row) sum += values[row * channels];
  const double mean = sum / (others + 1);
  for (int64_t row = 0; row <= others; ++row) squares += std::pow(values[row * channels] - mean, 2);
  const double invstd = 1 / std::sqrt(squares / (others + 1) + 1e-5);

  const Batch one(std::vector<float>(values.begin(), values.begin() + channels));
  const Batch many(rest);
  Memory<Steps::Shared> found(2 * channels);
  find(Steps{one.train()}, false, found.get(), nullptr);
  find(Steps{many.train()}, false, found.get() + channels, nullptr);
  Memory<Steps::Channel> known(channels);
  merge_found(Steps{many.train()}, found.get(), 2, known.get(), nullptr);
  check_cuda(cudaDeviceSynchronize(), "running the kernels");
  EXPECT_NEAR(many.invstd.host(channels)[0] / invstd, 1.0, 2e-6);
}

TEST(BatchNorm, TheMomentumOfACumulativeAverageIsOneOverTheBatchesSeen) {
  Memory<float> running_mean(channels), running_var(channels);
  const std::vector<float> start(channels, 77.0f);  // of which nothing is left
  running_mean.set(start.data(), channels);
  running_var.set(start.data(), channels);
  constexpr int64_t rows = 50;
  std::vector<double> means(channels), variances(channels);
  for (int seen = 1; seen <= 4; ++seen) {
    std::vector<float> values = values_of(rows, 3.0f * seen);
    for (float& value : values) value *= seen;
    const Batch batch(values);
    BatchNormTrain<float, float> p = batch.train(1.0f / seen);
    p.running_mean = running_mean.get();
    p.running_var = running_var.get();
    batch_norm(p, nullptr);
    check_cuda(cudaDeviceSynchronize(), "running the kernels");
    for (int64_t c = 0; c < channels; ++c) {
      double mean = 0, m2 = 0;
      for (int64_t row = 0; row < rows; ++row) mean += values[row * channels + c] / double{rows};
      for (int64_t row = 0; row < rows; ++row) m2 += std::pow(values[row * channels + c] - mean, 2);
      means[c] += mean / 4;
      variances[c] += m2 / (rows - 1) / 4;
    }
  }
  const std::vector<float> mean = running_mean.host(channels), variance = running_var.host(channels);
  for (int64_t c = 0; c < channels; ++c) {
    EXPECT_NEAR(mean[c] / means[c], 1.0, 1e-5);
    EXPECT_NEAR(variance[c] / variances[c], 1.0, 1e-5);
  }
}

// The configuration of GPUs with less shared memory, and one that makes many blocks share a tile.
TEST(BatchNorm, TheSmallConfigurationGivesTheSame) {
  for (const int64_t rows : {3, 41, 3000}) {
    const Batch batch(values_of(rows, 50.0f));
    batch_norm(batch.train(), nullptr);
    check_cuda(cudaDeviceSynchronize(), "running the kernels");
    const std::vector<float> want = batch.y.host(rows * channels);
    for (const bool aligned : {true, false}) {
      const std::vector<float> nothing(rows * channels, 0.0f);
      batch.y.set(nothing.data(), rows * channels);
      normalize_with<SmallConfig>(Steps{batch.train()}, aligned, nullptr);
      check_cuda(cudaDeviceSynchronize(), "running the kernels");
      const std::vector<float> got = batch.y.host(rows * channels);
      for (int64_t i = 0; i < rows * channels; ++i) ASSERT_NEAR(got[i], want[i], 2e-5f) << rows << " rows, value " << i;
    }
  }
}

TEST(BatchNorm, OneValueToAChannelIsRefused) {
  const Batch batch(values_of(1, 0.0f));
  try {
    batch_norm(batch.train(), nullptr);
    FAIL() << "one value to a channel was taken";
  } catch (const std::invalid_argument& refused) {
    EXPECT_NE(std::string(refused.what()).find("more than one value per channel"), std::string::npos) << refused.what();
  }
}

}  // namespace
}  // namespace worklog::batchnorm

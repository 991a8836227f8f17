// The inputs: what the kinds mean in each type, and that they are the same on every machine.
#include "common/harness/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "common/harness/parallel.h"
#include "common/harness/problem.h"
#include "common/harness/reference.h"
#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

constexpr Dtype all_dtypes[] = {Dtype::fp32, Dtype::fp16, Dtype::bf16};

ProblemOptions options_of(Operation operation, Input input, Dtype dtype, int64_t rows, int64_t cols) {
  ProblemOptions options;
  options.operation = operation;
  options.input = input;
  options.dtype = dtype;
  options.rows = rows;
  options.cols = cols;
  return options;
}

std::vector<double> values_of_x(Input input, Dtype dtype, int64_t rows, int64_t cols) {
  const Problem problem(options_of(Operation::layernorm_forward, input, dtype, rows, cols));
  return values_of(problem.tensors()[0]);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double moment_of(const std::vector<double>& values, double center, int power) {
  double sum = 0;
  for (const double value : values) sum += std::pow(value - center, power);
  return sum / static_cast<double>(values.size());
}

TEST(NormalFrom, InvertsTheNormalDistribution) {
  for (const uint32_t bits : {0u, 1u, 1000u, 0x01000000u, 0x13333333u, 0x40000000u, 0x7fffffffu, 0x80000000u,
                              0xc0000000u, 0xecccccccu, 0xff000000u, 0xffffffffu}) {
    const double p = (bits + 0.5) * 0x1p-32;
    const double z = normal_from(bits);
    const double tail = 0.5 * std::erfc(std::fabs(z) / std::sqrt(2.0));  // the smaller side, without cancellation
    EXPECT_NEAR(tail / std::min(p, 1 - p), 1, 1e-12) << bits;
    EXPECT_EQ(z < 0, p < 0.5) << bits;
  }
}

TEST(NormalFrom, IsWhatARowHoldsElementByElement) {
  std::vector<float> values(5001);
  generate_row({"x", Input::normal, Dtype::fp32, 3, 100, 5001}, 42, 5001, values.data());
  for (int64_t col = 0; col < 5001; ++col) {
    ASSERT_EQ(values[col], static_cast<float>(normal_from(static_cast<uint32_t>(hash_element(3, "x", 42, col) >> 32))));
  }
}

TEST(Inputs, DoNotDependOnTheShape) {
  for (const Input input : all_inputs()) {
    if (input == Input::arange || input == Input::nan_row) continue;  // these two are defined by the shape
    for (const Dtype dtype : all_dtypes) {
      const Problem small(options_of(Operation::add_layernorm_forward, input, dtype, 5, 19));
      const Problem large(options_of(Operation::add_layernorm_forward, input, dtype, 12, 300));
      for (const size_t tensor : {0, 1, 2, 3}) {  // x, residual, gamma, beta
        const HostTensor& a = small.tensors()[tensor];
        const HostTensor& b = large.tensors()[tensor];
        for (int64_t row = 0; row < a.rows; ++row) {
          for (int64_t col = 0; col < a.cols; ++col) {
            ASSERT_EQ(bits_at(a, row, col), bits_at(b, row, col)) << name_of(input) << " " << a.spec.name;
          }
        }
      }
    }
  }
}

TEST(Inputs, DoNotDependOnTheNumberOfThreads) {
  for (const Operation operation : {Operation::add_layernorm_backward, Operation::batchnorm_backward}) {
    const ProblemOptions options = options_of(operation, Input::outlier_channels, Dtype::fp16, 700, 129);
    parallel_threads = 1;
    const Problem one(options);
    for (const int threads : {2, 7}) {
      parallel_threads = threads;
      const Problem many(options);
      for (size_t i = 0; i < one.tensors().size(); ++i) {
        EXPECT_EQ(one.tensors()[i].bytes, many.tensors()[i].bytes) << threads << " " << one.tensors()[i].spec.name;
      }
    }
    parallel_threads = 0;
  }
}

// FNV-1a over the bytes of all inputs of add_layernorm_backward at 33 x 65, seed 7.
uint64_t hash_of_inputs(Input input, Dtype dtype) {
  ProblemOptions options = options_of(Operation::add_layernorm_backward, input, dtype, 33, 65);
  options.seed = 7;
  uint64_t hash = 0xcbf29ce484222325u;
  const Problem problem(options);
  for (const HostTensor& tensor : problem.tensors()) {
    if (tensor.spec.role != Role::input) continue;
    for (const std::byte byte : tensor.bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

TEST(Inputs, HaveTheSameBitsOnEveryMachine) {
  // A committed figure names its input by kind and seed: these hashes change only together with those figures.
  const struct {
    Input input;
    uint64_t fp32, fp16, bf16;
  } golden[] = {
      {Input::normal, 0xadee24065eae2dffu, 0xacd66babe734d742u, 0x516efe011d003ca6u},
      {Input::uniform, 0x303757c4a8e8f3d4u, 0x6a8414b6b4b8f324u, 0x9a881a4172ddddb7u},
      {Input::arange, 0xc8651b0376d68a87u, 0xad9a93aaf576e5deu, 0x69f6e4fcf7e5ed66u},
      {Input::large_mean, 0x7a665a64f9124270u, 0xa83dfbe08e84b16bu, 0xd041876606e2fafeu},
      {Input::constant, 0xe6134cfe54a760bdu, 0x09ebb7089a110223u, 0xcc4f01990c5f9decu},
      {Input::tiny_variance, 0x704f979afacc806bu, 0x1066b6cebbf3debdu, 0x13809e13143af376u},
      {Input::outlier_channels, 0xc4adc004a8070de2u, 0xfaf0f799db969739u, 0xf08287450e43b488u},
      {Input::huge, 0x1b0b4a863c07a309u, 0x7a368701706cc329u, 0x622dd2e394706abcu},
      {Input::nan_row, 0x20b503530f9dbf8au, 0xd4b278adef346c1fu, 0xa4b5beb418d06294u},
  };
  for (const auto& [input, fp32, fp16, bf16] : golden) {
    EXPECT_EQ(hash_of_inputs(input, Dtype::fp32), fp32) << name_of(input);
    EXPECT_EQ(hash_of_inputs(input, Dtype::fp16), fp16) << name_of(input);
    EXPECT_EQ(hash_of_inputs(input, Dtype::bf16), bf16) << name_of(input);
  }
}

TEST(Inputs, SeedsAndTensorsHaveTheirOwnValues) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    for (const char* tensor : {"x", "dy", "residual"}) {
      for (int64_t row = 0; row < 8; ++row) {
        for (int64_t col = 0; col < 8; ++col) seen.insert(hash_element(seed, tensor, row, col));
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 3 * 8 * 8);

  const Problem problem(options_of(Operation::add_layernorm_forward, Input::normal, Dtype::fp32, 500, 500));
  const std::vector<double> x = values_of(problem.tensors()[0]);
  const std::vector<double> residual = values_of(problem.tensors()[1]);
  double product = 0;
  for (size_t i = 0; i < x.size(); ++i) product += x[i] * residual[i];
  EXPECT_LT(std::fabs(product / 250000), 5.0 / 500) << "x and residual are correlated";
}

TEST(Inputs, NormalIsNormal) {
  const std::vector<double> x = values_of_x(Input::normal, Dtype::fp32, 1000, 1000);
  const double n = 1e6;
  EXPECT_NEAR(mean_of(x), 0, 5 / std::sqrt(n));
  EXPECT_NEAR(moment_of(x, 0, 2), 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moment_of(x, 0, 3), 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moment_of(x, 0, 4), 3, 5 * std::sqrt(96 / n));
  // Neighbors along a row and along a column have nothing to do with each other.
  double along_row = 0, along_col = 0;
  for (size_t i = 1000; i < x.size(); ++i) {
    along_row += x[i] * x[i - 1];
    along_col += x[i] * x[i - 1000];
  }
  EXPECT_NEAR(along_row / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(along_col / n, 0, 5 / std::sqrt(n));
}

TEST(Inputs, UniformFillsItsRange) {
  const std::vector<double> x = values_of_x(Input::uniform, Dtype::fp32, 1000, 1000);
  EXPECT_NEAR(mean_of(x), 0, 0.003);
  EXPECT_NEAR(moment_of(x, 0, 2), 1.0 / 3, 0.002);
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  EXPECT_GE(*least, -1);
  EXPECT_LT(*least, -0.9999);
  EXPECT_LT(*most, 1);
  EXPECT_GT(*most, 0.9999);
}

TEST(Inputs, ArangeCounts) {
  const std::vector<double> fp32 = values_of_x(Input::arange, Dtype::fp32, 1024, 1024);
  for (size_t i = 0; i < fp32.size(); ++i) ASSERT_EQ(fp32[i], static_cast<double>(i + 1));
  const std::vector<double> fp16 = values_of_x(Input::arange, Dtype::fp16, 30, 1000);
  for (size_t i = 0; i < fp16.size(); ++i) ASSERT_EQ(fp16[i], static_cast<double>(i % 2048 + 1));
  const std::vector<double> bf16 = values_of_x(Input::arange, Dtype::bf16, 30, 1000);
  for (size_t i = 0; i < bf16.size(); ++i) ASSERT_EQ(bf16[i], static_cast<double>(i % 256 + 1));
}

TEST(Inputs, LargeMeanStaysVariedInEveryType) {
  const double deviation[] = {1, 8, 64};
  for (const Dtype dtype : all_dtypes) {
    const std::vector<double> x = values_of_x(Input::large_mean, dtype, 200, 500);
    const double spread = deviation[static_cast<int>(dtype)];
    EXPECT_NEAR(mean_of(x), 1e4, 0.26 * spread) << name_of(dtype);  // bf16 has no 10000: 9984 and 10048 are nearest
    EXPECT_NEAR(std::sqrt(moment_of(x, mean_of(x), 2)), spread, 0.1 * spread) << name_of(dtype);
  }
}

TEST(Inputs, TinyVarianceIsBelowEpsAndNotConstant) {
  const double mean[] = {1, 1.0 / 16, 1.0 / 128};
  for (const Dtype dtype : all_dtypes) {
    const int64_t cols = 32;
    const std::vector<double> x = values_of_x(Input::tiny_variance, dtype, 300, cols);
    EXPECT_NEAR(mean_of(x), mean[static_cast<int>(dtype)], 1e-5) << name_of(dtype);
    EXPECT_NEAR(std::sqrt(moment_of(x, mean_of(x), 2)), 1e-4, 2e-5) << name_of(dtype);
    for (size_t row = 0; row < x.size(); row += cols) {
      const std::set<double> distinct(x.begin() + row, x.begin() + row + cols);
      ASSERT_GT(distinct.size(), 3u) << name_of(dtype);
    }
  }
}

TEST(Inputs, OutliersFillAFewColumns) {
  const int64_t rows = 400, cols = 4096;
  const std::vector<double> x = values_of_x(Input::outlier_channels, Dtype::fp32, rows, cols);
  int outliers = 0;
  for (int64_t col = 0; col < cols; ++col) {
    double squares = 0;
    for (int64_t row = 0; row < rows; ++row) squares += x[row * cols + col] * x[row * cols + col];
    const double deviation = std::sqrt(squares / rows);
    const bool outlier = is_outlier_channel(1, col);
    EXPECT_NEAR(deviation, outlier ? 100 : 1, outlier ? 20 : 0.2) << col;
    outliers += outlier;
  }
  EXPECT_EQ(outliers, cols / 128);
  EXPECT_TRUE(is_outlier_channel(1, 0)) << "a row of one column must have its outlier";
}

TEST(Inputs, HugeIsNearTheTopAndFinite) {
  for (const Dtype dtype : all_dtypes) {
    const std::vector<double> x = values_of_x(Input::huge, dtype, 100, 100);
    const double top = dtype == Dtype::fp16 ? 65504 : largest_of(dtype) / 4;
    int64_t negative = 0;
    for (const double value : x) {
      ASSERT_LE(std::fabs(value), top * 1.01);
      ASSERT_GE(std::fabs(value), top * 0.49);
      negative += value < 0;
    }
    EXPECT_NEAR(static_cast<double>(negative), 5000, 250);
    if (dtype != Dtype::fp16) {
      EXPECT_TRUE(overflows(Dtype::fp32, x[0] * x[0])) << "squares must not fit fp32";
    }
    // x + residual must fit: h would be infinite otherwise, by definition and not by a kernel's mistake.
    const Problem add(options_of(Operation::add_layernorm_forward, Input::huge, dtype, 100, 100));
    const std::vector<double> residual = values_of(add.tensors()[1]);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_FALSE(overflows(dtype, x[i] + residual[i]));
  }
}

TEST(Inputs, NanRowHoldsOneNan) {
  for (const Dtype dtype : all_dtypes) {
    const int64_t rows = 9, cols = 13;
    const std::vector<double> x = values_of_x(Input::nan_row, dtype, rows, cols);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) EXPECT_EQ(std::isnan(x[row * cols + col]), row == 4 && col == 6);
    }
    const Problem problem(options_of(Operation::layernorm_forward, Input::nan_row, dtype, rows, cols));
    EXPECT_NE(bits_at(problem.tensors()[0], 4, 6), poison_pattern(dtype));
  }
}

TEST(Inputs, ConstantIsConstant) {
  for (const Dtype dtype : all_dtypes) {
    for (const double value : values_of_x(Input::constant, dtype, 7, 9)) EXPECT_EQ(value, round_to(dtype, 0.7f));
  }
}

TEST(Inputs, BackwardReadsTheForwardsOwnStatistics) {
  for (const Input input : all_inputs()) {
    const ProblemOptions options = options_of(Operation::layernorm_backward, input, Dtype::bf16, 21, 77);
    const Problem problem(options);
    const std::vector<double> x = values_of(problem.tensors()[1]);
    const std::vector<double> mean = values_of(problem.tensors()[3]);
    const std::vector<double> rstd = values_of(problem.tensors()[4]);
    for (int64_t row = 0; row < options.rows; ++row) {
      const std::vector<double> values(x.begin() + row * 77, x.begin() + (row + 1) * 77);
      const double own_mean = mean_of(values);
      const double own_rstd = 1 / std::sqrt(moment_of(values, own_mean, 2) + options.eps);
      if (std::isnan(own_mean)) {
        EXPECT_TRUE(std::isnan(mean[row]) && std::isnan(rstd[row]));
        continue;
      }
      EXPECT_NEAR(mean[row], own_mean, 6e-8 * std::fabs(own_mean) + 1e-300) << name_of(input);
      EXPECT_NEAR(rstd[row], own_rstd, 6e-8 * own_rstd) << name_of(input);
    }
  }
}

TEST(Inputs, BatchNormLayoutsHoldTheSameTensor) {
  for (const int64_t pixels : {5, 7}) {  // 5: as many as channels
    ProblemOptions options = options_of(Operation::batchnorm_train, Input::normal, Dtype::fp32, 3, 5);
    options.pixels = pixels;
    const Problem last(options);
    options.layout = ChannelLayout::channels_first;
    const Problem first(options);
    const std::vector<double> a = values_of(last.tensors()[0]);
    const std::vector<double> b = values_of(first.tensors()[0]);
    ASSERT_EQ(a.size(), static_cast<size_t>(3 * 5 * pixels));
    for (int64_t sample = 0; sample < 3; ++sample) {
      for (int64_t channel = 0; channel < 5; ++channel) {
        for (int64_t pixel = 0; pixel < pixels; ++pixel) {
          EXPECT_EQ(a[(sample * pixels + pixel) * 5 + channel], b[(sample * 5 + channel) * pixels + pixel]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace worklog

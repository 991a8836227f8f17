// The comparison: what it must let pass, what it must catch, and what it must say about it.
#include "common/harness/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "common/harness/parallel.h"
#include "common/harness/problem.h"
#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

constexpr Dtype all_dtypes[] = {Dtype::fp32, Dtype::fp16, Dtype::bf16};

ProblemOptions shaped(int64_t rows, int64_t cols, Input input = Input::normal, Dtype dtype = Dtype::fp32,
                      Operation operation = Operation::layernorm_forward) {
  ProblemOptions options;
  options.rows = rows;
  options.cols = cols;
  options.input = input;
  options.dtype = dtype;
  options.operation = operation;
  return options;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A LayerNorm forward pass in fp32 on the host, with the mistakes that a kernel could make.
struct Mistakes {
  bool one_pass = false;
  bool sequential = false;  // one running sum, not eight interleaved ones
  bool unbiased = false;
  bool eps_outside = false;
  bool eps_missing = false;
  bool mean_not_subtracted = false;
  bool gamma_ignored = false;
  bool beta_ignored = false;
  int64_t summed_cols = -1;      // the sums stop here; -1: nowhere
  int64_t statistics_shift = 0;  // rows are normalized with the statistics of the row this far away
  double mean_offset = 0;
};

float sum_in_fp32(int64_t n, bool sequential, const std::function<float(int64_t)>& term) {
  if (sequential) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += term(i);
    return sum;
  }
  if (n <= 4) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += term(i);
    return sum;
  }
  const int64_t half = n / 2;
  return sum_in_fp32(half, false, term) + sum_in_fp32(n - half, false, [&](int64_t i) { return term(half + i); });
}

std::vector<HostTensor> layer_norm_on_host(const Problem& problem, const Mistakes& mistakes) {
  std::vector<HostTensor> results = problem.tensors();
  const ProblemOptions& options = problem.options();
  const std::vector<double> x = values_of(named(results, "x"));
  const std::vector<double> gamma = values_of(named(results, "gamma"));
  const std::vector<double> beta = values_of(named(results, "beta"));
  const int64_t cols = options.cols;
  const int64_t summed = mistakes.summed_cols < 0 ? cols : std::min(cols, mistakes.summed_cols);
  const float n = static_cast<float>(cols);
  std::vector<float> means(options.rows), rstds(options.rows);
  for (int64_t row = 0; row < options.rows; ++row) {
    const auto at = [&](int64_t col) { return static_cast<float>(x[row * cols + col]); };
    const float mean = sum_in_fp32(summed, mistakes.sequential, at) / n + static_cast<float>(mistakes.mean_offset);
    float variance = 0;
    if (mistakes.one_pass) {
      variance =
          sum_in_fp32(summed, mistakes.sequential, [&](int64_t col) { return at(col) * at(col); }) / n - mean * mean;
    } else {
      const float squares =
          sum_in_fp32(summed, mistakes.sequential, [&](int64_t col) { return (at(col) - mean) * (at(col) - mean); });
      variance = squares / (mistakes.unbiased ? n - 1 : n);
    }
    means[row] = mean;
    rstds[row] = mistakes.eps_outside   ? 1 / (std::sqrt(variance) + options.eps)
                 : mistakes.eps_missing ? 1 / std::sqrt(variance)
                                        : 1 / std::sqrt(variance + options.eps);
  }
  for (int64_t row = 0; row < options.rows; ++row) {
    const int64_t source = (row + mistakes.statistics_shift + options.rows) % options.rows;
    for (int64_t col = 0; col < cols; ++col) {
      const float centered =
          static_cast<float>(x[row * cols + col]) - (mistakes.mean_not_subtracted ? 0 : means[source]);
      const float scale = mistakes.gamma_ignored ? 1 : static_cast<float>(gamma[col]);
      const float shift = mistakes.beta_ignored ? 0 : static_cast<float>(beta[col]);
      set_value(named(results, "y"), row, col, centered * rstds[source] * scale + shift);
    }
    set_value(named(results, "mean"), row, 0, means[source]);
    set_value(named(results, "rstd"), row, 0, rstds[source]);
  }
  return results;
}

Comparison compared(const ProblemOptions& options, const Mistakes& mistakes, const ComparisonOptions& how = {}) {
  const Problem problem(options);
  return problem.compare(layer_norm_on_host(problem, mistakes), how);
}

// --- What must pass --------------------------------------------------------------------------------------------------

TEST(Comparison, TheRoundedReferencePassesEverywhere) {
  for (const Operation operation : all_operations) {
    for (const Input input : all_inputs()) {
      for (const Dtype dtype : all_dtypes) {
        for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {3, 33}, {40, 130}}) {
          if (operation == Operation::batchnorm_train && rows == 1) continue;
          ProblemOptions options = shaped(rows, cols, input, dtype, operation);
          options.param_dtype = rows == 3 ? dtype : Dtype::fp32;
          const Problem problem(options);
          const Comparison comparison = problem.compare(right_results(problem));
          ASSERT_TRUE(comparison.passed) << name_of(operation) << " " << name_of(input) << " " << name_of(dtype) << " "
                                         << rows << "x" << cols << "\n"
                                         << comparison.describe();
          EXPECT_GT(comparison.compared, 0);
          EXPECT_LE(comparison.max_ulp_error, 0.51);
        }
      }
    }
  }
}

// --- Eight bits
// -------------------------------------------------------------------------------------------------------

ProblemOptions quantized(ByteFormat format, Scaling scaling, Input input = Input::normal) {
  ProblemOptions options = shaped(6, 300, input, Dtype::bf16, Operation::add_layernorm_quantized);
  options.format = format;
  options.scaling = scaling;
  options.row_padding = 2;
  return options;
}

TEST(Comparison, EightBitsPassWithEachKindOfScale) {
  for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
    for (const Scaling scaling : {Scaling::row, Scaling::block, Scaling::tensor}) {
      for (const Input input : all_inputs()) {
        const Problem problem(quantized(format, scaling, input));
        const Comparison comparison = problem.compare(right_results(problem));
        EXPECT_TRUE(comparison.passed) << operation_name(problem.options()) << " " << name_of(input) << "\n"
                                       << comparison.describe();
        EXPECT_LE(comparison.max_ulp_error, 0.51);
        EXPECT_FALSE(problem.compare(problem.tensors()).passed);  // nothing was written
      }
    }
  }
}

// The value of eight bits one step away is wrong: the reference is close to a boundary between two nowhere here.
TEST(Comparison, OneStepOffIsWrongInEightBits) {
  for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
    const Problem problem(quantized(format, Scaling::row));
    const std::vector<HostTensor> right = right_results(problem);
    const HostTensor& y = named(right, "y");
    int64_t tried = 0;
    for (int64_t col = 0; col < 300; ++col) {
      const double value = value_at(y, 2, col);
      const double step = ulp_at(y.dtype, std::fabs(value));
      for (const double other : {value - step, value + step}) {
        if (round_to_byte(y.dtype, other) != other) continue;  // past the largest, or a coarser exponent
        std::vector<HostTensor> results = right;
        *element_at(named(results, "y"), 2, col) = byte_of(y.dtype, other);
        const Comparison comparison = problem.compare(results);
        ASSERT_EQ(comparison.differing, 1) << col << ": " << other << " for " << value;
        EXPECT_EQ(comparison.first[0].row, 2);
        EXPECT_EQ(comparison.first[0].col, col);
        ++tried;
      }
    }
    EXPECT_GT(tried, 500);
  }
}

// Where y / scale lies on the boundary of two values, either is right.
TEST(Comparison, OnABoundaryOfEightBitsEitherIsRight) {
  ProblemOptions options = shaped(1, 2, Input::normal, Dtype::fp32, Operation::rmsnorm_quantized);
  options.scaling = Scaling::tensor;
  options.absent = {"gamma"};
  options.eps = 0;
  Problem problem(options);
  // x = (a, a): y = 1 whatever a is. With the scale 1 / 17, y / scale is 17, in the middle of 16 and 18.
  set_value(const_cast<HostTensor&>(named(problem.tensors(), "x")), 0, 0, 0.5);
  set_value(const_cast<HostTensor&>(named(problem.tensors(), "x")), 0, 1, 0.5);
  set_value(const_cast<HostTensor&>(named(problem.tensors(), "scale")), 0, 0, 1.0 / 17);
  std::vector<HostTensor> results = problem.tensors();
  for (const auto& [value, passes] : {std::pair{14.0, false}, {16.0, true}, {18.0, true}, {20.0, false}}) {
    for (const int64_t col : {0, 1}) *element_at(named(results, "y"), 0, col) = byte_of(Dtype::e4m3, value);
    EXPECT_EQ(problem.compare(results).passed, passes) << value;
  }
}

TEST(Comparison, AScaleHasNoToleranceButItsRounding) {
  for (const Scaling scaling : {Scaling::row, Scaling::block}) {
    const Problem problem(quantized(ByteFormat::e4m3, scaling));
    std::vector<HostTensor> results = right_results(problem);
    HostTensor& scales = named(results, "scales");
    const double scale = value_at(scales, 3, 0);
    set_value(scales, 3, 0, scale * (1 + 1e-7));
    EXPECT_TRUE(problem.compare(results).passed);
    set_value(scales, 3, 0, scale * (1 + 2e-5));
    const Comparison comparison = problem.compare(results);
    EXPECT_EQ(comparison.differing, 1);
    EXPECT_EQ(comparison.first[0].tensor, "scales");
    EXPECT_EQ(comparison.first[0].row, 3);
  }
}

// What is quantized after it was rounded to bf16 is another result, and is taken where a variant says that it does so.
TEST(Comparison, RoundedFirstIsTakenWhereItIsSaid) {
  const Problem problem(quantized(ByteFormat::e4m3, Scaling::tensor));
  const Reference reference(problem.options(), problem.tensors());
  std::vector<HostTensor> results = right_results(problem);
  Reference::Row row;
  const double scale = value_at(named(problem.tensors(), "scale"), 0, 0);
  const int y = reference.index_of("y");
  for (int64_t i = 0; i < 6; ++i) {
    reference.expect_row(i, Summation::any_order, row);
    for (int64_t j = 0; j < 300; ++j) {
      const float rounded = round_to(Dtype::bf16, static_cast<float>(row.outputs[y].want[j] * scale));
      *element_at(results[y], i, j) = byte_of(Dtype::e4m3, round_to_byte(Dtype::e4m3, rounded / scale));
    }
  }
  EXPECT_GT(problem.compare(results).differing, 10);
  EXPECT_TRUE(problem.compare(results, {.rounded_first = true}).passed);
}

TEST(Comparison, ANanIsInTheScaleAndInE4m3AndIsZeroInInt8) {
  for (const ByteFormat format : {ByteFormat::e4m3, ByteFormat::int8}) {
    const Problem problem(quantized(format, Scaling::row, Input::nan_row));
    const std::vector<HostTensor> right = right_results(problem);
    const HostTensor& y = named(right, "y");
    EXPECT_TRUE(std::isnan(value_at(named(right, "scales"), 3, 0)));
    EXPECT_EQ(bits_at(y, 3, 7), format == ByteFormat::e4m3 ? 0x7fu : 0u);
    std::vector<HostTensor> results = right;
    *element_at(named(results, "y"), 3, 7) = byte_of(y.dtype, 5);
    EXPECT_EQ(problem.compare(results).differing, 1);
    results = right;
    set_value(named(results, "scales"), 3, 0, 1);
    EXPECT_EQ(problem.compare(results).differing, 1);
  }
}

TEST(Comparison, BatchNormPassesInBothLayouts) {
  for (const ChannelLayout layout : {ChannelLayout::channels_last, ChannelLayout::channels_first}) {
    for (const Operation operation :
         {Operation::batchnorm_train, Operation::batchnorm_inference, Operation::batchnorm_backward}) {
      ProblemOptions options = shaped(4, 6, Input::normal, Dtype::bf16, operation);
      options.pixels = 5;
      options.layout = layout;
      const Problem problem(options);
      std::vector<HostTensor> results = right_results(problem);
      EXPECT_TRUE(problem.compare(results).passed);
      // The element of sample 2, channel 3, pixel 1.
      HostTensor& output = operation == Operation::batchnorm_backward ? named(results, "dx") : named(results, "y");
      const bool last = layout == ChannelLayout::channels_last;
      set_value(output, last ? 2 * 5 + 1 : 2 * 6 + 3, last ? 3 : 1, 77);
      const Comparison comparison = problem.compare(results);
      ASSERT_EQ(comparison.differing, 1);
      EXPECT_EQ(comparison.first[0].row, 2 * 5 + 1);
      EXPECT_EQ(comparison.first[0].col, 3);
    }
  }
}

TEST(Comparison, AnHonestFp32KernelPasses) {
  for (const Input input : all_inputs()) {
    if (input == Input::huge) continue;  // see AnOverflowIsAFailure
    for (const Dtype dtype : all_dtypes) {
      for (const int64_t cols : {1, 33, 768, 1024}) {
        for (const Summation summation : {Summation::any_order, Summation::pairwise}) {
          const Comparison comparison = compared(shaped(50, cols, input, dtype), {}, {.summation = summation});
          EXPECT_TRUE(comparison.passed) << name_of(input) << " " << name_of(dtype) << " " << cols << "\n"
                                         << comparison.describe();
        }
      }
    }
  }
}

TEST(Comparison, ARunningSumIsWithinAnyOrderButNotPairwise) {
  const ProblemOptions options = shaped(300, 1024, Input::large_mean);
  EXPECT_TRUE(compared(options, {.sequential = true}).passed);
  const Comparison strict = compared(options, {.sequential = true}, {.summation = Summation::pairwise});
  EXPECT_FALSE(strict.passed);
  EXPECT_TRUE(contains(strict.likely_cause, "off by its rounding: too long a running sum")) << strict.likely_cause;
}

TEST(Comparison, ARunningSumOfEqualTermsFails) {
  // Its roundings all go the same way: the mean of 1024 times 0.7 is off by 170 units of 2^-24, and y with it.
  const Comparison comparison = compared(shaped(20, 1024, Input::constant), {.sequential = true});
  EXPECT_FALSE(comparison.passed);
  EXPECT_TRUE(contains(comparison.likely_cause, "off by its rounding: too long a running sum"))
      << comparison.describe();
}

// --- Formulas that are wrong -----------------------------------------------------------------------------------------

TEST(Comparison, OnePassVarianceFailsWhereTheMeanIsLarge) {
  for (const Input input : {Input::large_mean, Input::arange}) {
    const Comparison comparison = compared(shaped(1024, 1024, input), {.one_pass = true});
    EXPECT_FALSE(comparison.passed) << name_of(input);
    EXPECT_TRUE(contains(comparison.likely_cause, "E[x^2] - E[x]^2")) << comparison.describe();
  }
  EXPECT_FALSE(compared(shaped(64, 1024, Input::large_mean, Dtype::fp16), {.one_pass = true}).passed);
  EXPECT_TRUE(compared(shaped(64, 1024, Input::normal), {.one_pass = true}).passed) << "there it does no harm";
}

TEST(Comparison, UnbiasedVarianceFails) {
  for (const int64_t cols : {31, 1024, 8192}) {
    const Comparison comparison = compared(shaped(20, cols), {.unbiased = true});
    EXPECT_FALSE(comparison.passed) << cols;
    EXPECT_EQ(comparison.likely_cause, "y: the variance is unbiased (divided by n - 1)") << cols;
  }
}

TEST(Comparison, EpsOutsideTheRootFails) {
  for (const Dtype dtype : all_dtypes) {
    const Comparison comparison = compared(shaped(20, 500, Input::tiny_variance, dtype), {.eps_outside = true});
    EXPECT_FALSE(comparison.passed) << name_of(dtype);
    EXPECT_EQ(comparison.likely_cause, "y: eps is outside the root") << name_of(dtype);
  }
}

TEST(Comparison, MissingEpsFails) {
  const Comparison comparison = compared(shaped(20, 500, Input::tiny_variance), {.eps_missing = true});
  EXPECT_FALSE(comparison.passed);
  EXPECT_EQ(comparison.likely_cause, "y: eps is missing");
}

TEST(Comparison, NanInARowWithoutVarianceHasMoreThanOneCause) {
  const auto cause_of = [](const ProblemOptions& options, const Mistakes& mistakes) {
    const Comparison comparison = compared(options, mistakes);
    EXPECT_FALSE(comparison.passed);
    return comparison.likely_cause;
  };
  const std::string alike = "y: NaN where all values of a row are the same: 0 / 0, as where eps is missing";
  EXPECT_EQ(cause_of(shaped(20, 1, Input::normal), {.unbiased = true}),
            "y: NaN in rows of one element: a division by n - 1, or 0 / 0 without eps");
  EXPECT_EQ(cause_of(shaped(20, 1, Input::normal), {.eps_missing = true}),
            "y: NaN in rows of one element: a division by n - 1, or 0 / 0 without eps");
  const std::string constant = cause_of(shaped(20, 512, Input::constant), {.eps_missing = true});
  EXPECT_TRUE(contains(constant, alike)) << constant;
  EXPECT_EQ(cause_of(shaped(20, 512, Input::large_mean), {.one_pass = true}),
            "y: NaN where the mean is large against the deviation: a negative variance, as E[x^2] - E[x]^2 gives it");
}

TEST(Comparison, ForgottenPartsAreNamed) {
  const std::pair<Mistakes, std::string> cases[] = {
      {{.mean_not_subtracted = true}, "y: the mean is not subtracted"},
      {{.gamma_ignored = true}, "y: gamma is ignored"},
      {{.beta_ignored = true}, "y: beta is ignored"},
      {{.gamma_ignored = true, .beta_ignored = true}, "y: gamma and beta are ignored"},
      {{.mean_offset = 0.25}, "y: the mean of each row is off: a constant offset along the row"},
      {{.summed_cols = 512}, "y: the sums stop after column 511 of 600"},
  };
  for (const Dtype dtype : all_dtypes) {
    for (const auto& [mistakes, cause] : cases) {
      const Comparison comparison = compared(shaped(30, 600, Input::normal, dtype), mistakes);
      EXPECT_FALSE(comparison.passed) << cause;
      EXPECT_EQ(comparison.likely_cause, cause) << name_of(dtype);
    }
  }
}

TEST(Comparison, StatisticsOfAnotherRowAreNamed) {
  for (const int64_t shift : {-1, 1, 8}) {
    const Comparison comparison = compared(shaped(64, 700), {.statistics_shift = shift});
    EXPECT_FALSE(comparison.passed);
    EXPECT_TRUE(contains(comparison.likely_cause, "mean and deviation of another row")) << comparison.likely_cause;
  }
}

TEST(Comparison, DisplacedRowsAreNamed) {
  const Problem problem(shaped(20, 50));
  std::vector<HostTensor> results = right_results(problem);
  const HostTensor right = named(results, "y");
  for (int64_t row = 1; row < 20; ++row) {
    for (int64_t col = 0; col < 50; ++col) set_value(named(results, "y"), row, col, value_at(right, row - 1, col));
  }
  EXPECT_EQ(problem.compare(results).likely_cause, "y: each row holds the result of the row before it");
}

TEST(Comparison, WrongRowStatisticsAreNamed) {
  const Problem problem(shaped(20, 50));
  const std::vector<HostTensor> right = right_results(problem);
  const std::pair<std::function<double(double, double)>, std::string> cases[] = {
      {[](double, double rstd) { return 1 / rstd; }, "rstd: the standard deviation came out, not 1 over it"},
      {[](double, double rstd) { return 1 / rstd / rstd - 1e-6; }, "rstd: the variance came out"},
      {[](double mean, double) { return mean; }, "rstd: the mean came out in place of rstd"},
  };
  for (const auto& [value, cause] : cases) {
    std::vector<HostTensor> results = right;
    for (int64_t row = 0; row < 20; ++row) {
      const double mean = value_at(named(right, "mean"), row, 0);
      set_value(named(results, "rstd"), row, 0, value(mean, value_at(named(right, "rstd"), row, 0)));
    }
    EXPECT_EQ(problem.compare(results).likely_cause, cause);
  }
}

TEST(Comparison, ValuesRoundedOnTheWayAreNamed) {
  const Problem problem(shaped(20, 300));
  std::vector<HostTensor> results = right_results(problem);
  HostTensor& y = named(results, "y");
  for (int64_t row = 0; row < 20; ++row) {
    for (int64_t col = 0; col < 300; ++col) {
      set_value(y, row, col, round_to(Dtype::bf16, static_cast<float>(value_at(y, row, col))));
    }
  }
  const Comparison comparison = problem.compare(results);
  EXPECT_FALSE(comparison.passed);
  EXPECT_EQ(comparison.likely_cause, "y: every value is one of bf16: rounded to it on the way");
}

TEST(Comparison, OneUlpTooManyFailsWhereABoundIsStated) {
  for (const Dtype dtype : all_dtypes) {
    const Problem problem(shaped(8, 64, Input::normal, dtype));
    const std::vector<HostTensor> right = right_results(problem);
    EXPECT_TRUE(problem.compare(right, {.max_ulp = 0.501}).passed) << "rounding once is half a unit";
    const Reference reference(problem.options(), problem.tensors());
    Reference::Row row;
    reference.expect_row(5, Summation::any_order, row);
    const double want = row.outputs[3].want[7];
    const double unit = std::max(ulp_at(dtype, std::fabs(want)), ulp_at(dtype, 1));
    for (const int ulps : {1, 2, 4}) {
      // Away from the reference, so that what is there by rounding already does not count against the step.
      const double rounded = value_at(named(right, "y"), 5, 7);
      std::vector<HostTensor> results = right;
      set_value(named(results, "y"), 5, 7, rounded + (rounded < want ? -ulps : ulps) * unit);
      const double error = std::fabs(value_at(named(results, "y"), 5, 7) - want) / unit;
      const Comparison tight = problem.compare(results, {.max_ulp = ulps - 0.01});
      EXPECT_FALSE(tight.passed) << name_of(dtype);
      ASSERT_EQ(tight.differing, 1) << name_of(dtype);
      EXPECT_EQ(tight.first[0].row, 5);
      EXPECT_EQ(tight.first[0].col, 7);
      EXPECT_EQ(tight.likely_cause, "y: wrong in one element only");
      EXPECT_DOUBLE_EQ(tight.max_ulp_error, error);
      EXPECT_EQ(tight.worst_tensor, "y");
      if (dtype == Dtype::fp32) {
        EXPECT_TRUE(problem.compare(results, {.max_ulp = ulps + 0.51}).passed);
      }
    }
  }
}

// --- Gradients and sums over rows ------------------------------------------------------------------------------------

// dx = rstd * (wdy - xhat * c2 - c1) + dh of a row operation, with a change to its parts.
struct GradientParts {
  double w, c1, c2, rstd, dh;
};

std::vector<HostTensor> changed_gradient(const Problem& problem, const std::function<void(GradientParts&)>& change) {
  std::vector<HostTensor> results = right_results(problem);
  const int64_t cols = problem.options().cols;
  for (int64_t row = 0; row < problem.options().rows; ++row) {
    const double mean = value_at(named(results, "mean"), row, 0);
    const double rstd = value_at(named(results, "rstd"), row, 0);
    const auto xhat = [&](int64_t col) { return (value_at(named(results, "x"), row, col) - mean) * rstd; };
    const auto wdy = [&](int64_t col) {
      return value_at(named(results, "dy"), row, col) * value_at(named(results, "gamma"), 0, col);
    };
    double c1 = 0, c2 = 0;
    for (int64_t col = 0; col < cols; ++col) {
      c1 += wdy(col) / static_cast<double>(cols);
      c2 += wdy(col) * xhat(col) / static_cast<double>(cols);
    }
    for (int64_t col = 0; col < cols; ++col) {
      GradientParts p{wdy(col), c1, c2, rstd, value_at(named(results, "dh"), row, col)};
      change(p);
      set_value(named(results, "dx"), row, col, p.rstd * (p.w - xhat(col) * p.c2 - p.c1) + p.dh);
    }
  }
  return results;
}

TEST(Comparison, WrongGradientsAreNamed) {
  const std::pair<std::function<void(GradientParts&)>, std::string> cases[] = {
      {[](GradientParts& p) { p.c1 = 0; }, "dx: the term with mean(wdy) is missing"},
      {[](GradientParts& p) { p.c2 = 0; }, "dx: the term with xhat * mean(wdy * xhat) is missing"},
      {[](GradientParts& p) { p.c1 = p.c2 = 0; }, "dx: both mean terms are missing"},
      {[](GradientParts& p) { p.rstd = 1; }, "dx: the factor rstd is missing"},
      {[](GradientParts& p) { p.dh = 0; }, "dx: dh is not added"},
      {[](GradientParts& p) {
         p.c1 *= 40;
         p.c2 *= 40;
       },
       "dx: the sums are not divided by n"},
  };
  for (const Dtype dtype : all_dtypes) {
    const Problem problem(shaped(30, 40, Input::uniform, dtype, Operation::add_layernorm_backward));
    EXPECT_TRUE(problem.compare(changed_gradient(problem, [](GradientParts&) {})).passed);
    for (const auto& [change, cause] : cases) {
      const Comparison comparison = problem.compare(changed_gradient(problem, change));
      EXPECT_FALSE(comparison.passed) << cause;
      EXPECT_EQ(comparison.likely_cause, cause) << name_of(dtype);
    }
  }
}

// dgamma and dbeta with sums kept in a type, over the first `rows` rows.
void sum_over_rows(const Problem& problem, std::vector<HostTensor>& results, Dtype kept_in, int64_t rows) {
  for (int64_t col = 0; col < problem.options().cols; ++col) {
    float dgamma = 0, dbeta = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float dy = static_cast<float>(value_at(named(results, "dy"), row, col));
      const float mean = static_cast<float>(value_at(named(results, "mean"), row, 0));
      const float rstd = static_cast<float>(value_at(named(results, "rstd"), row, 0));
      const float xhat = (static_cast<float>(value_at(named(results, "x"), row, col)) - mean) * rstd;
      dgamma = round_to(kept_in, dgamma + dy * xhat);
      dbeta = round_to(kept_in, dbeta + dy);
    }
    set_value(named(results, "dgamma"), 0, col, dgamma);
    set_value(named(results, "dbeta"), 0, col, dbeta);
  }
}

TEST(Comparison, SumsOverRowsKeptInBf16Fail) {
  for (const Dtype param_dtype : {Dtype::fp32, Dtype::bf16}) {
    ProblemOptions options = shaped(1000, 32, Input::normal, Dtype::bf16, Operation::layernorm_backward);
    options.param_dtype = param_dtype;
    const Problem problem(options);
    std::vector<HostTensor> results = right_results(problem);
    sum_over_rows(problem, results, Dtype::fp32, 1000);
    EXPECT_TRUE(problem.compare(results).passed) << problem.compare(results).describe();
    sum_over_rows(problem, results, Dtype::bf16, 1000);
    const Comparison comparison = problem.compare(results);
    EXPECT_FALSE(comparison.passed);
    EXPECT_TRUE(contains(comparison.likely_cause, "the sum was kept in too narrow a type")) << comparison.describe();
  }
}

TEST(Comparison, WrongSumsOverRowsAreNamed) {
  const Problem problem(shaped(100, 32, Input::normal, Dtype::fp32, Operation::layernorm_backward));
  const std::vector<HostTensor> right = right_results(problem);
  std::vector<HostTensor> results = right;
  sum_over_rows(problem, results, Dtype::fp32, 96);
  EXPECT_EQ(problem.compare(results).likely_cause, "dgamma: the sum stops after row 95 of 100");

  results = right;
  for (int64_t col = 0; col < 32; ++col) {
    set_value(named(results, "dbeta"), 0, col, 2 * value_at(named(right, "dbeta"), 0, col));
  }
  EXPECT_EQ(problem.compare(results).likely_cause,
            "dbeta: everything was added twice: the sums of an earlier run were not cleared");

  results = right;
  named(results, "dgamma").bytes = named(right, "dbeta").bytes;
  EXPECT_EQ(problem.compare(results).likely_cause, "dgamma: dbeta came out in place of dgamma");
}

TEST(Comparison, WrongRunningStatisticsAreNamed) {
  const ProblemOptions options = shaped(20, 32, Input::normal, Dtype::fp32, Operation::batchnorm_train);
  const Problem problem(options);
  const std::vector<HostTensor> right = right_results(problem);
  std::vector<HostTensor> results = right;
  named(results, "running_mean").bytes = named(problem.tensors(), "running_mean").bytes;
  EXPECT_EQ(problem.compare(results).likely_cause, "running_mean: not updated");

  results = right;
  named(results, "running_mean").bytes = named(right, "save_mean").bytes;
  EXPECT_EQ(problem.compare(results).likely_cause, "running_mean: the batch's own value came out");

  results = right;
  for (int64_t col = 0; col < 32; ++col) {
    const double invstd = value_at(named(right, "save_invstd"), 0, col);
    const double biased = 1 / (invstd * invstd) - options.eps;
    const double old = value_at(named(problem.tensors(), "running_var"), 0, col);
    set_value(named(results, "running_var"), 0, col, old + 0.1 * (biased - old));
  }
  EXPECT_EQ(problem.compare(results).likely_cause, "running_var: the variance is biased (divided by n, not n - 1)");
}

TEST(Comparison, WrongBatchNormIsNamed) {
  for (const ChannelLayout layout : {ChannelLayout::channels_last, ChannelLayout::channels_first}) {
    ProblemOptions options = shaped(20, 16, Input::normal, Dtype::fp32, Operation::batchnorm_train);
    options.pixels = 3;
    options.layout = layout;
    const Problem problem(options);
    std::vector<HostTensor> results = right_results(problem);
    const bool last = layout == ChannelLayout::channels_last;
    HostTensor& y = named(results, "y");
    for (int64_t row = 0; row < y.rows; ++row) {
      for (int64_t col = 0; col < y.cols; ++col) {
        const int64_t channel = last ? col : row % 16;
        const double mean = value_at(named(results, "save_mean"), 0, channel);
        const double invstd = value_at(named(results, "save_invstd"), 0, channel) * std::sqrt(59.0 / 60);
        set_value(
            y, row, col,
            (value_at(named(results, "x"), row, col) - mean) * invstd * value_at(named(results, "gamma"), 0, channel) +
                value_at(named(results, "beta"), 0, channel));
      }
    }
    EXPECT_EQ(problem.compare(results).likely_cause, "y: the variance is unbiased (divided by n - 1)");
  }
}

TEST(Comparison, AForgottenResidualIsNamed) {
  const Problem problem(shaped(12, 40, Input::normal, Dtype::bf16, Operation::add_rmsnorm_forward));
  std::vector<HostTensor> results = right_results(problem);
  named(results, "h").bytes = named(results, "x").bytes;
  EXPECT_EQ(problem.compare(results).likely_cause, "h: the residual is not added");
}

// --- NaN, infinity, and what was not written -------------------------------------------------------------------------

TEST(Comparison, NanWhereANumberIsWantedFails) {
  for (const Dtype dtype : all_dtypes) {
    for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      const Problem problem(shaped(9, 33, Input::normal, dtype));
      std::vector<HostTensor> results = right_results(problem);
      set_value(named(results, "y"), 8, 32, wrong);
      const Comparison comparison = problem.compare(results);
      EXPECT_FALSE(comparison.passed);
      EXPECT_EQ(comparison.differing, 1);
      EXPECT_EQ(comparison.max_ulp_error, std::numeric_limits<double>::infinity());
      EXPECT_FALSE(comparison.first[0].never_written);
      EXPECT_TRUE(contains(comparison.likely_cause, "not finite in 1 elements, in one element only"))
          << comparison.likely_cause;
    }
  }
}

TEST(Comparison, NanEverywhereIsNamed) {
  const Problem problem(shaped(9, 33));
  std::vector<HostTensor> results = right_results(problem);
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t col = 0; col < 33; ++col) set_value(named(results, "y"), row, col, std::nan(""));
  }
  EXPECT_EQ(problem.compare(results).likely_cause, "y: NaN or infinite in every element");
}

TEST(Comparison, AMissingNanFails) {
  for (const Dtype dtype : all_dtypes) {
    const Problem problem(shaped(9, 33, Input::nan_row, dtype));
    std::vector<HostTensor> results = right_results(problem);
    EXPECT_TRUE(problem.compare(results).passed);
    EXPECT_TRUE(std::isnan(value_at(named(results, "y"), 4, 0))) << "one NaN makes its whole row NaN";
    EXPECT_FALSE(std::isnan(value_at(named(results, "y"), 5, 0)));
    set_value(named(results, "y"), 4, 20, 0.5);
    const Comparison comparison = problem.compare(results);
    EXPECT_EQ(comparison.differing, 1);
    EXPECT_TRUE(contains(comparison.likely_cause, "finite in 1 elements where the reference is NaN"))
        << comparison.likely_cause;
  }
}

TEST(Comparison, AnOverflowIsAFailure) {
  const Comparison comparison = compared(shaped(20, 100, Input::huge), {});
  EXPECT_FALSE(comparison.passed);
  EXPECT_TRUE(contains(comparison.likely_cause, "near the top of the type overflow")) << comparison.likely_cause;
  EXPECT_TRUE(compared(shaped(20, 100, Input::huge, Dtype::fp16), {}).passed) << "squares of fp16 values fit fp32";
}

TEST(Comparison, AWantedInfinityMustComeOut) {
  // running_var of huge values: the reference is past fp32's range, so infinity is right and any number is wrong.
  const Problem problem(shaped(20, 8, Input::huge, Dtype::fp32, Operation::batchnorm_train));
  std::vector<HostTensor> results = right_results(problem);
  EXPECT_TRUE(std::isinf(value_at(named(results, "running_var"), 0, 3)));
  EXPECT_TRUE(problem.compare(results).passed);
  set_value(named(results, "running_var"), 0, 3, 3e38);
  EXPECT_EQ(problem.compare(results).differing, 1);
}

TEST(Comparison, WhatWasNeverWrittenIsSaidSo) {
  for (const Dtype dtype : all_dtypes) {
    const Problem problem(shaped(9, 33, Input::normal, dtype));
    const Comparison nothing = problem.compare(problem.tensors());
    EXPECT_FALSE(nothing.passed);
    EXPECT_EQ(nothing.differing, nothing.compared);
    EXPECT_TRUE(nothing.first[0].never_written);
    EXPECT_TRUE(contains(nothing.likely_cause, "y: nothing was written")) << nothing.likely_cause;
    EXPECT_TRUE(contains(nothing.describe(), "y at row 0, column 0: never written, want "));

    std::vector<HostTensor> results = right_results(problem);
    HostTensor& y = named(results, "y");
    for (int64_t row = 0; row < 9; ++row) store_bits(dtype, poison_pattern(dtype), element_at(y, row, 32));
    EXPECT_EQ(problem.compare(results).likely_cause,
              "y: never written only in columns 32 to 32 of 33: the tail of the row");
  }
}

TEST(Comparison, PoisonIsNoAnswerWhereNanIsWanted) {
  const Problem problem(shaped(9, 33, Input::nan_row));
  std::vector<HostTensor> results = right_results(problem);
  store_bits(Dtype::fp32, poison_pattern(Dtype::fp32), element_at(named(results, "y"), 4, 2));
  const Comparison comparison = problem.compare(results);
  ASSERT_EQ(comparison.differing, 1);
  EXPECT_TRUE(comparison.first[0].never_written);
}

// --- Where it is wrong -----------------------------------------------------------------------------------------------

TEST(Comparison, PlacesAreNamed) {
  const auto cause = [](int64_t first_row, int64_t last_row, int64_t first_col, int64_t last_col) {
    const Problem problem(shaped(20, 1023));
    std::vector<HostTensor> results = right_results(problem);
    for (int64_t row = first_row; row <= last_row; ++row) {
      for (int64_t col = first_col; col <= last_col; ++col) {
        // No common factor or offset, so that nothing else explains it.
        set_value(named(results, "y"), row, col, static_cast<double>((row * 37 + col * 101) % 23));
      }
    }
    return problem.compare(results).likely_cause;
  };
  EXPECT_EQ(cause(0, 19, 1020, 1022), "y: wrong only in columns 1020 to 1022 of 1023: the tail of the row");
  EXPECT_EQ(cause(16, 19, 0, 1022), "y: wrong only in rows 16 to 19 of 20");
  EXPECT_EQ(cause(7, 7, 0, 1022), "y: wrong only in row 7");
  EXPECT_EQ(cause(0, 19, 512, 512), "y: wrong only in column 512");
  EXPECT_EQ(cause(0, 19, 0, 1022), "");
}

TEST(Comparison, WritesBetweenRowsAreCaught) {
  for (const Dtype dtype : all_dtypes) {
    ProblemOptions options = shaped(6, 10, Input::normal, dtype);
    options.row_padding = 3;
    const Problem problem(options);
    std::vector<HostTensor> results = right_results(problem);
    EXPECT_TRUE(problem.compare(results).passed);
    set_value(named(results, "y"), 2, 11, 0);
    const Comparison comparison = problem.compare(results);
    EXPECT_FALSE(comparison.passed);
    EXPECT_EQ(comparison.differing, 0);
    ASSERT_EQ(comparison.damage.size(), 1u);
    EXPECT_EQ(comparison.damage[0], "y was written outside its row: row 2, 2 past the row's end");
    EXPECT_TRUE(contains(comparison.describe(), "outside its row"));
  }
}

TEST(Comparison, ChangedInputsAreCaught) {
  const Problem problem(shaped(6, 10));
  std::vector<HostTensor> results = right_results(problem);
  set_value(named(results, "x"), 3, 4, 0);
  const Comparison comparison = problem.compare(results);
  EXPECT_FALSE(comparison.passed);
  ASSERT_EQ(comparison.damage.size(), 1u);
  EXPECT_EQ(comparison.damage[0], "the input x was changed, first at row 3, column 4");
  for (HostTensor& tensor : results) {
    if (tensor.spec.role == Role::input) tensor.bytes.clear();
  }
  EXPECT_TRUE(problem.compare(results).passed) << "inputs may be left out";
}

TEST(Comparison, ResultsOfAnotherShapeAreRefused) {
  const Problem problem(shaped(6, 10));
  EXPECT_THROW(problem.compare({}), std::invalid_argument);
  std::vector<HostTensor> results = right_results(problem);
  named(results, "y").bytes.pop_back();
  EXPECT_THROW(problem.compare(results), std::invalid_argument);
}

// --- The report ------------------------------------------------------------------------------------------------------

TEST(Comparison, ReportDoesNotDependOnTheNumberOfThreads) {
  for (const Operation operation : {Operation::layernorm_forward, Operation::batchnorm_backward}) {
    const Problem problem(shaped(3000, 50, Input::normal, Dtype::fp32, operation));
    std::vector<HostTensor> results = right_results(problem);
    HostTensor& output = operation == Operation::layernorm_forward ? named(results, "y") : named(results, "dx");
    for (int64_t row = 0; row < 3000; row += 7) set_value(output, row, row % 50, 9.5);
    std::string one_thread;
    for (const int threads : {1, 2, 3, 8}) {
      parallel_threads = threads;
      const Problem again(problem.options());
      const std::string text = again.compare(results).describe();
      if (threads == 1) one_thread = text;
      EXPECT_EQ(text, one_thread) << threads;
    }
    parallel_threads = 0;
    EXPECT_TRUE(contains(one_thread, "429 of ")) << one_thread;
    EXPECT_TRUE(contains(one_thread, "elements differ, in 429 rows")) << one_thread;
    EXPECT_TRUE(contains(one_thread, "at row 0, column 0: got 9.5, want ")) << one_thread;
    EXPECT_TRUE(contains(one_thread, "and 423 more")) << one_thread;
  }
}

TEST(Comparison, OnlyTheOutputsThatAreNamedAreCompared) {
  const Problem problem(shaped(8, 64));
  std::vector<HostTensor> results = layer_norm_on_host(problem, {});
  std::fill(named(results, "mean").bytes.begin(), named(results, "mean").bytes.end(), std::byte{0});
  EXPECT_FALSE(problem.compare(results).passed);
  EXPECT_TRUE(problem.compare(results, {.only = {"y", "rstd"}}).passed);
  const Comparison comparison = problem.compare(results, {.only = {"mean"}});
  EXPECT_EQ(comparison.compared, 8);
  EXPECT_EQ(comparison.differing, 8);
}

TEST(Comparison, CountsAndErrorsArePerOutput) {
  const Problem problem(shaped(6, 10));
  std::vector<HostTensor> results = right_results(problem);
  set_value(named(results, "mean"), 5, 0, 3);
  const Comparison comparison = problem.compare(results);
  ASSERT_EQ(comparison.errors.size(), 3u);
  EXPECT_EQ(comparison.errors[0].tensor, "y");
  EXPECT_EQ(comparison.errors[0].compared, 60);
  EXPECT_EQ(comparison.errors[0].differing, 0);
  EXPECT_EQ(comparison.errors[1].tensor, "mean");
  EXPECT_EQ(comparison.errors[1].differing, 1);
  EXPECT_EQ(comparison.compared, 60 + 6 + 6);
  EXPECT_EQ(comparison.worst_tensor, "y") << "the headline error is that of the elements";
  EXPECT_GT(comparison.max_abs_error, 2);
}

TEST(Comparison, TolerancesAreThoseOfAssertClose) {
  // assert_close of PyTorch: rtol 1.3e-6, 1e-3, 1.6e-2 and atol 1e-5.
  EXPECT_EQ(tolerance_of(Dtype::fp32).rtol, 1.3e-6);
  EXPECT_EQ(tolerance_of(Dtype::fp16).rtol, 1e-3);
  EXPECT_EQ(tolerance_of(Dtype::bf16).rtol, 1.6e-2);
  const Problem problem(shaped(4, 100));
  std::vector<HostTensor> results = right_results(problem);
  HostTensor& y = named(results, "y");
  const double want = value_at(y, 1, 1);
  const double tolerance = 1e-5 + 1.3e-6 * std::fabs(want);
  set_value(y, 1, 1, want + 0.95 * tolerance);
  EXPECT_TRUE(problem.compare(results).passed);
  set_value(y, 1, 1, want + 1.25 * tolerance);
  EXPECT_FALSE(problem.compare(results).passed) << "the slack of a row of 100 plain values must stay small";
}

}  // namespace
}  // namespace worklog

// The fp64 references: against figures by hand, against each other by finite differences, and against PyTorch.
#include "common/harness/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "common/harness/parallel.h"
#include "common/harness/problem.h"
#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

ProblemOptions shaped(Operation operation, int64_t rows, int64_t cols, Input input = Input::normal,
                      Dtype dtype = Dtype::fp32) {
  ProblemOptions options;
  options.operation = operation;
  options.rows = rows;
  options.cols = cols;
  options.input = input;
  options.dtype = dtype;
  return options;
}

size_t index_of(const std::vector<HostTensor>& tensors, std::string_view name) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].spec.name == name) return i;
  }
  throw std::invalid_argument("no such tensor");
}

// What the reference wants in every element of an output, in logical order.
std::vector<double> wanted(const ProblemOptions& options, const std::vector<HostTensor>& tensors,
                           std::string_view name) {
  const Reference reference(options, tensors);
  const size_t tensor = index_of(tensors, name);
  if (tensors[tensor].spec.extent == Extent::per_col) {
    return reference.expect_columns(tensor, Summation::any_order).want;
  }
  std::vector<double> values;
  Reference::Row row;
  for (int64_t i = 0; i < reference.rows(); ++i) {
    reference.expect_row(i, Summation::any_order, row);
    values.insert(values.end(), row.outputs[tensor].want.begin(), row.outputs[tensor].want.end());
  }
  return values;
}

std::vector<double> wanted(const ProblemOptions& options, std::string_view name) {
  return wanted(options, Problem(options).tensors(), name);
}

TEST(Reference, LayerNormOfFourNumbers) {
  ProblemOptions options = shaped(Operation::layernorm_forward, 1, 4, Input::arange);
  options.absent = {"gamma", "beta"};
  options.eps = 0.25f;
  // 1, 2, 3, 4: mean 2.5, variance 1.25 (not 5/3), eps inside the root.
  const double rstd = 1 / std::sqrt(1.5);
  const std::vector<double> y = wanted(options, "y");
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(y[i], (i + 1 - 2.5) * rstd);
  EXPECT_DOUBLE_EQ(wanted(options, "mean")[0], 2.5);
  EXPECT_DOUBLE_EQ(wanted(options, "rstd")[0], rstd);
}

TEST(Reference, RmsNormOfFourNumbers) {
  ProblemOptions options = shaped(Operation::rmsnorm_forward, 1, 4, Input::arange);
  options.absent = {"gamma"};
  options.eps = 0.5f;
  const double rstd = 1 / std::sqrt(30.0 / 4 + 0.5);
  const std::vector<double> y = wanted(options, "y");
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(y[i], (i + 1) * rstd);
  EXPECT_DOUBLE_EQ(wanted(options, "rstd")[0], rstd);
}

TEST(Reference, BatchNormOfFourNumbers) {
  ProblemOptions options = shaped(Operation::batchnorm_train, 4, 1, Input::arange);
  options.absent = {"gamma", "beta"};
  options.eps = 0.25f;
  options.momentum = 0.25f;
  const Problem problem(options);
  const double old_mean = value_at(named(problem.tensors(), "running_mean"), 0, 0);
  const double old_var = value_at(named(problem.tensors(), "running_var"), 0, 0);
  const std::vector<double> y = wanted(options, "y");
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(y[i], (i + 1 - 2.5) / std::sqrt(1.5));
  EXPECT_DOUBLE_EQ(wanted(options, "save_mean")[0], 2.5);
  EXPECT_DOUBLE_EQ(wanted(options, "save_invstd")[0], 1 / std::sqrt(1.5));
  EXPECT_DOUBLE_EQ(wanted(options, "running_mean")[0], 0.75 * old_mean + 0.25 * 2.5);
  EXPECT_DOUBLE_EQ(wanted(options, "running_var")[0], 0.75 * old_var + 0.25 * 5 / 3) << "unbiased: 5 / 3, not 1.25";

  options.operation = Operation::batchnorm_inference;
  EXPECT_DOUBLE_EQ(wanted(options, "y")[1], (2 - old_mean) / std::sqrt(old_var + 0.25));
}

TEST(Reference, OneElementIsItsOwnMean) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    const ProblemOptions options = shaped(Operation::layernorm_forward, 1, 1, Input::normal, dtype);
    const Problem problem(options);
    EXPECT_EQ(wanted(options, "y")[0], value_at(named(problem.tensors(), "beta"), 0, 0));
    EXPECT_EQ(wanted(options, "mean")[0], value_at(named(problem.tensors(), "x"), 0, 0));
    EXPECT_DOUBLE_EQ(wanted(options, "rstd")[0], 1 / std::sqrt(static_cast<double>(options.eps)));
  }
}

TEST(Reference, TheNormTakesTheSumRoundedToTheType) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    for (const auto& [fused, plain] : {std::pair{Operation::add_layernorm_forward, Operation::layernorm_forward},
                                       std::pair{Operation::add_rmsnorm_forward, Operation::rmsnorm_forward}}) {
      const ProblemOptions options = shaped(fused, 13, 57, Input::normal, dtype);
      const Problem problem(options);
      const std::vector<double> h = wanted(options, "h");
      Problem norm(shaped(plain, 13, 57, Input::normal, dtype));
      std::vector<HostTensor> tensors = norm.tensors();
      for (int64_t row = 0; row < 13; ++row) {
        for (int64_t col = 0; col < 57; ++col) {
          const float x = static_cast<float>(value_at(named(problem.tensors(), "x"), row, col));
          const float residual = static_cast<float>(value_at(named(problem.tensors(), "residual"), row, col));
          ASSERT_EQ(h[row * 57 + col], round_to(dtype, x + residual));
          set_value(named(tensors, "x"), row, col, h[row * 57 + col]);
        }
      }
      EXPECT_EQ(wanted(options, "y"), wanted(norm.options(), tensors, "y"));
    }
  }
}

// --- The backward references are the derivatives of the forward references -------------------------------------------

struct Derivative {
  Operation forward, backward;
};

// L = sum(y * dy): its gradient is what the backward pass computes. An input is moved by what fp32 can show, both ways.
double loss(const ProblemOptions& options, const std::vector<HostTensor>& tensors, const std::vector<double>& dy) {
  const std::vector<double> y = wanted(options, tensors, "y");
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
  return sum;
}

double slope(const ProblemOptions& options, std::vector<HostTensor> tensors, std::string_view name, int64_t row,
             int64_t col, const std::vector<double>& dy) {
  HostTensor& tensor = named(tensors, name);
  const double at = value_at(tensor, row, col);
  const double step = 1e-3;
  set_value(tensor, row, col, at + step);
  const double above = value_at(tensor, row, col);
  const double loss_above = loss(options, tensors, dy);
  set_value(tensor, row, col, at - step);
  const double below = value_at(tensor, row, col);
  const double loss_below = loss(options, tensors, dy);
  return (loss_above - loss_below) / (above - below);
}

TEST(Reference, BackwardIsTheDerivativeOfForward) {
  const Derivative pairs[] = {
      {Operation::layernorm_forward, Operation::layernorm_backward},
      {Operation::layernorm_forward, Operation::add_layernorm_backward},
      {Operation::rmsnorm_forward, Operation::rmsnorm_backward},
      {Operation::batchnorm_train, Operation::batchnorm_backward},
  };
  for (const auto& [forward, backward] : pairs) {
    const int64_t rows = 6, cols = 7;
    const ProblemOptions forward_options = shaped(forward, rows, cols);
    const ProblemOptions backward_options = shaped(backward, rows, cols);
    const Problem forward_problem(forward_options);
    const Problem backward_problem(backward_options);
    const std::vector<double> dy = values_of(named(backward_problem.tensors(), "dy"));
    const std::vector<double> dx = wanted(backward_options, "dx");
    const std::vector<double> dgamma = wanted(backward_options, "dgamma");
    ASSERT_EQ(named(forward_problem.tensors(), "x").bytes, named(backward_problem.tensors(), "x").bytes);
    ASSERT_EQ(named(forward_problem.tensors(), "gamma").bytes, named(backward_problem.tensors(), "gamma").bytes);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        double expected = slope(forward_options, forward_problem.tensors(), "x", row, col, dy);
        if (backward == Operation::add_layernorm_backward) {
          expected += value_at(named(backward_problem.tensors(), "dh"), row, col);
        }
        EXPECT_NEAR(dx[row * cols + col], expected, 2e-5) << name_of(backward) << " " << row << " " << col;
      }
    }
    for (int64_t col = 0; col < cols; ++col) {
      EXPECT_NEAR(dgamma[col], slope(forward_options, forward_problem.tensors(), "gamma", 0, col, dy), 2e-5)
          << name_of(backward);
      if (backward == Operation::rmsnorm_backward) continue;
      EXPECT_NEAR(wanted(backward_options, "dbeta")[col],
                  slope(forward_options, forward_problem.tensors(), "beta", 0, col, dy), 2e-5)
          << name_of(backward);
    }
  }
}

// --- Sums over rows --------------------------------------------------------------------------------------------------

TEST(Reference, SumsOverRowsAreAccurate) {
  for (const int64_t rows : {1, 63, 65, 100000}) {
    const ProblemOptions options = shaped(Operation::layernorm_backward, rows, 3, Input::outlier_channels);
    const Problem problem(options);
    const std::vector<double> dgamma = wanted(options, problem.tensors(), "dgamma");
    const std::vector<double> dbeta = wanted(options, problem.tensors(), "dbeta");
    for (int64_t col = 0; col < 3; ++col) {
      long double sum = 0, weighted = 0, magnitude = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const long double dy = value_at(named(problem.tensors(), "dy"), row, col);
        const long double x = value_at(named(problem.tensors(), "x"), row, col);
        const long double mean = value_at(named(problem.tensors(), "mean"), row, 0);
        const long double rstd = value_at(named(problem.tensors(), "rstd"), row, 0);
        sum += dy;
        weighted += dy * (x - mean) * rstd;
        magnitude += std::fabs(dy) + std::fabs(dy * (x - mean) * rstd);
      }
      EXPECT_NEAR(dbeta[col], static_cast<double>(sum), 1e-13 * static_cast<double>(magnitude)) << rows;
      EXPECT_NEAR(dgamma[col], static_cast<double>(weighted), 1e-13 * static_cast<double>(magnitude)) << rows;
    }
  }
}

TEST(Reference, DoesNotDependOnTheNumberOfThreads) {
  for (const Operation operation :
       {Operation::layernorm_backward, Operation::batchnorm_train, Operation::batchnorm_backward}) {
    const ProblemOptions options = shaped(operation, 501, 3000);
    const char* name = operation == Operation::batchnorm_train ? "running_var" : "dgamma";
    parallel_threads = 1;
    const std::vector<double> one = wanted(options, name);
    for (const int threads : {2, 5}) {
      parallel_threads = threads;
      EXPECT_EQ(wanted(options, name), one) << name_of(operation) << " " << threads;
    }
    parallel_threads = 0;
  }
}

TEST(Reference, BatchNormLayoutsWantTheSame) {
  for (const Operation operation :
       {Operation::batchnorm_train, Operation::batchnorm_inference, Operation::batchnorm_backward}) {
    ProblemOptions options = shaped(operation, 5, 6);
    options.pixels = 9;
    for (const char* name : {"y", "dx", "save_mean", "running_var", "dgamma"}) {
      bool has = false;
      for (const TensorSpec& spec : tensors_of(operation)) has = has || (spec.name == name && spec.role != Role::input);
      if (!has) continue;
      options.layout = ChannelLayout::channels_last;
      const std::vector<double> last = wanted(options, name);
      options.layout = ChannelLayout::channels_first;
      EXPECT_EQ(wanted(options, name), last) << name;
    }
  }
}

TEST(Reference, PaddingIsNeverRead) {
  for (const Operation operation : {Operation::layernorm_forward, Operation::add_layernorm_backward}) {
    ProblemOptions options = shaped(operation, 5, 6);
    const char* name = operation == Operation::layernorm_forward ? "y" : "dx";
    const std::vector<double> dense = wanted(options, name);
    options.row_padding = 5;
    EXPECT_EQ(wanted(options, name), dense);
  }
}

TEST(Reference, SlackGrowsWithTheSumAsDocumented) {
  EXPECT_EQ(sum_roundings(1, Summation::any_order), 5);
  EXPECT_EQ(sum_roundings(4096, Summation::any_order), 4 + 64);
  EXPECT_EQ(sum_roundings(4096, Summation::pairwise), 4 + 12);

  // y of LayerNorm: |gamma| * d * rstd dominates where the mean is large; next to nothing where it is not.
  for (const Input input : {Input::large_mean, Input::normal}) {
    const ProblemOptions options = shaped(Operation::layernorm_forward, 1, 1024, input);
    const Problem problem(options);
    const Reference reference(options, problem.tensors());
    Reference::Row row;
    reference.expect_row(0, Summation::any_order, row);
    const double gamma = std::fabs(value_at(named(problem.tensors(), "gamma"), 0, 5));
    const double d = 36 * 0x1p-24 * row.moments.mean_abs * row.moments.rstd * gamma;
    EXPECT_GT(row.outputs[3].slack[5], d);
    EXPECT_LT(row.outputs[3].slack[5], input == Input::normal ? d + 1e-5 : 1.05 * d);
    if (input == Input::normal) {
      EXPECT_LT(row.outputs[3].slack[5], 1e-5) << "less than assert_close's own atol";
    }
  }
}

// Each head's row is what RMSNorm, whose reference is compared with PyTorch's values, says of the same elements.
TEST(Reference, HeadsAreRowsOfRmsNorm) {
  for (const bool backward : {false, true}) {
    const Problem problem({.operation = backward ? Operation::qk_norm_backward : Operation::qk_norm,
                           .rows = 5,
                           .cols = 9,
                           .q_heads = 3,
                           .k_heads = 2,
                           .row_padding = 2,
                           .gamma_offset = 1});
    const Reference reference(problem.options(), problem.tensors());
    ASSERT_EQ(reference.rows(), 5 * (3 + 2));
    const auto of_problem = [&](const std::string& name) -> const HostTensor& {
      return named(problem.tensors(), name);
    };
    int64_t first_row = 0;
    for (const std::string part : {"q", "k"}) {
      const HostTensor& heads = of_problem(part);
      ProblemOptions options = {.operation = backward ? Operation::rmsnorm_backward : Operation::rmsnorm_forward,
                                .rows = heads.rows,
                                .cols = 9};
      std::vector<HostTensor> dense = Problem(options).tensors();
      const auto copy = [&](const char* to, const std::string& from, double offset) {
        for (int64_t row = 0; row < named(dense, to).rows; ++row) {
          for (int64_t col = 0; col < named(dense, to).cols; ++col) {
            set_value(named(dense, to), row, col, value_at(of_problem(from), row, col) + offset);
          }
        }
      };
      copy("x", part, 0);
      copy("gamma", part + "_gamma", 1);
      if (backward) copy("dy", "d" + part + "_out", 0);
      if (backward) copy("rstd", part + "_rstd", 0);
      const Reference of_rows(options, dense);
      Reference::Row want, got;
      const auto at = [](const Reference& r, const std::string& name) { return static_cast<size_t>(r.index_of(name)); };
      const std::string y = backward ? "dx" : "y", out = backward ? "d" + part : part + "_out";
      for (int64_t row = 0; row < heads.rows; ++row) {
        of_rows.expect_row(row, Summation::any_order, want);
        reference.expect_row(first_row + row, Summation::any_order, got);
        const std::vector<double>& wanted = want.outputs[at(of_rows, y)].want;
        const std::vector<double>& found = got.outputs[at(reference, out)].want;
        ASSERT_EQ(found.size(), wanted.size());
        for (size_t j = 0; j < found.size(); ++j) EXPECT_NEAR(found[j], wanted[j], 1e-6) << part << row << ", " << j;
        if (!backward) {
          EXPECT_EQ(got.outputs[at(reference, part + "_rstd")].want, want.outputs[at(of_rows, "rstd")].want);
        }
        EXPECT_TRUE(got.outputs[at(reference, part == "q" ? (backward ? "dk" : "k_out") : (backward ? "dq" : "q_out"))]
                        .want.empty());
      }
      if (backward) {
        const std::string sums = "d" + part + "_gamma";
        EXPECT_EQ(reference.expect_columns(at(reference, sums), Summation::any_order).want,
                  of_rows.expect_columns(at(of_rows, "dgamma"), Summation::any_order).want);
      }
      first_row += heads.rows;
    }
  }
}

}  // namespace
}  // namespace worklog

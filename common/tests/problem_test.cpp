// Problems: their tensors, and what they refuse.
#include "common/harness/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

template <class Action>
std::string sentence_of(const Action& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// The sentence that the options are refused with, empty where they are not: the same with and without making tensors.
std::string refusal(const ProblemOptions& options) {
  const std::string sentence = sentence_of([&] { const Problem problem(options); });
  const std::string before = sentence_of([&] { check_options(options); });
  // The memory that is free changes from one call to the next: the sentences may differ from there on.
  const size_t common = std::min(sentence.find("this machine"), before.find("this machine"));
  EXPECT_EQ(sentence.substr(0, common), before.substr(0, common));
  return sentence;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Problem, RefusesShapesOutsideTheRange) {
  ProblemOptions options;
  options.cols = 0;
  EXPECT_EQ(refusal(options), "cols must be from 1 to 1048576; it is 0");
  options.cols = 1048577;
  EXPECT_EQ(refusal(options), "cols must be from 1 to 1048576; it is 1048577");
  options.cols = 8;
  options.rows = -3;
  EXPECT_EQ(refusal(options), "rows must be from 0 to 2147483648; it is -3");
  options.rows = (int64_t{1} << 31) + 1;
  EXPECT_EQ(refusal(options), "rows must be from 0 to 2147483648; it is 2147483649");
  options.rows = 8;
  options.row_padding = -1;
  EXPECT_TRUE(contains(refusal(options), "row_padding must be from 0"));
  options.row_padding = 0;
  options.pixels = 2;
  EXPECT_EQ(refusal(options), "pixels must be 1 for layernorm_forward; it is 2");
}

TEST(Problem, RefusesWhatDoesNotFitTheMemory) {
  ProblemOptions options;
  options.rows = int64_t{1} << 31;
  options.cols = 1 << 20;
  const std::string sentence = refusal(options);
  EXPECT_TRUE(
      contains(sentence, "rows x cols = 2147483648 x 1048576 in fp32 needs 25165856.0 GiB of memory, this machine has"))
      << sentence;
  EXPECT_TRUE(contains(sentence, " GiB free")) << sentence;

  options.operation = Operation::batchnorm_train;  // the product of all three overflows 64 bits
  options.pixels = int64_t{1} << 31;
  for (const ChannelLayout layout : {ChannelLayout::channels_last, ChannelLayout::channels_first}) {
    options.layout = layout;
    EXPECT_TRUE(contains(refusal(options), "rows x cols = 2147483648 x 1048576 with 2147483648 pixels"))
        << refusal(options);
  }
}

TEST(Problem, RefusesOtherArgumentsByName) {
  ProblemOptions options;
  options.rows = options.cols = 4;
  options.eps = -1;
  EXPECT_TRUE(contains(refusal(options), "eps must be a finite number, 0 or more"));
  options.eps = 1e-6f;
  options.momentum = 1.5f;
  EXPECT_TRUE(contains(refusal(options), "momentum must be from 0 to 1"));
  options.momentum = 0.1f;
  options.absent = {"y"};
  EXPECT_EQ(refusal(options), "'y' is no optional tensor of layernorm_forward; these are: gamma, beta, mean, rstd");
  options.absent = {"gama"};
  EXPECT_TRUE(contains(refusal(options), "'gama'"));
}

TEST(Problem, RefusesBatchNormOverOneValue) {
  ProblemOptions options;
  options.operation = Operation::batchnorm_train;
  options.rows = 1;
  options.cols = 8;
  EXPECT_TRUE(contains(refusal(options), "rows must be 0 or at least 2")) << refusal(options);
  options.pixels = 2;
  EXPECT_EQ(refusal(options), "");
  options.row_padding = 1;
  EXPECT_EQ(refusal(options), "row_padding must be 0 for batchnorm_train; it is 1");
}

TEST(Problem, EmptyTensorsAreRightWhateverWasDone) {
  for (const Operation operation : all_operations) {
    ProblemOptions options;
    options.operation = operation;
    options.rows = 0;
    options.cols = 5;
    options.row_padding = name_of(operation).starts_with("batchnorm") ? 0 : 2;
    const Problem problem(options);
    const Comparison comparison = problem.compare(problem.tensors());
    EXPECT_TRUE(comparison.passed) << name_of(operation);
    EXPECT_EQ(comparison.compared, 0) << name_of(operation);
    EXPECT_EQ(comparison.describe(), "nothing to compare: the tensor is empty");
  }
}

TEST(Problem, OutputsHoldPoisonAndPaddingToo) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    ProblemOptions options;
    options.dtype = options.param_dtype = dtype;
    options.rows = 3;
    options.cols = 5;
    options.row_padding = 2;
    const Problem problem(options);
    for (const HostTensor& tensor : problem.tensors()) {
      ASSERT_EQ(tensor.bytes.size(), tensor.count() * size_of(tensor.dtype));
      EXPECT_EQ(tensor.stride - tensor.cols, tensor.spec.extent == Extent::matrix ? 2 : 0);
      for (int64_t row = 0; row < tensor.rows; ++row) {
        for (int64_t col = 0; col < (row + 1 < tensor.rows ? tensor.stride : tensor.cols); ++col) {
          const bool poisoned = bits_at(tensor, row, col) == poison_pattern(tensor.dtype);
          EXPECT_EQ(poisoned, tensor.spec.role == Role::output || col >= tensor.cols) << tensor.spec.name;
        }
      }
    }
    double poison = 0;
    std::byte element[4];
    store_bits(dtype, poison_pattern(dtype), element);
    load_elements(dtype, element, 1, 1, &poison);
    EXPECT_TRUE(std::isnan(poison));
  }
}

TEST(Problem, CountsTheBytesThatMustMove) {
  ProblemOptions options;
  options.rows = 10;
  options.cols = 100;
  options.dtype = Dtype::bf16;
  options.row_padding = 4;
  {
    const Problem problem(options);
    EXPECT_EQ(problem.bytes_read(), 10 * 100 * 2 + 2 * 100 * 4);
    EXPECT_EQ(problem.bytes_written(), 10 * 100 * 2 + 2 * 10 * 4);
  }
  options.absent = {"gamma", "beta", "mean", "rstd"};
  {
    const Problem problem(options);
    EXPECT_EQ(problem.bytes_read(), 10 * 100 * 2);
    EXPECT_EQ(problem.bytes_written(), 10 * 100 * 2);
  }
  options = {};
  options.operation = Operation::batchnorm_train;
  options.rows = 10;
  options.cols = 100;
  options.pixels = 3;
  const Problem problem(options);
  EXPECT_EQ(problem.bytes_read(), 10 * 100 * 3 * 4 + 4 * 100 * 4);
  EXPECT_EQ(problem.bytes_written(), 10 * 100 * 3 * 4 + 4 * 100 * 4);
}

TEST(Problem, AbsentTensorsHoldNothing) {
  for (const Operation operation : all_operations) {
    ProblemOptions options;
    options.operation = operation;
    options.rows = 4;
    options.cols = 6;
    for (const TensorSpec& spec : tensors_of(operation)) {
      if (spec.optional) options.absent.push_back(std::string(spec.name));
    }
    const Problem problem(options);
    for (const HostTensor& tensor : problem.tensors()) {
      const bool is_other_scale = tensor.spec.extent == Extent::single;  // scales are made, and none is given
      EXPECT_EQ(tensor.present, !tensor.spec.optional && !is_other_scale) << tensor.spec.name;
      EXPECT_EQ(tensor.bytes.empty(), !tensor.present) << tensor.spec.name;
    }
    EXPECT_TRUE(problem.compare(right_results(problem)).passed) << name_of(operation);
  }
}

TEST(Problem, ScalesAreOfTheirKind) {
  ProblemOptions options;
  options.operation = Operation::add_rmsnorm_quantized;
  options.dtype = options.param_dtype = Dtype::bf16;
  options.rows = 4;
  options.cols = 300;
  options.row_padding = 5;
  for (const Scaling scaling : {Scaling::row, Scaling::block, Scaling::tensor}) {
    options.scaling = scaling;
    const Problem problem(options);
    const HostTensor& scale = named(problem.tensors(), "scale");
    const HostTensor& scales = named(problem.tensors(), "scales");
    EXPECT_EQ(scale.present, scaling == Scaling::tensor);
    EXPECT_EQ(scales.present, scaling != Scaling::tensor);
    const int64_t of_row = scaling == Scaling::block ? 3 : 1;
    if (scales.present) {
      EXPECT_EQ(scales.cols, of_row);
      EXPECT_EQ(scales.stride, of_row + 5);
      EXPECT_EQ(scales.count(), 3 * (of_row + 5) + of_row);
    }
    // Three bytes for an element of the norm, and x and the residual and h with it: 2 + 2 + 2 + 1.
    EXPECT_EQ(problem.bytes_read(), 4 * 300 * 4 + 300 * 2 + (scale.present ? 4 : 0));
    EXPECT_EQ(problem.bytes_written(), 4 * 300 * 3 + (scales.present ? 4 * of_row * 4 : 0));
  }
  EXPECT_EQ(operation_name(options), "add_rmsnorm_e4m3_tensor");
  options.format = ByteFormat::int8;
  options.scaling = Scaling::block;
  EXPECT_EQ(operation_name(options), "add_rmsnorm_int8_block");
}

TEST(Problem, CanBeMovedBeforeItCompares) {
  ProblemOptions options;
  options.operation = Operation::layernorm_backward;
  options.rows = 6;
  options.cols = 9;
  Problem first(options);
  const std::vector<HostTensor> results = right_results(first);
  const Problem second(std::move(first));
  EXPECT_TRUE(second.compare(results).passed);
}

TEST(Problem, NamesAreThoseOfTheOperations) {
  EXPECT_EQ(name_of(Operation::add_layernorm_backward), "add_layernorm_backward");
  EXPECT_EQ(name_of(Operation::batchnorm_inference), "batchnorm_inference");
  EXPECT_EQ(all_inputs().size(), 9u);
  EXPECT_EQ(name_of(all_inputs().front()), "normal");
  EXPECT_EQ(name_of(all_inputs().back()), "nan_row");
}

}  // namespace
}  // namespace worklog

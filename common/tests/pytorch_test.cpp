// The fp64 references against PyTorch in float64: the cases of fixtures/, whose README.md has the format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/reference.h"
#include "common/tests/results_on_host.h"

namespace worklog {
namespace {

using Tensors = std::map<std::string, std::vector<double>, std::less<>>;

struct Case {
  std::string name;
  std::map<std::string, std::string, std::less<>> settings;
  Tensors inputs;
  Tensors outputs;

  int64_t integer(std::string_view key) const { return std::stoll(settings.find(key)->second); }
  float real(std::string_view key) const { return std::strtof(settings.find(key)->second.c_str(), nullptr); }
};

std::vector<Case> read_cases(Operation operation) {
  const std::string path =
      std::string(WORKLOG_SOURCE_DIR) + "/common/tests/fixtures/" + std::string(name_of(operation)) + ".txt";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    if (!(words >> key) || key.starts_with('#') || key == "end") continue;
    if (key == "case") {
      words >> cases.emplace_back().name;
    } else if (key == "input" || key == "output") {
      std::string name;
      words >> name;
      std::vector<double>& values = (key == "input" ? cases.back().inputs : cases.back().outputs)[name];
      for (std::string word; words >> word;) values.push_back(std::strtod(word.c_str(), nullptr));
    } else {
      std::getline(words >> std::ws, cases.back().settings[key]);
    }
  }
  return cases;
}

ProblemOptions options_of(Operation operation, const Case& fixture) {
  ProblemOptions options;
  options.operation = operation;
  options.rows = fixture.integer("rows");
  options.cols = fixture.integer("cols");
  options.eps = fixture.real("eps");
  if (fixture.settings.contains("pixels")) {
    options.pixels = fixture.integer("pixels");
    options.momentum = fixture.real("momentum");
    const bool first = fixture.settings.find("layout")->second == "channels_first";
    options.layout = first ? ChannelLayout::channels_first : ChannelLayout::channels_last;
  }
  for (const TensorSpec& spec : tensors_of(operation)) {
    if (spec.role == Role::input && !fixture.inputs.contains(spec.name)) options.absent.emplace_back(spec.name);
  }
  return options;
}

// Everything that the reference wants of an output, in the order in which the output lies in memory.
std::vector<double> wanted(const ProblemOptions& options, const Reference& reference, const TensorSpec& spec,
                           size_t tensor) {
  if (spec.extent == Extent::per_col) return reference.expect_columns(tensor, Summation::any_order).want;
  const int64_t width = spec.extent == Extent::matrix ? options.cols : 1;
  const bool channels_first = spec.extent == Extent::matrix && options.layout == ChannelLayout::channels_first;
  std::vector<double> values(reference.rows() * width);
  Reference::Row row;
  for (int64_t i = 0; i < reference.rows(); ++i) {
    reference.expect_row(i, Summation::any_order, row);
    for (int64_t j = 0; j < width; ++j) {
      const int64_t sample = i / options.pixels;
      const int64_t pixel = i % options.pixels;
      const int64_t place = channels_first ? (sample * width + j) * options.pixels + pixel : i * width + j;
      values[place] = row.outputs[tensor].want[j];
    }
  }
  return values;
}

double rms_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Elements may differ by `relative` times the root of their mean square, since single ones cancel to nothing, and by
// `absolute`, for where all of them do (one column, constant rows).
void expect_near(const std::vector<double>& got, const std::vector<double>& want, double relative, double absolute,
                 const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  const double bound = relative * rms_of(want) + absolute;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << name << " at " << i;
}

class AgainstPyTorch : public testing::TestWithParam<Operation> {};

TEST_P(AgainstPyTorch, EveryCaseGivesTheSame) {
  const Operation operation = GetParam();
  const std::vector<Case> cases = read_cases(operation);
  ASSERT_GE(cases.size(), 16u);
  for (const Case& fixture : cases) {
    SCOPED_TRACE(fixture.name);
    ASSERT_EQ(fixture.settings.find("operation")->second, name_of(operation));
    const ProblemOptions options = options_of(operation, fixture);
    if (fixture.settings.contains("error")) {
      EXPECT_THROW(Problem{options}, std::invalid_argument);  // refused here as well
      continue;
    }
    std::vector<HostTensor> tensors = Problem(options).tensors();
    size_t inputs = 0;
    for (HostTensor& tensor : tensors) {
      const auto given = fixture.inputs.find(tensor.spec.name);
      if (given == fixture.inputs.end()) continue;
      ASSERT_EQ(given->second.size() * sizeof(float), tensor.bytes.size()) << tensor.spec.name;
      for (size_t i = 0; i < given->second.size(); ++i) {
        const float value = static_cast<float>(given->second[i]);
        ASSERT_EQ(value, given->second[i]) << tensor.spec.name;
        std::memcpy(tensor.bytes.data() + i * sizeof(float), &value, sizeof(float));
      }
      ++inputs;
    }
    ASSERT_EQ(inputs, fixture.inputs.size());

    const Reference reference(options, tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& spec = tensors[i].spec;
      if (spec.role == Role::input) continue;
      const std::string name(spec.name);
      const std::vector<double> got = wanted(options, reference, spec, i);
      const auto exact = fixture.outputs.find(name);
      const auto automatic = fixture.outputs.find("autograd_" + name);
      ASSERT_TRUE(exact != fixture.outputs.end() || automatic != fixture.outputs.end()) << name;
      if (exact != fixture.outputs.end()) expect_near(got, exact->second, 1e-10, 1e-12, name);
      if (automatic != fixture.outputs.end()) {
        // Rounding the mean to fp32 can move a normalized value by some 1e-4, where the mean is large beside the
        // deviation. RMSNorm has none.
        const double relative = operation == Operation::rmsnorm_backward ? 1e-6 : 2e-3;
        expect_near(got, automatic->second, relative, 5e-6, "autograd's " + name);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, AgainstPyTorch,
                         testing::Values(Operation::layernorm_forward, Operation::rmsnorm_forward,
                                         Operation::add_layernorm_forward, Operation::add_rmsnorm_forward,
                                         Operation::layernorm_backward, Operation::rmsnorm_backward,
                                         Operation::add_layernorm_backward, Operation::batchnorm_train,
                                         Operation::batchnorm_inference, Operation::batchnorm_backward),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace worklog

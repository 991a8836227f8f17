// Wrong kernels of every known kind, which the harness must catch, and right ones, which it must not.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/device.h"
#include "common/harness/program.h"
#ifdef WORKLOG_BACKEND_CPU
#include "simt/simt.h"
#endif

namespace worklog {
namespace {

enum class Fault {
  none,
  writes_nan,
  writes_nothing,
  skips_last_column,
  past_the_end,
  before_the_start,
  wrong_at_1023,
  one_ulp_more,
  writes_padding,
  changes_its_input,
  remembers_the_last_run,
};

// LayerNorm, one thread per row, with sums in double precision: right on every input, but for the fault.
template <Fault fault>
__global__ void layernorm_with_fault(LayerNormForward<float> p) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.rows || fault == Fault::writes_nothing) return;
  const float* x = p.x + row * p.x_stride;
  float* y = p.y + row * p.y_stride;

  double sum = 0;
  for (int64_t col = 0; col < p.cols; ++col) sum += x[col];
  const double mean = sum / p.cols;
  double squares = 0;
  for (int64_t col = 0; col < p.cols; ++col) squares += (x[col] - mean) * (x[col] - mean);
  const double rstd = 1 / sqrt(squares / p.cols + p.eps);

  const int64_t cols = fault == Fault::skips_last_column ? p.cols - 1 : p.cols;
  for (int64_t col = 0; col < cols; ++col) {
    const double gamma = p.gamma ? p.gamma[col] : 1.0;
    const double beta = p.beta ? p.beta[col] : 0.0;
    float value = static_cast<float>((x[col] - mean) * rstd * gamma + beta);
    if (fault == Fault::writes_nan && row == 0 && col == 0) value = nanf("");
    if (fault == Fault::wrong_at_1023 && p.cols == 1023 && col == 1022) value = 0.0f;
    if (fault == Fault::one_ulp_more) value = nextafterf(value, 1e30f);
    y[col] = value;
  }
  if (p.mean) p.mean[row] = static_cast<float>(mean);
  if (p.rstd) p.rstd[row] = static_cast<float>(rstd);

  const bool last = row == p.rows - 1;
  if (fault == Fault::past_the_end && last) y[p.cols] = 1.0f;
  if (fault == Fault::before_the_start && row == 0) y[-1] = 1.0f;
  if (fault == Fault::writes_padding && !last) y[p.cols] = 1.0f;
  if (fault == Fault::changes_its_input && last) const_cast<float*>(x)[p.cols - 1] += 1.0f;
}

template <Fault fault>
void run_with_fault(const LayerNormForward<float>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const unsigned blocks = static_cast<unsigned>((p.rows + 63) / 64);
  launch(layernorm_with_fault<fault>, {.grid = blocks, .block = 64, .stream = stream}, p);
}

void launch_nothing(const LayerNormForward<float>&, cudaStream_t) {}

void launch_too_many_threads(const LayerNormForward<float>& p, cudaStream_t stream) {
  launch(layernorm_with_fault<Fault::none>, {.grid = 1, .block = 2048, .stream = stream}, p);
}

struct Outcome {
  int exit_code;
  std::string output, errors;

  bool says(const std::string& text) const { return (output + errors).find(text) != std::string::npos; }
};

Outcome run(Program& program, std::vector<std::string> flags) {
  flags.insert(flags.begin(), program.stage());
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = program.run(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  return {exit_code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

// Checks one function on one shape.
template <class Function>
Outcome check(Function function, const std::string& shape, std::vector<std::string> more_flags = {},
              const ComparisonOptions& comparison = {}) {
  Program program("00_faults", "kernels with faults");
  program.add("variant", "", function).compared_with(comparison);
  std::vector<std::string> flags = {"--check-only", "--shapes", shape};
  flags.insert(flags.end(), more_flags.begin(), more_flags.end());
  return run(program, flags);
}

class Checker : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(Checker, AcceptsRightResults) {
  const auto right = run_with_fault<Fault::none>;
  for (const Outcome& outcome : {check(right, "1x1,7x33,64x1024", {"--input", "all"}),
                                 check(right, "5x33", {"--row-padding", "3", "--misalign", "1"}),
                                 check(right, "5x33", {"--row-padding", "1", "--misalign", "1", "--uneven", "all"}),
                                 check(right, "5x33", {"--uneven", "all:8"}),
                                 check(right, "5x33", {"--without", "gamma,beta,mean,rstd"}), check(right, "0x8")}) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output << outcome.errors;
  }
}

#ifdef WORKLOG_BACKEND_CPU

enum class Missing { nothing, barrier, barrier_before_global_reads, wait_for_another_block };

// LayerNorm that is right where blocks and threads run one after the other, the first of them first. Thread 0 of a
// block has its row's statistics, or block 0 those of all rows, and something is missing before the others read them.
template <Missing missing>
__global__ void layernorm_in_order(LayerNormForward<float> p) {
  __shared__ float mean, rstd;
  constexpr bool by_one_block = missing == Missing::wait_for_another_block;
  const int64_t own = int64_t{blockIdx.x} - by_one_block;
  const int64_t begin = by_one_block ? 0 : own, end = by_one_block ? p.rows : own + 1;
  const bool has_statistics = threadIdx.x == 0 && (!by_one_block || own < 0);
  for (int64_t row = begin; has_statistics && row < end; ++row) {
    const float* x = p.x + row * p.x_stride;
    double sum = 0, squares = 0;
    for (int64_t col = 0; col < p.cols; ++col) sum += x[col];
    for (int64_t col = 0; col < p.cols; ++col) squares += (x[col] - sum / p.cols) * (x[col] - sum / p.cols);
    p.mean[row] = mean = static_cast<float>(sum / p.cols);
    p.rstd[row] = rstd = static_cast<float>(1 / sqrt(squares / p.cols + p.eps));
  }
  if (own < 0) return;
  if (missing == Missing::nothing) __syncthreads();
  const bool in_global = by_one_block || missing == Missing::barrier_before_global_reads;
  for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float normalized = in_global ? (p.x[own * p.x_stride + col] - p.mean[own]) * p.rstd[own]
                                       : (p.x[own * p.x_stride + col] - mean) * rstd;
    p.y[own * p.y_stride + col] = normalized * p.gamma[col] + p.beta[col];
  }
}

template <Missing missing>
void run_in_order(const LayerNormForward<float>& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(p.rows + (missing == Missing::wait_for_another_block));
  launch(layernorm_in_order<missing>, {.grid = blocks, .block = 64, .stream = stream}, p);
}

TEST_F(Checker, ReverseOrderCatchesWhatIsRightInOrderOnly) {
  const simt::Options before = simt::options();
  simt::Options options = before;
  options.threads = 1;  // one block after the other
  simt::set_options(options);
  const auto exit_codes = [](auto function) {
    std::vector<int> codes;
    for (const char* const order : {"forward", "reverse", "shuffle:3"}) {
      codes.push_back(check(function, "3x100", {"--order", order}).exit_code);
    }
    EXPECT_EQ(simt::options().order, simt::Order::forward) << "the order ends with the run";
    return codes;
  };
  const std::vector<int> right{0, 0, 0}, in_order_only{0, 1, 1};
  EXPECT_EQ(exit_codes(run_in_order<Missing::nothing>), right);
  EXPECT_EQ(exit_codes(run_in_order<Missing::barrier>), in_order_only);
  EXPECT_EQ(exit_codes(run_in_order<Missing::barrier_before_global_reads>), in_order_only);
  EXPECT_EQ(exit_codes(run_in_order<Missing::wait_for_another_block>), in_order_only);
  simt::set_options(before);
}

#endif

TEST_F(Checker, CatchesNan) {
  const Outcome outcome = check(run_with_fault<Fault::writes_nan>, "3x8");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("nan")) << outcome.output;
}

TEST_F(Checker, CatchesResultsThatWereNeverWritten) {
  for (const Outcome& outcome : {check(run_with_fault<Fault::writes_nothing>, "3x8"), check(launch_nothing, "3x8"),
                                 check(run_with_fault<Fault::skips_last_column>, "3x8")}) {
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_TRUE(outcome.says("never written")) << outcome.output;
  }
}

TEST_F(Checker, CatchesWritesPastTheEnd) {
  const Outcome outcome = check(run_with_fault<Fault::past_the_end>, "3x8");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("y was written outside its bounds: 1 elements past its end, the nearest 1 past"))
      << outcome.output;
}

TEST_F(Checker, CatchesWritesBeforeTheStart) {
  const Outcome outcome = check(run_with_fault<Fault::before_the_start>, "3x8");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("y was written outside its bounds: 1 elements before its start, the nearest 1 before"))
      << outcome.output;
}

TEST_F(Checker, CatchesWritesBetweenRows) {
  const Outcome outcome = check(run_with_fault<Fault::writes_padding>, "3x8", {"--row-padding", "2"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("y was written outside its row: row 0, 1 past the row's end")) << outcome.output;
}

TEST_F(Checker, CatchesChangedInputs) {
  const Outcome outcome = check(run_with_fault<Fault::changes_its_input>, "3x8");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("the input x was changed, first at row 2, column 7")) << outcome.output;
}

TEST_F(Checker, CatchesWhatOnlyOneShapeShows) {
  EXPECT_EQ(check(run_with_fault<Fault::wrong_at_1023>, "3x1024").exit_code, 0);
  const Outcome outcome = check(run_with_fault<Fault::wrong_at_1023>, "3x1023");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("1022")) << outcome.output;
}

TEST_F(Checker, CatchesOneUlpWhereTheVariantPromisesLess) {
  EXPECT_EQ(check(run_with_fault<Fault::one_ulp_more>, "3x1024").exit_code, 0);  // within the tolerance
  EXPECT_EQ(check(run_with_fault<Fault::one_ulp_more>, "3x1024", {}, {.max_ulp = 0.75}).exit_code, 1);
  EXPECT_EQ(check(run_with_fault<Fault::none>, "3x1024", {}, {.max_ulp = 0.75}).exit_code, 0);
  EXPECT_EQ(check(run_with_fault<Fault::one_ulp_more>, "3x1024", {"--max-ulp", "0.75"}).exit_code, 1);
  EXPECT_EQ(check(run_with_fault<Fault::none>, "3x1024", {"--max-ulp", "0.75"}).exit_code, 0);
}

TEST_F(Checker, ReportsRefusedLaunchesAndGoesOn) {
  Program program("00_faults", "kernels with faults");
  program.add("refused", "", launch_too_many_threads);
  program.add("right", "", run_with_fault<Fault::none>);
  const Outcome outcome = run(program, {"--check-only", "--shapes", "3x8", "--input", "normal"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("launch")) << outcome.output;
  EXPECT_TRUE(outcome.says("passed")) << outcome.output;
}

TEST_F(Checker, ExpectedFailuresMustHappen) {
  Program program("00_faults", "kernels with faults");
  program.add("right", "", run_with_fault<Fault::none>).fails_on(Input::large_mean, {.rows = 2, .cols = 1000});
  const Outcome outcome = run(program, {"--check-only", "--shapes", "3x1024", "--input", "large_mean"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("expected to fail on large_mean and")) << outcome.output;
  // On other inputs, and at smaller shapes, nothing is expected.
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x1024", "--input", "normal"}).exit_code, 0);
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x999,1x1024", "--input", "large_mean"}).exit_code, 0);
}

TEST_F(Checker, RecordedFailuresAreAccepted) {
  Program program("00_faults", "kernels with faults");
  program.add("wrong", "", run_with_fault<Fault::wrong_at_1023>).fails_on(Input::normal, {.cols = 1000});
  const Outcome as_recorded = run(program, {"--check-only", "--shapes", "3x1023", "--input", "normal"});
  EXPECT_EQ(as_recorded.exit_code, 0) << as_recorded.output;
  EXPECT_TRUE(as_recorded.says("fails, as recorded")) << as_recorded.output;

  Program smaller("00_faults", "kernels with faults");
  smaller.add("wrong", "", run_with_fault<Fault::wrong_at_1023>).fails_on(Input::normal, {.cols = 2000});
  EXPECT_EQ(run(smaller, {"--check-only", "--shapes", "3x1023", "--input", "normal"}).exit_code, 0);
  EXPECT_EQ(run(smaller, {"--check-only", "--shapes", "3x1023", "--input", "uniform"}).exit_code, 1);
}

TEST_F(Checker, FailuresThatHangOnRoundingMayHappen) {
  Program program("00_faults", "kernels with faults");
  program.add("wrong", "", run_with_fault<Fault::wrong_at_1023>).may_fail_on(Input::normal, {Dtype::fp32});
  program.add("right", "", run_with_fault<Fault::none>).may_fail_on(Input::normal, {Dtype::fp32});
  const Outcome outcome = run(program, {"--check-only", "--shapes", "3x1023", "--input", "normal"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("depends on rounding")) << outcome.output;
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x1023", "--input", "uniform"}).exit_code, 1);

  Program short_rows("00_faults", "kernels with faults");
  short_rows.add("wrong", "", run_with_fault<Fault::wrong_at_1023>).may_fail_on(Input::normal, {}, 1022);
  EXPECT_EQ(run(short_rows, {"--check-only", "--shapes", "3x1023", "--input", "normal"}).exit_code, 1);
}

TEST_F(Checker, ARecordedFailureNeedNotCoverFewRows) {
  const auto at = [&](const char* shape) {
    Program program("00_faults", "kernels with faults");
    program.add("wrong", "", run_with_fault<Fault::wrong_at_1023>)
        .fails_on(Input::normal, {.rows = 9, .least_rows = 5});
    return run(program, {"--check-only", "--shapes", shape, "--input", "normal"}).exit_code;
  };
  EXPECT_EQ(at("9x1023"), 0);  // expected
  EXPECT_EQ(at("5x1023"), 0);  // permitted
  EXPECT_EQ(at("4x1023"), 1);
}

TEST_F(Checker, RecordedFailuresCoverWrongNumbersOnly) {
  Program program("00_faults", "kernels with faults");
  program.add("silent", "", run_with_fault<Fault::writes_nothing>).fails_on(Input::normal, {});
  program.add("loud", "", run_with_fault<Fault::past_the_end>).fails_on(Input::normal, {});
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x8", "--input", "normal", "--variant", "silent"}).exit_code, 1);
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x8", "--input", "normal", "--variant", "loud"}).exit_code, 1);
}

TEST_F(Checker, LimitsAreSkippedUnlessAskedForByName) {
  Program program("00_faults", "kernels with faults");
  program.add("right", "", run_with_fault<Fault::none>);
  program.add("narrow", "", run_with_fault<Fault::wrong_at_1023>)
      .limited_to("cols at most 512", [](const auto& options) { return options.cols <= 512; });
  const Outcome all = run(program, {"--check-only", "--shapes", "3x1023", "--input", "normal"});
  EXPECT_EQ(all.exit_code, 0) << all.output;
  EXPECT_TRUE(all.says("cols at most 512")) << all.output;
  const Outcome by_name = run(program, {"--check-only", "--shapes", "3x1023", "--variant", "narrow"});
  EXPECT_EQ(by_name.exit_code, 2) << by_name.output;
  EXPECT_TRUE(by_name.errors.find("cols at most 512") != std::string::npos) << by_name.errors;
}

TEST_F(Checker, TakesFunctionObjects) {
  Program program("00_faults", "kernels with faults");
  program.add("lambda", "",
              [](const LayerNormForward<float>& p, cudaStream_t stream) { run_with_fault<Fault::none>(p, stream); });
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x8"}).exit_code, 0);
}

TEST_F(Checker, WritesTheResultsAsJson) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "worklog_checker_test.json";
  std::filesystem::remove(path);
  Program program("00_faults", "kernels with faults");
  program.add("right", "", run_with_fault<Fault::none>);
  program.add("wrong", "", run_with_fault<Fault::writes_nan>);
  EXPECT_EQ(run(program, {"--check-only", "--shapes", "3x8", "--input", "normal", "--json", path.string()}).exit_code,
            1);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char* part : {"\"context\"", "\"gpu_short\"", "\"source_hash\"", "\"benchmarks\"", "\"checks\"",
                           "\"verdict\":\"passed\"", "\"verdict\":\"failed\"", "\"max_ulp_error\":null"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace worklog

#include "common/harness/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/harness/device.h"
#include "common/harness/launches.h"

#ifdef WORKLOG_BACKEND_CPU
#include <simt/simt.h>
#endif

namespace worklog {
namespace {

// What is recorded for this input and type: the smallest shape, and whether the problem is at least of that size.
struct Recorded {
  FailsFrom from;
  bool reached;
};
std::optional<Recorded> recorded_failure(const Variant& variant, const ProblemOptions& options) {
  std::optional<Recorded> found;
  for (const auto& [input, from] : variant.expectations()) {
    if (input != options.input || options.cols > from.most_cols) continue;
    if (options.rows > from.most_rows || options.rows < from.least_rows) continue;
    if (!from.dtypes.empty() && std::find(from.dtypes.begin(), from.dtypes.end(), options.dtype) == from.dtypes.end()) {
      continue;
    }
    const bool reached = options.rows >= from.rows && options.cols >= from.cols;
    if (!found || (reached && !found->reached)) found = {from, reached};
  }
  return found;
}

// Wrong numbers can be expected of a variant. Writes out of bounds, results that were not written and errors cannot.
bool only_numbers_are_wrong(const Check& check) {
  return check.error.empty() && check.damage.empty() && check.comparison.damage.empty() &&
         std::none_of(check.comparison.first.begin(), check.comparison.first.end(),
                      [](const Mismatch& mismatch) { return mismatch.never_written; });
}

Check start_check(const Problem& problem, const Variant& variant, int64_t misalign) {
  Check check;
  check.variant = variant.name();
  check.options = problem.options();
  check.misalign = misalign;
  return check;
}

void compare(Check& check, const Problem& problem, const Variant& variant, const Workspace& workspace,
             Compared* known) {
  check.damage = workspace.damage();
  if (known && !known->results.empty() && workspace.holds(known->results)) {
    check.comparison = known->comparison;
    return;
  }
  std::vector<HostTensor> results = workspace.download();
  ComparisonOptions comparison = variant.comparison();
  comparison.max_ulp = std::min(comparison.max_ulp, problem.options().max_ulp);
  check.comparison = problem.compare(results, comparison);
  if (known) *known = {std::move(results), check.comparison};
}

std::string say(const CudaError& error) {
#ifdef WORKLOG_BACKEND_CPU
  // The layer knows kernel, block, thread and line.
  if (const std::string message = simt::last_error_message(); !message.empty()) return message;
#endif
  return error.what();
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed:
      return "passed";
    case Verdict::expected_failure:
      return "expected failure";
    case Verdict::permitted_failure:
      return "permitted failure";
    case Verdict::unexpected_pass:
      return "unexpected pass";
    case Verdict::failed:
      break;
  }
  return "failed";
}

void judge(Check& check, const Variant& variant) {
  const std::optional<Recorded> recorded = recorded_failure(variant, check.options);
  if (recorded && recorded->from.is_never()) {
    check.expectation = "depends on rounding";
  } else if (recorded) {
    check.expectation = fmt::format("fails from {} x {}", recorded->from.rows, recorded->from.cols);
  }
  if (!check.error.empty() || !check.damage.empty() || !check.comparison.damage.empty()) {
    check.verdict = Verdict::failed;
  } else if (check.comparison.passed) {
    check.verdict = recorded && recorded->reached ? Verdict::unexpected_pass : Verdict::passed;
  } else if (recorded && only_numbers_are_wrong(check)) {
    check.verdict = recorded->reached ? Verdict::expected_failure : Verdict::permitted_failure;
  } else {
    check.verdict = Verdict::failed;
  }
}

std::string Check::headline() const {
  const std::string_view when = after_timing ? " (after timing)" : "";
  switch (verdict) {
    case Verdict::passed:
      return fmt::format("passed{}", when);
    case Verdict::expected_failure:
      return fmt::format("fails, as recorded{}", when);
    case Verdict::permitted_failure:
      return fmt::format("fails, and may (it {}){}", expectation, when);
    case Verdict::unexpected_pass:
      return fmt::format("FAILED: expected to fail on {} and did not{}", name_of(options.input), when);
    case Verdict::failed:
      break;
  }
  return fmt::format("FAILED{}", when);
}

std::string Check::explain() const {
  if (is_accepted(verdict)) return "";
  if (verdict == Verdict::unexpected_pass) {
    return fmt::format("{} {}, says its program; where that is no longer true, take it out there", variant,
                       expectation);
  }
  std::string text;
  const auto add_line = [&](std::string_view line) { text += fmt::format("{}{}", text.empty() ? "" : "\n", line); };
  if (!error.empty()) add_line(error);
  for (const std::string& sentence : damage) add_line(sentence);
  if (!comparison.passed) add_line(comparison.describe());
  if (only_numbers_are_wrong(*this)) return text;
  if (!expectation.empty()) add_line("it is recorded to give wrong numbers here, but this is more than that");
  return text;
}

Check run_check(const Problem& problem, const Variant& variant, const Variant::Implementation& implementation,
                Workspace& workspace, int64_t misalign, cudaStream_t stream, Compared* known) {
  Check check = start_check(problem, variant, misalign);
  try {
    workspace.overwrite(variant.overwritten());
    workspace.reset();
    {
      const LaunchRecorder recorder(check.launches);
      implementation.launch(workspace.arguments(), stream);
    }
    check_cuda(cudaGetLastError(), "launching");
    check_cuda(cudaStreamSynchronize(stream), "running the kernel");
    compare(check, problem, variant, workspace, known);
  } catch (const CudaError& error) {
    check.error = say(error);
  }
  judge(check, variant);
  return check;
}

Check check_results(const Problem& problem, const Variant& variant, const Workspace& workspace, int64_t misalign,
                    Compared* known) {
  Check check = start_check(problem, variant, misalign);
  check.after_timing = true;
  try {
    compare(check, problem, variant, workspace, known);
  } catch (const CudaError& error) {
    check.error = say(error);
  }
  judge(check, variant);
  return check;
}

bool device_is_lost() {
  cudaGetLastError();
  return cudaDeviceSynchronize() != cudaSuccess;
}

}  // namespace worklog

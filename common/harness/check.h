// One check: a variant run once on a problem, its results compared, and what was expected of it.
#pragma once

#include <string>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/problem.h"
#include "common/harness/program.h"
#include "common/harness/resources.h"
#include "common/harness/workspace.h"

namespace worklog {

enum class Verdict {
  passed,
  expected_failure,   // wrong, where the variant is recorded to be
  permitted_failure,  // wrong, on a recorded input at a smaller shape than the recorded one
  failed,
  unexpected_pass,  // right, where the variant is recorded to be wrong
};
std::string_view name_of(Verdict verdict);  // "passed", "expected failure", ...
constexpr bool is_accepted(Verdict verdict) {
  return verdict != Verdict::failed && verdict != Verdict::unexpected_pass;
}

struct Check {
  std::string variant;
  ProblemOptions options;
  int64_t misalign = 0;
  bool after_timing = false;  // what the timed launches left, rather than a launch of its own
  Comparison comparison;
  std::vector<std::string> damage;     // writes outside the tensors, changed inputs
  std::string error;                   // of the launch or the kernel; then nothing was compared
  std::vector<KernelLaunch> launches;  // in order; none where the variant does not use launch()
  Verdict verdict = Verdict::failed;
  std::string expectation;  // "fails from 1000 x 1000"; empty where none is recorded for this input and type

  // One short phrase: "passed", "fails, as recorded", "FAILED".
  std::string headline() const;
  // The lines that explain a verdict that is not accepted; empty for one that is.
  std::string explain() const;
};

// What a check has compared with the reference, and what came of it. The same bits need no second comparison.
struct Compared {
  std::vector<HostTensor> results;  // none: nothing was compared yet
  Comparison comparison;
};

// Runs the variant's function once on the workspace, which is reset before, and judges what came out. An error of the
// kernel is in the check; device_is_lost() tells whether anything can be run after it. `known` is what was compared of
// this variant on this problem before, if that is kept: results with other bits are compared, and take its place.
Check run_check(const Problem& problem, const Variant& variant, const Variant::Implementation& implementation,
                Workspace& workspace, int64_t misalign, cudaStream_t stream, Compared* known = nullptr);

// Judges what is in the workspace now, without a launch.
Check check_results(const Problem& problem, const Variant& variant, const Workspace& workspace, int64_t misalign,
                    Compared* known = nullptr);

// Fills in the verdict and the expectation of a check whose comparison, damage and error are there.
void judge(Check& check, const Variant& variant);

// Whether a kernel has left an error that every later call returns.
bool device_is_lost();

}  // namespace worklog

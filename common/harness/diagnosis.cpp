#include "common/harness/diagnosis.h"

#include <fmt/format.h>

#include "common/harness/diagnosis/evidence.h"
#include "common/harness/diagnosis/tests.h"

namespace worklog {
namespace {

using Test = std::string (*)(const diagnosis::Evidence&);

// From what leaves no doubt to what says least. The first that has a sentence is believed.
constexpr Test tests[] = {
    diagnosis::unwritten,            // nothing came out, or not everything
    diagnosis::not_finite,           // NaN and infinity, where they do not belong or where they do
    diagnosis::wrong_formula,        // another formula gives what came out
    diagnosis::displaced_rows,       // another row's values
    diagnosis::wrong_statistics,     // y, made with another mean and rstd
    diagnosis::rounded_on_the_way,   // fp32 that holds 16-bit values
    diagnosis::wrong_sum_over_rows,  // dgamma and dbeta that lack rows, or digits
    diagnosis::wrong_place,          // where it is wrong
};

}  // namespace

std::string likely_cause(const Reference& reference, const std::vector<HostTensor>& results,
                         const std::vector<Findings>& findings, Summation summation) {
  if (is_of_heads(reference.options().operation)) return "";  // the tests look for x, y and their gradients
  // Whole tensors first: a wrong matrix is seldom wrong because of a statistic that is wrong beside it.
  for (const bool matrices : {true, false}) {
    for (const Findings& found : findings) {
      const TensorSpec& spec = reference.tensor(found.tensor).spec;
      // The tests compare with what was not yet rounded.
      if (spec.extent == Extent::scales || spec.precision == Precision::byte) continue;
      if (found.differing == 0 || (spec.extent == Extent::matrix) != matrices) continue;
      const diagnosis::Evidence evidence(reference, results, found, summation);
      for (const Test test : tests) {
        if (const std::string cause = test(evidence); !cause.empty()) return fmt::format("{}: {}", spec.name, cause);
      }
    }
  }
  return "";
}

}  // namespace worklog

// Results against the reference, as torch.testing.assert_close compares, plus what that misses.
#pragma once

#include <cstdint>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/reference.h"

namespace worklog {

// The tolerances of torch.testing.assert_close for a type.
struct Tolerance {
  double rtol, atol;
};
Tolerance tolerance_of(Dtype dtype);

// Compares all outputs among `results` (in the order of `tensors`) with the reference, on all cores; the report does
// not depend on their number. Problem::compare says what counts as a difference.
Comparison compare_results(const Reference& reference, const std::vector<HostTensor>& tensors,
                           const std::vector<HostTensor>& results, const ComparisonOptions& options);

}  // namespace worklog

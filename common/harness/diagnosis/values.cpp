#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/harness/diagnosis/tests.h"

namespace worklog::diagnosis {

std::string unwritten(const Evidence& evidence) {
  const Findings& found = evidence.found;
  if (found.never_written == 0) return "";
  if (found.never_written == found.compared) {
    return "nothing was written: a launch that failed without a word, or a kernel that returned early";
  }
  const std::string place = place_of(found);
  if (found.never_written == found.differing && !place.empty()) return "never written " + place;
  return fmt::format("{} of {} elements were never written", found.never_written, found.compared);
}

namespace {

// Why rows are NaN that have no variance, or next to none against their mean.
std::string root_of_no_variance(const Evidence& evidence) {
  const bool of_rows = evidence.tensor.spec.extent != Extent::per_col && !evidence.batchnorm;
  if (!of_rows || evidence.found.nan == 0 || evidence.cases.empty()) return "";
  bool all_alike = true, may_cancel = true;
  for (const Case& c : evidence.cases) {
    const Moments& m = c.inputs.moments;
    all_alike = all_alike && m.variance <= 1e-20 * m.mean * m.mean;  // the reference rounds, too
    // Below 0 by more than eps makes up for.
    const bool outweighs_eps = m.mean * m.mean * u * evidence.n > evidence.eps;
    may_cancel = may_cancel && mean_to_variance(m) * u > 0.1 && outweighs_eps;
  }
  if (all_alike && evidence.n == 1) return "NaN in rows of one element: a division by n - 1, or 0 / 0 without eps";
  if (all_alike) {
    return std::string("NaN where all values of a row are the same: 0 / 0, as where eps is missing") +
           (may_cancel ? "; or the root of a negative variance, as E[x^2] - E[x]^2 may give it" : "");
  }
  if (!may_cancel) return "";
  return "NaN where the mean is large against the deviation: a negative variance, as E[x^2] - E[x]^2 gives it";
}

}  // namespace

std::string not_finite(const Evidence& evidence) {
  const Findings& found = evidence.found;
  const ProblemOptions& options = evidence.reference.options();
  const int64_t special = found.nan + found.infinite;
  if (found.lost_special > 0) {
    return fmt::format("finite in {} elements where the reference is NaN or infinite: what makes it so was skipped",
                       found.lost_special);
  }
  if (special == 0) return "";
  if (options.input == Input::huge) {
    return "not finite where the reference is: sums or squares of values near the top of the type overflow";
  }
  if (const std::string by_variance = root_of_no_variance(evidence); !by_variance.empty()) return by_variance;
  if (special == found.compared) return "NaN or infinite in every element";
  if (options.row_padding > 0 || !options.uneven.empty())
    return "not finite: elements between the rows (which hold NaN) may have been read";
  const std::string place = place_of(found);
  return fmt::format("not finite in {} elements{}{}", special, place.empty() ? "" : ", ", place);
}

// Values that went through a 16-bit type on their way to an fp32 matrix.
std::string rounded_on_the_way(const Evidence& evidence) {
  if (evidence.tensor.spec.extent != Extent::matrix || evidence.tensor.dtype != Dtype::fp32) return "";
  for (const Dtype narrow : {Dtype::bf16, Dtype::fp16}) {
    const double step = std::ldexp(1.0, 2 - digits_of(narrow));  // about two roundings
    bool all = !evidence.cases.empty();
    for (const Case& c : evidence.cases) {
      for (size_t j = 0; j < c.got.size(); ++j) {
        all = all && round_to(narrow, static_cast<float>(c.got[j])) == static_cast<float>(c.got[j]) &&
              std::fabs(c.got[j] - c.expected.want[j]) <= step * std::max(1e-3, std::fabs(c.expected.want[j]));
      }
    }
    if (all) return fmt::format("every value is one of {}: rounded to it on the way", name_of(narrow));
  }
  return "";
}

}  // namespace worklog::diagnosis

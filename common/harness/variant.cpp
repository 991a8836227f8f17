#include "common/harness/program.h"

namespace worklog {

Variant& Variant::fails_on(Input input, FailsFrom from) {
  expectations_.push_back({input, std::move(from)});
  return *this;
}

Variant& Variant::may_fail_on(Input input, std::vector<Dtype> dtypes, int64_t most_cols, int64_t most_rows) {
  return fails_on(input, {.rows = std::numeric_limits<int64_t>::max(),
                          .dtypes = std::move(dtypes),
                          .most_cols = most_cols,
                          .most_rows = most_rows});
}

Variant& Variant::limited_to(std::string sentence, std::function<bool(const ProblemOptions&)> accepts) {
  limits_.push_back({std::move(sentence), std::move(accepts)});
  return *this;
}

Variant& Variant::overwrites(std::string input, std::string output) {
  overwritten_.push_back({std::move(input), std::move(output)});
  return *this;
}

Variant& Variant::implement(Implementation implementation) {
  implementations_.push_back(std::move(implementation));
  return *this;
}

Variant& Variant::compared_with(ComparisonOptions comparison) {
  comparison_ = comparison;
  return *this;
}

}  // namespace worklog

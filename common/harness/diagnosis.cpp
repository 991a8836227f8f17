#include "common/harness/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>

namespace worklog {
namespace {

// Where the wrong elements of an output lie, as words that follow "wrong"; empty where they are all over it.
std::string place_of(const Findings& found) {
  const auto first_bad = std::find(found.bad_cols.begin(), found.bad_cols.end(), 1);
  const int64_t first_col = first_bad - found.bad_cols.begin();
  const int64_t bad_cols = std::count(found.bad_cols.begin(), found.bad_cols.end(), 1);
  if (found.differing == 1) return "in one element only";
  if (found.cols > 1 && first_col > 0 && bad_cols == found.cols - first_col && bad_cols <= found.cols / 2) {
    return fmt::format("only in columns {} to {} of {}: the tail of the row", first_col, found.cols - 1, found.cols);
  }
  if (found.cols > 1 && bad_cols == 1 && found.differing_rows > 1) return fmt::format("only in column {}", first_col);
  if (found.rows > 1 && found.first_row > 0 && found.last_row == found.rows - 1 &&
      found.differing_rows == found.rows - found.first_row) {
    return fmt::format("only in rows {} to {} of {}", found.first_row, found.last_row, found.rows);
  }
  if (found.rows > 1 && found.differing_rows == 1) return fmt::format("only in row {}", found.first_row);
  return "";
}

}  // namespace

std::string likely_cause(const Reference& reference, const std::vector<HostTensor>&,
                         const std::vector<Findings>& findings, Summation) {
  for (const Findings& found : findings) {
    if (found.differing == 0) continue;
    const std::string place = place_of(found);
    if (!place.empty()) return fmt::format("{} is wrong {}", reference.tensor(found.tensor).spec.name, place);
  }
  return "";
}

}  // namespace worklog

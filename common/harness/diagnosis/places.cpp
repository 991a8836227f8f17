#include <fmt/format.h>

#include <algorithm>

#include "common/harness/diagnosis/tests.h"

namespace worklog::diagnosis {

// A row that holds what belongs into another one.
std::string displaced_rows(const Evidence& evidence) {
  if (evidence.tensor.spec.extent != Extent::matrix) return "";
  const Reference& reference = evidence.reference;
  for (const int64_t shift : {-1, 1}) {
    size_t explained = 0;
    for (const Case& c : evidence.cases) {
      const int64_t other = c.row + shift;
      if (other < 0 || other >= reference.rows()) continue;
      Reference::Row row;
      reference.expect_row(other, evidence.summation, row);
      const std::vector<double>& want = row.outputs[evidence.found.tensor].want;
      explained += miss_of({&c, 1}, evidence.tolerance, [&](const Case&, int64_t j) { return want[j]; }) < infinity;
    }
    if (explained > 0 && explained + 1 >= evidence.cases.size()) {
      return fmt::format("each row holds the result of the row {} it", shift < 0 ? "before" : "after");
    }
  }
  return "";
}

std::string wrong_place(const Evidence& evidence) {
  const std::string place = place_of(evidence.found);
  return place.empty() ? "" : "wrong " + place;
}

std::string place_of(const Findings& found) {
  const auto first_bad = std::find(found.bad_cols.begin(), found.bad_cols.end(), 1);
  const int64_t first_col = first_bad - found.bad_cols.begin();
  const int64_t bad_cols = std::count(found.bad_cols.begin(), found.bad_cols.end(), 1);
  if (found.differing == 1 && found.compared > 1) return "in one element only";
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

}  // namespace worklog::diagnosis

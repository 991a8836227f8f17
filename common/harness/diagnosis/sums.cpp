#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/harness/diagnosis/tests.h"

namespace worklog::diagnosis {
namespace {

constexpr int64_t most_rows = 1 << 20;

// A few of the columns that are wrong.
std::vector<int64_t> wrong_columns(const Findings& found) {
  std::vector<int64_t> cols;
  for (int64_t col = 0; col < found.cols && cols.size() < 8; ++col) {
    if (found.bad_cols[col]) cols.push_back(col);
  }
  return cols;
}

// What a row adds to dgamma or to dbeta in a column.
class Terms {
 public:
  explicit Terms(const Evidence& evidence)
      : evidence_(evidence),
        x_(view_of(evidence.reference, "x")),
        dy_(view_of(evidence.reference, "dy")),
        mean_(evidence.reference.index_of("mean")),
        rstd_(evidence.reference.index_of("rstd")) {}

  double at(int64_t row, int64_t col) const {
    double x = 0, dy = 0;
    x_.load(row, col, 1, &x);
    dy_.load(row, col, 1, &dy);
    if (evidence_.name == "dbeta") return dy;
    if (evidence_.batchnorm) {
      const Moments& channel = evidence_.reference.channel_moments(col);
      return dy * (x - channel.mean) * channel.rstd;
    }
    return dy * (x - given(mean_, row)) * given(rstd_, row);
  }

 private:
  // A statistic as the forward pass wrote it; RMSNorm has no mean.
  double given(int tensor, int64_t row) const {
    double value = 0;
    if (tensor >= 0) {
      load_elements(Dtype::fp32, evidence_.reference.tensor(tensor).bytes.data() + row * 4, 1, 1, &value);
    }
    return value;
  }

  const Evidence& evidence_;
  MatrixView x_, dy_;
  int mean_, rstd_;  // where they are among the tensors, -1 where they are absent
};

}  // namespace

std::string wrong_sum_over_rows(const Evidence& evidence) {
  if (evidence.name != "dgamma" && evidence.name != "dbeta") return "";
  const Case& c = evidence.cases.front();
  const Terms terms(evidence);
  const std::vector<int64_t> cols = wrong_columns(evidence.found);
  std::vector<double> sums(cols.size()), magnitudes(cols.size());
  const int64_t all_rows = evidence.reference.rows();
  const int64_t rows = std::min(most_rows, all_rows);
  for (int64_t row = 0; row < rows; ++row) {
    bool all_match = cols.size() >= 4;
    for (size_t i = 0; i < cols.size(); ++i) {
      const double term = terms.at(row, cols[i]);
      sums[i] += term;
      magnitudes[i] += std::fabs(term);
      all_match = all_match && within(c.got[cols[i]], sums[i], c.expected.slack[cols[i]], evidence.tolerance);
    }
    if (all_match) return fmt::format("the sum stops after row {} of {}", row, all_rows);
  }
  double worst = 0;
  for (size_t i = 0; i < cols.size(); ++i) {
    worst = std::max(worst, std::fabs(c.got[cols[i]] - c.expected.want[cols[i]]) / magnitudes[i]);
  }
  if (rows == all_rows && worst < 0x1p-6) {
    return fmt::format(
        "off by up to 2^{:.0f} of the sum of the terms' magnitudes: the sum was kept in too narrow a type",
        std::log2(worst));
  }
  return "";
}

}  // namespace worklog::diagnosis

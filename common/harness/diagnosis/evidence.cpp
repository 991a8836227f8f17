#include "common/harness/diagnosis/evidence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace worklog::diagnosis {
namespace {

// Some rows of a longer list, evenly spread over it.
std::vector<int64_t> spread(const std::vector<int64_t>& rows) {
  std::vector<int64_t> some;
  const size_t count = std::min(examined_groups, rows.size());
  for (size_t i = 0; i < count; ++i) some.push_back(rows[i * rows.size() / count]);
  return some;
}

std::vector<double> values_before(const Reference& reference, std::string_view name) {
  std::vector<double> values(reference.cols(), 1.0);
  if (const int index = reference.index_of(name); index >= 0) {
    load_elements(Dtype::fp32, reference.tensor(index).bytes.data(), reference.cols(), 1, values.data());
  }
  return values;
}

}  // namespace

MatrixView view_of(const Reference& reference, std::string_view name) {
  const HostTensor& tensor = reference.tensor(reference.index_of(name));
  return MatrixView(reference.options(), tensor, tensor.bytes.data());
}

Evidence::Evidence(const Reference& of, const std::vector<HostTensor>& results, const Findings& findings,
                   Summation order)
    : reference(of),
      found(findings),
      tensor(of.tensor(findings.tensor)),
      result(results[findings.tensor]),
      summation(order),
      name(tensor.spec.name),
      tolerance(tolerance_of(tensor.dtype)),
      batchnorm(is_batchnorm(of.options().operation)),
      rms(!subtracts_mean(of.options().operation)),
      n(static_cast<double>(batchnorm ? of.rows() : of.cols())),
      eps(of.options().eps) {
  if (of.options().operation == Operation::batchnorm_train) {
    running_mean = values_before(of, "running_mean");
    running_var = values_before(of, "running_var");
  }
  if (tensor.spec.extent == Extent::per_col) {
    cases.push_back(load_vector());
  } else {
    for (const int64_t row : spread(found.sample_rows)) cases.push_back(load_case(row));
  }
}

Case Evidence::load_case(int64_t row) const {
  Case c;
  c.row = row;
  reference.expect_row(row, summation, c.inputs);
  c.expected = std::move(c.inputs.outputs[found.tensor]);
  if (tensor.spec.extent == Extent::per_row) {
    c.got.resize(1);
    load_elements(tensor.dtype, result.bytes.data() + row * 4, 1, 1, c.got.data());
    return c;
  }
  c.got.resize(reference.cols());
  MatrixView(reference.options(), tensor, result.bytes.data()).load(row, 0, reference.cols(), c.got.data());
  c.mean_x = std::accumulate(c.inputs.x.begin(), c.inputs.x.end(), 0.0) / n;
  if (!c.inputs.dy.empty() && !batchnorm) load_gradient(c);
  if (has("residual")) load_addends(c);
  return c;
}

void Evidence::load_gradient(Case& c) const {
  for (int64_t j = 0; j < reference.cols(); ++j) {
    const double dy = c.inputs.dy[j];
    const double gamma = reference.gamma()[j];
    c.mean_dy += dy / n;
    c.mean_dyx += dy * xhat(c, j) / n;
    c.mean_wdy += gamma * dy / n;
    c.mean_wdyx += gamma * dy * xhat(c, j) / n;
  }
  if (rms) c.mean_dy = c.mean_wdy = 0;
}

void Evidence::load_addends(Case& c) const {
  c.x.resize(reference.cols());
  c.residual.resize(reference.cols());
  view_of(reference, "x").load(c.row, 0, reference.cols(), c.x.data());
  view_of(reference, "residual").load(c.row, 0, reference.cols(), c.residual.data());
  Moments& m = c.moments_of_x;
  for (const double value : c.x) m.mean += rms ? 0 : value / n;
  for (const double value : c.x) m.variance += (value - m.mean) * (value - m.mean) / n;
  m.rstd = 1 / std::sqrt(m.variance + eps);
}

Case Evidence::load_vector() const {
  Case c;
  c.expected = reference.expect_columns(found.tensor, summation);
  c.got.resize(reference.cols());
  load_elements(tensor.dtype, result.bytes.data(), reference.cols(), 1, c.got.data());
  return c;
}

bool within(double got, double want, double slack, const Tolerance& tolerance) {
  return std::fabs(got - want) <= tolerance.atol + tolerance.rtol * std::fabs(want) + slack;
}

double mean_to_variance(const Moments& moments) {
  return moments.mean * moments.mean / std::max(moments.variance, std::numeric_limits<double>::min());
}

double miss_of(std::span<const Case> cases, const Tolerance& tolerance,
               const std::function<double(const Case&, int64_t)>& value_at) {
  int64_t wrong = 0, wrong_explained = 0, all = 0, all_explained = 0;
  double squares = 0, squares_where_right = 0, squares_of_reference = 0;
  for (const Case& c : cases) {
    for (int64_t col = 0; col < static_cast<int64_t>(c.got.size()); ++col) {
      const double value = value_at(c, col);
      const double want = c.expected.want[col];
      const double slack = c.expected.slack[col];
      const bool explained = within(c.got[col], value, slack, tolerance);
      const bool right = within(c.got[col], want, slack, tolerance);
      const double unit = tolerance.atol + tolerance.rtol * std::fabs(want) + slack;
      const double miss = (c.got[col] - value) / unit;
      ++all;
      all_explained += explained;
      wrong += !right;
      wrong_explained += !right && explained;
      if (explained) squares += miss * miss;
      if (right) {
        squares_where_right += miss * miss;
        squares_of_reference += (c.got[col] - want) * (c.got[col] - want) / (unit * unit);
      }
    }
  }
  const bool explains = wrong > 0 && wrong_explained >= 0.99 * wrong && all_explained >= 0.99 * all &&
                        squares_where_right <= 1.2 * squares_of_reference + 0.01 * all;
  return explains ? squares / all : infinity;
}

}  // namespace worklog::diagnosis

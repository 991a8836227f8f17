#include "common/harness/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "common/harness/compare.h"

namespace worklog {
namespace {

constexpr double u = 0x1p-24;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr size_t examined_rows = 16;

// A row with wrong elements: what came out, beside the reference and what it was made from.
struct Case {
  int64_t row = 0;
  std::vector<double> got;
  Expected expected;
  Reference::Row inputs;
  // dx: sums over the row divided by its length, with gamma in them and without: of dy and of dy * xhat.
  double mean_wdy = 0, mean_wdyx = 0, mean_dy = 0, mean_dyx = 0;
};

// A way to get it wrong: what would come out at a column of a case.
struct Hypothesis {
  std::string sentence;
  std::function<double(const Case&, int64_t col)> value;
};

bool is_batchnorm(const Reference& reference) {
  return name_of(reference.options().operation).starts_with("batchnorm");
}

bool is_rms(const Reference& reference) {
  return name_of(reference.options().operation).find("rmsnorm") != std::string_view::npos;
}

bool within(double got, double want, double slack, const Tolerance& tolerance) {
  return std::fabs(got - want) <= tolerance.atol + tolerance.rtol * std::fabs(want) + slack;
}

// How badly a hypothesis misses what came out: the mean square of the misses in units of the tolerance. Infinity where
// it explains less than 99 of 100 of the wrong elements or of all elements in their rows, or where it is farther from
// the elements that are right than the reference is: a wide tolerance lets many formulas pass there.
double miss_of(const std::vector<Case>& cases, const Tolerance& tolerance, const Hypothesis& hypothesis) {
  int64_t wrong = 0, wrong_explained = 0, all = 0, all_explained = 0;
  double squares = 0, squares_where_right = 0, squares_of_reference = 0;
  for (const Case& c : cases) {
    for (int64_t col = 0; col < static_cast<int64_t>(c.got.size()); ++col) {
      const double value = hypothesis.value(c, col);
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

std::string best_of(const std::vector<Case>& cases, const Tolerance& tolerance,
                    const std::vector<Hypothesis>& hypotheses) {
  std::string best;
  double least = infinity;
  for (const Hypothesis& hypothesis : hypotheses) {
    const double miss = miss_of(cases, tolerance, hypothesis);
    if (miss < least) {
      least = miss;
      best = hypothesis.sentence;
    }
  }
  return best;
}

// Where the wrong elements of an output lie, as words that follow "wrong"; empty where they are all over it.
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

// How large a mean is against the deviation around it, squared: what one-pass variance loses accuracy by.
double mean_to_variance(const Moments& moments) {
  return moments.mean * moments.mean / std::max(moments.variance, std::numeric_limits<double>::min());
}

// The mean and rstd that the elements of a row, or of a channel, were made with, found by least squares.
struct Fit {
  bool holds = false;  // got = gamma * (x - mean) * rstd + beta explains what is wrong
  double mean = 0, rstd = 0;
};

// What is normalized together: a row, or a channel of BatchNorm.
struct Group {
  int64_t row = -1;  // -1 for a channel
  Moments moments;
  std::vector<double> x, gamma, beta, got, want;
};

Fit fit_statistics(const Group& group) {
  // got - beta = a * (gamma * xhat) + b * gamma, with a = 1 and b = 0 where all is right.
  const Moments& right = group.moments;
  double pp = 0, pq = 0, qq = 0, pz = 0, qz = 0;
  for (size_t i = 0; i < group.x.size(); ++i) {
    const double p = group.gamma[i] * (group.x[i] - right.mean) * right.rstd;
    const double q = group.gamma[i];
    const double z = group.got[i] - group.beta[i];
    pp += p * p;
    pq += p * q;
    qq += q * q;
    pz += p * z;
    qz += q * z;
  }
  if (group.x.size() < 8) return {};
  const double determinant = pp * qq - pq * pq;
  double a = 1;
  double b = qz / qq;
  if (determinant > 1e-12 * pp * qq) {
    a = (pz * qq - qz * pq) / determinant;
    b = (pp * qz - pq * pz) / determinant;
  } else if (pp > 1e-12 * qq) {
    return {};  // not constant, and yet mean and deviation cannot be told apart
  }
  double error = 0, residual = 0;
  for (size_t i = 0; i < group.x.size(); ++i) {
    const double fitted = group.gamma[i] * (a * (group.x[i] - right.mean) * right.rstd + b) + group.beta[i];
    error += (group.got[i] - group.want[i]) * (group.got[i] - group.want[i]);
    residual += (group.got[i] - fitted) * (group.got[i] - fitted);
  }
  return {residual <= 0.01 * error && a != 0, right.mean - b / (a * right.rstd), a * right.rstd};
}

class Search {
 public:
  Search(const Reference& reference, const std::vector<HostTensor>& results, Summation summation)
      : reference_(reference), results_(results), summation_(summation) {}

  std::string cause_of(const Findings& found) const {
    const HostTensor& tensor = reference_.tensor(found.tensor);
    if (found.never_written > 0) return cause_of_unwritten(found);
    if (found.nan + found.infinite + found.lost_special > 0) return cause_of_special(found);
    std::string cause;
    if (tensor.spec.extent == Extent::matrix) {
      const std::vector<Case> cases = load_cases(found);
      const Tolerance tolerance = tolerance_of(tensor.dtype);
      const std::string_view name = tensor.spec.name;
      cause = best_of(cases, tolerance,
                      name == "y"    ? wrong_forwards(cases)
                      : name == "dx" ? wrong_gradients()
                                     : wrong_sums());
      if (cause.empty()) cause = cause_of_displaced_rows(found, cases, tolerance);
      if (cause.empty() && name == "y") cause = cause_of_statistics(found, cases);
      if (cause.empty()) cause = cause_of_rounding(tensor, cases);
    } else if (tensor.spec.extent == Extent::per_row) {
      cause = cause_of_row_statistic(found);
    } else {
      cause = cause_of_vector(found);
    }
    if (!cause.empty()) return cause;
    const std::string place = place_of(found);
    return place.empty() ? "" : "wrong " + place;
  }

 private:
  std::string cause_of_unwritten(const Findings& found) const {
    if (found.never_written == found.compared) {
      return "nothing was written: a launch that failed without a word, or a kernel that returned early";
    }
    const std::string place = place_of(found);
    if (found.never_written == found.differing && !place.empty()) return "never written " + place;
    return fmt::format("{} of {} elements were never written", found.never_written, found.compared);
  }

  std::string cause_of_special(const Findings& found) const {
    if (found.lost_special > 0) {
      return fmt::format("finite in {} elements where the reference is NaN or infinite: what makes it so was skipped",
                         found.lost_special);
    }
    const int64_t special = found.nan + found.infinite;
    if (reference_.options().input == Input::huge) {
      return "not finite where the reference is: sums or squares of values near the top of the type overflow";
    }
    if (reference_.tensor(found.tensor).spec.extent != Extent::per_col && found.nan > 0) {
      double least_ratio = infinity;
      for (const int64_t row : spread(found.sample_rows)) {
        Reference::Row inputs;
        reference_.expect_row(row, summation_, inputs);
        if (!is_batchnorm(reference_)) least_ratio = std::min(least_ratio, mean_to_variance(inputs.moments));
      }
      if (least_ratio < infinity && least_ratio * u > 0.1) {
        return "NaN where the mean is large against the deviation: a negative variance, as E[x^2] - E[x]^2 gives it";
      }
    }
    if (special == found.compared) return "NaN or infinite in every element";
    if (reference_.options().row_padding > 0) {
      return "not finite: elements between the rows (which hold NaN) may have been read";
    }
    const std::string place = place_of(found);
    return fmt::format("not finite in {} elements{}{}", special, place.empty() ? "" : ", ", place);
  }

  // Some rows of a longer list, evenly spread over it.
  static std::vector<int64_t> spread(const std::vector<int64_t>& rows) {
    std::vector<int64_t> some;
    const size_t count = std::min(examined_rows, rows.size());
    for (size_t i = 0; i < count; ++i) some.push_back(rows[i * rows.size() / count]);
    return some;
  }

  std::vector<Case> load_cases(const Findings& found) const {
    const HostTensor& tensor = reference_.tensor(found.tensor);
    const MatrixView view(reference_.options(), tensor, results_[found.tensor].bytes.data());
    const double n = static_cast<double>(reference_.cols());
    std::vector<Case> cases;
    for (const int64_t row : spread(found.sample_rows)) {
      Case c;
      c.row = row;
      c.got.resize(reference_.cols());
      view.load(row, 0, reference_.cols(), c.got.data());
      reference_.expect_row(row, summation_, c.inputs);
      c.expected = c.inputs.outputs[found.tensor];
      if (!c.inputs.dy.empty() && !is_batchnorm(reference_)) {
        for (int64_t j = 0; j < reference_.cols(); ++j) {
          const double dy = c.inputs.dy[j];
          const double gamma = reference_.gamma()[j];
          c.mean_dy += dy / n;
          c.mean_dyx += dy * xhat(c, j) / n;
          c.mean_wdy += gamma * dy / n;
          c.mean_wdyx += gamma * dy * xhat(c, j) / n;
        }
        if (is_rms(reference_)) c.mean_dy = c.mean_wdy = 0;
      }
      cases.push_back(std::move(c));
    }
    return cases;
  }

  const Moments& moments(const Case& c, int64_t col) const {
    return is_batchnorm(reference_) ? reference_.channel_moments(col) : c.inputs.moments;
  }

  double xhat(const Case& c, int64_t col) const {
    const Moments& m = moments(c, col);
    return (c.inputs.x[col] - m.mean) * m.rstd;
  }

  double n_normalized() const {
    return static_cast<double>(is_batchnorm(reference_) ? reference_.rows() : reference_.cols());
  }

  std::vector<Hypothesis> wrong_forwards(const std::vector<Case>& cases) const {
    const std::vector<double>& gamma = reference_.gamma();
    const std::vector<double>& beta = reference_.beta();
    const bool has_gamma = reference_.index_of("gamma") >= 0;
    const bool has_beta = reference_.index_of("beta") >= 0;
    std::vector<Hypothesis> list;
    if (has_gamma) {
      list.push_back({"gamma is ignored", [&, this](const Case& c, int64_t j) { return xhat(c, j) + beta[j]; }});
      list.push_back({"1 + gamma in place of gamma",
                      [&, this](const Case& c, int64_t j) { return xhat(c, j) * (1 + gamma[j]) + beta[j]; }});
    }
    if (has_beta) {
      list.push_back({"beta is ignored", [&, this](const Case& c, int64_t j) { return xhat(c, j) * gamma[j]; }});
    }
    if (has_gamma && has_beta) {
      list.push_back({"gamma and beta are ignored", [this](const Case& c, int64_t j) { return xhat(c, j); }});
      list.push_back({"gamma and beta are swapped",
                      [&, this](const Case& c, int64_t j) { return xhat(c, j) * beta[j] + gamma[j]; }});
    }
    // The same formula with another mean and another rstd.
    const auto with = [&](std::string sentence, std::function<Moments(const Case&, const Moments&)> other) {
      list.push_back({std::move(sentence), [=, &gamma, &beta, this](const Case& c, int64_t j) {
                        const Moments m = other(c, moments(c, j));
                        return (c.inputs.x[j] - m.mean) * m.rstd * gamma[j] + beta[j];
                      }});
    };
    const double n = n_normalized();
    const double eps = reference_.options().eps;
    const auto changed = [&](double mean_factor, std::function<double(const Moments&)> rstd) {
      return [=](const Case&, const Moments& m) { return Moments{m.mean * mean_factor, m.variance, rstd(m), 0}; };
    };
    with("the variance is unbiased (divided by n - 1)",
         changed(1, [=](const Moments& m) { return 1 / std::sqrt(m.variance * n / (n - 1) + eps); }));
    with("eps is outside the root", changed(1, [=](const Moments& m) { return 1 / (std::sqrt(m.variance) + eps); }));
    with("eps is missing", changed(1, [](const Moments& m) { return 1 / std::sqrt(m.variance); }));
    with("the squares' sum is not divided by n",
         changed(1, [=](const Moments& m) { return 1 / std::sqrt(m.variance * n + eps); }));
    with("the root of the variance is missing", changed(1, [=](const Moments& m) { return 1 / (m.variance + eps); }));
    with("not divided by the standard deviation", changed(1, [](const Moments&) { return 1.0; }));
    if (is_rms(reference_)) {
      with("a mean is subtracted, as LayerNorm does", [=](const Case& c, const Moments& m) {
        const double mean = std::accumulate(c.inputs.x.begin(), c.inputs.x.end(), 0.0) / n;
        return Moments{mean, 0, 1 / std::sqrt(m.variance - mean * mean + eps), 0};
      });
    } else {
      with("the mean is not subtracted", changed(0, [](const Moments& m) { return m.rstd; }));
      with("the variance is taken around zero, not around the mean",
           changed(1, [=](const Moments& m) { return 1 / std::sqrt(m.variance + m.mean * m.mean + eps); }));
      with("the mean is ignored, as RMSNorm does",
           changed(0, [=](const Moments& m) { return 1 / std::sqrt(m.variance + m.mean * m.mean + eps); }));
    }
    if (const int running = reference_.index_of("running_mean");
        running >= 0 && reference_.options().operation == Operation::batchnorm_train) {
      const auto vector = [&](std::string_view name) {
        std::vector<double> values(reference_.cols(), 1.0);
        if (const int index = reference_.index_of(name); index >= 0) {
          load_elements(Dtype::fp32, reference_.tensor(index).bytes.data(), reference_.cols(), 1, values.data());
        }
        return values;
      };
      list.push_back(
          {"the running statistics are used in place of the batch's",
           [&, eps, mean = vector("running_mean"), variance = vector("running_var")](const Case& c, int64_t j) {
             return (c.inputs.x[j] - mean[j]) / std::sqrt(variance[j] + eps) * gamma[j] + beta[j];
           }});
    }
    if (const int residual = reference_.index_of("residual"); residual >= 0 && !cases.empty()) {
      // The norm of x alone: its moments are not those of h.
      std::map<int64_t, Case> alone;
      const HostTensor& x = reference_.tensor(reference_.index_of("x"));
      for (const Case& c : cases) {
        Case& own = alone[c.row];
        own.inputs.x.resize(reference_.cols());
        MatrixView(reference_.options(), x, x.bytes.data()).load(c.row, 0, reference_.cols(), own.inputs.x.data());
        Moments& m = own.inputs.moments;
        for (const double value : own.inputs.x) m.mean += is_rms(reference_) ? 0 : value / n;
        for (const double value : own.inputs.x) m.variance += (value - m.mean) * (value - m.mean) / n;
        m.rstd = 1 / std::sqrt(m.variance + eps);
      }
      list.push_back({"the residual is not added", [&, this, alone = std::move(alone)](const Case& c, int64_t j) {
                        return xhat(alone.at(c.row), j) * gamma[j] + beta[j];
                      }});
    }
    list.push_back({"x itself came out", [](const Case& c, int64_t j) { return c.inputs.x[j]; }});
    list.push_back({"zeros came out", [](const Case&, int64_t) { return 0.0; }});
    return list;
  }

  // h = x + residual.
  std::vector<Hypothesis> wrong_sums() const {
    const auto load = [this](std::string_view name, int64_t row) {
      const HostTensor& tensor = reference_.tensor(reference_.index_of(name));
      std::vector<double> values(reference_.cols());
      MatrixView(reference_.options(), tensor, tensor.bytes.data()).load(row, 0, reference_.cols(), values.data());
      return values;
    };
    const auto one_of = [=](std::string_view name) {
      return [=, row = int64_t{-1}, values = std::vector<double>()](const Case& c, int64_t j) mutable {
        if (row != c.row) values = load(name, row = c.row);
        return values[j];
      };
    };
    return {{"the residual is not added", one_of("x")}, {"x is not added to the residual", one_of("residual")}};
  }

  std::vector<Hypothesis> wrong_gradients() const {
    // dx = scale * (w - xhat * c2 - c1) + dh, with each of its parts left out or taken without gamma.
    struct Parts {
      double w, scale, c1, c2;
    };
    const bool batchnorm = is_batchnorm(reference_);
    const double n = n_normalized();
    const auto parts = [=, this](const Case& c, int64_t j, bool with_gamma) {
      const double gamma = with_gamma ? reference_.gamma()[j] : 1;
      if (batchnorm) {
        return Parts{c.inputs.dy[j], gamma * moments(c, j).rstd, reference_.sum_dy(j) / n,
                     reference_.sum_dy_xhat(j) / n};
      }
      return Parts{gamma * c.inputs.dy[j], c.inputs.moments.rstd, with_gamma ? c.mean_wdy : c.mean_dy,
                   with_gamma ? c.mean_wdyx : c.mean_dyx};
    };
    const auto dh = [](const Case& c, int64_t j) { return c.inputs.dh.empty() ? 0.0 : c.inputs.dh[j]; };
    const auto whole = [=, this](const Case& c, int64_t j, const Parts& p) {
      return p.scale * (p.w - xhat(c, j) * p.c2 - p.c1) + dh(c, j);
    };
    const auto changed = [=](bool with_gamma, auto change) {
      return [=](const Case& c, int64_t j) {
        Parts p = parts(c, j, with_gamma);
        change(p);
        return whole(c, j, p);
      };
    };
    std::vector<Hypothesis> list = {
        {"gamma is ignored", changed(false, [](Parts&) {})},
        {"the term with mean(wdy) is missing", changed(true, [](Parts& p) { p.c1 = 0; })},
        {"the term with xhat * mean(wdy * xhat) is missing", changed(true, [](Parts& p) { p.c2 = 0; })},
        {"both mean terms are missing", changed(true, [](Parts& p) { p.c1 = p.c2 = 0; })},
        {"the sums are not divided by n", changed(true,
                                                  [=](Parts& p) {
                                                    p.c1 *= n;
                                                    p.c2 *= n;
                                                  })},
        {"the factor rstd is missing", changed(true, [=](Parts& p) { p.scale = 1; })},
        {"zeros came out", [](const Case&, int64_t) { return 0.0; }},
    };
    if (!batchnorm) {
      list.push_back({"the sums are taken without gamma", [=](const Case& c, int64_t j) {
                        Parts p = parts(c, j, true);
                        p.c1 = c.mean_dy;
                        p.c2 = c.mean_dyx;
                        return whole(c, j, p);
                      }});
    }
    if (reference_.index_of("dh") >= 0) {
      list.push_back(
          {"dh is not added", [=](const Case& c, int64_t j) { return whole(c, j, parts(c, j, true)) - dh(c, j); }});
    }
    return list;
  }

  // A row that holds what belongs into another one.
  std::string cause_of_displaced_rows(const Findings& found, const std::vector<Case>& cases,
                                      const Tolerance& tolerance) const {
    for (const int64_t shift : {-1, 1}) {
      int64_t explained = 0;
      for (const Case& c : cases) {
        const int64_t other = c.row + shift;
        if (other < 0 || other >= reference_.rows()) continue;
        Reference::Row row;
        reference_.expect_row(other, summation_, row);
        const Expected& expected = row.outputs[found.tensor];
        explained += miss_of({c}, tolerance, {"", [&](const Case&, int64_t j) { return expected.want[j]; }}) < infinity;
      }
      if (explained > 0 && explained >= static_cast<int64_t>(cases.size()) - 1) {
        return fmt::format("each row holds the result of the row {} it", shift < 0 ? "before" : "after");
      }
    }
    return "";
  }

  std::vector<Group> load_groups(const Findings& found, const std::vector<Case>& cases) const {
    std::vector<Group> groups;
    if (!is_batchnorm(reference_)) {
      for (const Case& c : cases) {
        groups.push_back(
            {c.row, c.inputs.moments, c.inputs.x, reference_.gamma(), reference_.beta(), c.got, c.expected.want});
      }
      return groups;
    }
    constexpr int64_t most_rows = 4096;
    const int64_t rows = std::min(most_rows, reference_.rows());
    const HostTensor& x = reference_.tensor(reference_.index_of("x"));
    const MatrixView x_view(reference_.options(), x, x.bytes.data());
    const MatrixView y_view(reference_.options(), reference_.tensor(found.tensor), results_[found.tensor].bytes.data());
    for (int64_t col = 0; col < found.cols && groups.size() < examined_rows; ++col) {
      if (!found.bad_cols[col]) continue;
      const Moments& m = reference_.channel_moments(col);
      Group group{-1,
                  m,
                  std::vector<double>(rows),
                  std::vector<double>(rows, reference_.gamma()[col]),
                  std::vector<double>(rows, reference_.beta()[col]),
                  std::vector<double>(rows),
                  std::vector<double>(rows)};
      for (int64_t row = 0; row < rows; ++row) {
        x_view.load(row, col, 1, &group.x[row]);
        y_view.load(row, col, 1, &group.got[row]);
        group.want[row] = (group.x[row] - m.mean) * m.rstd * group.gamma[row] + group.beta[row];
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }

  // Statistics that no formula of wrong_forwards gives: the most frequent finding among the rows (or channels).
  std::string cause_of_statistics(const Findings& found, const std::vector<Case>& cases) const {
    const std::vector<Group> groups = load_groups(found, cases);
    std::vector<Fit> fits;
    for (const Group& group : groups) fits.push_back(fit_statistics(group));
    const std::string short_sums = cause_of_short_sums(groups, fits, reference_.tensor(found.tensor).dtype);
    if (!short_sums.empty()) return short_sums;
    std::map<std::string, size_t> votes;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (fits[i].holds) ++votes[name_statistics(groups[i], fits[i])];
    }
    std::string winner;
    size_t most = 0;
    for (const auto& [sentence, count] : votes) {
      if (count <= most) continue;
      most = count;
      winner = sentence;
    }
    return 2 * most >= groups.size() ? winner : "";
  }

  std::string name_statistics(const Group& group, const Fit& fit) const {
    const Moments& right = group.moments;
    const std::string whose = group.row < 0 ? "channel" : "row";
    if (group.row >= 0) {
      if (const std::string other = other_row(group, fit); !other.empty()) return other;
    }
    const double mean_error = std::fabs(fit.mean - right.mean) * right.rstd;  // both in units of y
    const double variance_error = std::fabs((right.rstd / fit.rstd) * (right.rstd / fit.rstd) - 1);
    const double ratio = mean_to_variance(right);
    if (variance_error > mean_error && ratio > 1e3 && variance_error <= 256 * u * ratio) {
      return "the variance lost its digits to cancellation, as E[x^2] - E[x]^2 does where the mean is large";
    }
    const double n = n_normalized();
    const bool may_be_rounding = n * u < 0.1;
    if (mean_error > variance_error) {
      if (may_be_rounding && std::fabs(fit.mean - right.mean) <= n * u * right.mean_abs) {
        return fmt::format("the mean of each {} is off by its rounding: too long a running sum for the type", whose);
      }
      return fmt::format("the mean of each {} is off: a constant offset along the {}", whose, whose);
    }
    if (may_be_rounding && variance_error <= n * u) {
      return fmt::format("the variance of each {} is off by its rounding: too long a running sum for the type", whose);
    }
    return fmt::format("the standard deviation of each {} is off: everything in the {} has a common factor", whose,
                       whose);
  }

  // Whether a row was made with the statistics of a row nearby.
  std::string other_row(const Group& group, const Fit& fit) const {
    const auto distance = [&](const Moments& m) {
      return std::hypot((fit.mean - m.mean) * m.rstd, std::log(std::fabs(fit.rstd) / m.rstd));
    };
    const int64_t reach = std::clamp<int64_t>((int64_t{1} << 20) / reference_.cols(), 2, 64);
    const double own = distance(group.moments);
    for (int64_t row = std::max<int64_t>(0, group.row - reach);
         row <= std::min(reference_.rows() - 1, group.row + reach); ++row) {
      if (row == group.row) continue;
      Reference::Row inputs;
      reference_.load_normalized_row(row, inputs);
      if (distance(inputs.moments) <= 0.01 * own) {
        return "rows are normalized with the mean and deviation of another row: shared memory used again too early, or "
               "a "
               "wrong index";
      }
    }
    return "";
  }

  // The columns after which the sums so far give the statistics found, much closer than those are to the right ones.
  std::vector<int64_t> ends_of_sums(const Group& group, const Fit& fit, Dtype dtype) const {
    const double n = static_cast<double>(group.x.size());
    const double eps = reference_.options().eps;
    const double rounding = std::ldexp(4.0, -digits_of(dtype)) / std::sqrt(n) + 8 * u;  // of the fit, relative
    const double mean_noise = rounding * (std::sqrt(group.moments.variance) + group.moments.mean_abs);
    const double rstd_noise = rounding * group.moments.rstd;
    const double mean_error = std::fabs(fit.mean - group.moments.mean);
    const double rstd_error = std::fabs(fit.rstd - group.moments.rstd);
    std::vector<int64_t> ends;
    if (mean_error < 10 * mean_noise && rstd_error < 10 * rstd_noise) return ends;
    double sum = 0, squares = 0;  // of the columns so far, the squares around the mean found
    for (size_t col = 0; col + 1 < group.x.size(); ++col) {
      sum += is_rms(reference_) ? 0 : group.x[col];
      squares += (group.x[col] - fit.mean) * (group.x[col] - fit.mean);
      const double rstd = 1 / std::sqrt(squares / n + eps);
      if (std::fabs(rstd - fit.rstd) > rstd_noise + 1e-3 * rstd_error) continue;
      if (!is_rms(reference_) && std::fabs(sum / n - fit.mean) > mean_noise + 1e-3 * mean_error) continue;
      ends.push_back(static_cast<int64_t>(col));
    }
    return ends;
  }

  // Whether the sums of all rows left out the same columns at the end.
  std::string cause_of_short_sums(const std::vector<Group>& groups, const std::vector<Fit>& fits, Dtype dtype) const {
    if (is_batchnorm(reference_) || groups.empty()) return "";
    const double n = static_cast<double>(reference_.cols());
    std::map<int64_t, size_t> votes;
    double expected_by_chance = n;  // columns that all rows would agree on if each took its own at random
    for (size_t i = 0; i < groups.size(); ++i) {
      const std::vector<int64_t> ends =
          fits[i].holds ? ends_of_sums(groups[i], fits[i], dtype) : std::vector<int64_t>();
      if (ends.empty()) return "";
      for (const int64_t end : ends) ++votes[end];
      expected_by_chance *= static_cast<double>(ends.size()) / n;
    }
    std::vector<int64_t> agreed;
    for (const auto& [end, count] : votes) {
      if (count == groups.size()) agreed.push_back(end);
    }
    const bool certain = expected_by_chance < 0.01 || (groups.size() == 1 && agreed.size() == 1);
    if (agreed.empty() || !certain) return "";
    if (agreed.size() == 1) return fmt::format("the sums stop after column {} of {}", agreed[0], n);
    return fmt::format("the sums stop between columns {} and {} of {}", agreed.front(), agreed.back(), n);
  }

  // Values that went through a 16-bit type on their way to an fp32 tensor.
  std::string cause_of_rounding(const HostTensor& tensor, const std::vector<Case>& cases) const {
    if (tensor.dtype != Dtype::fp32) return "";
    for (const Dtype narrow : {Dtype::bf16, Dtype::fp16}) {
      const double step = std::ldexp(1.0, 2 - digits_of(narrow));  // about two roundings
      bool all = !cases.empty();
      for (const Case& c : cases) {
        for (size_t j = 0; j < c.got.size(); ++j) {
          all = all && round_to(narrow, static_cast<float>(c.got[j])) == static_cast<float>(c.got[j]) &&
                std::fabs(c.got[j] - c.expected.want[j]) <= step * std::max(1e-3, std::fabs(c.expected.want[j]));
        }
      }
      if (all) return fmt::format("every value is one of {}: rounded to it on the way", name_of(narrow));
    }
    return "";
  }

  // mean and rstd as outputs.
  std::string cause_of_row_statistic(const Findings& found) const {
    const HostTensor& tensor = reference_.tensor(found.tensor);
    const bool is_mean = tensor.spec.name == "mean";
    const double n = static_cast<double>(reference_.cols());
    const double eps = reference_.options().eps;
    const auto of = [](auto function) { return [=](const Case& c, int64_t) { return function(c.inputs.moments); }; };
    std::vector<Case> cases;
    for (const int64_t row : spread(found.sample_rows)) {
      Case c;
      c.row = row;
      reference_.expect_row(row, summation_, c.inputs);
      c.expected = c.inputs.outputs[found.tensor];
      c.got.resize(1);
      load_elements(tensor.dtype, results_[found.tensor].bytes.data() + row * 4, 1, 1, c.got.data());
      cases.push_back(std::move(c));
    }
    const std::vector<Hypothesis> wrong_means = {
        {"the sum is not divided by n", of([=](const Moments& m) { return m.mean * n; })},
        {"rstd came out in place of the mean", of([](const Moments& m) { return m.rstd; })},
        {"zeros came out", of([](const Moments&) { return 0.0; })},
    };
    const std::vector<Hypothesis> wrong_rstds = {
        {"the variance came out", of([](const Moments& m) { return m.variance; })},
        {"the standard deviation came out, not 1 over it", of([=](const Moments& m) { return 1 / m.rstd; })},
        {"the mean came out in place of rstd", of([](const Moments& m) { return m.mean; })},
        {"the variance is unbiased (divided by n - 1)",
         of([=](const Moments& m) { return 1 / std::sqrt(m.variance * n / (n - 1) + eps); })},
        {"eps is outside the root", of([=](const Moments& m) { return 1 / (std::sqrt(m.variance) + eps); })},
        {"eps is missing", of([](const Moments& m) { return 1 / std::sqrt(m.variance); })},
        {"zeros came out", of([](const Moments&) { return 0.0; })},
    };
    return best_of(cases, tolerance_of(tensor.dtype), is_mean ? wrong_means : wrong_rstds);
  }

  // The outputs that have one value per column.
  std::string cause_of_vector(const Findings& found) const {
    const HostTensor& tensor = reference_.tensor(found.tensor);
    const std::string_view name = tensor.spec.name;
    Case c;
    c.expected = reference_.expect_columns(found.tensor, summation_);
    c.got.resize(reference_.cols());
    load_elements(tensor.dtype, results_[found.tensor].bytes.data(), reference_.cols(), 1, c.got.data());
    const std::vector<double> want = c.expected.want;
    std::vector<Hypothesis> list = {{"zeros came out", [](const Case&, int64_t) { return 0.0; }}};
    const auto add = [&](std::string sentence, std::function<double(int64_t)> value) {
      list.push_back({std::move(sentence), [value = std::move(value)](const Case&, int64_t j) { return value(j); }});
    };
    if (name == "dgamma" || name == "dbeta") {
      const bool is_dgamma = name == "dgamma";
      add(is_dgamma ? "dbeta came out in place of dgamma" : "dgamma came out in place of dbeta",
          [=, this](int64_t j) { return is_dgamma ? reference_.sum_dy(j) : reference_.sum_dy_xhat(j); });
      add("everything was added twice: the sums of an earlier run were not cleared",
          [=](int64_t j) { return 2 * want[j]; });
      add("the sum is divided by the number of rows",
          [=, this](int64_t j) { return want[j] / static_cast<double>(reference_.rows()); });
      add("the sum has a factor gamma", [=, this](int64_t j) { return want[j] * reference_.gamma()[j]; });
    } else if (name == "running_mean" || name == "running_var") {
      std::vector<double> old(reference_.cols());
      load_elements(tensor.dtype, tensor.bytes.data(), reference_.cols(), 1, old.data());
      const double momentum = reference_.options().momentum;
      const double n = n_normalized();
      const bool is_mean = name == "running_mean";
      const auto batch = [=, this](int64_t j) {
        const Moments& m = reference_.channel_moments(j);
        return is_mean ? m.mean : m.variance * n / (n - 1);
      };
      add("not updated", [=](int64_t j) { return old[j]; });
      add("the batch's own value came out", batch);
      add("momentum weighs the old value, not the new one",
          [=](int64_t j) { return momentum * old[j] + (1 - momentum) * batch(j); });
      if (!is_mean) {
        add("the variance is biased (divided by n, not n - 1)",
            [=, this](int64_t j) { return old[j] + momentum * (reference_.channel_moments(j).variance - old[j]); });
      }
    } else if (name == "save_invstd") {
      const double n = n_normalized();
      const double eps = reference_.options().eps;
      const auto variance = [this](int64_t j) { return reference_.channel_moments(j).variance; };
      add("the variance came out", variance);
      add("the variance is unbiased (divided by n - 1)",
          [=](int64_t j) { return 1 / std::sqrt(variance(j) * n / (n - 1) + eps); });
      add("eps is outside the root", [=](int64_t j) { return 1 / (std::sqrt(variance(j)) + eps); });
    }
    const std::string best = best_of({c}, tolerance_of(tensor.dtype), list);
    if (!best.empty()) return best;
    if (name == "dgamma" || name == "dbeta") return cause_of_partial_sum(found, c);
    return "";
  }

  // dgamma and dbeta that hold the sum of the first rows only, or one kept in too narrow a type.
  std::string cause_of_partial_sum(const Findings& found, const Case& c) const {
    const HostTensor& tensor = reference_.tensor(found.tensor);
    const Tolerance tolerance = tolerance_of(tensor.dtype);
    const bool is_dgamma = tensor.spec.name == "dgamma";
    std::vector<int64_t> cols;  // a few of the wrong ones
    for (int64_t col = 0; col < found.cols && cols.size() < 8; ++col) {
      if (found.bad_cols[col]) cols.push_back(col);
    }
    const auto view = [&](std::string_view name) {
      const HostTensor& input = reference_.tensor(reference_.index_of(name));
      return MatrixView(reference_.options(), input, input.bytes.data());
    };
    const MatrixView x = view("x");
    const MatrixView dy = view("dy");
    const int mean = reference_.index_of("mean");
    const int rstd = reference_.index_of("rstd");
    std::vector<double> sums(cols.size()), magnitudes(cols.size());
    constexpr int64_t most_rows = 1 << 20;
    const int64_t rows = std::min(most_rows, reference_.rows());
    int64_t stops_after = -1;
    for (int64_t row = 0; row < rows; ++row) {
      double row_mean = 0, row_rstd = 1;
      if (mean >= 0) load_elements(Dtype::fp32, reference_.tensor(mean).bytes.data() + row * 4, 1, 1, &row_mean);
      if (rstd >= 0) load_elements(Dtype::fp32, reference_.tensor(rstd).bytes.data() + row * 4, 1, 1, &row_rstd);
      bool all_match = cols.size() >= 4;
      for (size_t i = 0; i < cols.size(); ++i) {
        double x_value = 0, dy_value = 0;
        x.load(row, cols[i], 1, &x_value);
        dy.load(row, cols[i], 1, &dy_value);
        if (rstd < 0) {
          const Moments& channel = reference_.channel_moments(cols[i]);
          row_mean = channel.mean;
          row_rstd = channel.rstd;
        }
        const double term = is_dgamma ? dy_value * (x_value - row_mean) * row_rstd : dy_value;
        sums[i] += term;
        magnitudes[i] += std::fabs(term);
        all_match = all_match && within(c.got[cols[i]], sums[i], c.expected.slack[cols[i]], tolerance);
      }
      if (all_match && stops_after < 0) stops_after = row;
    }
    if (stops_after >= 0) {
      return fmt::format("the sum stops after row {} of {}", stops_after, reference_.rows());
    }
    double worst = 0;
    for (size_t i = 0; i < cols.size(); ++i) {
      worst = std::max(worst, std::fabs(c.got[cols[i]] - c.expected.want[cols[i]]) / magnitudes[i]);
    }
    if (rows == reference_.rows() && worst < 0x1p-6) {
      return fmt::format(
          "off by up to 2^{:.0f} of the sum of the terms' magnitudes: the sum was kept in too narrow a type",
          std::log2(worst));
    }
    return "";
  }

  const Reference& reference_;
  const std::vector<HostTensor>& results_;
  Summation summation_;
};

}  // namespace

std::string likely_cause(const Reference& reference, const std::vector<HostTensor>& results,
                         const std::vector<Findings>& findings, Summation summation) {
  const Search search(reference, results, summation);
  // Whole tensors first: a wrong matrix is seldom wrong because of a statistic that is wrong beside it.
  for (const bool matrices : {true, false}) {
    for (const Findings& found : findings) {
      const HostTensor& tensor = reference.tensor(found.tensor);
      if (found.differing == 0 || (tensor.spec.extent == Extent::matrix) != matrices) continue;
      const std::string cause = search.cause_of(found);
      if (!cause.empty()) return fmt::format("{}: {}", tensor.spec.name, cause);
    }
  }
  return "";
}

}  // namespace worklog

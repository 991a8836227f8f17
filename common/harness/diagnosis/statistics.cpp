#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/harness/diagnosis/tests.h"

namespace worklog::diagnosis {
namespace {

// What is normalized together: a row, or a channel of BatchNorm.
struct Group {
  int64_t row = -1;  // -1 for a channel
  Moments moments;
  std::vector<double> x, gamma, beta, got, want;
};

std::vector<Group> load_rows(const Evidence& evidence) {
  const Reference& reference = evidence.reference;
  std::vector<Group> groups;
  for (const Case& c : evidence.cases) {
    groups.push_back(
        {c.row, c.inputs.moments, c.inputs.x, reference.gamma(), reference.beta(), c.got, c.expected.want});
  }
  return groups;
}

std::vector<Group> load_channels(const Evidence& evidence) {
  constexpr int64_t most_rows = 4096;
  const Reference& reference = evidence.reference;
  const int64_t rows = std::min(most_rows, reference.rows());
  const MatrixView x = view_of(reference, "x");
  const MatrixView y(reference.options(), evidence.tensor, evidence.result.bytes.data());
  std::vector<Group> groups;
  for (int64_t col = 0; col < evidence.found.cols && groups.size() < examined_groups; ++col) {
    if (!evidence.found.bad_cols[col]) continue;
    const Moments& m = reference.channel_moments(col);
    Group group{-1,
                m,
                std::vector<double>(rows),
                std::vector<double>(rows, reference.gamma()[col]),
                std::vector<double>(rows, reference.beta()[col]),
                std::vector<double>(rows),
                std::vector<double>(rows)};
    for (int64_t row = 0; row < rows; ++row) {
      x.load(row, col, 1, &group.x[row]);
      y.load(row, col, 1, &group.got[row]);
      group.want[row] = (group.x[row] - m.mean) * m.rstd * group.gamma[row] + group.beta[row];
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// The mean and rstd that the elements of a group were made with, found by least squares.
struct Fit {
  bool holds = false;  // got = gamma * (x - mean) * rstd + beta explains what is wrong
  double mean = 0, rstd = 0;
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

// The columns after which the sums so far give the statistics found, much closer than those are to the right ones.
std::vector<int64_t> ends_of_sums(const Evidence& evidence, const Group& group, const Fit& fit) {
  const double n = static_cast<double>(group.x.size());
  const double rounding = std::ldexp(4.0, -digits_of(evidence.tensor.dtype)) / std::sqrt(n) + 8 * u;  // relative
  const double mean_noise = rounding * (std::sqrt(group.moments.variance) + group.moments.mean_abs);
  const double rstd_noise = rounding * group.moments.rstd;
  const double mean_error = std::fabs(fit.mean - group.moments.mean);
  const double rstd_error = std::fabs(fit.rstd - group.moments.rstd);
  std::vector<int64_t> ends;
  if (mean_error < 10 * mean_noise && rstd_error < 10 * rstd_noise) return ends;
  double sum = 0, squares = 0;  // of the columns so far, the squares around the mean found
  for (size_t col = 0; col + 1 < group.x.size(); ++col) {
    sum += evidence.rms ? 0 : group.x[col];
    squares += (group.x[col] - fit.mean) * (group.x[col] - fit.mean);
    const double rstd = 1 / std::sqrt(squares / n + evidence.eps);
    if (std::fabs(rstd - fit.rstd) > rstd_noise + 1e-3 * rstd_error) continue;
    if (!evidence.rms && std::fabs(sum / n - fit.mean) > mean_noise + 1e-3 * mean_error) continue;
    ends.push_back(static_cast<int64_t>(col));
  }
  return ends;
}

// Whether the sums of all rows left out the same columns at the end.
std::string short_sums(const Evidence& evidence, const std::vector<Group>& groups, const std::vector<Fit>& fits) {
  if (evidence.batchnorm || groups.empty()) return "";
  std::map<int64_t, size_t> votes;
  double expected_by_chance = evidence.n;  // columns that all rows would agree on if each took its own at random
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int64_t> ends =
        fits[i].holds ? ends_of_sums(evidence, groups[i], fits[i]) : std::vector<int64_t>();
    if (ends.empty()) return "";
    for (const int64_t end : ends) ++votes[end];
    expected_by_chance *= static_cast<double>(ends.size()) / evidence.n;
  }
  std::vector<int64_t> agreed;
  for (const auto& [end, count] : votes) {
    if (count == groups.size()) agreed.push_back(end);
  }
  const bool certain = expected_by_chance < 0.01 || (groups.size() == 1 && agreed.size() == 1);
  if (agreed.empty() || !certain) return "";
  if (agreed.size() == 1) return fmt::format("the sums stop after column {} of {}", agreed[0], evidence.n);
  return fmt::format("the sums stop between columns {} and {} of {}", agreed.front(), agreed.back(), evidence.n);
}

// Whether a row was made with the statistics of a row nearby.
bool is_of_another_row(const Reference& reference, const Group& group, const Fit& fit) {
  const auto distance = [&](const Moments& m) {
    return std::hypot((fit.mean - m.mean) * m.rstd, std::log(std::fabs(fit.rstd) / m.rstd));
  };
  const int64_t reach = std::clamp<int64_t>((int64_t{1} << 20) / reference.cols(), 2, 64);
  const double own = distance(group.moments);
  const int64_t last = std::min(reference.rows() - 1, group.row + reach);
  for (int64_t row = std::max<int64_t>(0, group.row - reach); row <= last; ++row) {
    if (row == group.row) continue;
    Reference::Row inputs;
    reference.load_normalized_row(row, inputs);
    if (distance(inputs.moments) <= 0.01 * own) return true;
  }
  return false;
}

// How far the statistics found are from the right ones.
struct Distance {
  double mean_error, variance_error;  // both in units of y
  double mean_shift, mean_abs;        // in units of x
  double ratio;                       // mean_to_variance
  double n;

  bool of_mean() const { return mean_error > variance_error; }
  // What the rounding of a long running sum may do; past some 10^6 terms it may do anything.
  bool is_rounding() const {
    return n * u < 0.1 && (of_mean() ? mean_shift <= n * u * mean_abs : variance_error <= n * u);
  }
};

struct Statement {
  const char* sentence;  // {0}: row, or channel
  bool (*holds)(const Distance&);
};
// The first that holds is the one.
constexpr Statement statements[] = {
    {"the variance lost its digits to cancellation, as E[x^2] - E[x]^2 does where the mean is large",
     [](const Distance& d) {
       return d.variance_error > d.mean_error && d.ratio > 1e3 && d.variance_error <= 256 * u * d.ratio;
     }},
    {"the mean of each {0} is off by its rounding: too long a running sum for the type",
     [](const Distance& d) { return d.of_mean() && d.is_rounding(); }},
    {"the mean of each {0} is off: a constant offset along the {0}", [](const Distance& d) { return d.of_mean(); }},
    {"the variance of each {0} is off by its rounding: too long a running sum for the type",
     [](const Distance& d) { return d.is_rounding(); }},
    {"the standard deviation of each {0} is off: everything in the {0} has a common factor",
     [](const Distance&) { return true; }},
};

std::string name_statistics(const Evidence& evidence, const Group& group, const Fit& fit) {
  const Moments& right = group.moments;
  if (group.row >= 0 && is_of_another_row(evidence.reference, group, fit)) {
    return "rows are normalized with the mean and deviation of another row: shared memory used again too early, or a "
           "wrong index";
  }
  const double shift = std::fabs(fit.mean - right.mean);
  const double variance_error = std::fabs((right.rstd / fit.rstd) * (right.rstd / fit.rstd) - 1);
  const Distance distance = {shift * right.rstd, variance_error,          shift,
                             right.mean_abs,     mean_to_variance(right), evidence.n};
  const auto statement = std::find_if(std::begin(statements), std::end(statements),
                                      [&](const Statement& each) { return each.holds(distance); });
  return fmt::format(fmt::runtime(statement->sentence), group.row < 0 ? "channel" : "row");
}

}  // namespace

// The most frequent finding among the rows (or channels), where no formula gives their statistics.
std::string wrong_statistics(const Evidence& evidence) {
  if (evidence.name != "y") return "";
  const std::vector<Group> groups = evidence.batchnorm ? load_channels(evidence) : load_rows(evidence);
  std::vector<Fit> fits;
  for (const Group& group : groups) fits.push_back(fit_statistics(group));
  const std::string stops = short_sums(evidence, groups, fits);
  if (!stops.empty()) return stops;
  std::map<std::string, size_t> votes;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (fits[i].holds) ++votes[name_statistics(evidence, groups[i], fits[i])];
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

}  // namespace worklog::diagnosis

// What is known of one wrong output: what came out in some of its rows, beside what was wanted and what that is made
// of.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "common/harness/compare.h"
#include "common/harness/diagnosis.h"
#include "common/harness/problem.h"
#include "common/harness/reference.h"

namespace worklog::diagnosis {

inline constexpr double u = 0x1p-24;
inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr size_t examined_groups = 16;  // rows, or channels of BatchNorm

// A row with wrong elements; of a vector over columns, which is one row, without inputs.
struct Case {
  int64_t row = 0;
  std::vector<double> got;
  Expected expected;
  Reference::Row inputs;
  double mean_x = 0;  // of what the norm takes, also where it subtracts no mean
  // dx: sums over the row divided by its length, with gamma in them and without: of dy and of dy * xhat.
  double mean_wdy = 0, mean_wdyx = 0, mean_dy = 0, mean_dyx = 0;
  // The add operations: what is added, and the moments of x alone, which are not those of h.
  std::vector<double> x, residual;
  Moments moments_of_x;
};

struct Evidence {
  Evidence(const Reference& reference, const std::vector<HostTensor>& results, const Findings& found,
           Summation summation);

  bool has(std::string_view name) const { return reference.index_of(name) >= 0; }
  const Moments& moments(const Case& c, int64_t col) const {
    return batchnorm ? reference.channel_moments(col) : c.inputs.moments;
  }
  double xhat(const Case& c, int64_t col) const {
    const Moments& m = moments(c, col);
    return (c.inputs.x[col] - m.mean) * m.rstd;
  }

  const Reference& reference;
  const Findings& found;
  const HostTensor& tensor;  // what went in: the output's shape, and its values from before
  const HostTensor& result;  // what came out
  const Summation summation;
  const std::string_view name;
  const Tolerance tolerance;
  const bool batchnorm, rms;
  const double n;  // how many values are normalized together
  const double eps;
  std::vector<double> running_mean, running_var;  // training: from before
  std::vector<Case> cases;                        // some of the rows that differ, evenly spread

 private:
  Case load_case(int64_t row) const;
  void load_gradient(Case& c) const;
  void load_addends(Case& c) const;
  Case load_vector() const;
};

// The values of a matrix that goes in.
MatrixView view_of(const Reference& reference, std::string_view name);

bool within(double got, double want, double slack, const Tolerance& tolerance);

// How large a mean is against the deviation around it, squared: what one-pass variance loses accuracy by.
double mean_to_variance(const Moments& moments);

// How badly `value`, which says what else may have come out at a column of a case, misses what did: the mean square of
// the misses in units of the tolerance. Infinity where it explains less than 99 of 100 of the wrong elements or of all
// elements in their rows, or where it is farther from the elements that are right than the reference is: a wide
// tolerance lets many formulas pass there.
double miss_of(std::span<const Case> cases, const Tolerance& tolerance,
               const std::function<double(const Case&, int64_t col)>& value);

}  // namespace worklog::diagnosis

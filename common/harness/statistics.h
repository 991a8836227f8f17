// Median and spread of samples, and when there are enough of them.
#pragma once

#include <vector>

namespace worklog {

struct Summary {
  double median = 0, min = 0, p10 = 0, p90 = 0;  // in the samples' unit
  int samples = 0;

  // The width of the middle four fifths of the samples, as a ratio of the median.
  double spread() const { return median > 0 ? (p90 - p10) / median : 0; }
};

// All zeros without samples.
Summary summarize(std::vector<double> samples);

// The half width of the interval that holds the true median 19 times in 20, as a ratio of the median of the samples.
// It is taken between two of the samples, so nothing is assumed about how they are distributed (order statistics, ranks
// n / 2 +- 0.98 sqrt(n)). Infinite for fewer than 6 samples, of which no two enclose it that often.
double median_uncertainty(std::vector<double> samples);

}  // namespace worklog

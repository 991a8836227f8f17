#include "common/harness/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace worklog {
namespace {

// The value below which this part of the sorted samples lies, between two samples where need be.
double quantile(const std::vector<double>& sorted, double part) {
  const double position = part * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {.median = quantile(samples, 0.5),
          .min = samples.front(),
          .p10 = quantile(samples, 0.1),
          .p90 = quantile(samples, 0.9),
          .samples = static_cast<int>(samples.size())};
}

double median_uncertainty(std::vector<double> samples) {
  if (samples.size() < 6) return std::numeric_limits<double>::infinity();
  std::sort(samples.begin(), samples.end());
  const double n = static_cast<double>(samples.size());
  const double reach = 0.98 * std::sqrt(n);
  const size_t low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const size_t high = std::min(samples.size() - 1, static_cast<size_t>(std::ceil(n / 2 + reach)));
  const double median = quantile(samples, 0.5);
  return median > 0 ? (samples[high] - samples[low]) / 2 / median : 0;
}

}  // namespace worklog

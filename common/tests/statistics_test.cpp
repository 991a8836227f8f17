// Medians and spreads of samples, and the names and figures of a report.
#include "common/harness/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "common/harness/report.h"

namespace worklog {
namespace {

TEST(Statistics, OfNoSamplesAreZero) {
  const Summary summary = summarize({});
  EXPECT_EQ(summary.samples, 0);
  EXPECT_EQ(summary.median, 0);
  EXPECT_EQ(summary.spread(), 0);
}

TEST(Statistics, OfOneSampleAreThatSample) {
  const Summary summary = summarize({3});
  EXPECT_EQ(summary.median, 3);
  EXPECT_EQ(summary.min, 3);
  EXPECT_EQ(summary.p10, 3);
  EXPECT_EQ(summary.p90, 3);
  EXPECT_EQ(summary.spread(), 0);
}

TEST(Statistics, DoNotDependOnTheOrder) {
  const Summary summary = summarize({5, 1, 4, 2, 3, 11, 6, 10, 9, 7, 8});
  EXPECT_EQ(summary.samples, 11);
  EXPECT_EQ(summary.median, 6);
  EXPECT_EQ(summary.min, 1);
  EXPECT_DOUBLE_EQ(summary.p10, 2);
  EXPECT_DOUBLE_EQ(summary.p90, 10);
  EXPECT_DOUBLE_EQ(summary.spread(), 8.0 / 6);
}

TEST(Statistics, MedianOfAnEvenNumberLiesBetweenTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(summarize({1, 2, 4, 100}).median, 3);
}

TEST(Statistics, OneOutlierMovesNeitherMedianNorSpread) {
  std::vector<double> samples(100, 1.0);
  samples[37] = 1e6;
  EXPECT_EQ(summarize(samples).median, 1);
  EXPECT_EQ(summarize(samples).spread(), 0);
  EXPECT_EQ(median_uncertainty(samples), 0);
}

TEST(Statistics, TooFewSamplesKnowNoMedian) {
  EXPECT_TRUE(std::isinf(median_uncertainty({1, 1, 1, 1, 1})));
  EXPECT_EQ(median_uncertainty({1, 1, 1, 1, 1, 1}), 0);
}

// The interval must hold the true median about 19 times in 20, whatever the distribution: here a skewed one.
TEST(Statistics, UncertaintyHoldsTheTrueMedian) {
  std::mt19937 random(1);
  std::exponential_distribution<double> waiting(1.0);
  const double truth = std::log(2.0);
  for (const int size : {11, 50, 400}) {
    int held = 0;
    constexpr int trials = 1000;
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<double> samples(size);
      for (double& sample : samples) sample = 1 + waiting(random);
      const double median = summarize(samples).median;
      // The half width around the median is a symmetric stand-in for the interval; it may hold a little less.
      if (std::abs(median - (1 + truth)) <= median_uncertainty(samples) * median) ++held;
    }
    EXPECT_GT(held, trials * 0.9) << size;
  }
}

TEST(Statistics, MoreSamplesAreLessUncertain) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(100.0, 1.0);
  std::vector<double> samples(10000);
  for (double& sample : samples) sample = noise(random);
  const double of_100 = median_uncertainty({samples.begin(), samples.begin() + 100});
  const double of_10000 = median_uncertainty(samples);
  EXPECT_LT(of_10000, of_100 / 4);
  EXPECT_NEAR(of_10000, 1.96 * 1.2533 / 100 / 100, 1e-4);  // what theory says of normal noise
}

TEST(Report, ShowsTimesAndErrors) {
  EXPECT_EQ(show_seconds(3.214e-6), "3.21 us");
  EXPECT_EQ(show_seconds(1.0456e-3), "1.046 ms");
  EXPECT_EQ(show_seconds(2.5), "2.500 s");
  EXPECT_EQ(show_ulp(0.5), "0.50 ulp");
  EXPECT_EQ(show_ulp(INFINITY), "not finite");
}

TEST(Report, EscapesStrings) {
  EXPECT_EQ(json_string("a \"b\" \\ \n"), "\"a \\\"b\\\" \\\\ \\u000a\"");
}

}  // namespace
}  // namespace worklog

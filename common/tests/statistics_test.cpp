// Medians and spreads of samples, and the names and figures of a report.
#include "common/harness/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/harness/benchmarks.h"
#include "common/harness/document.h"
#include "common/harness/report.h"
#include "common/harness/reporter.h"

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

TEST(Report, EachEntryOfAListHasALine) {
  const Json document = {{"context", {{"stage", "00_test"}, {"caches", {{{"level", 1}}, {{"level", 2}}}}}},
                         {"benchmarks", {{{"name", "a \"b\" \\ \n"}, {"real_time", 0.5}}, {{"name", "\xff"}}}},
                         {"checks", Json::array()},
                         {"nothing", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(text_of(document),
            "{\n"
            " \"context\": {\n"
            "  \"stage\": \"00_test\",\n"
            "  \"caches\": [{\"level\":1},{\"level\":2}]\n"
            " },\n"
            " \"benchmarks\": [\n"
            "  {\"name\":\"a \\\"b\\\" \\\\ \\n\",\"real_time\":0.5},\n"
            "  {\"name\":\"\ufffd\"}\n"
            " ],\n"
            " \"checks\": [],\n"
            " \"nothing\": null\n"
            "}\n");
}

TEST(Report, AsManyRepetitionsAsThereIsTimeFor) {
  EXPECT_EQ(repetitions_in(0.5, 1e-6), 500);
  EXPECT_EQ(repetitions_in(0.5, 5e-3), 100);
  EXPECT_EQ(repetitions_in(0.5, 10.0), 5);
}

// Runs as Google Benchmark reports them: `microseconds` of one iteration, or a statistic.
benchmark::BenchmarkReporter::Run run_of(double microseconds, const std::string& aggregate = "") {
  benchmark::BenchmarkReporter::Run run;
  run.run_name.function_name = "00_test/right/rmsnorm_forward/fp32/7x33/cold";
  run.run_type = aggregate.empty() ? benchmark::BenchmarkReporter::Run::RT_Iteration
                                   : benchmark::BenchmarkReporter::Run::RT_Aggregate;
  run.aggregate_name = aggregate;
  run.time_unit = benchmark::kMicrosecond;
  run.real_accumulated_time = microseconds * 1e-6;
  run.family_index = run.per_family_instance_index = run.repetition_index = 0;
  run.repetitions = 1;
  return run;
}

TEST(Report, ATableShowsMedianSpreadAndShare) {
  const StreamTiming stream = {
      "", TimingMode::cold, "1r1w", 1000, {.median_seconds = 5e-6, .way = "kernel", .drift = 0.1}};
  TableReporter reporter(Table({{"variant"}, {"median"}, {"spread"}, {"GB/s"}, {"share"}, {"of stream"}}),
                         [&](const std::string&) {
                           return RowOfTiming{{"right"}, 40000, &stream};
                         });
  testing::internal::CaptureStdout();
  reporter.ReportRuns({run_of(11)});
  reporter.ReportRuns({run_of(12, "mean"), run_of(10, "median"), run_of(9, "p10"), run_of(14, "p90")});
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_NE(table.find("right    11.00 us  -       4     0.455  1r1w  the stream drifted by +10 %"), std::string::npos)
      << table;
  EXPECT_NE(table.find("right    10.00 us  50.0 %  4     0.500  1r1w  the stream drifted by +10 %"), std::string::npos)
      << table;
}

TEST(Report, RunsAreEditedOnTheirWayAndAFailureIsToldOnce) {
  JsonCollector collector;
  EditingReporter reporter({&collector}, [](Runs& runs) {
    runs.resize(1);
    runs.front().error_occurred = true;
    runs.front().error_message = "no";
  });
  reporter.ReportContext({});
  reporter.ReportRuns({run_of(1), run_of(2)});
  reporter.ReportRuns({run_of(1)});
  const Json benchmarks = collector.document().at("benchmarks");
  ASSERT_EQ(benchmarks.size(), 1u);
  EXPECT_EQ(benchmarks[0].at("error_message"), "no");
}

TEST(Report, WhatIsNoNumberIsNull) {
  JsonCollector collector;
  collector.ReportContext({});
  benchmark::BenchmarkReporter::Run run = run_of(1);
  run.counters["zero"] = std::numeric_limits<double>::quiet_NaN();
  run.counters["far"] = -std::numeric_limits<double>::infinity();
  collector.ReportRuns({run});
  const Json entry = collector.document().at("benchmarks").at(0);
  EXPECT_TRUE(entry.at("zero").is_null() && entry.at("far").is_null());
  EXPECT_DOUBLE_EQ(entry.at("real_time"), 1.0);
}

}  // namespace
}  // namespace worklog

// Google Benchmark's reports on their way: to the document of --json, to the terminal, to the file of --benchmark_out.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/harness/document.h"
#include "common/harness/report.h"

namespace worklog {

// All that is reported at once of one benchmark: its repetitions, or the statistics over them (aggregates).
using Runs = std::vector<benchmark::BenchmarkReporter::Run>;

// Passes reports on, edited: Google Benchmark's own reporters then write names that two runs have in common.
class EditingReporter : public benchmark::BenchmarkReporter {
 public:
  // All of `to` must outlive this reporter. `edit` is called first, right after the last repetition of a benchmark. It
  // puts one run with an error instead of all where the benchmark failed; that is passed on once.
  EditingReporter(std::vector<benchmark::BenchmarkReporter*> to, std::function<void(Runs&)> edit);

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  std::vector<benchmark::BenchmarkReporter*> to_;
  std::function<void(Runs&)> edit_;
  std::set<std::string> failed_;  // names
};

// Collects the document that Google Benchmark's own reporter writes.
class JsonCollector : public benchmark::BenchmarkReporter {
 public:
  JsonCollector();
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override { json_.ReportRuns(runs); }

  bool has_begun() const { return begun_; }
  // To be called once, at the end: the context is there even where nothing was timed.
  Json document();

 private:
  std::ostringstream out_;
  benchmark::JSONReporter json_;
  bool begun_ = false;
};

// What a row of the table shows beside the times.
struct RowOfTiming {
  std::vector<std::string> names;        // variant, operation, type, shape, mode
  int64_t bytes = 0;                     // that the operation must move
  const StreamTiming* stream = nullptr;  // null: there was no memory for one
};

// Prints a row for each benchmark: the median of its repetitions, their spread, the share of the stream. Repetitions
// have rows of their own where Google Benchmark reports them.
class TableReporter : public benchmark::BenchmarkReporter {
 public:
  // `row_of` is given the name that a benchmark was registered by.
  TableReporter(Table table, std::function<RowOfTiming(const std::string&)> row_of);
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  void print_row(const std::string& name, double seconds, const std::string& spread, bool tells_drift);

  Table table_;
  std::function<RowOfTiming(const std::string&)> row_of_;
};

}  // namespace worklog

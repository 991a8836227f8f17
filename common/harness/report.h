// What a program tells: tables on the terminal, and the JSON file.
#pragma once

#include <benchmark/benchmark.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/resources.h"
#include "common/harness/statistics.h"
#include "common/harness/timing.h"

namespace worklog {

// "1024 x 1024", and with the pixels where there are some: as tables show a shape.
std::string shape_of(const ProblemOptions& options);
// "1024x1024" or "32x64x3136", with "-first" where the channels of images come first: as names have it.
std::string shape_name(const ProblemOptions& options);

// A table whose rows are printed as they come. Columns are as wide as their title and what is expected in them; a
// longer cell pushes the rest of its row.
class Table {
 public:
  struct Column {
    std::string title;
    size_t width = 0;  // of the widest cell that is expected
    bool right = false;
    bool shown = true;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // The title line is printed before the first row.
  void print_row(const std::vector<std::string>& cells);

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  bool begun_ = false;
};

// 3.21 us, 1.05 ms: four digits and a unit.
std::string show_seconds(double seconds);
// An error in ulp, or "not finite".
std::string show_ulp(double ulp);

// One figure, beside the stream that it is held against.
struct Timing {
  std::string variant;
  ProblemOptions options;
  TimingMode mode;
  Summary summary;     // seconds
  int64_t bytes = 0;   // that the operation must move
  std::string stream;  // "1r1w"; empty where no baseline could be measured
  Baseline::Result baseline;
  int64_t baseline_bytes = 0;
  double max_ulp_error = 0;  // of the check on the same problem
  std::string launches;

  double bytes_per_second() const { return bytes / summary.median; }
  double share() const { return baseline.median_seconds / summary.median; }
};

// What the kernels of a variant take at one shape.
struct VariantResources {
  std::string variant;
  ProblemOptions options;
  std::vector<KernelResources> kernels;  // in the order of their launches
};

// Collects Google Benchmark's own JSON, to which our context, checks, streams and resources are added.
class JsonReporter : public benchmark::BenchmarkReporter {
 public:
  JsonReporter();
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

  // The whole document. `context` is added to Google Benchmark's, all values as strings, as it writes its own.
  std::string document(const std::vector<std::pair<std::string, std::string>>& context, const std::string& stage,
                       const std::vector<Check>& checks, const std::vector<Timing>& timings,
                       const std::vector<VariantResources>& resources);

 private:
  std::ostringstream out_;
  benchmark::JSONReporter json_;
  bool begun_ = false;
};

// A file that is written as a whole or not at all.
class WholeFile {
 public:
  // Makes sure that the file can be written, and leaves no trace of that. Throws RequestError.
  explicit WholeFile(std::string path);
  // Writes to a file beside it, which then takes its name. Throws RequestError.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

// A string as JSON has it, quotes included.
std::string json_string(std::string_view text);

}  // namespace worklog

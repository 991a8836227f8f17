#include "common/harness/reporter.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace worklog {
namespace {

constexpr double drift_to_tell = 0.03;  // of a stream between its two measurements, as a ratio

double seconds_of(const benchmark::BenchmarkReporter::Run& run) {
  return run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
}

}  // namespace

// --- Passing on ----------------------------------------------------------------------------------------------------

EditingReporter::EditingReporter(std::vector<benchmark::BenchmarkReporter*> to, std::function<void(Runs&)> edit)
    : to_(std::move(to)), edit_(std::move(edit)) {}

bool EditingReporter::ReportContext(const Context& context) {
  bool wanted = true;
  for (benchmark::BenchmarkReporter* each : to_) {
    each->SetOutputStream(&GetOutputStream());  // the file of --benchmark_out, where this is its reporter
    each->SetErrorStream(&GetErrorStream());
    wanted = each->ReportContext(context) && wanted;
  }
  return wanted;
}

void EditingReporter::ReportRuns(const std::vector<Run>& runs) {
  Runs edited = runs;
  edit_(edited);
  if (edited.front().error_occurred && !failed_.insert(edited.front().benchmark_name()).second) return;
  for (benchmark::BenchmarkReporter* each : to_) each->ReportRuns(edited);
}

void EditingReporter::Finalize() {
  for (benchmark::BenchmarkReporter* each : to_) each->Finalize();
}

// --- The document --------------------------------------------------------------------------------------------------

JsonCollector::JsonCollector() {
  json_.SetOutputStream(&out_);
  json_.SetErrorStream(&out_);
}

bool JsonCollector::ReportContext(const Context& context) {
  begun_ = true;
  return json_.ReportContext(context);
}

Json JsonCollector::document() {
  if (!begun_) ReportContext(Context());
  json_.Finalize();
  return read_benchmarks(out_.str());
}

// --- The table -----------------------------------------------------------------------------------------------------

TableReporter::TableReporter(Table table, std::function<RowOfTiming(const std::string&)> row_of)
    : table_(std::move(table)), row_of_(std::move(row_of)) {}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  double median = 0, p10 = 0, p90 = 0;  // seconds
  for (const Run& run : runs) {
    if (run.error_occurred) continue;  // it was told when it happened
    if (run.run_type == Run::RT_Iteration)
      print_row(run.run_name.function_name, seconds_of(run), "-", runs.size() == 1);
    if (run.aggregate_name == "median") median = seconds_of(run);
    if (run.aggregate_name == "p10") p10 = seconds_of(run);
    if (run.aggregate_name == "p90") p90 = seconds_of(run);
  }
  if (median > 0) {
    print_row(runs.front().run_name.function_name, median, fmt::format("{:.1f} %", (p90 - p10) / median * 100), true);
  }
}

void TableReporter::print_row(const std::string& name, double seconds, const std::string& spread, bool tells_drift) {
  const RowOfTiming row = row_of_(name);
  std::vector<std::string> cells = row.names;
  cells.push_back(show_seconds(seconds));
  cells.push_back(spread);
  cells.push_back(fmt::format("{:.0f}", static_cast<double>(row.bytes) / seconds * 1e-9));
  if (row.stream) {
    const double drift = row.stream->result.drift;
    const std::string note = tells_drift && std::abs(drift) > drift_to_tell
                                 ? fmt::format("  the stream drifted by {:+.0f} %", drift * 100)
                                 : "";
    cells.push_back(fmt::format("{:.3f}", row.stream->result.median_seconds / seconds));
    cells.push_back(row.stream->stream + note);
  } else {
    cells.insert(cells.end(), {"-", "no memory"});
  }
  table_.print_row(cells);
}

}  // namespace worklog

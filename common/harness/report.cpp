#include "common/harness/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "common/harness/flags.h"

namespace worklog {
namespace {

// A number as JSON has it; null for what JSON cannot hold.
std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_list(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", json_string(sentence));
  return fmt::format("[{}]", text);
}

std::string json_of(const Mismatch& mismatch) {
  const std::string got =
      std::isfinite(mismatch.got) ? json_number(mismatch.got) : json_string(fmt::format("{}", mismatch.got));
  return fmt::format(
      "{{\"tensor\": {}, \"row\": {}, \"col\": {}, \"got\": {}, \"want\": {}, \"tolerance\": {}, \"never_written\": "
      "{}}}",
      json_string(mismatch.tensor), mismatch.row, mismatch.col, got, json_number(mismatch.want),
      json_number(mismatch.tolerance), mismatch.never_written);
}

std::string json_of(const Check& check, const std::string& stage) {
  const ProblemOptions& o = check.options;
  const std::string name =
      fmt::format("{}/{}/{}/{}/{}", stage, check.variant, name_of(o.operation), name_of(o.dtype), shape_name(o));
  std::vector<std::string> damage = check.damage;
  damage.insert(damage.end(), check.comparison.damage.begin(), check.comparison.damage.end());
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}\n      {}: {}", text.empty() ? "" : ",", json_string(key), value);
  };
  add("name", json_string(name));
  add("stage", json_string(stage));
  add("variant", json_string(check.variant));
  add("operation", json_string(name_of(o.operation)));
  add("dtype", json_string(name_of(o.dtype)));
  add("param_dtype", json_string(name_of(o.param_dtype)));
  add("rows", fmt::format("{}", o.rows));
  add("cols", fmt::format("{}", o.cols));
  add("input", json_string(name_of(o.input)));
  add("after_timing", check.after_timing ? "true" : "false");
  add("verdict", json_string(name_of(check.verdict)));
  add("expectation", json_string(check.expectation));
  add("max_ulp_error", json_number(check.comparison.max_ulp_error));
  add("max_abs_error", json_number(check.comparison.max_abs_error));
  add("differing", fmt::format("{}", check.comparison.differing));
  add("compared", fmt::format("{}", check.comparison.compared));
  add("likely_cause", json_string(check.comparison.likely_cause));
  if (!is_accepted(check.verdict)) {
    std::string mismatches;
    for (const Mismatch& mismatch : check.comparison.first) {
      mismatches += fmt::format("{}{}", mismatches.empty() ? "" : ", ", json_of(mismatch));
    }
    add("mismatches", fmt::format("[{}]", mismatches));
  }
  add("damage", json_list(damage));
  add("error", json_string(check.error));
  add("launches", json_string(describe_launches(check.launches)));
  add("seed", fmt::format("{}", o.seed));
  add("eps", json_number(o.eps));
  if (o.round_before_gamma) add("round_before_gamma", "true");
  add("row_padding", fmt::format("{}", o.row_padding));
  add("misalign", fmt::format("{}", check.misalign));
  add("without", json_list(o.absent));
  if (o.pixels > 1) {
    add("pixels", fmt::format("{}", o.pixels));
    add("layout", json_string(o.layout == ChannelLayout::channels_last ? "channels_last" : "channels_first"));
  }
  return fmt::format("    {{{}\n    }}", text);
}

std::string json_of_stream(const Timing& timing) {
  return fmt::format(
      "    {{\"stream\": {}, \"mode\": {}, \"bytes\": {}, \"way\": {}, \"median_seconds\": {}, \"spread\": {}, "
      "\"drift\": {}, \"bytes_per_second\": {}, \"beside\": {}}}",
      json_string(timing.stream), json_string(name_of(timing.mode)), timing.baseline_bytes,
      json_string(timing.baseline.way), json_number(timing.baseline.median_seconds),
      json_number(timing.baseline.spread), json_number(timing.baseline.drift),
      json_number(timing.baseline_bytes / timing.baseline.median_seconds),
      json_string(fmt::format("{}/{}/{}/{}", timing.variant, name_of(timing.options.operation),
                              name_of(timing.options.dtype), shape_name(timing.options))));
}

std::string json_of(const KernelResources& kernel, const VariantResources& of, const std::string& stage) {
  const ProblemOptions& o = of.options;
  return fmt::format(
      "    {{\"stage\": {}, \"variant\": {}, \"operation\": {}, \"dtype\": {}, \"rows\": {}, \"cols\": {}, \"pixels\": "
      "{}, "
      "\"kernel\": {}, \"blocks\": {}, \"threads\": {}, \"cluster\": {}, \"registers\": {}, \"static_shared_bytes\": "
      "{}, "
      "\"dynamic_shared_bytes\": {}, \"local_bytes\": {}, \"blocks_per_multiprocessor\": {}, \"occupancy\": {}}}",
      json_string(stage), json_string(of.variant), json_string(name_of(o.operation)), json_string(name_of(o.dtype)),
      o.rows, o.cols, o.pixels, json_string(kernel.kernel), kernel.blocks, kernel.threads, kernel.cluster,
      kernel.registers, kernel.static_shared_bytes, kernel.dynamic_shared_bytes, kernel.local_bytes,
      kernel.blocks_per_multiprocessor, json_number(kernel.occupancy));
}

std::string joined(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += fmt::format("{}{}", text.empty() ? "" : ",\n", entry);
  return text.empty() ? "" : text + "\n";
}

}  // namespace

std::string shape_of(const ProblemOptions& options) {
  if (options.pixels > 1) return fmt::format("{} x {} x {}", options.rows, options.cols, options.pixels);
  return fmt::format("{} x {}", options.rows, options.cols);
}

std::string shape_name(const ProblemOptions& options) {
  std::string name = shape_of(options);
  std::erase(name, ' ');
  if (options.pixels > 1 && options.layout == ChannelLayout::channels_first) name += "-first";
  return name;
}

std::string Table::line(const std::vector<std::string>& cells) const {
  std::string text = " ";
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!columns_[i].shown) continue;
    const size_t width = std::max(columns_[i].width, columns_[i].title.size());
    text += columns_[i].right ? fmt::format(" {:>{}} ", cells[i], width) : fmt::format(" {:<{}} ", cells[i], width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void Table::print_row(const std::vector<std::string>& cells) {
  if (!begun_) {
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    fmt::print("{}\n", line(titles));
    begun_ = true;
  }
  fmt::print("{}\n", line(cells));
  std::fflush(stdout);
}

std::string show_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

std::string show_ulp(double ulp) {
  if (!std::isfinite(ulp)) return "not finite";
  return ulp < 1000 ? fmt::format("{:.2f} ulp", ulp) : fmt::format("{:.3g} ulp", ulp);
}

JsonReporter::JsonReporter() {
  json_.SetOutputStream(&out_);
  json_.SetErrorStream(&out_);
}

bool JsonReporter::ReportContext(const Context& context) {
  begun_ = true;
  return json_.ReportContext(context);
}

void JsonReporter::ReportRuns(const std::vector<Run>& runs) {
  json_.ReportRuns(runs);
}

std::string JsonReporter::document(const std::vector<std::pair<std::string, std::string>>& context,
                                   const std::string& stage, const std::vector<Check>& checks,
                                   const std::vector<Timing>& timings, const std::vector<VariantResources>& resources) {
  if (!begun_) ReportContext(Context());
  json_.Finalize();
  std::string text = out_.str();

  std::string entries;
  for (const auto& [key, value] : context)
    entries += fmt::format("    {}: {},\n", json_string(key), json_string(value));
  constexpr std::string_view context_opens = "\"context\": {\n";
  const size_t opening = text.find(context_opens);
  const size_t closing = text.rfind('}');
  if (opening == std::string::npos || closing == std::string::npos) {
    throw std::logic_error("Google Benchmark's JSON is not of the form that it has been");
  }
  std::string tail;
  std::vector<std::string> check_entries;
  for (const Check& check : checks) check_entries.push_back(json_of(check, stage));
  std::vector<std::string> stream_entries;
  for (const Timing& timing : timings) {
    if (!timing.stream.empty()) stream_entries.push_back(json_of_stream(timing));
  }
  text.erase(closing);
  text.erase(text.find_last_not_of(" \n") + 1);
  std::vector<std::string> resource_entries;
  for (const VariantResources& each : resources) {
    for (const KernelResources& kernel : each.kernels) resource_entries.push_back(json_of(kernel, each, stage));
  }
  text += fmt::format(",\n  \"checks\": [\n{}  ],\n  \"streams\": [\n{}  ],\n  \"resources\": [\n{}  ]\n}}\n",
                      joined(check_entries), joined(stream_entries), joined(resource_entries));
  text.insert(opening + context_opens.size(), entries);
  if (const size_t host = text.find("    \"host_name\""); host != std::string::npos) {
    text.erase(host, text.find('\n', host) + 1 - host);  // results are published
  }
  return text;
}

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  const std::string trial = path_ + ".partial";
  std::error_code error;
  if (std::filesystem::exists(path_, error) && !std::filesystem::is_regular_file(path_, error)) {
    throw RequestError(fmt::format("--json takes the path of a file; '{}' is something else", path_));
  }
  const bool writable = std::ofstream(trial).good();
  std::filesystem::remove(trial, error);
  if (!writable) {
    throw RequestError(fmt::format(
        "--json takes the path of a file in a folder that exists and can be written to; '{}' cannot be written",
        path_));
  }
}

void WholeFile::write(const std::string& text) const {
  const std::string partial = path_ + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial, path_, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw RequestError(fmt::format("--json: '{}' could not be written: {}", path_,
                                   error ? error.message() : "the device may be full"));
  }
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace worklog

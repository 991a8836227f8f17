#include "common/harness/document.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/device/launch.cuh"
#include "common/harness/launches.h"

namespace worklog {
namespace {

// A value on one line. Numbers that JSON cannot hold become null, bytes that are no UTF-8 a replacement character.
std::string line_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const Mismatch& mismatch) {
  return {{"tensor", mismatch.tensor},
          {"row", mismatch.row},
          {"col", mismatch.col},
          // A NaN or an infinity is what a reader wants to see here, and JSON has no number for it.
          {"got", std::isfinite(mismatch.got) ? Json(mismatch.got) : Json(fmt::format("{}", mismatch.got))},
          {"want", mismatch.want},
          {"tolerance", mismatch.tolerance},
          {"never_written", mismatch.never_written}};
}

Json json_of(const Check& check, const std::string& stage) {
  const ProblemOptions& o = check.options;
  std::vector<std::string> damage = check.damage;
  damage.insert(damage.end(), check.comparison.damage.begin(), check.comparison.damage.end());
  Json entry = {{"name", case_name(stage, check.variant, o)},
                {"stage", stage},
                {"variant", check.variant},
                {"operation", operation_name(o)},
                {"dtype", name_of(o.dtype)},
                {"param_dtype", name_of(o.param_dtype)},
                {"rows", o.rows},
                {"cols", o.cols},
                {"input", name_of(o.input)},
                {"after_timing", check.after_timing},
                {"verdict", name_of(check.verdict)},
                {"expectation", check.expectation},
                {"max_ulp_error", check.comparison.max_ulp_error},
                {"max_abs_error", check.comparison.max_abs_error},
                {"differing", check.comparison.differing},
                {"compared", check.comparison.compared},
                {"likely_cause", check.comparison.likely_cause}};
  if (!is_accepted(check.verdict)) {
    Json& mismatches = entry["mismatches"] = Json::array();
    for (const Mismatch& mismatch : check.comparison.first) mismatches.push_back(json_of(mismatch));
  }
  entry["damage"] = damage;
  entry["error"] = check.error;
  entry["launches"] = describe_launches(check.launches);
  entry["seed"] = o.seed;
  entry["eps"] = o.eps;
  if (o.round_before_gamma) entry["round_before_gamma"] = true;
  if (o.batch_invariant) entry["batch_invariant"] = true;
  if (o.gamma_offset != 0.0f) entry["gamma_offset"] = o.gamma_offset;
  if (o.packed_results) entry["packed_results"] = true;
  entry["row_padding"] = o.row_padding;
  entry["misalign"] = check.misalign;
  if (!o.uneven.empty()) entry["uneven"] = o.uneven;
  if (o.uneven_by != 1) entry["uneven_by"] = o.uneven_by;
  entry["without"] = o.absent;
  if (o.pixels > 1) {
    entry["pixels"] = o.pixels;
    entry["layout"] = o.layout == ChannelLayout::channels_last ? "channels_last" : "channels_first";
  }
  return entry;
}

Json json_of(const StreamTiming& stream) {
  return {{"timing", stream.timing},
          {"stream", stream.stream},
          {"mode", name_of(stream.mode)},
          {"bytes", stream.bytes},
          {"way", stream.result.way},
          {"median_seconds", stream.result.median_seconds},
          {"spread", stream.result.spread},
          {"drift", stream.result.drift},
          {"bytes_per_second", static_cast<double>(stream.bytes) / stream.result.median_seconds}};
}

Json json_of(const KernelResources& kernel, const VariantResources& of, const std::string& stage) {
  const ProblemOptions& o = of.options;
  return {{"stage", stage},
          {"variant", of.variant},
          {"operation", operation_name(o)},
          {"dtype", name_of(o.dtype)},
          {"rows", o.rows},
          {"cols", o.cols},
          {"pixels", o.pixels},
          {"kernel", kernel.kernel},
          {"blocks", kernel.blocks},
          {"threads", kernel.threads},
          {"cluster", kernel.cluster},
          {"registers", kernel.registers},
          {"static_shared_bytes", kernel.static_shared_bytes},
          {"dynamic_shared_bytes", kernel.dynamic_shared_bytes},
          {"local_bytes", kernel.local_bytes},
          {"blocks_per_multiprocessor", kernel.blocks_per_multiprocessor},
          {"occupancy", kernel.occupancy}};
}

// Only tensors as a timing has them: contiguous, aligned, none left out.
bool is_plain(const Check& check) {
  const ProblemOptions& o = check.options;
  const bool is_even = o.row_padding == 0 && check.misalign == 0 && o.uneven.empty();
  return is_even && o.absent.empty() && !o.round_before_gamma && !o.batch_invariant;
}

// The launches of each case by the code of their kernels, and under "kernel_names" whose code that is. Nothing of a
// case whose code is not known.
void add_launches(Json& document, const std::vector<Check>& checks, const std::string& stage) {
  document["launches"] = document["kernel_names"] = Json::array();
  Json& list = document["launches"];
  std::map<std::string, std::string> names;  // by code
  std::set<std::string> told;
  for (const Check& check : checks) {
    const std::string name = case_name(stage, check.variant, check.options).substr(stage.size() + 1);
    if (!is_plain(check) || check.launches.empty() || !told.insert(name).second) continue;
    Json launches = Json::array();
    for (const KernelLaunch& launch : check.launches) {
      Json& entry = launches.emplace_back(json_of(launch));
      if (!entry.contains("code")) break;
      names[entry["code"]] = entry["kernel"];
      entry.erase("kernel");
    }
    if (launches.back().contains("code")) list.push_back({{"case", name}, {"launches", std::move(launches)}});
  }
  Json& name_list = document["kernel_names"];
  for (const auto& [code, kernel] : names) name_list.push_back({{"code", code}, {"kernel", kernel}});
}

bool is_list_of_entries(const Json& value) {
  return value.is_array() && !value.empty() && (value.front().is_object() || value.front().is_array());
}

}  // namespace

Json document_of(const Json& google_benchmark, const ContextEntries& context, const std::string& stage,
                 const std::vector<Check>& checks, const std::vector<StreamTiming>& streams,
                 const std::vector<VariantResources>& resources) {
  Json document;
  Json& of_run = document["context"] = Json::object();
  for (const auto& [key, value] : context) of_run[key] = value;
  for (const auto& [key, value] : google_benchmark.at("context").items()) {
    if (key != "host_name" && !of_run.contains(key)) of_run[key] = value;
  }
  document["benchmarks"] = google_benchmark.at("benchmarks");

  Json& check_list = document["checks"] = Json::array();
  for (const Check& check : checks) check_list.push_back(json_of(check, stage));
  Json& stream_list = document["streams"] = Json::array();
  for (const StreamTiming& stream : streams) stream_list.push_back(json_of(stream));
  Json& resource_list = document["resources"] = Json::array();
  for (const VariantResources& each : resources) {
    for (const KernelResources& kernel : each.kernels) resource_list.push_back(json_of(kernel, each, stage));
  }
  try {
    add_launches(document, checks, stage);
  } catch (const CudaError&) {
    // A kernel has left an error, after which nothing more is said of any other.
  }
  return document;
}

Json read_benchmarks(const std::string& text) {
  constexpr std::string_view before = "\": ";
  std::string json;
  size_t copied = 0;
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
    at += before.size();
    std::string_view value = std::string_view(text).substr(at);
    if (value.starts_with('-')) value.remove_prefix(1);
    for (const std::string_view none : {std::string_view("NaN"), std::string_view("Infinity")}) {
      if (!value.starts_with(none)) continue;
      json.append(text, copied, at - copied).append("null");
      copied = text.size() - value.size() + none.size();
    }
  }
  return Json::parse(json.append(text, copied));
}

std::string text_of(const Json& document) {
  std::string text;
  for (const auto& [key, value] : document.items()) {
    const std::string named = document.is_object() ? fmt::format("{}: ", line_of(key)) : "";
    text += fmt::format("{}\n {}", text.empty() ? "" : ",", named);
    if (!document.is_object() || (!value.is_object() && !is_list_of_entries(value))) {
      text += line_of(value);
      continue;
    }
    std::string entries;
    for (const auto& [inner_key, entry] : value.items()) {
      const std::string inner = value.is_object() ? fmt::format("{}: ", line_of(inner_key)) : "";
      entries += fmt::format("{}\n  {}{}", entries.empty() ? "" : ",", inner, line_of(entry));
    }
    text += value.is_object() ? fmt::format("{{{}\n }}", entries) : fmt::format("[{}\n ]", entries);
  }
  return document.is_object() ? fmt::format("{{{}\n}}\n", text) : fmt::format("[{}\n]\n", text);
}

}  // namespace worklog

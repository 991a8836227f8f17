#include "common/harness/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/harness/flags.h"

namespace worklog {

std::string shape_of(const ProblemOptions& options) {
  if (options.pixels > 1) return fmt::format("{} x {} x {}", options.rows, options.cols, options.pixels);
  if (is_of_heads(options.operation)) {
    return fmt::format("{} x {}+{} x {}", options.rows, options.q_heads, options.k_heads, options.cols);
  }
  return fmt::format("{} x {}", options.rows, options.cols);
}

std::string shape_name(const ProblemOptions& options) {
  std::string name = shape_of(options);
  std::erase(name, ' ');
  if (options.pixels > 1 && options.layout == ChannelLayout::channels_first) name += "-first";
  return name;
}

std::string case_name(const std::string& stage, const std::string& variant, const ProblemOptions& options) {
  return fmt::format("{}/{}/{}/{}/{}", stage, variant, operation_name(options), name_of(options.dtype),
                     shape_name(options));
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
    fmt::print(to_, "{}\n", line(titles));
    begun_ = true;
  }
  fmt::print(to_, "{}\n", line(cells));
  std::fflush(to_);
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

WholeFile::WholeFile(std::string path, std::string flag) : path_(std::move(path)), flag_(std::move(flag)) {
  const std::string trial = path_ + ".partial";
  std::error_code error;
  if (std::filesystem::exists(path_, error) && !std::filesystem::is_regular_file(path_, error)) {
    throw RequestError(fmt::format("{} takes the path of a file; '{}' is something else", flag_, path_));
  }
  const bool writable = std::ofstream(trial).good();
  std::filesystem::remove(trial, error);
  if (!writable) {
    throw RequestError(
        fmt::format("{} takes the path of a file in a folder that exists and can be written to; '{}' cannot be written",
                    flag_, path_));
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
    throw RequestError(fmt::format("{}: '{}' could not be written: {}", flag_, path_,
                                   error ? error.message() : "the device may be full"));
  }
}

}  // namespace worklog

// What a program tells on the terminal, and files that are whole.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/resources.h"

namespace worklog {

// "1024 x 1024", and with the pixels where there are some: as tables show a shape.
std::string shape_of(const ProblemOptions& options);
// "1024x1024" or "32x64x3136", with "-first" where the channels of images come first: as names have it.
std::string shape_name(const ProblemOptions& options);
// "02_shared_reduction/two_pass/layernorm_forward/fp32/1024x1024": what results are named by.
std::string case_name(const std::string& stage, const std::string& variant, const ProblemOptions& options);

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
  explicit Table(std::vector<Column> columns, std::FILE* to = stdout) : columns_(std::move(columns)), to_(to) {}
  // The title line is printed before the first row.
  void print_row(const std::vector<std::string>& cells);

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::FILE* to_;
  bool begun_ = false;
};

// 3.21 us, 1.05 ms: four digits and a unit.
std::string show_seconds(double seconds);
// An error in ulp, or "not finite".
std::string show_ulp(double ulp);

// What the kernels of a variant take at one shape.
struct VariantResources {
  std::string variant;
  ProblemOptions options;
  std::vector<KernelResources> kernels;  // in the order of their launches
};

// A file that is written as a whole or not at all.
class WholeFile {
 public:
  // Makes sure that the file can be written, and leaves no trace of that. Throws RequestError, which names the flag
  // that the path came with.
  explicit WholeFile(std::string path, std::string flag = "--json");
  // Writes to a file beside it, which then takes its name. Throws RequestError.
  void write(const std::string& text) const;

 private:
  std::string path_, flag_;
};

}  // namespace worklog

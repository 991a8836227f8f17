// The flags of a stage's program: the same for every stage.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/device/capabilities.cuh"
#include "common/harness/problem.h"
#include "common/harness/program.h"
#include "common/harness/timing.h"

namespace worklog {

// The request cannot be met; what() is one sentence that names the argument and what is allowed. Exit code 2.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Shape {
  int64_t rows, cols;
};

struct Request {
  std::vector<Shape> shapes;
  std::vector<Dtype> dtypes;
  std::optional<Dtype> param_dtype;  // none: the element's own type where a variant has it, else what it has
  bool param_dtype_same = false;     // the element's own type, and no other
  std::vector<Input> inputs;
  std::vector<Operation> operations;
  std::vector<const Variant*> variants;
  bool variants_by_name = false;  // rather than all of them
  std::vector<std::string> without;
  int64_t row_padding = 0;
  int64_t misalign = 0;  // elements
  std::string uneven;    // a tensor that has more of both, or all
  int64_t uneven_by = 1;
  int64_t pixels = 1;
  int64_t q_heads = 0;  // none: no operation on heads is asked for
  int64_t k_heads = 0;
  bool packed_results = false;  // of the operations on heads
  ChannelLayout layout = ChannelLayout::channels_last;
  float eps = 1e-6f;
  float momentum = 0.1f;
  double max_ulp = std::numeric_limits<double>::infinity();  // of the matrix outputs, beside the tolerance
  bool round_before_gamma = false;
  bool batch_invariant = false;
  std::optional<float> gamma_offset;  // none: what each variant adds to gamma
  ByteFormat format = ByteFormat::e4m3;
  Scaling scaling = Scaling::row;
  uint64_t seed = 1;
  Denied deny;                          // what the choice of kernels is to do without
  std::vector<std::string> deny_words;  // the same, as it was asked for

  bool check_only = false;
  bool list = false;
  bool resources = false;  // show what the kernels take of a multiprocessor
  bool bare = false;       // no flag was given at all: the run is to be short
  std::vector<TimingMode> modes;
  bool modes_by_name = false;  // else a graph is only timed where the operation is small
  double max_seconds_per_timing = 0.5;
  bool count = false;                         // count what the kernels do to memory
  bool lines = false;                         // and show it line by line
  std::string order;                          // of the CPU layer's threads and blocks; empty: as the environment has it
  std::string trace;                          // path, or empty: where the steps of one block go
  int64_t row = 0;                            // the block that is traced works on this row
  std::string launches;                       // path, or empty: of a file of cases, whose launches are to be told
  bool plan = false;                          // tell what each case would launch, and why, in words
  std::string json;                           // path, or empty
  std::string save_tensors;                   // folder, or empty
  std::vector<std::string> benchmark_flags;   // --benchmark_..., which Google Benchmark reads itself
  std::string benchmark_format = "console";   // or json, csv
  std::string benchmark_out;                  // path, or empty
  std::string benchmark_out_format = "json";  // or console, csv
  std::string help;                           // the text to print, where it was asked for; nothing else is set then

  // The value of a flag of Google Benchmark's ("repetitions", without --benchmark_), from the command line or from the
  // environment, where Google Benchmark looks as well. Empty for a flag without a value; none where it was not given.
  std::optional<std::string> benchmark_flag(std::string_view name) const;
  // Where sentences and tables go: to stderr where stdout is to hold nothing but the JSON or CSV that was asked for.
  std::FILE* talk() const { return benchmark_format == "console" ? stdout : stderr; }
};

// Throws RequestError.
Request parse_flags(const Program& program, int argc, char** argv);

}  // namespace worklog

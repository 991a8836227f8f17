// The document of --json: what Google Benchmark tells of the timings, and lists of our own beside it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/harness/baseline.h"
#include "common/harness/check.h"
#include "common/harness/context.h"
#include "common/harness/report.h"
#include "common/harness/timing.h"

namespace worklog {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they were written

// The stream that a timing is compared with.
struct StreamTiming {
  std::string timing;  // its benchmark: "02_shared_reduction/two_pass/layernorm_forward/fp32/1024x1024/cold"
  TimingMode mode;
  std::string stream;  // "1r1w"
  int64_t bytes = 0;
  Baseline::Result result;
};

// Google Benchmark's own document with `context` before its context, and the lists that it does not have:
//
//   checks     each comparison with the reference
//   streams    what a copy, or a stream of as many reads and writes, took beside each timing
//   resources  with --resources: what each kernel takes of a multiprocessor
//   launches   of each case, by the code of the kernels; "kernel_names" says whose code that is
//
// The name of the host is left out: results are published.
Json document_of(const Json& google_benchmark, const ContextEntries& context, const std::string& stage,
                 const std::vector<Check>& checks, const std::vector<StreamTiming>& streams,
                 const std::vector<VariantResources>& resources);

// The document that Google Benchmark's reporter wrote. It writes what is no number as NaN or Infinity, which JSON does
// not have: null.
Json read_benchmarks(const std::string& text);

// A document as text. Each entry of its lists has a line of its own, so that a diff shows which one changed; a document
// that is a list has a line for each entry.
std::string text_of(const Json& document);

}  // namespace worklog

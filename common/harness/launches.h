// Which kernels a variant launches, and in which shapes: noted as they are launched, written beside a timing, and told
// of cases that are not run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/harness/cases.h"
#include "common/harness/flags.h"
#include "common/harness/program.h"
#include "common/harness/resources.h"

namespace worklog {

// Keeps the launches that are made while it lives. One at a time.
class LaunchRecorder {
 public:
  enum class Then { launch, skip };
  explicit LaunchRecorder(std::vector<KernelLaunch>& launches, Then then = Then::launch);
  ~LaunchRecorder();
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
};

// A launch as results hold it: the kernel by name and by the hash of its machine code, grid, block and what else was
// asked for. "at_once" are the clusters that this device holds at once; two devices of one model may hold different
// numbers, and a grid may follow from it. Asks the current device. Throws CudaError.
nlohmann::ordered_json json_of(const KernelLaunch& launch);

// The launches that each case would make, in words, with the rules that chose them (LaunchShape::rule). No kernel runs.
// Returns the exit code.
int tell_plan(const Program& program, const Request& request, const std::vector<Case>& cases);

// The launches that each case named in `file` would make, as JSON on stdout. A line names one case, as benchmarks are
// named: variant/operation/type/shape. No kernel runs, and no tensor is made: what is launched depends on shapes, types
// and alignment alone. Returns the exit code. Throws RequestError where a line names no case of the program.
int tell_launches(const Program& program, const std::string& file);

}  // namespace worklog

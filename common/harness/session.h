// One run of a stage's program: what was asked for, done case by case.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/benchmarks.h"
#include "common/harness/cases.h"
#include "common/harness/check.h"
#include "common/harness/context.h"
#include "common/harness/device.h"
#include "common/harness/document.h"
#include "common/harness/flags.h"
#include "common/harness/program.h"
#include "common/harness/report.h"
#include "common/harness/transcript.h"

namespace worklog {

class Session {
 public:
  // The program and the request must outlive the session. `json_file` is where the results go, if anywhere.
  Session(const Program& program, const Request& request, const Device& device, std::vector<Case> cases,
          std::optional<WholeFile> json_file);
  ~Session();

  // Each variant on each input. Stops where a kernel has left an error that nothing can follow. What is `timed_next` is
  // kept until then, as far as memory allows: the problem, and what was compared.
  void check_all(bool timed_next);
  // Each variant that gave acceptable results; on a GPU only.
  void time_all();
  // Tells what came of all, writes the JSON file. Returns the exit code.
  int finish();

 private:
  void check_case(const Case& each, Input input, bool timed_next);
  bool has_room_to_keep() const;
  void report(Check check);
  void note_resources(const Check& check);
  void propose(Candidate candidate, const Workspace& workspace, cudaStream_t stream);
  void judged_after_timing(Check check);
  ContextEntries context() const;

  const Program& program_;
  const Request& request_;
  const Device device_;
  const std::vector<Case> cases_;
  std::optional<WholeFile> json_file_;
  Transcript transcript_;
  Input timed_input_;
  std::vector<Check> checks_;
  std::vector<VariantResources> resources_;
  std::vector<Candidate> to_time_;
  int timing_errors_ = 0;
  bool lost_ = false;  // a kernel left an error that nothing can follow
  std::optional<std::string> clocks_before_;
  JsonCollector collector_;
  std::unique_ptr<Benchmarks> benchmarks_;  // where something is timed
};

}  // namespace worklog

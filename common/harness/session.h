// One run of a stage's program: what was asked for, done case by case.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/device.h"
#include "common/harness/flags.h"
#include "common/harness/program.h"
#include "common/harness/report.h"
#include "common/harness/timing.h"

namespace worklog {

// A variant's function for one case, or the sentence why it is left out.
struct Runner {
  const Variant* variant;
  const Variant::Implementation* implementation;
  std::string left_out;  // empty: it runs
};

// An operation at one shape and type, for every input that was asked for.
struct Case {
  ProblemOptions options;  // the input is set later
  std::vector<Runner> runners;
};

// All that a request comes to, checked: nothing has been allocated yet. Throws RequestError or std::invalid_argument.
std::vector<Case> plan(const Program& program, const Request& request);

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
  // Prints the summary, writes the JSON file. Returns the exit code.
  int finish();

 private:
  // A variant in a case, as the timings see it.
  struct TimedRunner {
    const Case* of;
    const Runner* runner;
    Check check;                                  // on the input that is timed
    std::shared_ptr<const Problem> problem = {};  // of the check; null where it was not kept
    Compared compared = {};
  };
  class TimedProblem;

  void check_case(const Case& each, Input input, bool timed_next);
  bool has_room_to_keep() const;
  void save_tensors(const Problem& problem, const Workspace& workspace, const std::string& variant) const;
  void report(Check check);
  void note_resources(const Check& check);
  void print_resources() const;
  void register_timings();
  void time_one(benchmark::State& state, TimedRunner& timed, TimingMode mode);
  void measure(benchmark::State& state, TimedRunner& timed, TimingMode mode);
  void compare_after_timing();  // of the variant that was timed last
  void print_timing(const Timing& timing, const std::string& note);
  std::vector<std::pair<std::string, std::string>> context() const;

  const Program& program_;
  const Request& request_;
  const Device device_;
  const std::vector<Case> cases_;
  std::optional<WholeFile> json_file_;
  Input timed_input_;
  JsonReporter json_;
  Table check_table_, timing_table_;
  std::vector<Check> checks_;
  std::vector<Timing> timings_;
  std::vector<VariantResources> resources_;
  std::vector<TimedRunner> to_time_;
  int timing_errors_ = 0;
  bool lost_ = false;  // a kernel left an error that nothing can follow
  std::optional<std::string> clocks_before_;
  double empty_launch_seconds_ = 0, empty_graph_launch_seconds_ = 0;
  std::optional<Timer> timer_;
  std::unique_ptr<TimedProblem> timed_;  // of the case that is being timed
  std::exception_ptr failure_;           // of a timing, that ends the program
};

}  // namespace worklog

// The timings of a run: one of Google Benchmark's benchmarks for each variant, case and mode.
//
// A sample of timing.h is an iteration with manual time, and one iteration is a repetition; so Google Benchmark's
// statistics over repetitions are those of the samples, and its flags mean what they always do. What is set here are
// defaults, for flags that were not given:
//
//   --benchmark_repetitions             as many as fit into --max-seconds-per-timing, from 5 to 500
//   --benchmark_min_time                none: a repetition is one iteration. With it, Google Benchmark decides how many
//                                       iterations a repetition is the mean of, and one repetition is the default.
//   --benchmark_report_aggregates_only  true: the statistics are reported and not each repetition
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/baseline.h"
#include "common/harness/cases.h"
#include "common/harness/check.h"
#include "common/harness/device.h"
#include "common/harness/document.h"
#include "common/harness/reporter.h"
#include "common/harness/timing.h"

namespace worklog {

// A variant in a case that is to be timed, with what its check has left.
struct Candidate {
  const Case* of;
  const Runner* runner;
  double seconds = 0;                           // one run of it, roughly
  int64_t bytes = 0;                            // that the operation must move
  std::string launches;                         // blocks x threads
  std::shared_ptr<const Problem> problem = {};  // of the check; null where it was not kept
  Compared compared = {};
};

// Gives Google Benchmark its flags. Throws RequestError for one that it does not know.
void take_benchmark_flags(const std::string& stage, const std::vector<std::string>& flags);

// How many of its samples a timing takes in about so many seconds.
int repetitions_in(double seconds, double seconds_per_sample);

class Benchmarks {
 public:
  // The program, the request and the cases must outlive this. `judged` is given the check of a variant's results after
  // its last timing.
  Benchmarks(const Program& program, const Request& request, const Device& device, Input timed_input,
             std::vector<Candidate> candidates, std::function<void(Check)> judged);
  ~Benchmarks();

  // Runs what --benchmark_filter picks, and shows it as --benchmark_format says. What cannot be run for want of memory
  // is thrown at the end.
  void run(JsonCollector& collector);

  const std::vector<StreamTiming>& streams() const { return streams_; }
  ContextEntries context() const;         // what an empty kernel took
  int errors() const { return errors_; }  // timings that could not be taken
  bool is_lost() const { return lost_; }  // a kernel left an error that nothing can follow

 private:
  struct Timed;    // one benchmark
  struct Running;  // what there is from the first repetition of a benchmark to its last
  class Sets;      // the tensors of a case

  double most_seconds() const;  // for the samples of one timing
  void time_empty_kernels();
  void plan();
  void enter(Timed& timed);
  void repeat(benchmark::State& state, Timed& timed);
  std::optional<double> sample(Timed& timed);
  void begin(Timed& timed);
  void end();
  void fail(Timed& timed, const CudaError& error);
  void edit(Runs& runs);
  void compare_results();  // of the variant that was timed last
  RowOfTiming row_of(const std::string& name) const;
  Table table() const;

  const Program& program_;
  const Request& request_;
  Input timed_input_;
  std::vector<Candidate> candidates_;
  std::function<void(Check)> judged_;
  Timer timer_;
  double empty_launch_seconds_ = 0, empty_graph_launch_seconds_ = 0;
  std::vector<Timed> timed_;
  std::unique_ptr<Sets> sets_;  // of the case that is being timed
  std::unique_ptr<Running> running_;
  std::vector<StreamTiming> streams_;
  int errors_ = 0;
  bool lost_ = false;
  std::exception_ptr failure_;  // of a timing, that ends the program
};

}  // namespace worklog

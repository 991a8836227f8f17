#include "common/harness/benchmarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/harness/statistics.h"
#include "common/harness/streams.h"

namespace worklog {
namespace {

constexpr int64_t most_graph_bytes = int64_t{64} << 20;  // what is timed from a graph without being asked for
constexpr int fewest_repetitions = 5, most_repetitions = 500;

// The matrices that an operation reads and writes: the stream that it is compared with.
int count_matrices(const Problem& problem, bool written) {
  int count = 0;
  for (const HostTensor& tensor : problem.tensors()) {
    if (tensor.present && tensor.spec.extent == Extent::matrix && (tensor.spec.role == Role::input) != written) ++count;
  }
  return count;
}

bool has_updated_tensors(const Problem& problem) {
  return std::any_of(problem.tensors().begin(), problem.tensors().end(),
                     [](const HostTensor& tensor) { return tensor.present && tensor.spec.role == Role::updated; });
}

bool is_small(const ProblemOptions& o) {
  return o.rows * o.cols * o.pixels * static_cast<int64_t>(size_of(o.dtype)) <= most_graph_bytes / 2;
}

size_t longest(const std::vector<Candidate>& candidates, const std::function<std::string(const Candidate&)>& shown) {
  size_t length = 0;
  for (const Candidate& each : candidates) length = std::max(length, shown(each).size());
  return length;
}

}  // namespace

// The problem of the case that is being timed, in as many sets as cold samples take turns among.
class Benchmarks::Sets {
 public:
  Sets(const Case& each, std::shared_ptr<const Problem> of_case, int64_t misalign, const Timer& timer)
      : of(&each), problem(std::move(of_case)) {
    const int wanted = timer.useful_sets(problem->bytes_read() + problem->bytes_written());
    try {
      sets.emplace_back(*problem, misalign);
    } catch (const OutOfDeviceMemory& error) {
      refuse(error, problem->options());
    }
    try {
      for (int i = 1; i < wanted; ++i) sets.emplace_back(*problem, misalign);
    } catch (const OutOfDeviceMemory&) {
      // Fewer sets do as well: the L2 cache is flushed in any case.
    }
  }
  int count() const { return static_cast<int>(sets.size()); }

  const Case* of;
  std::shared_ptr<const Problem> problem;
  std::vector<Workspace> sets;
  Candidate* last = nullptr;  // what ran on the sets last, and was not yet compared
};

struct Benchmarks::Timed {
  std::string name;
  Candidate* candidate;
  TimingMode mode;
  std::string failure;  // why no more samples can be taken
};

struct Benchmarks::Running {
  Timed* timed = nullptr;
  std::optional<Baseline> baseline;  // none where the operation alone fits the memory
  std::optional<Sampler> sampler;
};

void take_benchmark_flags(const std::string& stage, const std::vector<std::string>& flags) {
  std::vector<std::string> words = flags;
  // Google Benchmark keeps the program's name, and leaves the flags that it does not know.
  static std::string name;
  name = stage;
  std::vector<char*> argv = {name.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size()) + 1;
  benchmark::Initialize(&argc, argv.data());
  if (argc > 1)
    throw RequestError(fmt::format("{} is no flag of Google Benchmark, or its value is not valid", argv[1]));
}

int repetitions_in(double seconds, double seconds_per_sample) {
  return static_cast<int>(
      std::clamp(seconds / seconds_per_sample, double{fewest_repetitions}, double{most_repetitions}));
}

Benchmarks::Benchmarks(const Program& program, const Request& request, const Device& device, Input timed_input,
                       std::vector<Candidate> candidates, std::function<void(Check)> judged)
    : program_(program),
      request_(request),
      timed_input_(timed_input),
      candidates_(std::move(candidates)),
      judged_(std::move(judged)),
      timer_(device.l2_bytes) {}

Benchmarks::~Benchmarks() = default;

void Benchmarks::run(JsonCollector& collector) {
  time_empty_kernels();
  plan();

  const auto edited = [this](Runs& runs) { edit(runs); };
  TableReporter rows(table(), [this](const std::string& name) { return row_of(name); });
  benchmark::JSONReporter json, json_file;
  benchmark::BenchmarkReporter* const shown = request_.benchmark_format == "console" ? &rows
                                              : request_.benchmark_format == "json"
                                                  ? &json
                                                  : benchmark::CreateDefaultDisplayReporter();
  EditingReporter display({&collector, shown}, edited), file({&json_file}, edited);
  if (!request_.benchmark_out.empty() && request_.benchmark_out_format == "json") {
    benchmark::RunSpecifiedBenchmarks(&display, &file);
  } else {
    benchmark::RunSpecifiedBenchmarks(&display);
  }
  if (!failure_) compare_results();
  sets_.reset();
  if (failure_) std::rethrow_exception(failure_);
}

void Benchmarks::time_empty_kernels() {
  const Sampling brief = {.max_seconds = 0.1};
  const TimedOperation empty = [](int, cudaStream_t stream) { launch_empty(stream); };
  empty_launch_seconds_ = timer_.time(TimingMode::warm, empty, 1, brief).median;
  empty_graph_launch_seconds_ = timer_.time(TimingMode::graph, empty, 1, brief).median;
  fmt::print(
      request_.talk(),
      "\ntimed on {}: cold with the L2 cache flushed before each sample, warm without, graph as many launches in a "
      "row\n"
      "an empty kernel takes {} between its events, {} in a graph\n",
      name_of(timed_input_), show_seconds(empty_launch_seconds_), show_seconds(empty_graph_launch_seconds_));
}

// --- What there is to time -----------------------------------------------------------------------------------------

double Benchmarks::most_seconds() const {
  if (!request_.bare) return request_.max_seconds_per_timing;
  // A run without flags is over in seconds, however many variants there are. A timing comes with four brief ones.
  constexpr double bare_seconds = 7;
  const double timings = static_cast<double>(candidates_.size() * request_.modes.size());
  return std::min(request_.max_seconds_per_timing, bare_seconds / (1.8 * timings));
}

void Benchmarks::plan() {
  for (Candidate& candidate : candidates_) {
    const ProblemOptions& o = candidate.of->options;
    const std::string name = case_name(program_.stage(), candidate.runner->variant->name(), o);
    for (const TimingMode mode : request_.modes) {
      if (mode == TimingMode::graph && !request_.modes_by_name && !is_small(o)) continue;
      timed_.push_back({fmt::format("{}/{}", name, name_of(mode)), &candidate, mode, ""});
    }
  }
  benchmark::ClearRegisteredBenchmarks();
  for (Timed& timed : timed_) enter(timed);
}

void Benchmarks::enter(Timed& timed) {
  const auto given = [this](std::string_view flag) { return request_.benchmark_flag(flag).has_value(); };
  auto* const entry = benchmark::RegisterBenchmark(timed.name.c_str(),
                                                   [this, &timed](benchmark::State& state) { repeat(state, timed); });
  entry->UseManualTime();
  if (!given("time_unit")) entry->Unit(benchmark::kMicrosecond);
  if (!given("min_time")) entry->Iterations(1);
  if (!given("min_time") && !given("repetitions")) {
    const double each = timer_.seconds_per_sample(timed.mode, timed.candidate->seconds);
    entry->Repetitions(repetitions_in(most_seconds(), each));
  }
  if (!given("report_aggregates_only") && !given("display_aggregates_only")) entry->ReportAggregatesOnly();
  entry->ComputeStatistics("p10", [](const std::vector<double>& samples) { return summarize(samples).p10; });
  entry->ComputeStatistics("p90", [](const std::vector<double>& samples) { return summarize(samples).p90; });
  entry->ComputeStatistics("min", [](const std::vector<double>& samples) { return summarize(samples).min; });
}

// --- One repetition ------------------------------------------------------------------------------------------------

void Benchmarks::repeat(benchmark::State& state, Timed& timed) {
  for (auto _ : state) {
    const std::optional<double> seconds = sample(timed);
    if (!seconds) {
      state.SkipWithError(timed.failure.c_str());
      return;
    }
    state.SetIterationTime(*seconds);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * timed.candidate->bytes);
  state.counters["bytes"] = static_cast<double>(timed.candidate->bytes);
  state.SetLabel(fmt::format("stream {}, input {}, blocks x threads {}",
                             running_->baseline ? running_->baseline->name() : "none", name_of(timed_input_),
                             timed.candidate->launches));
}

std::optional<double> Benchmarks::sample(Timed& timed) {
  if (!timed.failure.empty()) return std::nullopt;
  if (failure_ || lost_) {
    timed.failure = "not run: an earlier one ended the program";
    return std::nullopt;
  }
  try {
    if (!running_) begin(timed);
    return running_->sampler->next();
  } catch (const CudaError& error) {
    fail(timed, error);
  } catch (...) {
    failure_ = std::current_exception();
    timed.failure = "it could not be run";
  }
  return std::nullopt;
}

void Benchmarks::fail(Timed& timed, const CudaError& error) {
  ++errors_;
  lost_ = device_is_lost();
  timed.failure = error.what();
  fmt::print(request_.talk(), "  {} {}: {}\n", timed.candidate->runner->variant->name(), name_of(timed.mode),
             error.what());
}

// Before the first repetition: the tensors are put in place, and the stream is timed.
void Benchmarks::begin(Timed& timed) {
  Candidate& candidate = *timed.candidate;
  running_ = std::make_unique<Running>();
  running_->timed = &timed;
  if (!sets_ || sets_->of != candidate.of) {
    compare_results();
    sets_.reset();  // first, so that its memory is free
    std::shared_ptr<const Problem> problem = candidate.problem;
    if (!problem) {
      ProblemOptions options = candidate.of->options;
      options.input = timed_input_;
      problem = std::make_shared<const Problem>(options);
    }
    sets_ = std::make_unique<Sets>(*candidate.of, std::move(problem), request_.misalign, timer_);
  }
  if (sets_->last != &candidate) {
    compare_results();
    for (Workspace& set : sets_->sets) {
      set.overwrite(candidate.runner->variant->overwritten());
      set.reset();
    }
    sets_->last = &candidate;
  }
  try {
    running_->baseline.emplace(count_matrices(*sets_->problem, false), count_matrices(*sets_->problem, true),
                               candidate.bytes, sets_->count());
  } catch (const OutOfDeviceMemory&) {
    // The operation alone fits: there is a time, and no share.
  }
  if (running_->baseline) running_->baseline->measure(timer_, timed.mode, {.max_seconds = most_seconds() / 5});
  const TimedOperation operation = [this, &candidate](int set, cudaStream_t stream) {
    candidate.runner->implementation->launch(sets_->sets[set].arguments(), stream);
  };
  running_->sampler.emplace(timer_, timed.mode, operation, sets_->count(), most_seconds());
}

// After the last repetition: the stream is timed once more.
void Benchmarks::end() {
  const std::unique_ptr<Running> ended = std::exchange(running_, nullptr);
  if (!ended || !ended->baseline || !ended->timed->failure.empty()) return;
  Timed& timed = *ended->timed;
  Baseline& baseline = *ended->baseline;
  try {
    baseline.measure(timer_, timed.mode, {.max_seconds = most_seconds() / 5});
    streams_.push_back({timed.name, timed.mode, baseline.name(), baseline.bytes(), baseline.result()});
  } catch (const CudaError& error) {
    fail(timed, error);
  }
}

// Google Benchmark reports the benchmark that it has just done with: first to the display, then to a file.
void Benchmarks::edit(Runs& runs) {
  end();
  const bool chosen_here = !request_.benchmark_flag("min_time") && !request_.benchmark_flag("repetitions");
  // compare.py matches names. A number of repetitions that follows from how fast this run was must not be in them.
  for (auto& run : runs) {
    if (chosen_here) run.run_name.repetitions.clear();
  }
  const std::string& name = runs.front().run_name.function_name;
  const auto timed = std::find_if(timed_.begin(), timed_.end(), [&](const Timed& each) { return each.name == name; });
  if (timed == timed_.end() || timed->failure.empty()) return;
  // Samples from before the error are no result.
  runs.resize(1);
  runs.front().run_type = benchmark::BenchmarkReporter::Run::RT_Iteration;
  runs.front().aggregate_name.clear();
  runs.front().counters.clear();
  runs.front().error_occurred = true;
  runs.front().error_message = timed->failure;
}

// --- Afterwards ----------------------------------------------------------------------------------------------------

void Benchmarks::compare_results() {
  if (!sets_ || !sets_->last || lost_) return;
  Candidate& candidate = *std::exchange(sets_->last, nullptr);
  const Runner& runner = *candidate.runner;
  const Problem& problem = *sets_->problem;
  Workspace& first = sets_->sets.front();
  Check check;
  if (has_updated_tensors(problem) || !runner.variant->overwritten().empty()) {
    // What is updated or overwritten has been so once per sample: the launch has to be made again on fresh values.
    check = run_check(problem, *runner.variant, *runner.implementation, first, request_.misalign, timer_.stream(),
                      &candidate.compared);
    check.after_timing = true;
  } else {
    check = check_results(problem, *runner.variant, first, request_.misalign, &candidate.compared);
  }
  candidate.compared = {};
  candidate.problem.reset();
  for (size_t i = 1; i < sets_->sets.size() && check.error.empty(); ++i) {
    for (std::string& sentence : sets_->sets[i].damage()) {
      check.damage.push_back(std::move(sentence));
      check.verdict = Verdict::failed;
    }
  }
  judged_(std::move(check));
}

ContextEntries Benchmarks::context() const {
  return {{"empty_launch_us", fmt::format("{:.3f}", empty_launch_seconds_ * 1e6)},
          {"empty_graph_launch_us", fmt::format("{:.3f}", empty_graph_launch_seconds_ * 1e6)}};
}

Table Benchmarks::table() const {
  const auto variant = [](const Candidate& each) { return each.runner->variant->name(); };
  const auto operation = [](const Candidate& each) { return operation_name(each.of->options); };
  const auto shape = [](const Candidate& each) { return shape_of(each.of->options); };
  return Table({{"variant", longest(candidates_, variant)},
                {"operation", longest(candidates_, operation), false, request_.operations.size() > 1},
                {"type"},
                {"rows x cols", longest(candidates_, shape), true},
                {"mode", 5},
                {"median", 10, true},
                {"spread", 7, true},
                {"GB/s", 7, true},
                {"share", 7, true},
                {"of stream", 9}},
               request_.talk());
}

RowOfTiming Benchmarks::row_of(const std::string& name) const {
  const auto timed = std::find_if(timed_.begin(), timed_.end(), [&](const Timed& each) { return each.name == name; });
  const auto stream =
      std::find_if(streams_.begin(), streams_.end(), [&](const StreamTiming& each) { return each.timing == name; });
  const Candidate& candidate = *timed->candidate;
  const ProblemOptions& o = candidate.of->options;
  return {{candidate.runner->variant->name(), operation_name(o), std::string(name_of(o.dtype)), shape_of(o),
           std::string(name_of(timed->mode))},
          candidate.bytes,
          stream == streams_.end() ? nullptr : &*stream};
}

}  // namespace worklog

#include "common/harness/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "common/harness/launch.cuh"
#include "common/harness/npy.h"
#include "common/harness/provenance.h"

namespace worklog {
namespace {

constexpr int64_t most_graph_bytes = int64_t{64} << 20;  // what is timed from a graph without being asked for

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreate(&stream_), "creating a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

const Variant::Implementation* find_implementation(const Variant& variant, Operation operation, Dtype dtype,
                                                   const Request& request) {
  const Variant::Implementation* other = nullptr;
  for (const Variant::Implementation& each : variant.implementations()) {
    if (each.operation != operation || each.dtype != dtype) continue;
    if (each.param_dtype == request.param_dtype.value_or(dtype)) return &each;
    other = &each;
  }
  return request.param_dtype || request.param_dtype_same ? nullptr : other;
}

std::string refusal(const Variant& variant, const ProblemOptions& options) {
  for (const Variant::Limit& limit : variant.limits()) {
    if (!limit.accepts(options)) return limit.sentence;
  }
  return "";
}

ProblemOptions options_of(const Request& request, Operation operation, Dtype dtype, Dtype param_dtype, Shape shape) {
  ProblemOptions options;
  options.operation = operation;
  options.dtype = dtype;
  options.param_dtype = param_dtype;
  options.rows = shape.rows;
  options.cols = shape.cols;
  options.pixels = request.pixels;
  options.layout = request.layout;
  options.row_padding = request.row_padding;
  options.input = request.inputs.front();
  options.seed = request.seed;
  options.eps = request.eps;
  options.momentum = request.momentum;
  options.round_before_gamma = request.round_before_gamma;
  for (const TensorSpec& spec : tensors_of(operation)) {
    const bool unwanted = std::find(request.without.begin(), request.without.end(), spec.name) != request.without.end();
    if (spec.optional && unwanted) options.absent.emplace_back(spec.name);
  }
  return options;
}

size_t longest_name(const Request& request) {
  size_t longest = 0;
  for (const Variant* variant : request.variants) longest = std::max(longest, variant->name().size());
  return longest;
}

size_t longest_shape(const Request& request) {
  size_t longest = 0;
  for (const Shape& shape : request.shapes) {
    longest = std::max(longest, fmt::format("{} x {}", shape.rows, shape.cols).size());
  }
  return longest;
}

size_t longest_operation(const Request& request) {
  size_t longest = 0;
  for (const Operation operation : request.operations) longest = std::max(longest, name_of(operation).size());
  return longest;
}

size_t longest_input(const Request& request) {
  size_t longest = 0;
  for (const Input input : request.inputs) longest = std::max(longest, name_of(input).size());
  return longest;
}

// Out of memory, said of the case that asked for it.
[[noreturn]] void refuse(const OutOfDeviceMemory& error, const ProblemOptions& options) {
  throw RequestError(fmt::format("rows x cols = {} in {} does not fit the device: {}", shape_of(options),
                                 name_of(options.dtype), error.what()));
}

std::string indented(const std::string& text) {
  std::string result = "      ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "      ";
  }
  return result;
}

// The matrices that an operation reads and writes: the stream that it is held against.
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

}  // namespace

std::vector<Case> plan(const Program& program, const Request& request) {
  std::vector<Case> cases;
  for (const Operation operation : request.operations) {
    for (const Dtype dtype : request.dtypes) {
      std::map<Dtype, std::vector<Runner>> by_param_dtype;  // another type of gamma is another problem
      for (const Variant* variant : request.variants) {
        const Variant::Implementation* found = find_implementation(*variant, operation, dtype, request);
        if (found) by_param_dtype[found->param_dtype].push_back({variant, found, ""});
      }
      for (const auto& [param_dtype, runners] : by_param_dtype) {
        for (const Shape shape : request.shapes) {
          Case& each = cases.emplace_back(Case{options_of(request, operation, dtype, param_dtype, shape), runners});
          check_options(each.options);
          for (Runner& runner : each.runners) {
            runner.left_out = refusal(*runner.variant, each.options);
            if (request.variants_by_name && !runner.left_out.empty()) {
              throw RequestError(fmt::format("--variant {} cannot do {}: {}", runner.variant->name(),
                                             shape_of(each.options), runner.left_out));
            }
          }
        }
      }
    }
  }
  if (cases.empty()) {
    throw RequestError(
        fmt::format("no variant of {} does what --operation, --dtype and --param-dtype ask for together "
                    "(--list shows what each does)",
                    program.stage()));
  }
  return cases;
}

// The problem of the case that is being timed, in as many sets as cold samples take turns among.
class Session::TimedProblem {
 public:
  TimedProblem(const Case& each, std::shared_ptr<const Problem> of_case, int64_t misalign, const Timer& timer)
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

  const Case* of;
  std::shared_ptr<const Problem> problem;
  std::vector<Workspace> sets;
  TimedRunner* runner = nullptr;  // what ran on the sets last, and was not yet compared
};

Session::Session(const Program& program, const Request& request, const Device& device, std::vector<Case> cases,
                 std::optional<WholeFile> json_file)
    : program_(program),
      request_(request),
      device_(device),
      cases_(std::move(cases)),
      json_file_(std::move(json_file)),
      check_table_({{"variant", longest_name(request)},
                    {"operation", longest_operation(request), false, request.operations.size() > 1},
                    {"type"},
                    {"rows x cols", longest_shape(request), true},
                    {"input", longest_input(request)},
                    {"blocks x threads", 0, true},
                    {"max error", 12, true},
                    {"verdict"}}),
      timing_table_({{"variant", longest_name(request)},
                     {"operation", longest_operation(request), false, request.operations.size() > 1},
                     {"type"},
                     {"rows x cols", longest_shape(request), true},
                     {"mode", 5},
                     {"median", 10, true},
                     {"spread", 7, true},
                     {"GB/s", 7, true},
                     {"share", 7, true},
                     {"of stream", 9}}) {
  // Times do not depend on the values; normal ones are the least special.
  const auto& inputs = request_.inputs;
  timed_input_ =
      std::find(inputs.begin(), inputs.end(), Input::normal) != inputs.end() ? Input::normal : inputs.front();
  if (json_file_) clocks_before_ = ask_nvidia_smi("clocks.sm,clocks.mem,temperature.gpu,power.draw");
}

Session::~Session() = default;

// --- Checks --------------------------------------------------------------------------------------------------------

void Session::check_all(bool timed_next) {
  for (const Case& each : cases_) {
    for (const Runner& runner : each.runners) {
      if (runner.left_out.empty()) continue;
      check_table_.print_row({runner.variant->name(), std::string(name_of(each.options.operation)),
                              std::string(name_of(each.options.dtype)), shape_of(each.options), "", "", "",
                              fmt::format("left out: {}", runner.left_out)});
    }
    for (const Input input : request_.inputs) {
      check_case(each, input, timed_next);
      if (lost_) return;
    }
  }
}

bool Session::has_room_to_keep() const {
  double most = 0;  // of what may still have to be made
  for (const Case& each : cases_) most = std::max(most, memory_needed(each.options));
  return available_memory() > 3 * most;
}

void Session::check_case(const Case& each, Input input, bool timed_next) {
  if (std::all_of(each.runners.begin(), each.runners.end(), [](const Runner& r) { return !r.left_out.empty(); }))
    return;
  ProblemOptions options = each.options;
  options.input = input;
  const auto problem = std::make_shared<const Problem>(options);
  const Stream stream;
  std::optional<Workspace> workspace;
  try {
    workspace.emplace(*problem, request_.misalign);
  } catch (const OutOfDeviceMemory& error) {
    refuse(error, options);
  }
  for (const Runner& runner : each.runners) {
    if (!runner.left_out.empty()) continue;
    const bool kept = timed_next && input == timed_input_ && has_room_to_keep();
    Compared compared;
    Check check = run_check(*problem, *runner.variant, *runner.implementation, *workspace, request_.misalign,
                            stream.get(), kept ? &compared : nullptr);
    if (input == timed_input_ && options.rows > 0 && is_accepted(check.verdict)) {
      TimedRunner& timed = to_time_.emplace_back(TimedRunner{&each, &runner, check});
      if (kept) {
        timed.problem = problem;
        timed.compared = std::move(compared);
      }
    }
    if (!request_.save_tensors.empty() && check.error.empty())
      save_tensors(*problem, *workspace, runner.variant->name());
    if (input == request_.inputs.front() && check.error.empty()) note_resources(check);
    const bool error = !check.error.empty();
    report(std::move(check));
    if (error && device_is_lost()) {
      lost_ = true;
      return;
    }
  }
}

void Session::note_resources(const Check& check) {
  if (!request_.resources || check.launches.empty()) return;
  VariantResources& of = resources_.emplace_back(VariantResources{check.variant, check.options, {}});
  for (const KernelLaunch& launch : check.launches) of.kernels.push_back(resources_of(launch));
}

void Session::print_resources() const {
  const auto count = [](int64_t number) { return fmt::format("{}", number); };
  size_t longest_kernel = 0;
  for (const VariantResources& of : resources_) {
    for (const KernelResources& k : of.kernels) longest_kernel = std::max(longest_kernel, k.kernel.size());
  }
  fmt::print("\nwhat the kernels take: registers and spilled or local bytes of a thread, shared bytes of a block{}\n",
             on_cpu_layer() ? " (- is what the CPU layer cannot say)" : "");
  Table table({{"variant", longest_name(request_)},
               {"type"},
               {"rows x cols", longest_shape(request_), true},
               {"kernel", longest_kernel},
               {"blocks x threads", 0, true},
               {"registers", 0, true},
               {"local", 0, true},
               {"shared", 6, true},
               {"dynamic", 0, true},
               {"blocks per SM", 0, true},
               {"occupancy", 0, true}});
  for (const VariantResources& of : resources_) {
    for (const KernelResources& k : of.kernels) {
      table.print_row({of.variant, std::string(name_of(of.options.dtype)), shape_of(of.options), k.kernel,
                       fmt::format("{} x {}", k.blocks, k.threads), on_cpu_layer() ? "-" : count(k.registers),
                       on_cpu_layer() ? "-" : count(k.local_bytes), count(k.static_shared_bytes),
                       count(k.dynamic_shared_bytes), on_cpu_layer() ? "-" : count(k.blocks_per_multiprocessor),
                       on_cpu_layer() ? "-" : fmt::format("{:.0f} %", 100 * k.occupancy)});
    }
  }
}

void Session::save_tensors(const Problem& problem, const Workspace& workspace, const std::string& variant) const {
  const ProblemOptions& o = problem.options();
  const std::filesystem::path inputs =
      std::filesystem::path(request_.save_tensors) /
      fmt::format("{}-{}-{}x{}-{}", name_of(o.operation), name_of(o.dtype), o.rows, o.cols, name_of(o.input));
  const std::filesystem::path outputs = inputs / variant;
  std::filesystem::create_directories(outputs);
  for (const HostTensor& tensor : problem.tensors()) {
    if (tensor.present && tensor.spec.role == Role::input)
      save_npy(inputs / fmt::format("{}.npy", tensor.spec.name), tensor);
    if (tensor.present && tensor.spec.role == Role::updated) {
      save_npy(inputs / fmt::format("{}_before.npy", tensor.spec.name), tensor);
    }
  }
  for (const HostTensor& tensor : workspace.download()) {
    if (tensor.present && tensor.spec.role != Role::input) {
      save_npy(outputs / fmt::format("{}.npy", tensor.spec.name), tensor);
    }
  }
}

void Session::report(Check check) {
  const ProblemOptions& o = check.options;
  const bool compared = check.error.empty() && check.comparison.compared > 0;
  std::string headline = check.headline();
  if (check.error.empty() && check.comparison.compared == 0) headline += " (the tensor is empty)";
  check_table_.print_row({check.variant, std::string(name_of(o.operation)), std::string(name_of(o.dtype)), shape_of(o),
                          std::string(name_of(o.input)), describe_launches(check.launches),
                          compared ? show_ulp(check.comparison.max_ulp_error) : "-", headline});
  if (const std::string why = check.explain(); !why.empty()) fmt::print("{}\n", indented(why));
  checks_.push_back(std::move(check));
}

// --- Timings -------------------------------------------------------------------------------------------------------

void Session::time_all() {
  if (lost_ || to_time_.empty()) return;
  timer_.emplace(device_.l2_bytes);
  const Sampling brief = {.max_seconds = 0.1};
  const TimedOperation empty = [](int, cudaStream_t stream) { launch_empty(stream); };
  empty_launch_seconds_ = timer_->time(TimingMode::warm, empty, 1, brief).median;
  empty_graph_launch_seconds_ = timer_->time(TimingMode::graph, empty, 1, brief).median;

  fmt::print(
      "\ntimed on {}: cold with the L2 cache flushed before each sample, warm without, graph as many launches in a "
      "row\n"
      "an empty kernel takes {} between its events, {} in a graph\n",
      name_of(timed_input_), show_seconds(empty_launch_seconds_), show_seconds(empty_graph_launch_seconds_));
  register_timings();
  benchmark::RunSpecifiedBenchmarks(&json_);
  if (!failure_) compare_after_timing();
  timed_.reset();
  if (failure_) std::rethrow_exception(failure_);
}

void Session::register_timings() {
  benchmark::ClearRegisteredBenchmarks();
  for (TimedRunner& timed : to_time_) {
    const ProblemOptions& o = timed.of->options;
    for (const TimingMode mode : request_.modes) {
      const bool small = o.rows * o.cols * o.pixels * static_cast<int64_t>(size_of(o.dtype)) <= most_graph_bytes / 2;
      if (mode == TimingMode::graph && !request_.modes_by_name && !small) continue;
      const std::string name = fmt::format("{}/{}/{}/{}/{}/{}", program_.stage(), timed.runner->variant->name(),
                                           name_of(o.operation), name_of(o.dtype), shape_name(o), name_of(mode));
      // One iteration is one figure: the median of the samples, whose number the noise decides.
      benchmark::RegisterBenchmark(name.c_str(),
                                   [this, &timed, mode](benchmark::State& state) { time_one(state, timed, mode); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void Session::time_one(benchmark::State& state, TimedRunner& timed, TimingMode mode) {
  if (failure_ || lost_) {
    state.SkipWithError("not run: an earlier one ended the program");
    return;
  }
  try {
    measure(state, timed, mode);
  } catch (const CudaError& error) {
    ++timing_errors_;
    lost_ = device_is_lost();
    state.SkipWithError(error.what());
    fmt::print("  {} {}: {}\n", timed.runner->variant->name(), name_of(mode), error.what());
  } catch (...) {
    failure_ = std::current_exception();
    state.SkipWithError("it could not be run");
  }
}

void Session::measure(benchmark::State& state, TimedRunner& timed, TimingMode mode) {
  if (!timed_ || timed_->of != timed.of) {
    compare_after_timing();
    timed_.reset();  // first, so that its memory is free
    std::shared_ptr<const Problem> problem = timed.problem;
    if (!problem) {
      ProblemOptions options = timed.of->options;
      options.input = timed_input_;
      problem = std::make_shared<const Problem>(options);
    }
    timed_ = std::make_unique<TimedProblem>(*timed.of, std::move(problem), request_.misalign, *timer_);
  }
  if (timed_->runner != &timed) {
    compare_after_timing();
    for (Workspace& set : timed_->sets) {
      set.overwrite(timed.runner->variant->overwritten());
      set.reset();
    }
    timed_->runner = &timed;
  }
  const Problem& problem = *timed_->problem;
  const int sets = static_cast<int>(timed_->sets.size());
  Timing timing;
  timing.variant = timed.runner->variant->name();
  timing.options = problem.options();
  timing.mode = mode;
  timing.bytes = problem.bytes_read() + problem.bytes_written();
  timing.max_ulp_error = timed.check.comparison.max_ulp_error;
  timing.launches = describe_launches(timed.check.launches);

  // A run without flags is over in seconds, however many variants there are. A timing comes with four brief ones.
  constexpr double bare_seconds = 7;
  const double timings = static_cast<double>(to_time_.size() * request_.modes.size());
  const double most_seconds = request_.bare ? std::min(request_.max_seconds_per_timing, bare_seconds / (1.8 * timings))
                                            : request_.max_seconds_per_timing;
  const Sampling sampling = {.max_seconds = most_seconds};
  const Sampling brief = {.max_seconds = most_seconds / 5};
  const TimedOperation operation = [&](int set, cudaStream_t stream) {
    timed.runner->implementation->launch(timed_->sets[set].arguments(), stream);
  };
  std::optional<Baseline> baseline;
  try {
    baseline.emplace(count_matrices(problem, false), count_matrices(problem, true), timing.bytes, sets);
  } catch (const OutOfDeviceMemory&) {
    // The operation alone fits: there is a time, and no share.
  }
  if (baseline) baseline->measure(*timer_, mode, brief);
  timing.summary = timer_->time(mode, operation, sets, sampling);
  if (baseline) {
    baseline->measure(*timer_, mode, brief);
    timing.stream = baseline->name();
    timing.baseline = baseline->result();
    timing.baseline_bytes = baseline->bytes();
  }

  for (auto _ : state) state.SetIterationTime(timing.summary.median);
  state.counters["bytes"] = static_cast<double>(timing.bytes);
  state.counters["bytes_per_second"] = timing.bytes_per_second();
  state.counters["median_seconds"] = timing.summary.median;
  state.counters["min_seconds"] = timing.summary.min;
  state.counters["spread"] = timing.summary.spread();
  state.counters["samples"] = timing.summary.samples;
  state.counters["max_ulp_error"] = timing.max_ulp_error;
  if (baseline) {
    state.counters["share_of_copy"] = timing.share();
    state.counters["stream_median_seconds"] = timing.baseline.median_seconds;
    state.counters["stream_drift"] = timing.baseline.drift;
  }
  state.SetLabel(
      fmt::format("stream {}, input {}, blocks x threads {}", timing.stream, name_of(timed_input_), timing.launches));
  const bool adrift = std::abs(timing.baseline.drift) > 0.03;
  print_timing(timing, adrift ? fmt::format("  the stream drifted by {:+.0f} %", timing.baseline.drift * 100) : "");
  timings_.push_back(std::move(timing));
}

void Session::compare_after_timing() {
  if (!timed_ || !timed_->runner || lost_) return;
  TimedRunner& timed = *std::exchange(timed_->runner, nullptr);
  const Runner& runner = *timed.runner;
  const Problem& problem = *timed_->problem;
  Workspace& first = timed_->sets.front();
  Check check;
  if (has_updated_tensors(problem) || !runner.variant->overwritten().empty()) {
    // What is updated or overwritten has been so once per sample: the launch has to be made again on fresh values.
    check = run_check(problem, *runner.variant, *runner.implementation, first, request_.misalign, timer_->stream(),
                      &timed.compared);
    check.after_timing = true;
  } else {
    check = check_results(problem, *runner.variant, first, request_.misalign, &timed.compared);
  }
  timed.compared = {};
  timed.problem.reset();
  for (size_t i = 1; i < timed_->sets.size() && check.error.empty(); ++i) {
    for (std::string& sentence : timed_->sets[i].damage()) {
      check.damage.push_back(std::move(sentence));
      check.verdict = Verdict::failed;
    }
  }
  if (is_accepted(check.verdict)) {
    checks_.push_back(std::move(check));
  } else {
    report(std::move(check));
  }
}

void Session::print_timing(const Timing& timing, const std::string& note) {
  const ProblemOptions& o = timing.options;
  const bool shared = !timing.stream.empty();
  timing_table_.print_row(
      {timing.variant, std::string(name_of(o.operation)), std::string(name_of(o.dtype)), shape_of(o),
       std::string(name_of(timing.mode)), show_seconds(timing.summary.median),
       fmt::format("{:.1f} %", timing.summary.spread() * 100), fmt::format("{:.0f}", timing.bytes_per_second() * 1e-9),
       shared ? fmt::format("{:.3f}", timing.share()) : "-", (shared ? timing.stream : "no memory") + note});
}

// --- The end -------------------------------------------------------------------------------------------------------

std::vector<std::pair<std::string, std::string>> Session::context() const {
  const Provenance origin = provenance();
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  std::vector<std::pair<std::string, std::string>> entries = {
      {"stage", program_.stage()},
      {"backend", on_cpu_layer() ? "cpu" : "gpu"},
      {"gpu", device_.name},
      {"gpu_short", device_.short_name},
      {"compute_capability", fmt::format("{}.{}", device_.major, device_.minor)},
      {"multiprocessors", fmt::format("{}", device_.multiprocessors)},
      {"l2_bytes", fmt::format("{}", device_.l2_bytes)},
      {"memory_bytes", fmt::format("{}", device_.memory_bytes)},
      {"max_clock_khz", fmt::format("{}", device_.clock_khz)},
      {"max_memory_clock_khz", fmt::format("{}", device_.memory_clock_khz)},
      {"driver_cuda", version(device_.driver)},
      {"cuda_runtime", version(device_.cuda_runtime)},
      {"compiler", origin.compiler},
      {"flags", origin.flags},
      {"commit", origin.commit},
      {"dirty", origin.dirty ? "true" : "false"},
      {"source_hash", origin.source_hash},
  };
  if (const std::optional<std::string> driver = ask_nvidia_smi("driver_version"))
    entries.emplace_back("driver", *driver);
  if (clocks_before_) {
    entries.emplace_back("clocks_before", *clocks_before_);
    entries.emplace_back("clocks_after",
                         ask_nvidia_smi("clocks.sm,clocks.mem,temperature.gpu,power.draw").value_or("unknown"));
  }
  if (!timings_.empty()) {
    entries.emplace_back("empty_launch_us", fmt::format("{:.3f}", empty_launch_seconds_ * 1e6));
    entries.emplace_back("empty_graph_launch_us", fmt::format("{:.3f}", empty_graph_launch_seconds_ * 1e6));
  }
  return entries;
}

int Session::finish() {
  std::map<Verdict, int> count;
  int again = 0;
  for (const Check& check : checks_) {
    if (check.after_timing) ++again;
    if (!check.after_timing || !is_accepted(check.verdict)) ++count[check.verdict];
  }
  const int failed = count[Verdict::failed] + count[Verdict::unexpected_pass];
  const int made = static_cast<int>(checks_.size()) - again;
  fmt::print("\n{} {}: {} passed", made, made == 1 ? "check" : "checks", count[Verdict::passed]);
  const auto add = [](int number, std::string_view what) {
    if (number > 0) fmt::print(", {} {}", number, what);
  };
  add(count[Verdict::expected_failure], "fail, as recorded");
  add(count[Verdict::permitted_failure], "fail, and may");
  add(failed, "FAILED");
  if (again > 0) fmt::print("; {} results were compared again after timing", again);
  fmt::print("\n");
  if (lost_) fmt::print("stopped there: a kernel left an error that nothing can follow\n");
  if (timing_errors_ > 0) fmt::print("{} timings could not be taken\n", timing_errors_);

  if (request_.resources) print_resources();
  if (json_file_) {
    json_file_->write(json_.document(context(), program_.stage(), checks_, timings_, resources_));
    fmt::print("results written to {}\n", request_.json);
  }
  return failed > 0 || lost_ || timing_errors_ > 0 ? 1 : 0;
}

}  // namespace worklog

#include "common/harness/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/harness/npy.h"

namespace worklog {
namespace {

constexpr const char* state_of_gpu = "clocks.sm,clocks.mem,temperature.gpu,power.draw";

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

}  // namespace

Session::Session(const Program& program, const Request& request, const Device& device, std::vector<Case> cases,
                 std::optional<WholeFile> json_file)
    : program_(program),
      request_(request),
      device_(device),
      cases_(std::move(cases)),
      json_file_(std::move(json_file)),
      transcript_(request) {
  // Times do not depend on the values; normal ones are the least special.
  const auto& inputs = request_.inputs;
  timed_input_ =
      std::find(inputs.begin(), inputs.end(), Input::normal) != inputs.end() ? Input::normal : inputs.front();
  if (json_file_) clocks_before_ = ask_nvidia_smi(state_of_gpu);
}

Session::~Session() = default;

// --- Checks --------------------------------------------------------------------------------------------------------

void Session::check_all(bool timed_next) {
  for (const Case& each : cases_) {
    for (const Runner& runner : each.runners) {
      if (!runner.left_out.empty()) transcript_.print_left_out(runner, each.options);
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
    const bool is_timed = timed_next && input == timed_input_ && options.rows > 0;
    const bool is_kept = is_timed && has_room_to_keep();
    Compared compared;
    Check check = run_check(*problem, *runner.variant, *runner.implementation, *workspace, request_.misalign,
                            stream.get(), is_kept ? &compared : nullptr);
    if (!request_.save_tensors.empty() && check.error.empty()) {
      save_tensors(request_.save_tensors, *problem, workspace->download(), runner.variant->name());
    }
    if (input == request_.inputs.front() && check.error.empty()) note_resources(check);
    report(check);
    if (!check.error.empty()) lost_ = device_is_lost();
    if (is_timed && is_accepted(check.verdict)) {
      propose({.of = &each,
               .runner = &runner,
               .bytes = problem->bytes_read() + problem->bytes_written(),
               .launches = describe_launches(check.launches),
               .problem = is_kept ? problem : nullptr,
               .compared = std::move(compared)},
              *workspace, stream.get());
    }
    if (lost_) return;
  }
}

void Session::note_resources(const Check& check) {
  if (!request_.resources || check.launches.empty()) return;
  VariantResources& of = resources_.emplace_back(VariantResources{check.variant, check.options, {}});
  for (const KernelLaunch& launch : check.launches) of.kernels.push_back(resources_of(launch));
}

void Session::report(Check check) {
  transcript_.print_check(check);
  checks_.push_back(std::move(check));
}

void Session::judged_after_timing(Check check) {
  if (is_accepted(check.verdict)) {
    checks_.push_back(std::move(check));
  } else {
    report(std::move(check));
  }
}

// --- Timings -------------------------------------------------------------------------------------------------------

// What the check has shown to be right is run once more, which tells how many samples there will be time for.
void Session::propose(Candidate candidate, const Workspace& workspace, cudaStream_t stream) {
  const TimedOperation operation = [&](int, cudaStream_t on) {
    candidate.runner->implementation->launch(workspace.arguments(), on);
  };
  try {
    candidate.seconds = time_roughly(operation, stream);
    to_time_.push_back(std::move(candidate));
  } catch (const CudaError& error) {
    ++timing_errors_;
    lost_ = device_is_lost();
    transcript_.print_untimed(*candidate.runner->variant, error.what());
  }
}

void Session::time_all() {
  if (lost_ || to_time_.empty()) return;
  benchmarks_ = std::make_unique<Benchmarks>(program_, request_, device_, timed_input_, std::move(to_time_),
                                             [this](Check check) { judged_after_timing(std::move(check)); });
  benchmarks_->run(collector_);
  timing_errors_ += benchmarks_->errors();
  lost_ = benchmarks_->is_lost();
}

// --- The end -------------------------------------------------------------------------------------------------------

ContextEntries Session::context() const {
  ContextEntries entries = context_of(program_, device_, request_.deny_words);
  if (clocks_before_) {
    entries.emplace_back("clocks_before", *clocks_before_);
    entries.emplace_back("clocks_after", ask_nvidia_smi(state_of_gpu).value_or("unknown"));
  }
  if (benchmarks_ && !benchmarks_->streams().empty()) {
    for (auto& entry : benchmarks_->context()) entries.push_back(std::move(entry));
  }
  return entries;
}

int Session::finish() {
  const Tally tally = tally_of(checks_);
  transcript_.print_tally(tally);
  if (lost_) transcript_.print("stopped there: a kernel left an error that nothing can follow");
  if (timing_errors_ > 0) transcript_.print(fmt::format("{} timings could not be taken", timing_errors_));
  if (request_.resources) transcript_.print_resources(resources_);
  if (request_.benchmark_format == "json" && !collector_.has_begun()) {  // nothing was timed, and that is JSON as well
    benchmark::JSONReporter nothing;
    nothing.ReportContext({});
    nothing.Finalize();
  }
  if (json_file_) {
    const std::vector<StreamTiming> none;
    const Json document = document_of(collector_.document(), context(), program_.stage(), checks_,
                                      benchmarks_ ? benchmarks_->streams() : none, resources_);
    json_file_->write(text_of(document));
    transcript_.print(fmt::format("results written to {}", request_.json));
  }
  return tally.failed > 0 || lost_ || timing_errors_ > 0 ? 1 : 0;
}

}  // namespace worklog

#include "common/harness/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "common/harness/npy.h"
#include "common/harness/provenance.h"

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

std::string indented(const std::string& text) {
  std::string result = "      ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "      ";
  }
  return result;
}

}  // namespace

ContextEntries context_of(const Program& program, const Device& device) {
  const Provenance origin = provenance();
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  ContextEntries entries = {
      {"stage", program.stage()},
      {"backend", on_cpu_layer() ? "cpu" : "gpu"},
      {"gpu", device.name},
      {"gpu_short", device.short_name},
      {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
      {"multiprocessors", fmt::format("{}", device.multiprocessors)},
      {"l2_bytes", fmt::format("{}", device.l2_bytes)},
      {"memory_bytes", fmt::format("{}", device.memory_bytes)},
      {"max_clock_khz", fmt::format("{}", device.clock_khz)},
      {"max_memory_clock_khz", fmt::format("{}", device.memory_clock_khz)},
      {"driver_cuda", version(device.driver)},
      {"cuda_runtime", version(device.cuda_runtime)},
      {"compiler", origin.compiler},
      {"flags", origin.flags},
      {"commit", origin.commit},
      {"dirty", origin.dirty ? "true" : "false"},
      {"source_hash", origin.source_hash},
  };
  if (const std::optional<std::string> driver = ask_nvidia_smi("driver_version"))
    entries.emplace_back("driver", *driver);
  return entries;
}

Session::Session(const Program& program, const Request& request, const Device& device, std::vector<Case> cases,
                 std::optional<WholeFile> json_file)
    : program_(program),
      request_(request),
      device_(device),
      out_(request.talk()),
      cases_(std::move(cases)),
      json_file_(std::move(json_file)),
      check_table_({{"variant", longest_name(request)},
                    {"operation", longest_operation(request), false, request.operations.size() > 1},
                    {"type"},
                    {"rows x cols", longest_shape(request), true},
                    {"input", longest_input(request)},
                    {"blocks x threads", 0, true},
                    {"max error", 12, true},
                    {"verdict"}},
                   request.talk()) {
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
    const bool is_timed = timed_next && input == timed_input_ && options.rows > 0;
    const bool is_kept = is_timed && has_room_to_keep();
    Compared compared;
    Check check = run_check(*problem, *runner.variant, *runner.implementation, *workspace, request_.misalign,
                            stream.get(), is_kept ? &compared : nullptr);
    if (!request_.save_tensors.empty() && check.error.empty())
      save_tensors(*problem, *workspace, runner.variant->name());
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

void Session::print_resources() const {
  const auto count = [](int64_t number) { return fmt::format("{}", number); };
  size_t longest_kernel = 0;
  for (const VariantResources& of : resources_) {
    for (const KernelResources& k : of.kernels) longest_kernel = std::max(longest_kernel, k.kernel.size());
  }
  fmt::print(out_,
             "\nwhat the kernels take: registers and spilled or local bytes of a thread, shared bytes of a block{}\n",
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
               {"occupancy", 0, true}},
              out_);
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
  if (const std::string why = check.explain(); !why.empty()) fmt::print(out_, "{}\n", indented(why));
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
    fmt::print(out_, "  {}: {}\n", candidate.runner->variant->name(), error.what());
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
  ContextEntries entries = context_of(program_, device_);
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
  std::map<Verdict, int> count;
  int again = 0;
  for (const Check& check : checks_) {
    if (check.after_timing) ++again;
    if (!check.after_timing || !is_accepted(check.verdict)) ++count[check.verdict];
  }
  const int failed = count[Verdict::failed] + count[Verdict::unexpected_pass];
  const int made = static_cast<int>(checks_.size()) - again;
  fmt::print(out_, "\n{} {}: {} passed", made, made == 1 ? "check" : "checks", count[Verdict::passed]);
  const auto add = [this](int number, std::string_view what) {
    if (number > 0) fmt::print(out_, ", {} {}", number, what);
  };
  add(count[Verdict::expected_failure], "fail, as recorded");
  add(count[Verdict::permitted_failure], "fail, and may");
  add(failed, "FAILED");
  if (again > 0) fmt::print(out_, "; {} results were compared again after timing", again);
  fmt::print(out_, "\n");
  if (lost_) fmt::print(out_, "stopped there: a kernel left an error that nothing can follow\n");
  if (timing_errors_ > 0) fmt::print(out_, "{} timings could not be taken\n", timing_errors_);

  if (request_.resources) print_resources();
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
    fmt::print(out_, "results written to {}\n", request_.json);
  }
  return failed > 0 || lost_ || timing_errors_ > 0 ? 1 : 0;
}

}  // namespace worklog

// Stands in for a stage's program where submissions are graded: runs what the judge has prepared, and judges nothing.
//
//   PROGRAM TASKS OUTCOMES [COUNTS]
//
// Runs the tasks of the file TASKS, and writes to OUTCOMES what the memory then holds. A counting build writes to
// COUNTS, in a line of JSON for each task, what the kernels did to it, before the outcome: so none is without. Device
// memory is out of reach for host code, as it is on a GPU, and so is the machine (confine.h): when a submission's
// function first runs, all that is needed of files is open.
#include <fmt/format.h>
#include <simt/counts.h>
#include <simt/engine.h>
#include <simt/simt.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/classroom/confine.h"
#include "common/classroom/guard.h"
#include "common/classroom/handover.h"
#include "common/device/launch.cuh"
#include "common/harness/bind.h"
#include "common/harness/counting.h"
#include "common/harness/document.h"
#include "common/harness/program.h"
#include "common/simt/src/launch.h"

namespace {

using namespace worklog;

constexpr int touched_by_host = 86;  // exit code, known to grade.py
constexpr uintptr_t page = 4096;

// --- Device memory, which host code may not touch --------------------------------------------------------------------
struct Pages {
  uintptr_t begin, end;
};
std::vector<Pages> device_pages;
bool host_runs = false;            // a function of the submission, outside of its kernels
const void* host_stack = nullptr;  // the end of what is that function's

void set_access(int protection) {
  for (const Pages& pages : device_pages) {
    mprotect(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, protection);
  }
}

// While it lives, host code runs that is not trusted to leave the device's memory alone.
class HostCode {
 public:
  HostCode() {
    set_access(PROT_NONE);
    host_runs = true;
    host_stack = this;
    set_host_stack(host_stack);
  }
  ~HostCode() {
    set_host_stack(nullptr);
    host_runs = false;
    set_access(PROT_READ | PROT_WRITE);
  }
};

// While it lives, the CPU layer does what it was asked for.
// What a submission asks the runtime for is looked at. What `judge` runs is the user's own: a stream or a graph is
// fine.
bool is_looked_at = false;

class DeviceWork {
 public:
  DeviceWork() : interrupts_(host_runs) {
    if (interrupts_) set_access(PROT_READ | PROT_WRITE);
    host_runs = false;
    set_host_stack(nullptr);
    if (interrupts_) exchange_variables(true);
  }
  ~DeviceWork() {
    if (interrupts_) exchange_variables(false);
    host_runs = interrupts_;
    if (interrupts_) set_access(PROT_NONE);
    if (interrupts_) set_host_stack(host_stack);
  }
  bool is_to_be_looked_at() const { return interrupts_ && is_looked_at; }

 private:
  bool interrupts_;  // host code that is not trusted
};

void on_fault(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Pages& pages : device_pages) {
    if (!host_runs || address < pages.begin || address >= pages.end) continue;
    constexpr std::string_view text =
        "Host code has read or written device memory. On a GPU that is a crash: only kernels can reach it.\n";
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(touched_by_host + 1);
    _exit(touched_by_host);
  }
  std::signal(signal, SIG_DFL);  // the instruction runs again
}

void catch_faults() {
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = on_fault;
  sigaction(SIGSEGV, &action, nullptr);
}

// --- One task --------------------------------------------------------------------------------------------------------
struct Memory {
  std::byte* data = nullptr;  // of an image
};

std::byte* place(const MemoryImage& image) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, image.bytes.size()), "allocating device memory");
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  device_pages.push_back({begin / page * page, (begin + image.bytes.size() + page - 1) / page * page});
  add_device_memory(memory, image.bytes.size());
  check_cuda(cudaMemcpy(memory, image.bytes.data(), image.bytes.size(), cudaMemcpyHostToDevice), "copying");
  return static_cast<std::byte*>(memory);
}

void tell_counter(const MemoryImage& image, std::byte* data) {
  simt::name_memory(data + image.start, static_cast<size_t>(image.end - image.start), image.name);
  simt::forbid_memory(data, static_cast<size_t>(image.start));
  simt::forbid_memory(data + image.end, image.bytes.size() - static_cast<size_t>(image.end));
  if (image.is_output) simt::forget_memory(data + image.start, static_cast<size_t>(image.end - image.start));
}

const Variant::Implementation& find(const Program& program, const Task& task) {
  for (const Variant& variant : program.variants()) {
    if (variant.name() != task.variant) continue;
    for (const Variant::Implementation& each : variant.implementations()) {
      const ProblemOptions& o = task.options;
      if (each.operation == o.operation && each.dtype == o.dtype && each.param_dtype == o.param_dtype) return each;
    }
  }
  throw std::runtime_error(fmt::format("there is no variant '{}' for this operation and type", task.variant));
}

// Bytes of the outputs that no kernel has written, as far as the counter was told.
size_t not_written(const Task& task, const std::vector<Memory>& memories) {
  size_t bytes = 0;
  for (size_t i = 0; i < task.images.size(); ++i) {
    const MemoryImage& image = task.images[i];
    if (!image.is_output || memories[i].data == nullptr) continue;
    const auto size = static_cast<int64_t>(size_of(image.dtype));
    for (int64_t row = 0; row < image.rows; ++row) {
      bytes += simt::bytes_not_written(memories[i].data + image.start + row * image.stride * size,
                                       static_cast<size_t>(image.cols * size));
    }
  }
  return bytes;
}

// On a part of the stack of its own.
[[gnu::noinline]] void run_untrusted(const Variant::Implementation& implementation, const DeviceArguments& arguments) {
  const std::pair call{&implementation, &arguments};
  const HostCode untrusted;
  const std::string thrown = call_guarded(
      [](const void* what) {
        const auto& [function, its_arguments] = *static_cast<const decltype(call)*>(what);
        function->launch(*its_arguments, nullptr);
      },
      &call);
  if (!thrown.empty()) throw std::runtime_error(thrown);
}

Outcome run_task(const Program& program, const Task& task, Json& counts) {
  std::vector<Memory> memories;
  DeviceArguments arguments{task.options, {}};
  device_pages.clear();
  forget_device_memory();
  for (const MemoryImage& image : task.images) {
    Memory& memory = memories.emplace_back();
    if (!image.bytes.empty()) {
      memory.data = place(image);
      tell_counter(image, memory.data);
    }
    std::byte* data = memory.data != nullptr ? memory.data + image.start : nullptr;
    if (image.lies_in >= 0) {
      const auto other = static_cast<size_t>(image.lies_in);
      data = memories.at(other).data + task.images[other].start;
    }
    arguments.tensors.push_back({image.name, image.dtype, data, image.stride});
  }

  Outcome outcome;
  simt::start_counting();
  try {
    run_untrusted(find(program, task), arguments);
    check_cuda(cudaGetLastError(), "launching");
    check_cuda(cudaDeviceSynchronize(), "running the kernel");
    for (size_t i = 0; i < task.images.size(); ++i) {
      std::vector<std::byte>& bytes = outcome.images.emplace_back(task.images[i].bytes.size());
      if (bytes.empty()) continue;
      check_cuda(cudaMemcpy(bytes.data(), memories[i].data, bytes.size(), cudaMemcpyDeviceToHost), "copying");
    }
  } catch (const std::exception& error) {
    const std::string message = simt::last_error_message();
    outcome = {.error = message.empty() ? error.what() : message, .images = {}};
    if (outcome.error.empty()) outcome.error = "an exception without a text";
  }
  Json kernels = Json::array();
  for (const simt::KernelCounts& kernel : simt::take_counts()) kernels.push_back(json_of(kernel));
  counts = {{"rows", task.options.rows},
            {"cols", task.options.cols},
            {"pixels", task.options.pixels},
            {"error", outcome.error},
            {"not_written", outcome.error.empty() ? not_written(task, memories) : 0},
            {"kernels", kernels}};
  device_pages.clear();
  cudaDeviceReset();  // frees all, and forgets the error that a failed kernel left
  simt::clear_error();
  return outcome;
}

// What the CPU layer reads of files when it first needs it: symbols and lines, the variables in shared memory.
__global__ void nothing() {}
void read_what_is_needed() {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 1), "allocating device memory");
  launch(nothing, {.grid = dim3(1), .block = dim3(1)});
  check_cuda(cudaDeviceSynchronize(), "running a kernel");
  check_cuda(cudaFree(memory), "freeing");
  const auto address = reinterpret_cast<uintptr_t>(&read_what_is_needed);
  simt::detail::function_name(reinterpret_cast<const void*>(address));
  simt::detail::source_line(address);
}

}  // namespace

namespace {

// The stream that a submission is given is the default one, and of others it could only make up the address.
void require_no_stream(cudaStream_t stream) {
  if (stream != nullptr) refuse_as("was about to use a stream that there is not");
}

}  // namespace

// The linker calls these where a submission asks for a launch, a copy or a fill (--wrap, by the names that its object
// has): the device may touch its memory.
cudaError_t real_launch(const cudaLaunchConfig_t& config, simt::detail::Call call) __asm__(
    "__real__ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE");
cudaError_t wrapped_launch(const cudaLaunchConfig_t& config, simt::detail::Call call) __asm__(
    "__wrap__ZN4simt6detail6launchERK18cudaLaunchConfig_tNS0_4CallE");
cudaError_t wrapped_launch(const cudaLaunchConfig_t& config, simt::detail::Call call) {
  const DeviceWork work;
  if (!work.is_to_be_looked_at()) return real_launch(config, std::move(call));
  require_no_stream(config.stream);
  if (!is_function(reinterpret_cast<const void*>(call.invoke))) refuse_as("was about to launch what is no kernel");
  // Without the function that copies the call for a graph, which would be called from here.
  return real_launch(config, {call.kernel, call.invoke, call.arguments, {}, {}});
}

#define AS_DEVICE_WORK(name, symbol, parameters, arguments, is_allowed)       \
  cudaError_t real_##name parameters __asm__("__real_" symbol);               \
  cudaError_t wrapped_##name parameters __asm__("__wrap_" symbol);            \
  cudaError_t wrapped_##name parameters {                                     \
    const DeviceWork work;                                                    \
    if (work.is_to_be_looked_at() && !(is_allowed)) {                         \
      refuse_as("was about to let the runtime write to what is not its own"); \
    }                                                                         \
    return real_##name arguments;                                             \
  }

AS_DEVICE_WORK(copy, "_Z10cudaMemcpyPvPKvm14cudaMemcpyKind",
               (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind),
               may_fill(to, bytes))
AS_DEVICE_WORK(copy_async, "_Z15cudaMemcpyAsyncPvPKvm14cudaMemcpyKindP11CUstream_st",
               (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
               (to, from, bytes, kind, stream), stream == nullptr && may_fill(to, bytes))
AS_DEVICE_WORK(copy_rows, "_Z12cudaMemcpy2DPvmPKvmmm14cudaMemcpyKind",
               (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                cudaMemcpyKind kind),
               (to, to_pitch, from, from_pitch, width, height, kind), may_fill(to, to_pitch* height))
AS_DEVICE_WORK(copy_rows_async, "_Z17cudaMemcpy2DAsyncPvmPKvmmm14cudaMemcpyKindP11CUstream_st",
               (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                cudaMemcpyKind kind, cudaStream_t stream),
               (to, to_pitch, from, from_pitch, width, height, kind, stream), may_fill(to, to_pitch* height))
AS_DEVICE_WORK(fill, "_Z10cudaMemsetPvim", (void* to, int byte, size_t bytes), (to, byte, bytes), may_fill(to, bytes))
AS_DEVICE_WORK(fill_async, "_Z15cudaMemsetAsyncPvimP11CUstream_st",
               (void* to, int byte, size_t bytes, cudaStream_t stream), (to, byte, bytes, stream),
               stream == nullptr && may_fill(to, bytes))
AS_DEVICE_WORK(graph, "_Z15cudaGraphLaunchP14CUgraphExec_stP11CUstream_st",
               (cudaGraphExec_t executable, cudaStream_t stream), (executable, stream), false)

namespace worklog {

int Program::run(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    const std::vector<Task> tasks = read_tasks(argv[1]);
    catch_faults();  // before the CPU layer's own handler, which hands on to this one
    read_what_is_needed();
    const char* const guarded = std::getenv("WORKLOG_GUARDED");
    is_looked_at = guarded != nullptr && *guarded == '1';
    if (is_looked_at) guard();
    close_the_door(std::getenv("WORKLOG_MEMORY_BYTES"));
    for (const Task& task : tasks) {
      Json counts;
      const Outcome outcome = run_task(*this, task, counts);
      if (argc > 3) write_all(counts_file, counts.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n");
      append_outcome(outcomes_file, outcome);
    }
    stop_guarding();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace worklog

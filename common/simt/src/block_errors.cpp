// Errors of a block: how a thread that fails gives the block up, and the message that says where everybody was.
//
// A thread that fails records its message and switches to the OS thread's own stack for good; the stacks of the block
// are used afresh by the next. Nothing on them is unwound, so no object with a destructor may be alive here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "asan.h"
#include "turns.h"

namespace simt::detail {

void BlockRunner::abandon() {
  abandoned_ = true;
#ifdef SIMT_ASAN
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  Context forgotten;
  switch_stack(scheduler_, &forgotten);
  __builtin_unreachable();
}

void BlockRunner::abandon_after(const Fault& fault) {
  in_engine_ = 1;
  fault_ = fault;
  faulted_ = true;
  abandon();
}

void BlockRunner::check_stop() {
  const Stop stop = launch_->stop.load(std::memory_order_relaxed);
  if (stop == Stop::none || stop == Stop::spin_limit) [[likely]]
    return;  // whoever spins or waits reports that limit
  if (stop == Stop::block_limit) {
    record_waiting(fmt::format("no block has started or finished for {} ms", launch_->options.block_limit.count()));
  }
  abandon();
}

std::string BlockRunner::prefix(unsigned thread, const SourceLine& at) const {
  return fmt::format("simt: kernel {}, block {}, thread {}{}: ", function_name(launch_->call.kernel), to_text(block_),
                     to_text(indices_[thread]), at.file.empty() ? "" : fmt::format(", {}:{}", at.file, at.line));
}

// Only notes the error: its message is put together on the OS thread's own stack, which is large enough to read debug
// information.
void BlockRunner::record(cudaError_t code, unsigned thread, const std::string& what, const SourceLine& at) {
  in_engine_ = 1;
  error_ = {code, thread, what, at, false};
}

void BlockRunner::record_waiting(const std::string& what) {
  record(cudaErrorLaunchTimeout, current_, what, {});
  error_.lists_waiting = true;
}

// Every set of waiting threads, with the line that they wait at. The message is under the name of the first.
void BlockRunner::add_waiting(Error& error) const {
  struct Waiting {
    std::string name;
    SourceLine at;
    unsigned first, count;
  };
  std::vector<Waiting> groups;
  for (unsigned thread = 0; thread < threads_; ++thread) {
    const Warp& warp = warps_[thread / warp_size];
    const Lane& lane = warp.lanes[thread % warp_size];
    const unsigned own = bit(thread % warp_size);
    Waiting waiting{"", {}, thread, 1};
    if (warp.at_barrier & own) {
      waiting.name = barrier_.name;
      waiting.at = {barrier_.site.file, barrier_.site.line};
    } else if (warp.at_collective & own) {
      waiting.name = fmt::format("{} with mask {:#010x}", lane.name, lane.mask);
      waiting.at = {lane.file, lane.line};
    } else if ((warp.at_converge | warp.at_group[0] | warp.at_group[1]) & own) {
      waiting.name = lane.name;
      waiting.at = {lane.file, lane.line};
    } else {
      continue;
    }
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const Waiting& other) {
      return other.name == waiting.name && other.at.file == waiting.at.file && other.at.line == waiting.at.line;
    });
    known == groups.end() ? groups.push_back(waiting) : static_cast<void>(++known->count);
  }
  for (const Waiting& group : groups) {
    error.what += fmt::format("\n  {} of {} threads, the first of them {}, wait at {}, {}:{}", group.count, threads_,
                              to_text(indices_[group.first]), group.name, group.at.file, group.at.line);
  }
  if (alive_ < threads_) error.what += fmt::format("\n  {} have returned", threads_ - alive_);
  if (!groups.empty()) {
    error.thread = groups[0].first;
    error.at = groups[0].at;
  }
}

void BlockRunner::trap(const std::string& what, Site site, cudaError_t code) {
  record(code, current_, what, site.file == nullptr ? SourceLine{} : SourceLine{site.file, site.line});
}

// Names what a signal handler saw.
void BlockRunner::describe_fault() {
  const SourceLine at = source_line(fault_.instruction);
  std::string what;
  cudaError_t code = cudaErrorLaunchFailure;
  switch (fault_.signal) {
    case 0:  // the watchdog's
      if (launch_->stop.load() != Stop::block_limit) return;
      code = cudaErrorLaunchTimeout;
      what = fmt::format("no block has started or finished for {} ms; this thread was running here",
                         launch_->options.block_limit.count());
      break;
    case SIGSEGV:
    case SIGBUS:
      code = cudaErrorIllegalAddress;
      if (stacks_.in_guard(fault_.address)) {
        code = cudaErrorLaunchFailure;
        what = fmt::format("the thread's stack of {} KB overflowed", stack_bytes / 1024);
      } else if (fault_.code == SI_KERNEL) {
        code = cudaErrorMisalignedAddress;
        what = "an access to an address that is not aligned as its type asks, or that no pointer can hold";
      } else {
        const std::string shared = shared_.describe(fault_.address, *launch_);
        what = fmt::format("an access to {}", shared.empty() ? describe_address(fault_.address) : shared);
      }
      break;
    case SIGFPE:
      what = fault_.code == FPE_INTDIV ? "an integer division by zero" : "an arithmetic fault (SIGFPE)";
      break;
    case SIGABRT:
      what = "abort() was called";
      break;
    default:
      code = cudaErrorIllegalInstruction;
      what = "an illegal instruction";
  }
  record(code, current_, what, at);
}

// As the headers call it (simt/engine.h).

void trap(const char* what, Site site, int error) {
  BlockRunner& runner = runner_for(what);
  runner.trap(what, site, static_cast<cudaError_t>(error));
  runner.abandon();
}

}  // namespace simt::detail

// What assert() calls. In a kernel it ends the launch; elsewhere it ends the program, as the C library's does.
extern "C" [[noreturn]] void __assert_fail(const char* expression, const char* file, unsigned line,
                                           const char* function) noexcept {
  using simt::detail::BlockRunner;
  BlockRunner* const runner = BlockRunner::current();
  if (runner != nullptr && runner->in_kernel()) {
    runner->trap(fmt::format("assertion failed: {}", expression), {file, static_cast<int>(line)}, cudaErrorAssert);
    runner->abandon();
  }
  fmt::print(stderr, "{}:{}: {}: Assertion `{}' failed.\n", file, line, function, expression);
  std::abort();
}

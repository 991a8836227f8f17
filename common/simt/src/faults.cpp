// Signals, and the names and lines behind addresses.
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef SIMT_HAVE_BACKTRACE
#include <backtrace.h>
#endif

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "block.h"

namespace simt::detail {

namespace {

constexpr std::array fault_signals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int interrupt_signal = SIGURG;  // ignored by default, and debuggers pass it on in silence

std::array<struct sigaction, NSIG> previous_actions;

uintptr_t instruction_of(const ucontext_t& context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return context.uc_mcontext.pc;
#else
#error "The CPU layer needs x86-64 or aarch64."
#endif
}

// A fault of a running CUDA thread ends its launch: the handler switches from the signal stack back to the OS thread's
// own, and the fibers of the block are given up. SA_NODEFER leaves no signal blocked behind it.
void on_fault(int signal, siginfo_t* info, void* context) {
  BlockRunner* const runner = BlockRunner::current();
  if (runner != nullptr && runner->in_kernel()) {
    runner->abandon_after({signal, info->si_code, reinterpret_cast<uintptr_t>(info->si_addr),
                           instruction_of(*static_cast<ucontext_t*>(context))});
  }
  // Not ours: the action from before sees it when the instruction runs again.
  sigaction(signal, &previous_actions[static_cast<size_t>(signal)], nullptr);
  if (info->si_code <= 0) raise(signal);
}

// Runs on the stack of the CUDA thread that it interrupts, so that others can run before it returns. The signal brings
// the runner along: in a library that was loaded later, the first use of thread-local storage calls malloc(), which may
// be what is interrupted.
void on_interrupt(int, siginfo_t* info, void* context) {
  if (info->si_code != SI_QUEUE || info->si_pid != getpid()) return;  // somebody else's
  auto* const runner = static_cast<BlockRunner*>(info->si_value.sival_ptr);
  if (!runner->in_kernel() || runner->in_engine()) return;
  const int saved_errno = errno;
  runner->preempt(instruction_of(*static_cast<ucontext_t*>(context)));
  errno = saved_errno;
}

#ifdef SIMT_HAVE_BACKTRACE
backtrace_state* symbols() {
  static backtrace_state* const state = backtrace_create_state(
      nullptr, 1, [](void*, const char*, int) {}, nullptr);
  return state;
}
#endif

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  action.sa_sigaction = on_fault;
  for (const int signal : fault_signals) {
    sigaction(signal, &action, &previous_actions[static_cast<size_t>(signal)]);
  }
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  action.sa_sigaction = on_interrupt;
  sigaction(interrupt_signal, &action, &previous_actions[interrupt_signal]);
}

void use_signal_stack() {
  constexpr size_t bytes = 64 * 1024;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
}

void interrupt(pthread_t thread, BlockRunner& runner) {
  sigval value{};
  value.sival_ptr = &runner;
  pthread_sigqueue(thread, interrupt_signal, value);
}

std::string symbol_of(const void* function) {
  std::string symbol;
#ifdef SIMT_HAVE_BACKTRACE
  backtrace_syminfo(
      symbols(), reinterpret_cast<uintptr_t>(function),
      [](void* to, uintptr_t, const char* name, uintptr_t, uintptr_t) {
        if (name != nullptr) *static_cast<std::string*>(to) = name;
      },
      [](void*, const char*, int) {}, &symbol);
#endif
  if (symbol.empty()) {
    Dl_info info;
    if (dladdr(function, &info) != 0 && info.dli_sname != nullptr) symbol = info.dli_sname;
  }
  return symbol;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : symbol;
}

std::string function_name(const void* function) {
  const std::string symbol = symbol_of(function);
  if (symbol.empty()) return "of unknown name";
  std::string name = demangled(symbol);
  if (name.starts_with("void ")) name.erase(0, 5);  // the return type, which only templates have in their name
  // The parameters: the last pair of parentheses, which may hold others.
  if (name.ends_with(')')) {
    int depth = 0;
    for (size_t i = name.size(); i-- > 0;) {
      depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
      if (depth == 0) {
        name.erase(i);
        break;
      }
    }
  }
  return name;
}

SourceLine source_line([[maybe_unused]] uintptr_t address) {
  SourceLine result;
#ifdef SIMT_HAVE_BACKTRACE
  // Called for the innermost of the inlined functions first.
  backtrace_pcinfo(
      symbols(), address,
      [](void* to, uintptr_t, const char* file, int line, const char*) {
        if (file == nullptr) return 0;
        *static_cast<SourceLine*>(to) = {file, line};
        return std::string_view(file).find("common/simt/include/") == std::string_view::npos ? 1 : 0;
      },
      [](void*, const char*, int) {}, &result);
#endif
  return result.file.find("common/simt/src/") == std::string::npos ? result : SourceLine{};  // the engine's own
}

}  // namespace simt::detail

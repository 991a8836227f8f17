// The library opened by a program that runs, as Python opens it. Its threads then get their thread-local storage from
// malloc(), when they first use it. This program's malloc() is slow where it gives that much, so that the CPU layer's
// watchdog looks at such threads, and it ends the program if a thread that is in it calls it again: a signal handler
// that allocates waits for the very lock that the thread it interrupts holds.
#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "common/library/norm_worklog.h"

extern "C" void* __libc_malloc(size_t bytes);

namespace {

constexpr size_t much = 200'000;        // bytes: a block's dynamic shared memory alone is more
constexpr unsigned slow_for = 100'000;  // microseconds: ten looks of the watchdog

// Part of the program itself, whose thread-local storage is there from the start.
thread_local bool in_malloc = false;
int slow_calls = 0;

template <class Function>
Function* find(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    std::printf("%s is not in the library: %s\n", name, dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

extern "C" void* malloc(size_t bytes) {
  if (in_malloc) {
    constexpr char text[] = "malloc() was called within malloc(): by a signal handler\n";
    [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, sizeof text - 1);
    _exit(1);
  }
  in_malloc = true;
  if (bytes >= much) {
    __atomic_add_fetch(&slow_calls, 1, __ATOMIC_RELAXED);
    for (unsigned slept = 0; slept < slow_for; slept += 1000) usleep(1000);
  }
  void* const memory = __libc_malloc(bytes);
  in_malloc = false;
  return memory;
}

int main(int, char** arguments) {
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  constexpr int rows = 64, cols = 50;
  std::vector<float> x(rows * cols), y(rows * cols);
  std::iota(x.begin(), x.end(), 0.0f);
  nw_layernorm_forward_args args{};
  args.size = sizeof args;
  args.dtype = args.param_dtype = NW_FP32;
  args.x = x.data();
  args.y = y.data();
  args.rows = rows;
  args.cols = args.x_stride = args.y_stride = cols;
  args.eps = 1e-5f;
  if (find<decltype(nw_layernorm_forward)>(library, "nw_layernorm_forward")(&args, nullptr) != NW_OK) {
    std::printf("%s\n", find<decltype(nw_last_error)>(library, "nw_last_error")());
    return 1;
  }
  const double deviation = std::sqrt((cols * cols - 1) / 12.0 + 1e-5);
  for (int i = 0; i < rows * cols; ++i) {
    const double expected = (i % cols - (cols - 1) / 2.0) / deviation;
    if (std::fabs(y[static_cast<size_t>(i)] - expected) > 1e-3) {
      std::printf("y[%d] is %g, not %g\n", i, static_cast<double>(y[static_cast<size_t>(i)]), expected);
      return 1;
    }
  }
  if (slow_calls == 0) {
    std::printf("no thread got its thread-local storage from malloc(): nothing was tested\n");
    return 1;
  }
  return 0;
}

// The stacks that the threads of a block run on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "asan.h"

namespace simt::detail {

#ifdef SIMT_ASAN
constexpr size_t stack_bytes = 256 * 1024;
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif

// One thread's stack is next to the other's, a guard page between.
class Stacks {
 public:
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* bottom(unsigned fiber);  // lowest usable address
  char* top(unsigned fiber);     // where the stack starts, growing down
  bool in_guard(uintptr_t address) const;
  const char* memory() const { return memory_; }
  static size_t bytes();
  size_t usable_bytes(unsigned fiber) { return static_cast<size_t>(top(fiber) - bottom(fiber)); }
  void forget_abandoned();  // after the fibers on them have been given up

 private:
  char* memory_ = nullptr;
  unsigned guarded_ = 0;  // fibers whose guard page is set
};

}  // namespace simt::detail

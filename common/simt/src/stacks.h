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

constexpr size_t stack_guard_bytes = 4096;
constexpr size_t stack_stride = stack_bytes + stack_guard_bytes;

// From the begin of all stacks to where a fiber's starts, growing down. The tops are staggered over the sets of the
// first-level cache: the threads of a block wait at the same depth, and with page-aligned tops would all compete for
// the same few lines.
constexpr size_t offset_of_top(size_t fiber) {
  return (fiber + 1) * stack_stride - fiber * 192 % 4096;
}

// The begin of all stacks of the calling thread's blocks; null: it runs none.
const char* stacks_of_this_thread();

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

#include "stacks.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "block.h"

namespace simt::detail {

namespace {

// A process may have 65530 mappings, and a guard page costs two. Past this many, stacks go without.
std::atomic<int> guards_left{20'000};

}  // namespace

Stacks::Stacks() {
  void* const memory = mmap(nullptr, max_threads * stack_stride, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  madvise(memory_, max_threads * stack_stride, MADV_NOHUGEPAGE);
}

Stacks::~Stacks() {
  munmap(memory_, max_threads * stack_stride);
}

char* Stacks::bottom(unsigned fiber) {
  for (; guarded_ <= fiber; ++guarded_) {
    if (guards_left.fetch_sub(1, std::memory_order_relaxed) > 0) {
      mprotect(memory_ + guarded_ * stack_stride, stack_guard_bytes, PROT_NONE);
    }
  }
  return memory_ + fiber * stack_stride + stack_guard_bytes;
}

char* Stacks::top(unsigned fiber) {
  bottom(fiber);  // with its guard page
  return memory_ + offset_of_top(fiber);
}

bool Stacks::in_guard(uintptr_t address) const {
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(memory_);
  return offset < max_threads * stack_stride && offset % stack_stride < stack_guard_bytes;
}

size_t Stacks::bytes() {
  return max_threads * stack_stride;
}

void Stacks::forget_abandoned() {
#ifdef SIMT_ASAN
  for (unsigned fiber = 0; fiber < guarded_; ++fiber) __asan_unpoison_memory_region(bottom(fiber), stack_bytes);
#endif
}

}  // namespace simt::detail

// What g++ calls for each access to memory in code that was compiled with -fsanitize=thread. There these functions
// belong to the sanitizer's runtime, which is not linked; here they tell the recorder.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "recorder.h"

namespace simt {

namespace {
void (*write_guard)(const volatile void*, size_t, const void*) = nullptr;
void (*access_watcher)(const volatile void*, size_t) = nullptr;
}  // namespace

void guard_writes(void (*guard)(const volatile void* address, size_t bytes, const void* code)) {
  write_guard = guard;
}

void watch_accesses(void (*watcher)(const volatile void* address, size_t bytes)) {
  access_watcher = watcher;
}

namespace {
// What a block does between two barriers is kept: a loop that never ends takes all memory. The exception must not go
// through the frames of the kernel, which may be closed to it (common/classroom/guard.h).
template <class Record>
[[gnu::always_inline]] inline void recorded(Record record) {
  bool is_counted = true;
  try {
    record();
  } catch (const std::bad_alloc&) {
    is_counted = false;
  }
  if (!is_counted) {
    detail::recording->give_up();
    detail::trap("there is no memory left to count what its threads do: is there a loop that never ends?", {nullptr, 0},
                 cudaErrorMemoryAllocation);
  }
}
}  // namespace

void count_access(const volatile void* address, size_t bytes, bool is_write, const void* code) {
  if (detail::recording == nullptr) return;
  recorded([&] {
    detail::recording->access_range(reinterpret_cast<uintptr_t>(address), bytes, is_write,
                                    reinterpret_cast<uintptr_t>(code));
  });
}

bool is_in_kernel() {
  return detail::recording != nullptr;
}

}  // namespace simt

namespace {

using simt::detail::recording;

[[gnu::always_inline]] inline void before_write(const volatile void* address, size_t bytes) {
  if (simt::write_guard != nullptr) simt::write_guard(address, bytes, __builtin_return_address(0));
}

[[gnu::always_inline]] inline bool is_watched(const volatile void* address, size_t bytes) {
  if (recording == nullptr) return false;
  if (simt::access_watcher != nullptr) simt::access_watcher(address, bytes);
  return true;
}

[[gnu::always_inline]] inline void on_access(const volatile void* address, unsigned bytes, bool is_write) {
  if (is_write) before_write(address, bytes);
  if (!is_watched(address, bytes)) return;
  const auto code = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  simt::recorded([&] { recording->access(reinterpret_cast<uintptr_t>(address), bytes, is_write, code); });
}
[[gnu::always_inline]] inline void on_volatile(const volatile void* address, unsigned bytes, bool is_write) {
  if (is_write) before_write(address, bytes);
  if (!is_watched(address, bytes)) return;
  const auto code = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  simt::recorded([&] { recording->volatile_access(reinterpret_cast<uintptr_t>(address), bytes, is_write, code); });
}
[[gnu::always_inline]] inline void on_range(const void* address, size_t bytes, bool is_write) {
  if (is_write) before_write(address, bytes);
  if (!is_watched(address, bytes)) return;
  const auto code = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  simt::recorded([&] { recording->access_range(reinterpret_cast<uintptr_t>(address), bytes, is_write, code); });
}
[[gnu::always_inline]] inline void on_atomic(const volatile void* address, unsigned bytes) {
  if (recording == nullptr) return;
  const auto code = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  simt::recorded([&] { recording->atomic_access(reinterpret_cast<uintptr_t>(address), bytes, code); });
}

}  // namespace

// The compiler makes these names of a size; no function could.
#define SIMT_ACCESSES(bytes)                                   \
  void __tsan_read##bytes(void* address) {                     \
    on_access(address, bytes, false);                          \
  }                                                            \
  void __tsan_write##bytes(void* address) {                    \
    on_access(address, bytes, true);                           \
  }                                                            \
  void __tsan_unaligned_read##bytes(void* address) {           \
    on_access(address, bytes, false);                          \
  }                                                            \
  void __tsan_unaligned_write##bytes(void* address) {          \
    on_access(address, bytes, true);                           \
  }                                                            \
  void __tsan_volatile_read##bytes(void* address) {            \
    on_volatile(address, bytes, false);                        \
  }                                                            \
  void __tsan_volatile_write##bytes(void* address) {           \
    on_volatile(address, bytes, true);                         \
  }                                                            \
  void __tsan_unaligned_volatile_read##bytes(void* address) {  \
    on_volatile(address, bytes, false);                        \
  }                                                            \
  void __tsan_unaligned_volatile_write##bytes(void* address) { \
    on_volatile(address, bytes, true);                         \
  }

#define SIMT_ATOMIC_CHANGE(bits, name)                                                                       \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* address, uint##bits##_t value, int) { \
    before_write(address, bits / 8);                                                                         \
    on_atomic(address, bits / 8);                                                                            \
    return __atomic_##name(address, value, __ATOMIC_SEQ_CST);                                                \
  }

// The atomics of CUDA are made of fetch_add and of a load and a compare_exchange (simt/atomics.h); the load is part of
// the same operation, and an exchange that fails is tried again.
#define SIMT_ATOMICS(bits)                                                                                      \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* address, int) {                      \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* address, uint##bits##_t value, int) {               \
    before_write(address, bits / 8);                                                                            \
    on_atomic(address, bits / 8);                                                                               \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                             \
  uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t* address, uint##bits##_t value, int) {  \
    before_write(address, bits / 8);                                                                            \
    on_atomic(address, bits / 8);                                                                               \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                               \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* address, uint##bits##_t* expected, \
                                                    uint##bits##_t value, int, int) {                           \
    before_write(address, bits / 8);                                                                            \
    before_write(expected, bits / 8);                                                                           \
    const bool done =                                                                                           \
        __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
    if (done) on_atomic(address, bits / 8);                                                                     \
    return done;                                                                                                \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* address, uint##bits##_t* expected,   \
                                                  uint##bits##_t value, int, int) {                             \
    before_write(address, bits / 8);                                                                            \
    before_write(expected, bits / 8);                                                                           \
    const bool done =                                                                                           \
        __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
    if (done) on_atomic(address, bits / 8);                                                                     \
    return done;                                                                                                \
  }                                                                                                             \
  SIMT_ATOMIC_CHANGE(bits, fetch_add)                                                                           \
  SIMT_ATOMIC_CHANGE(bits, fetch_sub)                                                                           \
  SIMT_ATOMIC_CHANGE(bits, fetch_and)                                                                           \
  SIMT_ATOMIC_CHANGE(bits, fetch_or)                                                                            \
  SIMT_ATOMIC_CHANGE(bits, fetch_xor)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

SIMT_ACCESSES(1)
SIMT_ACCESSES(2)
SIMT_ACCESSES(4)
SIMT_ACCESSES(8)
SIMT_ACCESSES(16)
void __tsan_read_range(void* address, size_t bytes) {
  on_range(address, bytes, false);
}
void __tsan_write_range(void* address, size_t bytes) {
  on_range(address, bytes, true);
}

SIMT_ATOMICS(8)
SIMT_ATOMICS(16)
SIMT_ATOMICS(32)
SIMT_ATOMICS(64)
void __tsan_atomic_thread_fence(int) {
  if (recording != nullptr) recording->fence();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

}  // extern "C"

#include "common/classroom/guard.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <simt/counts.h>
#include <simt/engine.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/simt/src/launch.h"
#include "common/simt/src/stacks.h"

extern "C" {
extern char worklog_text_begin, worklog_text_end;
extern char worklog_data_begin, worklog_data_end, worklog_bss_begin, worklog_bss_end;
extern __thread char worklog_shared_begin, worklog_shared_end;
}
extern __thread unsigned char worklog_dynamic_shared[];

namespace worklog {
namespace {

constexpr int not_its_own = 88;            // exit code, known to grade.py
constexpr uintptr_t never_mapped = 65536;  // below it a write is a fault, which has a message of its own
constexpr size_t largest_dynamic_shared = 228 * 1024;

uintptr_t address_of(const volatile void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t address, size_t bytes) const {
    return address >= begin && address <= end && bytes <= end - address;
  }
};

std::atomic<bool> is_on{false};
std::atomic<uintptr_t> host_stack{0};
Range data, bss, device;

// Of the thread-local storage of each thread that has run a kernel: where the variables in shared memory lie.
struct Shared {
  Range fixed, dynamic;
};
std::array<Shared, 1100> shared_of;
std::atomic<size_t> threads{0};
__thread bool is_known = false;

// What host code has allocated.
std::mutex& lock_of_heap() {
  static std::mutex& instance = *new std::mutex();
  return instance;
}
std::vector<Range>& heap() {
  static std::vector<Range>& instance = *new std::vector<Range>();
  return instance;
}

[[noreturn]] void refuse(const char* what, uintptr_t code) {
  is_on = false;
  std::string where;
  if (code != 0) {
    const simt::detail::SourceLine line = simt::detail::source_line(code - 1);
    if (!line.file.empty()) where = fmt::format("{}:{}: ", line.file, line.line);
  }
  const std::string text = fmt::format("{}the submission's code {}.\n", where, what);
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(not_its_own + 1);
  _exit(not_its_own);
}

// The shared memory of a block, which lies `offset` away from that of the calling thread's.
void know_shared(uintptr_t offset) {
  const uintptr_t fixed = address_of(&worklog_shared_begin) + offset;
  const uintptr_t dynamic = address_of(worklog_dynamic_shared) + offset;
  const size_t count = std::min(threads.load(), shared_of.size());
  for (size_t i = 0; i < count; ++i) {
    if (shared_of[i].fixed.begin == fixed) return;
  }
  const size_t number = threads.fetch_add(1);
  if (number >= shared_of.size()) refuse("runs on more threads than can be watched", 0);
  shared_of[number] = {{fixed, address_of(&worklog_shared_end) + offset}, {dynamic, dynamic + largest_dynamic_shared}};
}

bool is_shared(uintptr_t address, size_t bytes) {
  const size_t count = std::min(threads.load(), shared_of.size());
  for (size_t i = 0; i < count; ++i) {
    if (shared_of[i].fixed.holds(address, bytes) || shared_of[i].dynamic.holds(address, bytes)) return true;
  }
  return false;
}

bool is_in_heap(uintptr_t address, size_t bytes) {
  const std::lock_guard lock(lock_of_heap());
  for (const Range& range : heap()) {
    if (range.holds(address, bytes)) return true;
  }
  return false;
}

// `code`: behind the instruction that is about to write.
void check_write(const volatile void* to, size_t bytes, uintptr_t code) {
  if (!is_on.load(std::memory_order_relaxed) || bytes == 0) return;
  const uintptr_t address = address_of(to), stack = address_of(__builtin_frame_address(0));
  if (simt::is_in_kernel()) {
    if (!is_known) know_shared(0);
    is_known = true;
    if (device.holds(address, bytes) || Range{stack, stack + simt::detail::stack_bytes}.holds(address, bytes)) return;
    if (is_shared(address, bytes)) return;
    // Every atomic operation notes here that something moves (simt/engine.h).
    const uintptr_t turns = address_of(&simt::detail::turns_without_change);
    if (Range{turns, turns + sizeof(simt::detail::turns_without_change)}.holds(address, bytes)) return;
  } else {
    const uintptr_t end = host_stack.load(std::memory_order_relaxed);
    if (end == 0 || Range{stack, end}.holds(address, bytes) || is_in_heap(address, bytes)) return;
  }
  if (data.holds(address, bytes) || bss.holds(address, bytes) || address < never_mapped) return;
  // Device memory that host code writes to is a fault, too.
  if (!simt::is_in_kernel() && device.holds(address, bytes)) return;
  refuse("was about to write to memory that is not its own", code);
}

void on_write(const volatile void* to, size_t bytes, const void* code) {
  check_write(to, bytes, address_of(code));
}

}  // namespace

void guard() {
  if (!simt::can_count()) return;
  data = {address_of(&worklog_data_begin), address_of(&worklog_data_end)};
  bss = {address_of(&worklog_bss_begin), address_of(&worklog_bss_end)};
  const bool in_order = data.begin < data.end && bss.begin < bss.end && &worklog_text_begin < &worklog_text_end &&
                        &worklog_shared_begin < &worklog_shared_end;
  if (!in_order) throw std::runtime_error("the linker has put the parts of the program into another order");
  simt::guard_writes(on_write);
  is_on = true;
}

void set_host_stack(const void* end) {
  host_stack = address_of(end);
}

void add_device_memory(const void* memory, size_t bytes) {
  const uintptr_t begin = address_of(memory);
  device = device.end == 0 ? Range{begin, begin + bytes}
                           : Range{std::min(device.begin, begin), std::max(device.end, begin + bytes)};
}

}  // namespace worklog

// --- What a submission's object calls in place of the C and the C++ library (grade.py renames the names) -------------
#define CALLER worklog::address_of(__builtin_return_address(0))

extern "C" {

void* guarded_new(size_t bytes) {
  void* const memory = operator new(bytes);
  if (!simt::is_in_kernel()) {
    const std::lock_guard lock(worklog::lock_of_heap());
    worklog::heap().push_back({worklog::address_of(memory), worklog::address_of(memory) + bytes});
  }
  return memory;
}
void guarded_delete(void* memory) {
  if (memory == nullptr) return;
  if (!simt::is_in_kernel()) {
    const std::lock_guard lock(worklog::lock_of_heap());
    std::erase_if(worklog::heap(), [&](const auto& range) { return range.begin == worklog::address_of(memory); });
  }
  operator delete(memory);
}
void guarded_sized_delete(void* memory, size_t) {
  guarded_delete(memory);
}
// For arrays: objcopy takes each name once.
[[gnu::alias("guarded_new")]] void* guarded_new_array(size_t bytes);
[[gnu::alias("guarded_delete")]] void guarded_delete_array(void* memory);
[[gnu::alias("guarded_sized_delete")]] void guarded_sized_delete_array(void* memory, size_t bytes);
void* __cxa_allocate_exception(size_t bytes) noexcept;
void* guarded_allocate_exception(size_t bytes) {
  void* const memory = __cxa_allocate_exception(bytes);
  const std::lock_guard lock(worklog::lock_of_heap());
  worklog::heap().push_back({worklog::address_of(memory), worklog::address_of(memory) + bytes});
  return memory;
}
void* guarded_memcpy(void* to, const void* from, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  return std::memcpy(to, from, bytes);
}
void* guarded_memmove(void* to, const void* from, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  return std::memmove(to, from, bytes);
}
void* guarded_memset(void* to, int byte, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  return std::memset(to, byte, bytes);
}
void guarded_sincos(double x, double* sine, double* cosine) {
  worklog::check_write(sine, sizeof(*sine), CALLER);
  worklog::check_write(cosine, sizeof(*cosine), CALLER);
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
void guarded_sincosf(float x, float* sine, float* cosine) {
  worklog::check_write(sine, sizeof(*sine), CALLER);
  worklog::check_write(cosine, sizeof(*cosine), CALLER);
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
cudaError_t guarded_get_device(int* device) {
  worklog::check_write(device, sizeof(*device), CALLER);
  return cudaGetDevice(device);
}
cudaError_t guarded_get_attribute(int* value, cudaDeviceAttr attribute, int device) {
  worklog::check_write(value, sizeof(*value), CALLER);
  return cudaDeviceGetAttribute(value, attribute, device);
}
cudaError_t guarded_get_function(cudaFuncAttributes* attributes, const void* function) {
  worklog::check_write(attributes, sizeof(*attributes), CALLER);
  return cudaFuncGetAttributes(attributes, function);
}
cudaError_t guarded_blocks(int* blocks, const void* function, int threads, size_t shared_bytes) {
  worklog::check_write(blocks, sizeof(*blocks), CALLER);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes);
}
cudaError_t guarded_clusters(int* clusters, const void* function, const cudaLaunchConfig_t* config) {
  worklog::check_write(clusters, sizeof(*clusters), CALLER);
  return cudaOccupancyMaxActiveClusters(clusters, function, config);
}

[[noreturn]] void worklog_strange_jump() {
  worklog::refuse("was about to call an address that is none of its functions", 0);
}

}  // extern "C"

void guarded_copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes,
                        simt::detail::Site site) __asm__("guarded_copy_later");
void guarded_copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, simt::detail::Site site) {
  worklog::check_write(to, bytes, CALLER);
  simt::detail::copy_later(to, from, bytes, zero_bytes, site);
}

// Another block of the cluster may not have written anything yet when this one writes to its shared memory.
void* guarded_map_to_rank(const void* shared, unsigned rank, const char* name,
                          simt::detail::Site site) __asm__("guarded_map_to_rank");
void* guarded_map_to_rank(const void* shared, unsigned rank, const char* name, simt::detail::Site site) {
  void* const found = simt::detail::map_to_rank(shared, rank, name, site);
  const bool is_own =
      worklog::Range{worklog::address_of(&worklog_shared_begin), worklog::address_of(&worklog_shared_end)}.holds(
          worklog::address_of(shared), 0) ||
      worklog::Range{worklog::address_of(worklog_dynamic_shared),
                     worklog::address_of(worklog_dynamic_shared) + worklog::largest_dynamic_shared}
          .holds(worklog::address_of(shared), 0);
  if (is_own) worklog::know_shared(worklog::address_of(found) - worklog::address_of(shared));
  return found;
}

// --- Calls through an address ----------------------------------------------------------------------------------------
// With -mindirect-branch=thunk-extern g++ jumps through these, one for each register that can hold the address.
#if defined(__x86_64__)
__asm__(R"(
  .text
worklog_refuse_jump:
  and $-16, %rsp
  call worklog_strange_jump
  .macro worklog_thunk register, spare
  .globl __x86_indirect_thunk_\register
  .type __x86_indirect_thunk_\register, @function
__x86_indirect_thunk_\register:
  push %\spare
  lea worklog_text_begin(%rip), %\spare
  cmp %\spare, %\register
  jb worklog_refuse_jump
  lea worklog_text_end(%rip), %\spare
  cmp %\spare, %\register
  jae worklog_refuse_jump
  pop %\spare
  jmp *%\register
  .size __x86_indirect_thunk_\register, . - __x86_indirect_thunk_\register
  .endm
  worklog_thunk rax, r11
  worklog_thunk rbx, r11
  worklog_thunk rcx, r11
  worklog_thunk rdx, r11
  worklog_thunk rsi, r11
  worklog_thunk rdi, r11
  worklog_thunk rbp, r11
  worklog_thunk r8, r11
  worklog_thunk r9, r11
  worklog_thunk r10, r11
  worklog_thunk r11, rax
  worklog_thunk r12, r11
  worklog_thunk r13, r11
  worklog_thunk r14, r11
  worklog_thunk r15, r11
)");
#endif

#include "common/classroom/guard.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <simt/counts.h>
#include <simt/engine.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "common/classroom/guard_look.h"
#include "common/device/capabilities.cuh"
#include "common/simt/src/launch.h"
#include "common/simt/src/stacks.h"

extern "C" {
extern char worklog_text_begin, worklog_text_end;
extern char worklog_data_begin, worklog_data_end, worklog_bss_begin, worklog_bss_end;
extern __thread char worklog_shared_begin, worklog_shared_end;
[[gnu::weak]] extern const uint64_t worklog_entry_mark;  // of an object that is checked (checked_assembly.py)

volatile unsigned char worklog_guard_is_on = 0;
uintptr_t worklog_text_from = 0, worklog_text_to = 0;
const uint64_t* worklog_mark = nullptr;
__thread uintptr_t worklog_stack_begin = 0, worklog_stack_bytes = 0, worklog_kept_distance = 0, worklog_entry = 0;
__thread uintptr_t worklog_depth = 0;
__thread worklog::Told* worklog_told = nullptr;
}
extern __thread unsigned char worklog_dynamic_shared[];

namespace worklog {
namespace {

constexpr int not_its_own = 88;            // exit code, known to grade.py
constexpr uintptr_t never_mapped = 65536;  // below it a write is a fault, which has a message of its own
constexpr size_t largest_dynamic_shared = 228 * 1024;
constexpr size_t host_stack_bytes = 6 << 20, page = 4096;

uintptr_t address_of(const volatile void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

std::atomic<uintptr_t> host_stack{0};
__thread bool is_known = false;  // the shared memory of this OS thread

char* other_variables = nullptr;  // those of the side that does not run, one after the other
size_t bytes_of_variables = 0;

// Where a submission's function is left that throws, and with what.
std::jmp_buf way_out;
std::string thrown;

bool is_mapped(uintptr_t address, size_t bytes) {
  return std::any_of(std::begin(looking.mapped), std::end(looking.mapped),
                     [&](const Span& range) { return range.holds(address, bytes); });
}

bool is_on_device(uintptr_t address, size_t bytes) {
  return std::any_of(looking.device, looking.device + looking.devices,
                     [&](const Span& range) { return range.holds(address, bytes); });
}

// What host code has allocated since it is watched.
std::mutex& lock_of_heap() {
  static std::mutex& instance = *new std::mutex();
  return instance;
}
std::vector<Span>& heap() {
  static std::vector<Span>& instance = *new std::vector<Span>();
  return instance;
}

[[noreturn]] void refuse(const char* what, uintptr_t code) {
  worklog_guard_is_on = 0;
  std::string where;
  if (code != 0) {
    const simt::detail::SourceLine line = simt::detail::source_line(code - 1);
    if (!line.file.empty()) where = fmt::format("{}:{}: ", line.file, line.line);
  }
  const std::string text = fmt::format("{}the submission's code {}.\n", where, what);
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(not_its_own + 1);
  _exit(not_its_own);
}

// An exception of ours that came to the submission's frames, as where there is no memory left; or one of its own that
// has no text. Nothing is allocated here.
[[noreturn]] void on_terminate() {
  worklog_guard_is_on = 0;
  constexpr std::string_view text =
      "the submission's code was ended by std::terminate: there is no memory left, or what it threw is no exception.\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(not_its_own + 1);
  _exit(not_its_own);
}

// The shared memory of a block, which lies `offset` away from that of the calling thread's.
void know_shared(uintptr_t offset) {
  static std::mutex& mutex = *new std::mutex();
  const std::lock_guard lock(mutex);
  const uintptr_t fixed = address_of(&worklog_shared_begin) + offset;
  const uintptr_t dynamic = address_of(worklog_dynamic_shared) + offset;
  const unsigned count = looking.shareds;
  for (unsigned i = 0; i < count; i += 2) {
    if (looking.shared[i].begin == fixed) return;
  }
  if (count + 2 > std::size(looking.shared)) refuse("runs on more threads than can be watched", 0);
  looking.shared[count] = {fixed, address_of(&worklog_shared_end) + offset};
  looking.shared[count + 1] = {dynamic, dynamic + largest_dynamic_shared};
  __atomic_store_n(&looking.shareds, count + 2, __ATOMIC_RELEASE);
}

bool is_shared(uintptr_t address, size_t bytes) {
  return std::any_of(looking.shared, looking.shared + looking.shareds,
                     [&](const Span& range) { return range.holds(address, bytes); });
}

bool is_in_heap(uintptr_t address, size_t bytes) {
  const std::lock_guard lock(lock_of_heap());
  return std::any_of(heap().begin(), heap().end(), [&](const Span& range) { return range.holds(address, bytes); });
}

// The end of the running CUDA thread's stack, as far as it is its own.
uintptr_t end_of_stack(uintptr_t stack) {
  const uintptr_t begin = address_of(simt::detail::stacks_of_this_thread());
  const size_t number = (stack - begin) / simt::detail::stack_stride;
  return begin + simt::detail::offset_of_top(number) - worklog_depth;
}

// `code`: behind the instruction that is about to write, or behind the call of what is about to.
void check_write(const volatile void* to, size_t bytes, uintptr_t code) {
  if (worklog_guard_is_on == 0 || bytes == 0) return;
  const uintptr_t address = address_of(to), stack = address_of(__builtin_frame_address(0));
  if (simt::is_in_kernel()) {
    if (!is_known) know_shared(0);
    is_known = true;
    if (is_on_device(address, bytes) || is_shared(address, bytes) || is_mapped(address, bytes)) return;
    if (Span{stack, end_of_stack(stack)}.holds(address, bytes)) return;
    if (to == &simt::detail::turns_without_change) return;  // by an atomic operation, in the CPU layer's header
  } else {
    const uintptr_t called_from = worklog_entry != 0 ? worklog_entry : ~uintptr_t{0};
    const uintptr_t end = std::min(host_stack.load(std::memory_order_relaxed), called_from);
    if (Span{stack, end}.holds(address, bytes) || is_in_heap(address, bytes)) return;
    if (is_on_device(address, bytes)) return;  // a fault, which has a message of its own
  }
  if (looking.data.holds(address, bytes) || looking.bss.holds(address, bytes) || address < never_mapped) return;
  refuse("was about to write to memory that is not its own", code);
}

void on_write(const volatile void* to, size_t bytes, const void* code) {
  check_write(to, bytes, address_of(code));
}

void on_told(const volatile void* address, size_t bytes) {
  if (worklog_told == nullptr) return;
  const uintptr_t stack = address_of(__builtin_frame_address(0));
  Told& told = worklog_told[(stack - worklog_stack_begin) / simt::detail::stack_stride];
  told.of[told.next++ % std::size(told.of)] = {address_of(address), address_of(address) + bytes};
}

// Memory beside a stack in which what must not change is kept. It is no memory of the program's in the sense of its
// limit, as most of it is never touched.
uintptr_t kept_beside(size_t bytes) {
  void* const kept =
      mmap(nullptr, bytes + 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (kept == MAP_FAILED) refuse("needs more memory than there is", 0);
  return address_of(kept) + page;
}

void know_stack(uintptr_t begin, size_t bytes) {
  worklog_kept_distance = kept_beside(bytes) - begin;
  worklog_stack_begin = begin;
  worklog_stack_bytes = bytes;
}

// The text of what was thrown, of the types that the standard library has: another's function could be anywhere.
std::string text_of_thrown(void* object, const std::type_info& type) {
  for (const std::type_info* each : {&typeid(std::runtime_error), &typeid(std::range_error),
                                     &typeid(std::overflow_error), &typeid(std::underflow_error)}) {
    if (type == *each) return static_cast<std::runtime_error*>(object)->std::runtime_error::what();
  }
  for (const std::type_info* each :
       {&typeid(std::logic_error), &typeid(std::invalid_argument), &typeid(std::domain_error),
        &typeid(std::length_error), &typeid(std::out_of_range)}) {
    if (type == *each) return static_cast<std::logic_error*>(object)->std::logic_error::what();
  }
  if (std::strcmp(type.name(), typeid(CudaError).name()) == 0) {  // the object has a copy of its own of the type
    return static_cast<std::runtime_error*>(object)->std::runtime_error::what();
  }
  return "";
}

// The submission's function is left at once: its frames on the stack may hold anything, so nothing looks for a handler
// there.
[[noreturn]] void leave_with(const std::string& text) {
  if (worklog_guard_is_on == 0) throw std::runtime_error(text);
  if (simt::is_in_kernel()) refuse("throws an exception in a kernel", 0);
  if (host_stack.load() == 0 || text.empty()) std::terminate();
  thrown = text;
  std::longjmp(way_out, 1);
}

}  // namespace

void guard() {
  if (!simt::can_count()) return;
  looking.text = {address_of(&worklog_text_begin), address_of(&worklog_text_end)};
  looking.data = {address_of(&worklog_data_begin), address_of(&worklog_data_end)};
  looking.bss = {address_of(&worklog_bss_begin), address_of(&worklog_bss_end)};
  const bool in_order = looking.data.begin < looking.data.end && looking.bss.begin < looking.bss.end &&
                        looking.text.begin < looking.text.end && &worklog_shared_begin < &worklog_shared_end;
  if (!in_order) throw std::runtime_error("the linker has put the parts of the program into another order");
#if defined(__x86_64__)
  if (&worklog_entry_mark == nullptr) throw std::runtime_error("the program is not checked");
#endif
  worklog_mark = &worklog_entry_mark;
  worklog_text_from = looking.text.begin;
  worklog_text_to = looking.text.end;
  const size_t of_data = looking.data.end - looking.data.begin;
  bytes_of_variables = of_data + (looking.bss.end - looking.bss.begin);
  other_variables = reinterpret_cast<char*>(kept_beside(bytes_of_variables));
  std::memcpy(other_variables, reinterpret_cast<const void*>(looking.data.begin), of_data);
  mprotect(other_variables, bytes_of_variables, PROT_NONE);
  know_stack((address_of(__builtin_frame_address(0)) + page) / page * page - host_stack_bytes, host_stack_bytes);
  std::set_terminate(on_terminate);
  simt::guard_writes(on_write);
  simt::watch_accesses(on_told);
  worklog_guard_is_on = 1;
}

void stop_guarding() {
  worklog_guard_is_on = 0;
}

void exchange_variables(bool are_of_device) {
  if (worklog_guard_is_on == 0) return;
  if (are_of_device) mprotect(other_variables, bytes_of_variables, PROT_READ | PROT_WRITE);
  char* other = other_variables;
  for (const Span& span : {looking.data, looking.bss}) {
    auto* const begin = reinterpret_cast<char*>(span.begin);
    other = std::swap_ranges(begin, begin + (span.end - span.begin), other);
  }
  if (!are_of_device) mprotect(other_variables, bytes_of_variables, PROT_NONE);
}

void set_host_stack(const void* end) {
  host_stack = address_of(end);
}

void forget_device_memory() {
  looking.devices = 0;
}

void add_device_memory(const void* memory, size_t bytes) {
  if (looking.devices == std::size(looking.device)) throw std::runtime_error("there are too many tensors");
  looking.device[looking.devices++] = {address_of(memory), address_of(memory) + bytes};
}

bool may_fill(const void* memory, size_t bytes) {
  return worklog_guard_is_on == 0 || bytes == 0 || is_on_device(address_of(memory), bytes) ||
         is_mapped(address_of(memory), bytes);
}

bool is_function(const void* code) {
#if defined(__x86_64__)
  if (worklog_guard_is_on == 0) return true;
  const uintptr_t address = address_of(code);
  return address - looking.text.begin >= 8 && looking.text.holds(address, 1) &&
         std::memcmp(static_cast<const char*>(code) - 8, worklog_mark, 8) == 0;
#else
  return code != nullptr;
#endif
}

void refuse_as(const char* what) {
  refuse(what, 0);
}

std::string call_guarded(void (*function)(const void*), const void* argument) {
  if (setjmp(way_out) != 0) return thrown;
  function(argument);
  return "";
}

}  // namespace worklog

// --- What a submission's object calls in place of the C and the C++ library (grade.py renames the names) -------------
#define CALLER worklog::address_of(__builtin_return_address(0))

extern "C" {

void* guarded_new(size_t bytes) {
  if (worklog_guard_is_on == 0) return operator new(bytes);
  if (simt::is_in_kernel()) worklog::refuse("allocates memory in a kernel, which the CPU layer does not do", CALLER);
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) worklog::leave_with("std::bad_alloc");
  const std::lock_guard lock(worklog::lock_of_heap());
  worklog::heap().push_back({worklog::address_of(memory), worklog::address_of(memory) + bytes});
  return memory;
}
void guarded_delete(void* memory) {
  if (memory == nullptr) return;
  if (worklog_guard_is_on != 0) {
    const std::lock_guard lock(worklog::lock_of_heap());
    const size_t freed =
        std::erase_if(worklog::heap(), [&](const auto& range) { return range.begin == worklog::address_of(memory); });
    if (freed == 0 || simt::is_in_kernel()) worklog::refuse("was about to free memory that is not its own", CALLER);
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
  if (worklog_guard_is_on != 0 && simt::is_in_kernel()) worklog::refuse("throws an exception in a kernel", CALLER);
  void* const memory = __cxa_allocate_exception(bytes);
  if (worklog_guard_is_on == 0) return memory;
  const std::lock_guard lock(worklog::lock_of_heap());
  worklog::heap().push_back({worklog::address_of(memory), worklog::address_of(memory) + bytes});
  return memory;
}
[[noreturn]] void guarded_throw(void* object, void* type, void (*destructor)(void*)) {
  if (worklog_guard_is_on == 0) __cxa_throw(object, type, destructor);
  worklog::leave_with(worklog::text_of_thrown(object, *static_cast<const std::type_info*>(type)));
}
[[noreturn]] void guarded_throw_bad_alloc() {
  worklog::leave_with("std::bad_alloc");
}
[[noreturn]] void guarded_throw_array_length() {
  worklog::leave_with("std::bad_array_new_length");
}
[[noreturn]] void guarded_throw_function_call() {
  worklog::leave_with("std::bad_function_call");
}
[[noreturn]] void guarded_throw_text(const char* text) {
  worklog::leave_with(text);
}
[[noreturn, gnu::alias("guarded_throw_text")]] void guarded_throw_length(const char* text);
[[noreturn, gnu::alias("guarded_throw_text")]] void guarded_throw_invalid(const char* text);
[[noreturn, gnu::alias("guarded_throw_text")]] void guarded_throw_range(const char* text);
[[noreturn, gnu::alias("guarded_throw_text")]] void guarded_throw_range_of(const char* text);

void* guarded_mmap(void* at, size_t bytes, int access, int flags, int file, off_t offset) {
  if (worklog_guard_is_on != 0 && (flags & MAP_FIXED) != 0) worklog::refuse("maps memory over other memory", CALLER);
  void* const memory = mmap(at, bytes, access, flags, file, offset);
  auto* const end = std::end(worklog::looking.mapped);
  auto* const slot =
      std::find_if(std::begin(worklog::looking.mapped), end, [](const worklog::Span& range) { return range.end == 0; });
  if (memory != MAP_FAILED && slot != end) {
    *slot = {worklog::address_of(memory), worklog::address_of(memory) + bytes};
  }
  return memory;
}
int guarded_munmap(void* memory, size_t bytes) {
  for (auto& range : worklog::looking.mapped) {
    if (range.begin != worklog::address_of(memory) || range.end - range.begin != bytes) continue;
    range = {};
    return munmap(memory, bytes);
  }
  if (worklog_guard_is_on != 0) worklog::refuse("was about to unmap memory that is not its own", CALLER);
  return munmap(memory, bytes);
}
int guarded_mprotect(void* memory, size_t bytes, int access) {
  if (worklog_guard_is_on != 0 && !worklog::is_mapped(worklog::address_of(memory), bytes)) {
    worklog::refuse("was about to open or close memory that is not its own", CALLER);
  }
  return mprotect(memory, bytes, access);
}
void* guarded_memcpy(void* to, const void* from, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  simt::count_access(from, bytes, false, __builtin_return_address(0));
  simt::count_access(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* guarded_memmove(void* to, const void* from, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  simt::count_access(from, bytes, false, __builtin_return_address(0));
  simt::count_access(to, bytes, true, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* guarded_memset(void* to, int byte, size_t bytes) {
  worklog::check_write(to, bytes, CALLER);
  simt::count_access(to, bytes, true, __builtin_return_address(0));
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
void guarded_sincosl(long double x, long double* sine, long double* cosine) {
  worklog::check_write(sine, sizeof(*sine), CALLER);
  worklog::check_write(cosine, sizeof(*cosine), CALLER);
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
cudaError_t guarded_synchronize(cudaStream_t stream) {
  if (worklog_guard_is_on != 0 && stream != nullptr) worklog::refuse("uses a stream that there is not", CALLER);
  return cudaStreamSynchronize(stream);
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
[[noreturn]] void worklog_strange_return() {
  worklog::refuse("was about to return to where it was not called from", 0);
}
[[noreturn]] void worklog_strange_call() {
  worklog::refuse("was about to call a function that a kernel has no need of", 0);
}

// What guard_look.cpp does not let through at once: it is counted, it is allowed, or it is the end.
void worklog_look_again_at_store(uintptr_t address, size_t bytes, uintptr_t, uintptr_t code) {
  auto* const to = reinterpret_cast<void*>(address);
  worklog::check_write(to, bytes, code);
  if (simt::is_in_kernel() && to != &simt::detail::turns_without_change) {
    simt::count_access(to, bytes, true, reinterpret_cast<const void*>(code));
  }
}
void worklog_look_again_at_load(uintptr_t address, size_t bytes, uintptr_t, uintptr_t code) {
  simt::count_access(reinterpret_cast<const void*>(address), bytes, false, reinterpret_cast<const void*>(code));
}
[[noreturn]] void worklog_look_again_at_frame(uintptr_t, size_t, uintptr_t, uintptr_t code) {
  worklog::refuse("was about to take more of the stack than there is", code);
}
// A function of the submission begins on a stack that is not known yet.
void worklog_find_stack(uintptr_t stack) {
  const char* const memory = simt::is_in_kernel() ? simt::detail::stacks_of_this_thread() : nullptr;
  const uintptr_t begin = worklog::address_of(memory);
  if (memory == nullptr || stack - begin >= simt::detail::Stacks::bytes()) {
    worklog::refuse("has used up the stack, or runs where it should not", 0);
  }
  const size_t stacks = simt::detail::Stacks::bytes() / simt::detail::stack_stride;
  worklog_told = reinterpret_cast<worklog::Told*>(worklog::kept_beside(stacks * sizeof(worklog::Told)));
  worklog::know_stack(begin, simt::detail::Stacks::bytes());
}

}  // extern "C"

void guarded_copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes,
                        simt::detail::Site site) __asm__("guarded_copy_later");
void guarded_copy_later(void* to, const void* from, size_t bytes, size_t zero_bytes, simt::detail::Site site) {
  // They are carried out later, when something else may lie where a part of the stack was.
  if (worklog_guard_is_on != 0 && (!worklog::is_shared(worklog::address_of(to), bytes) || zero_bytes > bytes)) {
    worklog::check_write(to, bytes, CALLER);  // where it is the first access to shared memory, it is known now
    if (!worklog::is_shared(worklog::address_of(to), bytes) || zero_bytes > bytes) {
      worklog::refuse("copies asynchronously to what is not shared memory", CALLER);
    }
  }
  simt::detail::copy_later(to, from, bytes, zero_bytes, site);
}

// Another block of the cluster may not have written anything yet when this one writes to its shared memory.
void* guarded_map_to_rank(const void* shared, unsigned rank, const char* name,
                          simt::detail::Site site) __asm__("guarded_map_to_rank");
void* guarded_map_to_rank(const void* shared, unsigned rank, const char* name, simt::detail::Site site) {
  void* const found = simt::detail::map_to_rank(shared, rank, name, site);
  const bool is_own =
      worklog::Span{worklog::address_of(&worklog_shared_begin), worklog::address_of(&worklog_shared_end)}.holds(
          worklog::address_of(shared), 0) ||
      worklog::Span{worklog::address_of(worklog_dynamic_shared),
                    worklog::address_of(worklog_dynamic_shared) + worklog::largest_dynamic_shared}
          .holds(worklog::address_of(shared), 0);
  if (is_own) worklog::know_shared(worklog::address_of(found) - worklog::address_of(shared));
  return found;
}

// --- What is put between the instructions of a submission's code (checked_assembly.py) ---
#if defined(__x86_64__)
__asm__(R"(
  .text
# A function begins. %r11: where to go on. The return address is kept; and what a function of ours that calls one of the
# submission's expects to find in its registers afterwards.
  .globl worklog_enter
  .type worklog_enter, @function
worklog_enter:
  cmpb $0, worklog_guard_is_on(%rip)
  je 1f
  movq %rsp, %r10
  subq %fs:worklog_stack_begin@tpoff, %r10
  cmpq %fs:worklog_stack_bytes@tpoff, %r10
  jae 3f
2:
  pushq %rax
  leaq 8(%rsp), %rax
  addq %fs:worklog_kept_distance@tpoff, %rax
  movq 8(%rsp), %r10
  movq %r10, (%rax)
  cmpq worklog_text_from(%rip), %r10
  jb 4f
  cmpq worklog_text_to(%rip), %r10
  jae 4f
  popq %rax
1:
  jmp *%r11
4:
  movq %rbx, 8(%rax)
  movq %rbp, 16(%rax)
  movq %r12, 24(%rax)
  movq %r13, 32(%rax)
  movq %r14, 40(%rax)
  movq %r15, 48(%rax)
  movq %fs:worklog_entry@tpoff, %r10
  movq %r10, 56(%rax)
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %rdi
  pushq %r8
  pushq %r9
  pushq %r11
  leaq 64(%rsp), %rdi
  call worklog_entered
  popq %r11
  popq %r9
  popq %r8
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popq %rax
  jmp *%r11
3:
  pushq %rbp
  movq %rsp, %rbp
  pushq %rax
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %rdi
  pushq %r8
  pushq %r9
  pushq %r11
  subq $512, %rsp
  andq $-64, %rsp
  fxsave64 (%rsp)
  leaq 8(%rbp), %rdi
  call worklog_find_stack
  fxrstor64 (%rsp)
  leaq -64(%rbp), %rsp
  popq %r11
  popq %r9
  popq %r8
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popq %rax
  popq %rbp
  jmp 2b
  .size worklog_enter, . - worklog_enter

# In place of a return.
  .globl worklog_leave
  .type worklog_leave, @function
worklog_leave:
  cmpb $0, worklog_guard_is_on(%rip)
  je 1f
  movq %rsp, %r11
  subq %fs:worklog_stack_begin@tpoff, %r11
  cmpq %fs:worklog_stack_bytes@tpoff, %r11
  jae 4f
  movq %rsp, %r11
  addq %fs:worklog_kept_distance@tpoff, %r11
  movq (%r11), %r10
  cmpq %r10, (%rsp)
  jne 4f
  movq $0, (%r11)
  cmpq worklog_text_from(%rip), %r10
  jb 2f
  cmpq worklog_text_to(%rip), %r10
  jae 2f
1:
  ret
2:
  movq 8(%r11), %rbx
  movq 16(%r11), %rbp
  movq 24(%r11), %r12
  movq 32(%r11), %r13
  movq 40(%r11), %r14
  movq 48(%r11), %r15
  movq 56(%r11), %r10
  testq %r10, %r10
  jz 1b
  movq %r10, %fs:worklog_entry@tpoff
  ret
4:
  andq $-16, %rsp
  call worklog_strange_return
  .size worklog_leave, . - worklog_leave

# An access: %rax has the address, and lies on the stack as it was. Nothing changes but the flags' and %rax's copies.
  .macro worklog_look name, at, bytes, times=0
  .globl \name
  .type \name, @function
\name:
  pushfq
  cmpb $0, worklog_guard_is_on(%rip)
  je worklog_no_look
  pushq %rcx
  .if \times
  imulq $\bytes, %rcx
  .else
  movl $\bytes, %ecx
  .endif
  jmp worklog_look_at_\at
  .size \name, . - \name
  .endm
  .macro worklog_look_in_storage name, at, bytes
  .globl \name
  .type \name, @function
\name:
  pushfq
  cmpb $0, worklog_guard_is_on(%rip)
  je worklog_no_look
  pushq %rcx
  movl $\bytes, %ecx
  addq %fs:0, %rax
  jmp worklog_look_at_\at
  .size \name, . - \name
  .endm
worklog_no_look:
  popfq
  ret
  .macro worklog_look_at at
worklog_look_at_\at:
  pushq %rdx
  pushq %rsi
  pushq %rdi
  pushq %r8
  pushq %r9
  pushq %r10
  pushq %r11
  pushq %rax
  pushq %rcx
  movq %rax, %rdi
  movq %rcx, %rsi
  leaq 104(%rsp), %rdx
  call worklog_may_\at
  testb %al, %al
  jz 2f
1:
  popq %rcx
  popq %rax
  popq %r11
  popq %r10
  popq %r9
  popq %r8
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popfq
  ret
2:
  movq (%rsp), %rsi
  movq 8(%rsp), %rdi
  leaq 104(%rsp), %rdx
  movq 88(%rsp), %rcx
  pushq %rbp
  movq %rsp, %rbp
  subq $512, %rsp
  andq $-64, %rsp
  fxsave64 (%rsp)
  call worklog_look_again_at_\at
  fxrstor64 (%rsp)
  movq %rbp, %rsp
  popq %rbp
  jmp 1b
  .endm
  worklog_look_at store
  worklog_look_at load
  worklog_look_at frame
  .irp bytes, 1, 2, 4, 8, 16
  worklog_look worklog_store_\bytes, store, \bytes
  worklog_look worklog_load_\bytes, load, \bytes
  worklog_look worklog_rep_store_\bytes, store, \bytes, 1
  worklog_look worklog_rep_load_\bytes, load, \bytes, 1
  worklog_look_in_storage worklog_store_fs_\bytes, store, \bytes
  .endr
  worklog_look worklog_frame, frame, 0

  .globl worklog_refuse_call
worklog_refuse_call:
  andq $-16, %rsp
  call worklog_strange_call

# A call through an address: with -mindirect-branch=thunk-extern g++ jumps through these, one for each register. The
# functions of the submission, and nothing else in its code, have the mark in front of them.
worklog_refuse_jump:
  andq $-16, %rsp
  call worklog_strange_jump
  .macro worklog_thunk register, spare
  .globl __x86_indirect_thunk_\register
  .type __x86_indirect_thunk_\register, @function
__x86_indirect_thunk_\register:
  cmpb $0, worklog_guard_is_on(%rip)
  je 1f
  pushq %\spare
  cmpq worklog_text_from(%rip), %\register
  jb worklog_refuse_jump
  cmpq worklog_text_to(%rip), %\register
  jae worklog_refuse_jump
  movq worklog_mark(%rip), %\spare
  movq (%\spare), %\spare
  cmpq %\spare, -8(%\register)
  jne worklog_refuse_jump
  popq %\spare
1:
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

// Device memory: allocations between pages that may not be touched.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>

#include "launch.h"
#include "observer.h"
#include "runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define SIMT_POISON(begin, bytes) __asan_poison_memory_region(begin, bytes)
#define SIMT_UNPOISON(begin, bytes) __asan_unpoison_memory_region(begin, bytes)
constexpr bool asan = true;
#else
#define SIMT_POISON(begin, bytes)
#define SIMT_UNPOISON(begin, bytes)
constexpr bool asan = false;
#endif

namespace simt::detail {

namespace {

constexpr size_t page = 4096;
constexpr size_t worth_huge_pages = size_t{4} << 20;  // bytes; a huge page has 2 MiB
constexpr size_t alignment = 256;                     // what cudaMalloc promises
constexpr size_t pitch_alignment = 512;
constexpr unsigned char fresh = 0xff, surroundings = 0xfd;
constexpr size_t most_freed_kept = 256;

struct Allocation {
  char* mapping;  // a page that may not be touched, the pages of the data, another page
  size_t mapped_bytes;
  char* data;
  size_t bytes;
  bool on_host;

  char* first_page() const { return mapping + page; }
  char* last_page() const { return mapping + mapped_bytes - page; }
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Allocation> allocations;  // by data
  std::deque<Allocation> freed;                   // the address space is held, so that a late access is a fault
  size_t bytes = 0;
};

Memory& memory() {
  static Memory& instance = *new Memory();  // outlives every kernel
  return instance;
}

size_t total_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    size_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return total_bytes();
}

cudaError_t allocate(void** pointer, size_t bytes, bool on_host) {
  if (pointer == nullptr) return remember_error(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > available_bytes()) return remember_error(cudaErrorMemoryAllocation);
  const size_t aligned = (bytes + alignment - 1) / alignment * alignment;
  const size_t pages = (bytes + page - 1) / page * page;
  const size_t mapped = pages + 2 * page;
  void* const mapping = reserve_addresses(mapped);
  if (mapping == MAP_FAILED) return remember_error(cudaErrorMemoryAllocation);
  Allocation allocation{static_cast<char*>(mapping), mapped, nullptr, bytes, on_host};
  if (mprotect(allocation.first_page(), pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, mapped);
    return remember_error(cudaErrorMemoryAllocation);
  }
  if (pages >= worth_huge_pages) madvise(allocation.first_page(), pages, MADV_HUGEPAGE);  // fewer page faults
  allocation.data = allocation.last_page() - aligned;  // as near to the page behind it as the alignment lets it
  char* const data_end = allocation.data + bytes;
  std::memset(allocation.first_page(), surroundings, static_cast<size_t>(allocation.data - allocation.first_page()));
  std::memset(allocation.data, fresh, bytes);
  std::memset(data_end, surroundings, static_cast<size_t>(allocation.last_page() - data_end));
  SIMT_POISON(allocation.first_page(), static_cast<size_t>(allocation.data - allocation.first_page()));
  SIMT_POISON(data_end, static_cast<size_t>(allocation.last_page() - data_end));

  observe_allocation(allocation.data, bytes);

  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  m.allocations.emplace(allocation.data, allocation);
  m.bytes += bytes;
  *pointer = allocation.data;
  return cudaSuccess;
}

void release(Memory& m, std::map<const char*, Allocation>::iterator found) {
  Allocation& allocation = found->second;
  SIMT_UNPOISON(allocation.first_page(), static_cast<size_t>(allocation.last_page() - allocation.first_page()));
  observe_free(allocation.data, allocation.bytes);
  m.bytes -= allocation.bytes;
  // A fresh mapping in its place gives the memory back and keeps the addresses.
  mmap(allocation.mapping, allocation.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  m.freed.push_back(allocation);
  m.allocations.erase(found);
  if (m.freed.size() > most_freed_kept) {
    munmap(m.freed.front().mapping, m.freed.front().mapped_bytes);
    m.freed.pop_front();
  }
}

cudaError_t free_pointer(void* pointer, bool on_host) {
  if (pointer == nullptr) return cudaSuccess;
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const auto found = m.allocations.find(static_cast<char*>(pointer));
  if (found == m.allocations.end() || found->second.on_host != on_host) return remember_error(cudaErrorInvalidValue);
  release(m, found);
  return cudaSuccess;
}

// The allocation whose data holds the address, or null.
const Allocation* find(const Memory& m, const void* pointer) {
  const char* const address = static_cast<const char*>(pointer);
  auto next = m.allocations.upper_bound(address);
  if (next == m.allocations.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  return address < allocation.data + allocation.bytes ? &allocation : nullptr;
}

bool is_device_range(const void* pointer, size_t bytes) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const Allocation* const allocation = find(m, pointer);
  return allocation != nullptr && !allocation->on_host &&
         bytes <= static_cast<size_t>(allocation->data + allocation->bytes - static_cast<const char*>(pointer));
}

}  // namespace

std::string describe_address(uintptr_t address) {
  if (address < 65536) return address == 0 ? "a null pointer" : fmt::format("address {:#x}: a null pointer", address);
  const char* const target = reinterpret_cast<const char*>(address);
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const auto within_mapping = [&](const Allocation& a) {
    return target >= a.mapping && target < a.mapping + a.mapped_bytes;
  };
  for (const auto& [data, a] : m.allocations) {
    if (!within_mapping(a)) continue;
    if (target >= a.data && target < a.data + a.bytes) {
      return fmt::format("byte {} of an allocation of {} bytes", target - a.data, a.bytes);
    }
    if (target >= a.data + a.bytes) {
      return fmt::format("address {:#x}: {} bytes past the end of an allocation of {} bytes", address,
                         target - (a.data + a.bytes), a.bytes);
    }
    return fmt::format("address {:#x}: {} bytes before an allocation of {} bytes", address, a.data - target, a.bytes);
  }
  for (const Allocation& a : m.freed) {
    if (within_mapping(a)) {
      return fmt::format("address {:#x}: in or near an allocation of {} bytes that has been freed", address, a.bytes);
    }
  }
  return fmt::format("address {:#x}: in no allocation", address);
}

std::string find_overrun() {
  if (asan) return {};  // which reports the access itself
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  for (const auto& [data, a] : m.allocations) {
    const auto first_changed = [](char* begin, char* end) {
      return std::find_if(begin, end, [](char byte) { return static_cast<unsigned char>(byte) != surroundings; });
    };
    char* const end = a.data + a.bytes;
    char* const behind = first_changed(end, a.last_page());
    char* const before = first_changed(a.first_page(), a.data);
    if (behind == a.last_page() && before == a.data) continue;
    const std::string where = behind != a.last_page() ? fmt::format("{} bytes past the end", behind - end)
                                                      : fmt::format("{} bytes before the start", a.data - before);
    std::memset(a.first_page(), surroundings, static_cast<size_t>(a.data - a.first_page()));
    std::memset(end, surroundings, static_cast<size_t>(a.last_page() - end));
    return fmt::format("a thread wrote {} of an allocation of {} bytes", where, a.bytes);
  }
  return {};
}

void free_all_allocations() {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  while (!m.allocations.empty()) release(m, m.allocations.begin());
}

}  // namespace simt::detail

using namespace simt::detail;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, false);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, false);
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  return allocate(pointer, bytes, false);
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  if (pointer == nullptr || pitch == nullptr) return remember_error(cudaErrorInvalidValue);
  const size_t rounded = (width + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
  size_t bytes = 0;
  if (rounded < width || __builtin_mul_overflow(rounded, height, &bytes)) {
    *pointer = nullptr;
    return remember_error(cudaErrorMemoryAllocation);
  }
  *pitch = rounded;
  return allocate(pointer, bytes, false);
}
cudaError_t cudaFree(void* pointer) {
  return free_pointer(pointer, false);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  return free_pointer(pointer, false);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, true);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, true);
}
cudaError_t cudaFreeHost(void* pointer) {
  return free_pointer(pointer, true);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = total_bytes();
  *free_bytes = available_bytes();
  return cudaSuccess;
}

cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int device, cudaStream_t) {
  if (device != 0 && device != cudaCpuDeviceId) return remember_error(cudaErrorInvalidDevice);
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const Allocation* const allocation = find(m, pointer);
  const bool is_within = allocation != nullptr && !allocation->on_host && bytes > 0 &&
                         find(m, static_cast<const std::byte*>(pointer) + (bytes - 1)) == allocation;
  if (!is_within) return remember_error(cudaErrorInvalidValue);
  return sticky_error;
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise, int device) {
  return cudaMemPrefetchAsync(pointer, bytes, device);
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location, unsigned,
                                 cudaStream_t stream) {
  const int device = location.type == cudaMemLocationTypeHost ? cudaCpuDeviceId : location.id;
  return cudaMemPrefetchAsync(pointer, bytes, device, stream);
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise, cudaMemLocation location) {
  return cudaMemPrefetchAsync(pointer, bytes, location, 0);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  const Allocation* const allocation = find(m, pointer);
  void* const address = const_cast<void*>(pointer);
  *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, address};
  if (allocation != nullptr) {
    *attributes = {allocation->on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice, 0, address,
                   allocation->on_host ? address : nullptr};
  }
  return cudaSuccess;
}

namespace simt::detail {

// Rows of `width` bytes; the whole extent of the device's side must lie within one allocation.
cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                      cudaMemcpyKind kind) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (to_pitch < width || from_pitch < width) return remember_error(cudaErrorInvalidPitchValue);
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return remember_error(cudaErrorInvalidMemcpyDirection);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to == nullptr || from == nullptr || (to_device && !is_device_range(to, to_pitch * (height - 1) + width)) ||
      (from_device && !is_device_range(from, from_pitch * (height - 1) + width))) {
    return remember_error(cudaErrorInvalidValue);
  }
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    if (to_device) observe_host_write(static_cast<char*>(to) + row * to_pitch, width);
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, int byte, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!is_device_range(to, bytes)) return remember_error(cudaErrorInvalidValue);
  std::memset(to, byte, bytes);
  observe_host_write(to, bytes);
  return cudaSuccess;
}

}  // namespace simt::detail

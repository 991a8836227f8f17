#include "shared_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "asan.h"

namespace simt::detail {

constexpr size_t shared_page = 4096;
constexpr size_t shared_redzone_bytes = 1024;

struct SharedStorage {
  unsigned char before[shared_page];
  unsigned char dynamic[max_shared_bytes + shared_redzone_bytes];
  unsigned char behind[shared_page];
};
static_assert(sizeof(SharedStorage) % shared_page == 0 && offsetof(SharedStorage, behind) % shared_page == 0);

namespace {

constexpr unsigned char poison_byte = 0xff;  // four of them are a NaN, as are two in either 16-bit type

// A counter finds every access by itself, and the address sanitizer's leak checker reads the whole storage.
#if defined(SIMT_COUNTING) || defined(SIMT_ASAN)
constexpr bool closes_pages = false;
#else
constexpr bool closes_pages = true;
#endif
#ifdef SIMT_COUNTING
constexpr bool looks_at_zones = false;
#else
constexpr bool looks_at_zones = true;
#endif

// The first byte that is not poison, or `bytes`.
size_t first_changed(const unsigned char* memory, size_t bytes) {
  static const std::array<unsigned char, shared_page> untouched = [] {
    std::array<unsigned char, shared_page> filled;
    filled.fill(poison_byte);
    return filled;
  }();
  for (size_t i = 0; i < bytes; i += shared_page) {
    const size_t piece = std::min(shared_page, bytes - i);
    if (std::memcmp(memory + i, untouched.data(), piece) == 0) continue;
    while (memory[i] == poison_byte) ++i;
    return i;
  }
  return bytes;
}

}  // namespace

alignas(shared_page) constinit thread_local SharedStorage shared_storage{};

}  // namespace simt::detail

// What common/device/launch.cuh declares is the middle of it.
asm(".globl worklog_dynamic_shared\n"
    ".set worklog_dynamic_shared, _ZN4simt6detail14shared_storageE + 4096\n"
    ".type worklog_dynamic_shared, %tls_object\n"
    ".size worklog_dynamic_shared, 228 * 1024\n");

namespace simt::detail {

static_assert(offsetof(SharedStorage, dynamic) == 4096 && sizeof(SharedStorage::dynamic) == 228 * 1024);

void SharedMemory::set_guard(const void* begin, size_t bytes) {
  guard_ = reinterpret_cast<uintptr_t>(begin);
  guard_bytes_ = bytes;
}

void SharedMemory::open(size_t bytes) {
  if (!closes_pages || sysconf(_SC_PAGESIZE) != shared_page) return;
  SharedStorage& storage = shared_storage;
  if (open_ > sizeof(storage.dynamic)) {  // the first time
    mprotect(storage.before, sizeof(storage.before), PROT_NONE);
    mprotect(storage.behind, sizeof(storage.behind), PROT_NONE);
    open_ = sizeof(storage.dynamic);
  }
  const auto [less, more] = std::minmax(open_, bytes);
  if (more > less) mprotect(storage.dynamic + less, more - less, bytes > open_ ? PROT_READ | PROT_WRITE : PROT_NONE);
  open_ = bytes;
}

void SharedMemory::prepare(const Launch& launch) {
  SharedStorage& storage = shared_storage;
  const size_t bytes = launch.shared_bytes;
  const size_t needed = bytes == 0 ? 0 : (bytes + shared_redzone_bytes + shared_page - 1) / shared_page * shared_page;
  if (needed != open_) open(needed);
#ifdef SIMT_ASAN
  __asan_poison_memory_region(storage.before, sizeof(storage.before));
  __asan_unpoison_memory_region(storage.dynamic, sizeof(storage.dynamic));
#endif
  if (bytes != 0) {
    std::memset(storage.dynamic, poison_byte, bytes);
    if (poisoned_after_ != bytes) {
      std::memset(storage.dynamic + bytes, poison_byte, shared_redzone_bytes);
      poisoned_after_ = bytes;
    }
  }
#ifdef SIMT_ASAN
  __asan_poison_memory_region(storage.dynamic + bytes, sizeof(storage.dynamic) - bytes);
#endif
  if (!looks_at_zones || zones_ == launch.zones) return;
  zones_ = launch.zones;
  if (zones_->all.empty()) return;
  const SharedVariables& variables = SharedVariables::instance();
  storage_ = storage.dynamic - variables[variables.dynamic()].offset;
  for (const auto& zone : zones_->all) std::memset(storage_ + zone.offset, poison_byte, zone.bytes);
}

std::string SharedMemory::find(const std::vector<SharedVariables::Zone>& zones) {
  for (const auto& zone : zones) {
    const size_t changed = first_changed(storage_ + zone.offset, zone.bytes);
    if (changed == zone.bytes) continue;
    zones_ = nullptr;
    const SharedVariables::Variable& variable = SharedVariables::instance()[zone.beside];
    const uintptr_t at = zone.offset + changed;
    const std::string where = at < variable.offset ? fmt::format("{} bytes in front of", variable.offset - at)
                                                   : fmt::format("{} bytes past the end of", at - variable.end());
    return fmt::format("{} the {} bytes of '{}' in shared memory; a counting build (`--count`) names the line", where,
                       variable.bytes, variable.name);
  }
  return "";
}

std::string SharedMemory::overrun_of_block(const Launch& launch) {
#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(shared_storage.dynamic, sizeof(shared_storage.dynamic));
#endif
  if (launch.shared_bytes != 0) {
    const size_t changed = first_changed(shared_storage.dynamic + launch.shared_bytes, shared_redzone_bytes);
    if (changed != shared_redzone_bytes) {
      poisoned_after_ = ~size_t{0};
      return fmt::format("{} bytes past the end of the {} bytes of dynamic shared memory that the launch asked for",
                         changed, launch.shared_bytes);
    }
  }
  return zones_ == nullptr ? "" : find(zones_->near);
}

std::string SharedMemory::overrun_of_launch(const Launch& launch) {
  return zones_ == nullptr || zones_ != launch.zones ? "" : find(zones_->all);
}

void SharedMemory::poison(const Launch& launch) {
  if (launch.shared_bytes != 0) std::memset(shared_storage.dynamic, poison_byte, launch.shared_bytes);
}

std::string SharedMemory::describe(uintptr_t address, const Launch& launch) const {
  const auto begin = reinterpret_cast<uintptr_t>(&shared_storage);
  const auto dynamic = reinterpret_cast<uintptr_t>(shared_storage.dynamic);
  if (address - begin >= sizeof(SharedStorage) && address - guard_ >= guard_bytes_) return "";
  const SharedVariables& variables = SharedVariables::instance();
  if (launch.shared_bytes != 0 && address >= dynamic) {
    return fmt::format(
        "address {:#x}: {} bytes past the end of the {} bytes of dynamic shared memory that the launch "
        "asked for",
        address, address - dynamic - launch.shared_bytes, launch.shared_bytes);
  }
  const uint16_t dynamic_number = variables.dynamic();
  const uintptr_t storage = dynamic_number == SharedVariables::none ? 0 : dynamic - variables[dynamic_number].offset;
  const uint16_t number = storage == 0 ? SharedVariables::none : variables.own_before(address - storage);
  if (number != SharedVariables::none) {
    const SharedVariables::Variable& variable = variables[number];
    return fmt::format("address {:#x}: {} bytes past the end of the {} bytes of '{}' in shared memory", address,
                       address - storage - variable.end(), variable.bytes, variable.name);
  }
  if (launch.shared_bytes != 0) {
    return fmt::format("address {:#x}: {} bytes in front of the dynamic shared memory", address, dynamic - address);
  }
  return fmt::format("address {:#x}: in dynamic shared memory, of which the launch asked for none", address);
}

}  // namespace simt::detail

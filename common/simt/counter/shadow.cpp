#include "shadow.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simt::detail {

namespace {

void* reserve_or_end(size_t bytes, int protection) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    madvise(memory, bytes, MADV_NOHUGEPAGE);  // little of it is ever touched, here and there
    return memory;
  }
  std::fprintf(stderr, "simt: counting reserves %zu GiB of addresses (not of memory), which this system refuses\n",
               bytes >> 30);
  std::exit(2);
}

}  // namespace

Shadow& Shadow::instance() {
  static Shadow& shadow = *new Shadow();  // outlives every kernel
  return shadow;
}

Shadow::Shadow() {
  arena_ = reinterpret_cast<uintptr_t>(reserve_or_end(arena_bytes, PROT_NONE));
  next_ = arena_;
  constexpr int read_write = PROT_READ | PROT_WRITE;
  const size_t sectors = arena_bytes / sector_bytes;
  states_ = static_cast<uint8_t*>(reserve_or_end(arena_bytes, read_write));
  writers_ = static_cast<std::atomic<uint64_t>*>(reserve_or_end(arena_bytes / 2 * sizeof(uint64_t), read_write));
  sectors_read_ = static_cast<std::atomic<uint32_t>*>(reserve_or_end(sectors * sizeof(uint32_t), read_write));
  sectors_written_ = static_cast<std::atomic<uint32_t>*>(reserve_or_end(sectors * sizeof(uint32_t), read_write));
}

void* Shadow::reserve(size_t bytes) {
  const uintptr_t begin = next_.fetch_add(bytes);
  return begin + bytes <= arena_ + arena_bytes ? reinterpret_cast<void*>(begin) : MAP_FAILED;
}

void Shadow::set_state(const void* data, size_t bytes, ByteState state) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  if (covers(begin)) std::memset(states_ + (begin - arena_), static_cast<int>(state), bytes);
}

bool Shadow::write(uintptr_t address, unsigned bytes) {
  if (all_written(address, bytes)) return true;
  bool allowed = true;
  for (unsigned i = 0; i < bytes; ++i) {
    uint8_t& state = states_[address - arena_ + i];
    if (state == static_cast<uint8_t>(ByteState::unwritten)) state = static_cast<uint8_t>(ByteState::written);
    allowed &= state == static_cast<uint8_t>(ByteState::written);
  }
  return allowed;
}

}  // namespace simt::detail

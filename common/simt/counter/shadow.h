// What is known of each byte of device memory: whether it may be touched, whether it was written, and by which block.
//
// In a counting build all allocations lie in one reserved range of addresses, so that what is known of an address is at
// a fixed place beside it; pages that nobody asks about are never there.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

#include "simt/counts.h"

namespace simt::detail {

enum class ByteState : uint8_t {
  outside,    // in no allocation
  unwritten,  // allocated, and holding nothing that a kernel may use
  written,
  forbidden,  // in an allocation, but nobody's: a guard zone
};

constexpr size_t sector_bytes = 32;
constexpr size_t line_bytes = 128;

// Who wrote two bytes last: a run of a block, its thread and the instruction. Zero: nobody.
struct Writer {
  uint32_t run;
  uint16_t thread;
  uint16_t instruction;
};

class Shadow {
 public:
  static constexpr size_t arena_bytes = size_t{1} << 38;

  // The shadow of the process. Reserves the addresses when first asked; ends the program where they cannot be had.
  static Shadow& instance();

  bool covers(uintptr_t address) const { return address - arena_ < arena_bytes; }
  // The n-th sector of the arena.
  uint64_t sector_of(uintptr_t address) const { return (address - arena_) / sector_bytes; }

  // Addresses that were not used before; MAP_FAILED where there are none left.
  void* reserve(size_t bytes);
  void set_state(const void* data, size_t bytes, ByteState state);
  ByteState state(uintptr_t address) const { return static_cast<ByteState>(states_[address - arena_]); }

  // Whether all bytes are written; one comparison for what kernels do most.
  bool all_written(uintptr_t address, unsigned bytes) const;
  // Marks those that may be written as written. False: some may not be.
  bool write(uintptr_t address, unsigned bytes);

  // Puts the writer in, and returns the one from before.
  Writer exchange_writer(uintptr_t address, Writer writer);

  // True the first time in a launch.
  bool first_read(uint64_t sector, uint32_t launch) { return first(sectors_read_[sector], launch); }
  bool first_written(uint64_t sector, uint32_t launch) { return first(sectors_written_[sector], launch); }
  bool was_written(uint64_t sector, uint32_t launch) const {
    return sectors_written_[sector].load(std::memory_order_relaxed) == launch;
  }

 private:
  Shadow();
  static bool first(std::atomic<uint32_t>& stamp, uint32_t launch) {
    return stamp.load(std::memory_order_relaxed) != launch && stamp.exchange(launch) != launch;
  }

  uintptr_t arena_ = 0;
  std::atomic<uintptr_t> next_{0};
  uint8_t* states_ = nullptr;                      // by byte
  std::atomic<uint64_t>* writers_ = nullptr;       // by two bytes
  std::atomic<uint32_t>* sectors_read_ = nullptr;  // the last launch that read or wrote it
  std::atomic<uint32_t>* sectors_written_ = nullptr;
};

inline bool Shadow::all_written(uintptr_t address, unsigned bytes) const {
  static_assert(static_cast<uint8_t>(ByteState::written) == 2);
  const uint8_t* const states = states_ + (address - arena_);
  const auto matches = [states]<class Word>(Word all) {
    Word word;
    std::memcpy(&word, states, sizeof(Word));
    return word == all;
  };
  switch (bytes) {
    case 1:
      return matches(uint8_t{0x02});
    case 2:
      return matches(uint16_t{0x0202});
    case 4:
      return matches(uint32_t{0x02020202});
    case 8:
      return matches(uint64_t{0x0202020202020202});
    default:
      return all_written(address, bytes / 2) && all_written(address + bytes / 2, bytes - bytes / 2);
  }
}

inline Writer Shadow::exchange_writer(uintptr_t address, Writer writer) {
  std::atomic<uint64_t>& cell = writers_[(address - arena_) / 2];
  return std::bit_cast<Writer>(cell.exchange(std::bit_cast<uint64_t>(writer), std::memory_order_relaxed));
}

}  // namespace simt::detail

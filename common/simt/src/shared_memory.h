// The shared memory of the block that an OS thread runs, and what must stay untouched around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "launch.h"
#include "variables.h"

namespace simt::detail {

constexpr size_t max_shared_bytes = 227 * 1024;

// One to an OS thread that runs blocks, used on that thread only.
//
// Behind the dynamic shared memory that the launch asks for, 1 KiB is looked at after the block; the pages from there
// on may not be touched, nor may one in front and one behind. Around static __shared__ variables, which are
// thread-local ones, is what the variables of other kernels take: it is looked at after each block where it is near,
// and after the launch where it is far. What is looked at holds NaN meanwhile, so that a read past the end is no zero.
class SharedMemory {
 public:
  // Addresses behind the thread-local storage that may not be touched either.
  void set_guard(const void* begin, size_t bytes);

  // For a block of this launch.
  void prepare(const Launch& launch);
  // After it: where a thread has written and must not, as the end of "a thread wrote"; empty: nowhere.
  std::string overrun_of_block(const Launch& launch);
  std::string overrun_of_launch(const Launch& launch);
  void poison(const Launch& launch);  // of a cluster, whose other blocks might go on reading

  // What an address is that a thread of this block touched and may not; empty: nothing of the above.
  std::string describe(uintptr_t address, const Launch& launch) const;

 private:
  void open(size_t bytes);
  std::string find(const std::vector<SharedVariables::Zone>& zones);

  const SharedVariables::Zones* zones_ = nullptr;  // that hold what they should, but for what the running kernel does
  unsigned char* storage_ = nullptr;               // the thread-local storage of the program
  size_t poisoned_after_ = ~size_t{0};
  size_t open_ = ~size_t{0};  // bytes of dynamic memory that may be touched
  uintptr_t guard_ = 0;
  size_t guard_bytes_ = 0;
};

}  // namespace simt::detail

// Holds the code of a submission to what is its own, before it writes and before it jumps.
//
// Its kernels, the counters and what has come out lie in one process. In a counting build its code tells of each write
// before it makes it (simt::guard_writes), and asks before it jumps to an address. What it may write to: in a kernel,
// device memory, shared memory and the stack of the thread; on the host, its stack and what it has allocated; in both,
// the variables of its object, which is linked between two of ours (bounds_begin.cpp, bounds_end.cpp) so that it is
// known where they lie. Anything else ends the program, with a sentence and the line.
//
// This is no proof. A write that g++ does not tell of is not seen: the store of a struct that a call returns, a copy by
// memcpy that it writes itself, a write at a fixed distance from a variable on the stack. Nor are return addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace worklog {

// From here on. Throws std::runtime_error where the parts of the program do not lie as they were linked. In a build
// that does not count nothing is guarded.
void guard();

// While host code runs that is not trusted: the end of the stack that is its own. Null: it does not run.
void set_host_stack(const void* end);
// All device memory lies in this range.
void add_device_memory(const void* data, size_t bytes);

}  // namespace worklog

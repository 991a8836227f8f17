// Holds the code of a submission to what is its own, before it writes, jumps or returns.
//
// Its kernels, the counters and what has come out lie in one process. In a counting build on x86-64, its code is
// compiled to assembly, and checked_assembly.py puts calls of ours between the instructions. What it may write to: in a
// kernel, device memory, shared memory and the stack of the thread; on the host, its stack and what it has allocated;
// in both, the variables of its object, which is linked between two of ours (bounds_begin.cpp, bounds_end.cpp) so that
// it is known where they lie. What it reads or writes of device or shared memory without that g++ has told of it is
// counted all the same. Return addresses, and the registers that our functions expect to find again, are kept beside
// the stack, where it cannot write. Anything else ends the program, with a sentence and the line.
//
// On other processors only what g++ tells of is looked at (simt::guard_writes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace worklog {

// From here on. Throws std::runtime_error where the parts of the program do not lie as they were linked. In a build
// that does not count nothing is guarded.
void guard();

void stop_guarding();

// While host code runs that is not trusted: the end of the stack that is its own. Null: it does not run.
void set_host_stack(const void* end);
void forget_device_memory();
void add_device_memory(const void* data, size_t bytes);

// Each variable of the submission's object exists twice, once for the host and once for the device, as on a GPU. This
// puts the device's copy into its place, or the host's. The host cannot read the device's.
void exchange_variables(bool are_of_device);

// Whether these bytes are device memory, or nothing is guarded.
bool may_fill(const void* memory, size_t bytes);
// Whether code is the start of one of the submission's functions, or nothing is guarded.
bool is_function(const void* code);
// Ends the program; `what` goes on after "the submission's code".
[[noreturn]] void refuse_as(const char* what);
// Calls a function that calls the submission's. An exception that is thrown there is not looked for on the stack, which
// is the submission's: returned is its text, or nothing where there was none.
std::string call_guarded(void (*function)(const void*), const void* argument);

}  // namespace worklog

// What is known of memory when an instruction of a submission is looked at (guard.h), as plain data: guard_look.cpp,
// which looks, is compiled to leave the wide registers alone, and so includes nothing else.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace worklog {

struct Span {
  uintptr_t begin, end;
  bool holds(uintptr_t address, size_t bytes) const {
    return address >= begin && address <= end && bytes <= end - address;
  }
};

// The last accesses of a CUDA thread that g++ has told of: the instruction itself comes right after.
struct Told {
  Span of[4];
  unsigned next;
};

struct Looking {
  Span text, data, bss;  // of the submission's object
  Span device[64], mapped[64], shared[2200];
  unsigned devices, shareds;
};
extern Looking looking;

}  // namespace worklog

extern "C" {
extern volatile unsigned char worklog_guard_is_on;
extern const uint64_t* worklog_mark;  // in front of each of the submission's functions
// Of this OS thread: the stack, or the stacks of the threads of its blocks; how far behind lies what is kept of return
// addresses; where the submission's function was called from; for an OS thread that runs blocks, the rest.
extern __thread uintptr_t worklog_stack_begin, worklog_stack_bytes, worklog_kept_distance, worklog_entry;
extern __thread uintptr_t worklog_depth;      // from the top of a CUDA thread's stack down to there, the most
extern __thread worklog::Told* worklog_told;  // by stack; null: this OS thread runs no blocks

bool worklog_may_store(uintptr_t address, size_t bytes, uintptr_t stack);
bool worklog_may_load(uintptr_t address, size_t bytes, uintptr_t stack);
bool worklog_may_frame(uintptr_t address, size_t bytes, uintptr_t stack);
void worklog_entered(uintptr_t stack);
}

// Looks at the accesses of a submission's code one by one, between its instructions (guard.h).
#include "common/classroom/guard_look.h"

#include "common/simt/src/stacks.h"

namespace worklog {

Looking looking;

namespace {

size_t number_of_stack(uintptr_t address) {
  return (address - worklog_stack_begin) / simt::detail::stack_stride;
}

// The end of what is the submission's own of the stack that it runs on.
uintptr_t end_of_stack(uintptr_t stack) {
  if (worklog_told == nullptr) return worklog_entry;
  return worklog_stack_begin + simt::detail::offset_of_top(number_of_stack(stack)) - worklog_depth;
}

bool any_holds(const Span* spans, unsigned count, uintptr_t address, size_t bytes) {
  for (unsigned i = 0; i < count; ++i) {
    if (spans[i].holds(address, bytes)) return true;
  }
  return false;
}

bool is_counted(uintptr_t address, size_t bytes) {
  return any_holds(looking.device, looking.devices, address, bytes) ||
         any_holds(looking.shared, looking.shareds, address, bytes) || any_holds(looking.mapped, 64, address, bytes);
}

bool was_told(uintptr_t address, size_t bytes, uintptr_t stack) {
  const Told& told = worklog_told[number_of_stack(stack)];
  return any_holds(told.of, 4, address, bytes);
}

}  // namespace
}  // namespace worklog

using namespace worklog;

extern "C" {

bool worklog_may_store(uintptr_t address, size_t bytes, uintptr_t stack) {
  if (bytes == 0 || Span{stack, end_of_stack(stack)}.holds(address, bytes)) return true;
  if (looking.data.holds(address, bytes) || looking.bss.holds(address, bytes)) return true;
  return worklog_told != nullptr && was_told(address, bytes, stack) && is_counted(address, bytes);
}

// Reading is forbidden nowhere; what a kernel reads is counted.
bool worklog_may_load(uintptr_t address, size_t bytes, uintptr_t stack) {
  if (bytes == 0 || worklog_told == nullptr || Span{stack, end_of_stack(stack)}.holds(address, bytes)) return true;
  return was_told(address, bytes, stack) || !is_counted(address, bytes);
}

// Where the stack pointer may be moved to, with room for what comes below it.
bool worklog_may_frame(uintptr_t address, size_t, uintptr_t stack) {
  constexpr uintptr_t room = 2048;
  uintptr_t begin = worklog_stack_begin;
  if (worklog_told != nullptr) {
    begin += number_of_stack(stack) * simt::detail::stack_stride + simt::detail::stack_guard_bytes;
  }
  return address >= begin + room && address <= end_of_stack(stack);
}

// A function of the submission was called by one that is not; `stack`: where the return address lies.
void worklog_entered(uintptr_t stack) {
  worklog_entry = stack;
  if (worklog_told == nullptr) return;
  const size_t number = number_of_stack(stack);
  worklog_told[number] = Told{};
  const uintptr_t depth = worklog_stack_begin + simt::detail::offset_of_top(number) - stack;
  if (depth > worklog_depth) worklog_depth = depth;
}

}  // extern "C"

// The parts of simt/counts.h that need no counting build, and what the rest does in an ordinary one: nothing.
#include "simt/counts.h"

#include <initializer_list>

namespace simt {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::global_load:
      return "global_load";
    case Operation::global_store:
      return "global_store";
    case Operation::global_atomic:
      return "global_atomic";
    case Operation::async_copy_load:
      return "async_copy_load";
    case Operation::shared_load:
      return "shared_load";
    case Operation::shared_store:
      return "shared_store";
    case Operation::shared_atomic:
      return "shared_atomic";
    case Operation::async_copy_store:
      return "async_copy_store";
    case Operation::remote_shared:
      return "remote_shared";
    case Operation::shuffle:
      return "shuffle";
    case Operation::vote:
      return "vote";
    case Operation::warp_sync:
      return "warp_sync";
    case Operation::barrier:
      return "barrier";
    case Operation::group_barrier:
      break;
  }
  return "group_barrier";
}

std::string_view name_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::shared_race:
      return "shared_race";
    case FindingKind::global_write_race:
      return "global_write_race";
    case FindingKind::global_race:
      return "global_race";
    case FindingKind::uninitialized_read:
      return "uninitialized_read";
    case FindingKind::out_of_bounds:
      return "out_of_bounds";
    case FindingKind::misaligned:
      break;
  }
  return "misaligned";
}

Counts& Counts::operator+=(const Counts& other) {
  requests += other.requests;
  lanes += other.lanes;
  bytes_asked += other.bytes_asked;
  bytes_used += other.bytes_used;
  sectors += other.sectors;
  lines += other.lines;
  wavefronts += other.wavefronts;
  conflicts += other.conflicts;
  return *this;
}

Counts KernelCounts::total(std::initializer_list<Operation> of) const {
  Counts sum;
  for (const Operation operation : of) sum += counts[static_cast<size_t>(operation)];
  return sum;
}

#ifndef SIMT_COUNTING

bool can_count() {
  return false;
}
void start_counting() {}
std::vector<KernelCounts> take_counts() {
  return {};
}
void guard_writes(void (*)(const volatile void*, size_t, const void*)) {}
void watch_accesses(void (*)(const volatile void*, size_t)) {}
void count_access(const volatile void*, size_t, bool, const void*) {}
bool is_in_kernel() {
  return false;
}
void name_memory(const void*, size_t, std::string_view) {}
void forbid_memory(const void*, size_t) {}
void forget_memory(const void*, size_t) {}
size_t bytes_not_written(const void*, size_t) {
  return 0;
}
void watch_memory(const void*, size_t) {}
bool trace_found_block() {
  return false;
}
Trace take_trace() {
  return {};
}

#endif

}  // namespace simt

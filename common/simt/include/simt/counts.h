// What a kernel did to memory, counted. Only a counting build counts: one whose kernels were compiled with access
// callbacks and which is linked with common/simt/counter. CMake's worklog_count() makes one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <vector_types.h>

namespace simt {

// What is counted, each by itself.
enum class Operation : uint8_t {
  global_load,
  global_store,
  global_atomic,
  async_copy_load,  // the global side of an asynchronous copy to shared memory
  shared_load,
  shared_store,
  shared_atomic,
  async_copy_store,  // its shared side
  remote_shared,     // loads, stores and atomics of another block's shared memory, in a cluster
  shuffle,
  vote,           // ballots, matches and warp reductions
  warp_sync,      // __syncwarp
  barrier,        // of a block
  group_barrier,  // of a cluster or a grid
};
constexpr size_t operations = 14;
std::string_view name_of(Operation operation);  // "global_load"

// A request is one instruction of one warp: what up to 32 lanes ask for together. Barriers are counted once for the
// block; the other operations once for the warp.
struct Counts {
  uint64_t requests = 0;
  uint64_t lanes = 0;        // active ones, added up
  uint64_t bytes_asked = 0;  // of all lanes
  uint64_t bytes_used = 0;   // different bytes: fewer than asked for where lanes read the same
  uint64_t sectors = 0;      // of 32 bytes, that a request touches
  uint64_t lines = 0;        // of 128 bytes: an L1 cache looks up one in a cycle
  uint64_t wavefronts = 0;   // shared memory: passes over the 32 banks
  uint64_t conflicts = 0;    // of these the ones that a conflict-free layout of the same bytes would save

  Counts& operator+=(const Counts& other);
};
using CountsByOperation = std::array<Counts, operations>;

struct LineCounts {
  std::string file;  // empty: not known
  int line = 0;
  CountsByOperation counts{};
};

// What was done to a range that name_memory() named.
struct MemoryCounts {
  std::string name;
  uint64_t bytes = 0;       // its size
  uint64_t bytes_read = 0;  // asked for by all lanes; twice the size: read twice
  uint64_t bytes_written = 0;
};

enum class FindingKind : uint8_t {
  shared_race,         // two threads of a cluster, one of them writes, and nothing orders them
  global_write_race,   // two blocks write one place, and nothing orders them
  global_race,         // two threads of one block, one of them writes, and nothing orders them
  uninitialized_read,  // of memory that nobody has written
  out_of_bounds,       // outside of every allocation, or where nothing may be touched
  misaligned,          // a vector access that a GPU would refuse
};
std::string_view name_of(FindingKind kind);  // "shared_race"

struct Finding {
  FindingKind kind{};
  std::string text;  // one sentence with kernel, block, thread, file and line of both sides
  std::string file, other_file;
  int line = 0, other_line = 0;
  uint64_t count = 0;  // how often it happened at these lines
};

// One launch.
struct KernelCounts {
  std::string kernel;
  dim3 grid, block;
  unsigned cluster = 1;
  size_t shared_bytes = 0;  // dynamic
  CountsByOperation counts{};
  std::vector<LineCounts> lines;  // by file and line
  std::vector<MemoryCounts> memory;
  // What an endless cache would move: each sector is read once, where it is read before it is written, and written
  // back once.
  uint64_t dram_read_bytes = 0, dram_write_bytes = 0;
  uint64_t most_loads_of_thread = 0;  // loads from global memory of the thread that has most of them: the longest wait
  std::vector<Finding> findings;

  Counts total(std::initializer_list<Operation> of) const;
};

// One step of a warp (or, for barriers, of the block), for a picture of the run.
struct TraceStep {
  Operation operation{};
  unsigned warp = 0;
  std::string file;
  int line = 0;
  uint32_t lanes = 0;                 // active ones
  unsigned bytes = 0;                 // of each lane
  std::string memory;                 // the named range, or "shared"
  std::array<uint64_t, 32> offset{};  // of each lane's access, in that range; lanes that shuffle: the lane they read
};
struct Trace {
  std::string kernel;
  dim3 grid, block;
  uint3 traced_block{};
  std::vector<TraceStep> steps;  // in program order of each warp
};

// False in an ordinary build, where nothing below has an effect.
bool can_count();
// Forgets what was counted so far.
void start_counting();
// The launches since then, in order.
std::vector<KernelCounts> take_counts();

// From now on called before each write, by a kernel or by host code, that the compiler tells of: `code` is behind the
// instruction. It may end the program. Null: not any more.
void guard_writes(void (*guard)(const volatile void* address, size_t bytes, const void* code));
// From now on called before each access of a kernel's that the compiler tells of and that is counted; count_access()
// counts one that it does not tell of.
void watch_accesses(void (*watcher)(const volatile void* address, size_t bytes));
void count_access(const volatile void* address, size_t bytes, bool is_write, const void* code);
// Whether the calling thread runs a block, as far as it is counted.
bool is_in_kernel();

// For messages and MemoryCounts. Naming a range again renames it.
void name_memory(const void* data, size_t bytes, std::string_view name);
// From now on, until the allocation ends, a kernel must not touch these bytes: a guard zone.
void forbid_memory(const void* data, size_t bytes);
// Reading these bytes is a finding until a kernel has written them, although they hold something.
void forget_memory(const void* data, size_t bytes);

// How many of these bytes a kernel has not written since forget_memory(), as far as the counter was told.
size_t bytes_not_written(const void* data, size_t bytes);

// The next launches are watched: of the first kernel that reads the range, the first block (by its number) that does is
// found. An equal launch of that kernel after trace_found_block() records the block's steps.
void watch_memory(const void* data, size_t bytes);
// False: no launch since watch_memory() has read the range.
bool trace_found_block();
// The trace of the last launch that had one; no steps otherwise.
Trace take_trace();

}  // namespace simt

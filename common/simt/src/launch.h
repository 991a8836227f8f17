// One launch of a kernel, as the parts of the engine share it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include <cuda_runtime.h>

#include "simt/simt.h"
#include "variables.h"

namespace simt::detail {

// Why the threads of a launch are to stop before their end.
enum class Stop : int {
  none,
  failed,       // another thread reported an error
  spin_limit,   // everybody waits or spins
  block_limit,  // no block has started or finished for too long
};

// What is asked for.
struct LaunchRequest {
  dim3 grid, block;
  dim3 cluster{1, 1, 1};
  size_t shared_bytes = 0;
  bool cooperative = false;
  Call call{};

  unsigned threads_per_block() const { return block.x * block.y * block.z; }
  unsigned cluster_blocks() const { return cluster.x * cluster.y * cluster.z; }
  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
};

struct Launch : LaunchRequest {
  explicit Launch(const LaunchRequest& request) : LaunchRequest(request) {}

  Options options;
  const SharedVariables::Zones* zones = nullptr;

  uintptr_t code_begin = 0, code_end = 0;  // of the program or library that the kernel is in

  // Blocks that must run at the same time form a team: a cluster, or the whole grid of a cooperative launch.
  unsigned team_size = 1;
  uint64_t teams = 0;

  std::atomic<uint64_t> next_team{0};
  std::atomic<Stop> stop{Stop::none};
  std::atomic<uint64_t> block_events{0};  // blocks started and blocks finished

  // The block that is number `rank` of team `team`.
  uint3 block_of(uint64_t team, unsigned rank) const;

  // Keeps the first error, and stops the others.
  void fail(cudaError_t code, const std::string& message);
  cudaError_t error() const { return error_; }

 private:
  std::mutex mutex_;
  cudaError_t error_ = cudaSuccess;
};

// Prints the message (unless options().print_errors is off) and keeps it for last_error_message().
void report(const std::string& message);

// A function's name in the symbol table, as compilers write it.
std::string symbol_of(const void* function);
std::string demangled(const std::string& symbol);
// "worklog::naive::layernorm_thread_per_row": the name of a function, without its parameters.
std::string function_name(const void* function);

struct SourceLine {
  std::string file;  // empty: not known
  int line = 0;
};
// The line that the instruction at `address` was compiled from; that of the caller, where it is one of this layer's own
// headers. Not known in a program without debug information.
SourceLine source_line(uintptr_t address);

std::string to_text(const uint3& index);  // "(1, 0, 0)"

// One launch at a time: runs it on the pool of OS threads, and returns when the last thread has stopped.
void run_on_pool(Launch& launch);
unsigned pool_threads(const Options& options);

// What is at or near an address that a kernel must not touch, as the end of a sentence.
std::string describe_address(uintptr_t address);
// The first allocation, if any, whose surroundings have been written to: a sentence. Repairs what it reports.
std::string find_overrun();
void free_all_allocations();

cudaError_t remember_error(cudaError_t error);  // for cudaGetLastError; returns it

}  // namespace simt::detail

// How the CPU layer is steered and asked, from a test or a debugger. A program that only runs kernels needs none of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace simt {

// The order in which the blocks of a grid, the warps of a block and the lanes of a warp get their turn. A kernel must
// be right in every order; one that leans on forward order is caught by the others.
enum class Order { forward, reverse, shuffle };

struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;             // of Order::shuffle; the same seed gives the same order within each block
  unsigned threads = 0;          // OS threads that run ordinary blocks; 0: one per core
  unsigned multiprocessors = 0;  // what the device reports; 0: as many as threads, and at least 4
  // The most blocks that it reports to hold on a multiprocessor at once. 0: as many as threads and shared memory allow;
  // a GPU may hold fewer, for want of registers.
  unsigned blocks_per_multiprocessor = 0;
  unsigned l2_bytes = 4u << 20;  // of the cache that the device reports

  // A launch in which every thread waits, or spins on an atomic that does not change, ends after this long.
  std::chrono::milliseconds spin_limit{250};
  // A launch ends when no block has started or finished for this long; zero: never. It catches the loops that the
  // spin limit cannot tell from work.
  std::chrono::milliseconds block_limit{30'000};

  bool print_errors = true;  // each error's message, on stderr, when it happens
};

// The options of the launches that follow. They start from the environment: WORKLOG_SIMT_ORDER=forward, reverse or
// shuffle:SEED, WORKLOG_SIMT_THREADS, WORKLOG_SIMT_MULTIPROCESSORS, WORKLOG_SIMT_BLOCKS_PER_MULTIPROCESSOR,
// WORKLOG_SIMT_L2_BYTES, WORKLOG_SIMT_SPIN_LIMIT_MS, WORKLOG_SIMT_BLOCK_LIMIT_MS. A value that cannot be read is
// reported on stderr and ends the program (exit code 2).
//
// WORKLOG_SIMT_KERNELS names a file that says what nvcc's kernels take of a GPU: a line for each, with its symbol, its
// registers for a thread and its static shared bytes for a block. Then as many blocks fit a multiprocessor as would fit
// one with 64 Ki registers. WORKLOG_SIMT_CLUSTERS=8:1=15,8:2=30 says how many clusters (of 8 blocks, with 1 or 2 blocks
// on a multiprocessor) a GPU was found to hold at once: it depends on how its multiprocessors are wired.
Options options();
void set_options(const Options& options);

// Takes "forward", "reverse" or "shuffle:SEED" for the order (and the seed). False: it is none of these.
bool read_order(std::string_view words, Options& options);

// The text of the last error of a launch or of a memory call: kernel, block, thread, file and line. Empty: none yet.
std::string last_error_message();

// Forgets the error that a failed kernel left, which cudaGetLastError() cannot (it is sticky, as on a GPU).
// Allocations stay as they are; cudaDeviceReset() forgets the error too and frees them all.
void clear_error();

}  // namespace simt

// What the parts of the runtime API share: what a program has set, the error that stays, the limits of the device,
// and the way of work into a stream.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "launch.h"

namespace simt::detail {

// What a kernel takes of a GPU's multiprocessor, as nvcc compiled it.
struct KernelResources {
  int registers = 0;  // of a thread
  size_t static_shared_bytes = 0;
};

// How many clusters a GPU holds at once, by the blocks of a cluster and those that a multiprocessor holds.
using ClustersAtOnce = std::map<std::pair<int, int>, int>;

struct State {
  State();  // reads the environment

  std::mutex mutex;  // for what is not const
  Options options;
  const std::map<std::string, KernelResources> resources;  // by symbol; empty where nobody has said
  const ClustersAtOnce clusters;
  std::string message;
  std::map<const void*, int> dynamic_shared_allowed;  // bytes, by kernel
  std::set<const void*> large_clusters_allowed;       // kernels
};

State& state();

extern constinit std::atomic<cudaError_t> sticky_error;

constexpr int threads_per_multiprocessor = 2048;
constexpr int blocks_per_multiprocessor = 32;
constexpr size_t shared_per_multiprocessor = 228 * 1024;
constexpr size_t shared_granularity = 128;  // bytes
constexpr int registers_per_multiprocessor = 65536;
constexpr int registers_granularity = 256;  // of a warp
constexpr int parts_of_multiprocessor = 4;  // each with its own registers and warps
constexpr size_t shared_reserved_per_block = 1024;
constexpr size_t shared_by_default = 48 * 1024;
constexpr unsigned portable_cluster = 8;
constexpr unsigned largest_cluster = 16;

int multiprocessors();

using Work = std::function<cudaError_t()>;
// What the stream is captured into; null: nothing.
CUgraph_st* capture_of(cudaStream_t stream);
// Carries the work out, or keeps it for the graph that the stream is captured into.
cudaError_t carry_out(cudaStream_t stream, Work work);

// The work of copies and fills (memory.cpp).
cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                      cudaMemcpyKind kind);
cudaError_t fill(void* to, int byte, size_t bytes);

}  // namespace simt::detail

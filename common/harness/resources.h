// What a kernel takes of a multiprocessor: registers, shared memory, spills, and how many of its blocks fit.
#pragma once

#include <string>
#include <vector>

#include "common/device/launch.cuh"

namespace worklog {

// A launch that a variant made, as launch_observer saw it.
struct KernelLaunch {
  const void* kernel;
  LaunchShape shape;

  int64_t blocks() const { return int64_t{shape.grid.x} * shape.grid.y * shape.grid.z; }
  int threads() const { return static_cast<int>(shape.block.x * shape.block.y * shape.block.z); }  // of a block
};

struct KernelResources {
  std::string kernel;  // its name, without parameters
  int64_t blocks = 0;
  int threads = 0;                                            // of a block
  int cluster = 1;                                            // blocks of a cluster
  int registers = 0;                                          // of a thread; 0 on the CPU layer, which cannot say
  int64_t static_shared_bytes = 0, dynamic_shared_bytes = 0;  // of a block
  int64_t local_bytes = 0;  // of a thread: spilled registers, and arrays that are indexed at run time
  int blocks_per_multiprocessor = 0;
  double occupancy = 0;  // the part of a multiprocessor's threads that these blocks fill
};

// "worklog::naive::layernorm_thread_per_row" for the symbol of that kernel: no return type, no parameters.
std::string readable_name(const char* symbol);

// Asks the current device. Throws CudaError.
KernelResources resources_of(const KernelLaunch& launch);

// "4 x 256", blocks and threads of each launch; "" for none.
std::string describe_launches(const std::vector<KernelLaunch>& launches);

}  // namespace worklog

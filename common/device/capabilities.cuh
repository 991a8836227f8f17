// What the device, and the code that is loaded onto it, can do: the questions that a launch asks before it chooses a
// kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace worklog {

// A CUDA call or a launch that did not succeed; what() is one sentence.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& doing)
      : std::runtime_error(doing + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"), code(code) {}

  cudaError_t code;
};

// Throws CudaError, saying what was being done, unless `code` is cudaSuccess.
inline void check_cuda(cudaError_t code, const char* doing) {
  if (code != cudaSuccess) {
    cudaGetLastError();  // clear the error, so that the next call does not report this one again
    throw CudaError(code, doing);
  }
}

// What the choice of kernels is to do without although the device has it. So the kernels that other devices get are
// run, and checked, on this one (the programs' flag --deny). Set before anything is launched.
struct Denied {
  static constexpr int nothing = std::numeric_limits<int>::max();
  bool clusters = false;
  bool dependent_launch = false;
  bool cooperative_launch = false;
  int shared_bytes = nothing;     // a block has at most so many
  int multiprocessors = nothing;  // at most so many
};
inline Denied denied;

// Of the current device, whatever is denied. Throws CudaError.
inline int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking for an attribute of the device");
  return value;
}

// Of the current device, as far as it is not denied. Throws CudaError.
inline int device_attribute(cudaDeviceAttr attribute) {
  const int value = attribute_of_device(attribute);
  switch (attribute) {
    case cudaDevAttrClusterLaunch:
      return denied.clusters ? 0 : value;
    case cudaDevAttrCooperativeLaunch:
      return denied.cooperative_launch ? 0 : value;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return std::min(value, denied.shared_bytes);
    case cudaDevAttrMultiProcessorCount:
      return std::min(value, denied.multiprocessors);
    default:
      return value;
  }
}

// The architecture that the loaded code was compiled for: 90 for compute capability 9.0. It may be older than the
// device. Where a program holds no machine code for the device, the driver compiles its PTX, and what that PTX left out
// for its own architecture (`__CUDA_ARCH__`) is not there, whatever the device could do. One build compiles all kernels
// for the same architectures, so that one kernel's answer is kept for all. Throws CudaError.
inline int code_architecture(const void* kernel) {
  constexpr int most_devices = 64;
  static std::atomic<int> known[most_devices] = {};
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  const bool is_kept = device < most_devices;
  if (const int architecture = is_kept ? known[device].load(std::memory_order_relaxed) : 0) return architecture;
  cudaFuncAttributes attributes = {};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "asking for a kernel's attributes");
  if (is_kept) known[device].store(attributes.ptxVersion, std::memory_order_relaxed);
  return attributes.ptxVersion;
}

// True where `kernel` can be launched in clusters: the device has them, and the code was compiled to know of them.
inline bool has_clusters(const void* kernel) {
  return code_architecture(kernel) >= 90 && device_attribute(cudaDevAttrClusterLaunch) != 0;
}

// True where `kernel` may be launched before the one before it has ended: its code was compiled to wait for it. Where
// the code has the instruction, the device does too.
inline bool has_dependent_launch(const void* kernel) {
  return !denied.dependent_launch && code_architecture(kernel) >= 90;
}

inline constexpr size_t most_static_shared = 2 * 1024;  // bytes that a kernel may have besides, where it asks for many

// True where a block can have so much dynamic shared memory.
inline bool block_can_have(size_t shared_bytes) {
  return shared_bytes + most_static_shared <=
         static_cast<size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

// Lets `kernel` be launched with so much dynamic shared memory. Where that is more than every kernel may have, the
// limit becomes all that a block can have: were it what this launch needs, it could take away what another thread's
// launch of the same kernel has just asked for. Throws CudaError where a block cannot have it.
inline void allow_shared_bytes(const void* kernel, size_t bytes) {
  constexpr size_t granted_by_default = 48 * 1024;
  if (bytes + most_static_shared <= granted_by_default) return;
  if (!block_can_have(bytes)) throw CudaError(cudaErrorInvalidValue, "asking for dynamic shared memory");
  const int all = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int>(most_static_shared);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all),
             "asking for dynamic shared memory");
}

// Blocks of `kernel` that the whole device holds at the same time. Throws CudaError.
template <class... Parameters>
int64_t blocks_at_once(void (*kernel)(Parameters...), int threads, size_t shared_bytes) {
  const void* const address = reinterpret_cast<const void*>(kernel);
  allow_shared_bytes(address, shared_bytes);
  int blocks = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, address, threads, shared_bytes),
             "asking how many blocks fit");
  return int64_t{blocks} * device_attribute(cudaDevAttrMultiProcessorCount);
}

inline constexpr int portable_cluster = 8;         // blocks: what every device with clusters can run
inline constexpr int most_blocks_of_cluster = 16;  // what some can run if they are asked

// Clusters of `size` blocks of `kernel` that the whole device holds at the same time: none where it has no such
// clusters. Afterwards they may be launched. Throws CudaError.
inline int clusters_at_once(const void* kernel, unsigned size, int threads, size_t shared_bytes) {
  if (size > most_blocks_of_cluster || !has_clusters(kernel)) return 0;
  allow_shared_bytes(kernel, shared_bytes);
  if (size > portable_cluster) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "asking for a cluster of 16 blocks");
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = size;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = size;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int at_once = 0;
  const cudaError_t answer = cudaOccupancyMaxActiveClusters(&at_once, kernel, &config);
  if (answer == cudaErrorInvalidClusterSize) {  // larger than this device's largest
    cudaGetLastError();                         // clear the error, so that the next call does not report it
    return 0;
  }
  check_cuda(answer, "asking how many clusters fit");
  if (denied.multiprocessors == Denied::nothing) return at_once;
  const int64_t all = attribute_of_device(cudaDevAttrMultiProcessorCount);
  return static_cast<int>(at_once * device_attribute(cudaDevAttrMultiProcessorCount) / all);
}

}  // namespace worklog

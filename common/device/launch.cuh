// The two words that a CUDA reader has to learn here: `launch` and `dynamic_shared`.
//
// They spell a kernel launch and the dynamic shared array so that nvcc and an ordinary C++ compiler both accept
// them: a kernel's source is then the same on a GPU and on the CPU layer (common/simt/).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
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

// Of the current device. Throws CudaError.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking for an attribute of the device");
  return value;
}

struct LaunchShape {
  dim3 grid;                // blocks
  dim3 block;               // threads of a block
  size_t shared_bytes = 0;  // dynamic shared memory of a block
  unsigned cluster = 1;     // blocks of a cluster, along x (compute capability 9.0 and newer)
  bool cooperative =
      false;             // all blocks run at once and can wait for each other: cooperative_groups::this_grid().sync()
  bool overlap = false;  // may start before the kernel before it has ended: see wait_for_previous_kernel
  const char* rule = nullptr;  // that chose this kernel, in words; "" for a rule that says nothing of itself
  cudaStream_t stream = nullptr;
};

// Where set, called before each launch: how the harness learns which kernels a variant launches, and in which shape.
// The launch is made only if it returns true.
inline bool (*launch_observer)(const void* kernel, const LaunchShape& shape) = nullptr;

// Programmatic dependent launch, where the device has it (compute capability 9.0 and newer): a kernel that is launched
// with shape.overlap takes its places on the multiprocessors while the kernel before it in the stream still runs, and
// so hides the time that a launch takes. It touches no memory before this call, which waits until all that the kernel
// before it has written can be seen.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// From here on the next kernel in the stream may take its places, if it is launched with shape.overlap. It may when all
// blocks have said so or have ended: so only the last ones say it, more of them than any device runs at once. Where
// blocks are many and short, it costs more than it brings if all do.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr unsigned last_blocks = 8192;
  if (gridDim.x - blockIdx.x <= last_blocks) cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The same of a grid that has no more blocks than that: nothing is asked.
__device__ inline void let_next_kernel_start_at_once() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
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
  const size_t all = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - most_static_shared;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes < all ? all : bytes)),
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
  if (size > most_blocks_of_cluster || device_attribute(cudaDevAttrClusterLaunch) == 0) return 0;
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
  return at_once;
}

// Launches kernel<<<grid, block, shared_bytes, stream>>>(args...), in clusters where shape.cluster > 1.
// Throws CudaError when the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... args) {
  if (launch_observer && !launch_observer(reinterpret_cast<const void*>(kernel), shape)) return;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  if (shape.cooperative) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  if (shape.overlap && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }

  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), "launching a kernel");
}

}  // namespace worklog

namespace worklog {

// The threads that a multiprocessor holds at once, on the architecture that is compiled for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int threads_of_a_multiprocessor = 1024;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
inline constexpr int threads_of_a_multiprocessor = 1536;
#else
inline constexpr int threads_of_a_multiprocessor = 2048;
#endif

// For __launch_bounds__: `wished` blocks of `threads` threads on a multiprocessor, or as many as it can hold.
constexpr int blocks_that_fit(int threads, int wished) {
  const int fit = threads_of_a_multiprocessor / threads;
  return wished < fit ? wished : fit;
}

}  // namespace worklog

// One array, at global scope and under one name, because that is the only form that both compilers can link.
extern __shared__ __align__(16) unsigned char worklog_dynamic_shared[];

namespace worklog {

// The block's dynamic shared memory as an array of T, 16-byte aligned; its size is shape.shared_bytes.
template <class T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(worklog_dynamic_shared);
}

}  // namespace worklog

// The two words that a CUDA reader has to learn here: `launch` and `dynamic_shared`.
//
// They spell a kernel launch and the dynamic shared array so that nvcc and an ordinary C++ compiler both accept
// them: a kernel's source is then the same on a GPU and on the CPU layer (common/simt/).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "common/device/capabilities.cuh"

namespace worklog {

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

// Programmatic dependent launch, where there is such a thing (has_dependent_launch): a kernel that is launched
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

// Launches kernel<<<grid, block, shared_bytes, stream>>>(args...), in clusters where shape.cluster > 1.
// Throws CudaError when the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... args) {
  const void* const address = reinterpret_cast<const void*>(kernel);
  if (launch_observer && !launch_observer(address, shape)) return;
  allow_shared_bytes(address, shape.shared_bytes);
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    if (!has_clusters(address)) throw CudaError(cudaErrorNotSupported, "launching a kernel in clusters");
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
  if (shape.overlap && has_dependent_launch(address)) {
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

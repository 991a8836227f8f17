// The two words that a CUDA reader has to learn here: `launch` and `dynamic_shared`.
//
// They spell a kernel launch and the dynamic shared array so that nvcc and an ordinary C++ compiler both accept
// them: a kernel's source is then the same on a GPU and on the CPU layer (common/simt/).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
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

struct LaunchShape {
  dim3 grid;                // blocks
  dim3 block;               // threads of a block
  size_t shared_bytes = 0;  // dynamic shared memory of a block
  unsigned cluster = 1;     // blocks of a cluster, along x (compute capability 9.0 and newer)
  cudaStream_t stream = nullptr;
};

// Where set, called before each launch: how the harness learns which kernels a variant launches, and in which shape.
inline void (*launch_observer)(const void* kernel, const LaunchShape& shape) = nullptr;

// Launches kernel<<<grid, block, shared_bytes, stream>>>(args...), in clusters where shape.cluster > 1.
// Throws CudaError when the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... args) {
  if (launch_observer) launch_observer(reinterpret_cast<const void*>(kernel), shape);
  constexpr size_t granted_by_default = 48 * 1024;
  if (shape.shared_bytes > granted_by_default) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "asking for dynamic shared memory");
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = shape.cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;

  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), "launching a kernel");
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

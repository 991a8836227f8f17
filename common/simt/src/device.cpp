// The device that the runtime API reports.
#include <algorithm>
#include <cstring>

#include "block.h"
#include "runtime.h"

using namespace simt;
using namespace simt::detail;

int simt::detail::multiprocessors() {
  const Options current = options();
  return static_cast<int>(current.multiprocessors != 0 ? current.multiprocessors : std::max(4u, pool_threads(current)));
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaPeekAtLastError() == cudaSuccess ? cudaSuccess : sticky_error.load();
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return sticky_error;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? sticky_error.load() : remember_error(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return remember_error(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "CPU (common/simt)");
  cudaMemGetInfo(&properties->memPitch, &properties->totalGlobalMem);
  properties->memPitch = 0x7fffffff;
  properties->sharedMemPerBlock = shared_by_default;
  properties->regsPerBlock = registers_per_multiprocessor;
  properties->warpSize = warp_size;
  properties->maxThreadsPerBlock = max_threads;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = max_threads;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->totalConstMem = 65536;
  properties->major = 9;
  properties->textureAlignment = 512;
  properties->multiProcessorCount = multiprocessors();
  properties->integrated = 1;
  properties->canMapHostMemory = 1;
  properties->concurrentKernels = 1;
  properties->unifiedAddressing = 1;
  properties->l2CacheSize = static_cast<int>(options().l2_bytes);
  properties->maxThreadsPerMultiProcessor = threads_per_multiprocessor;
  properties->sharedMemPerMultiprocessor = shared_per_multiprocessor;
  properties->regsPerMultiprocessor = registers_per_multiprocessor;
  properties->managedMemory = 1;
  properties->cooperativeLaunch = 1;
  properties->sharedMemPerBlockOptin = max_shared_bytes;
  properties->maxBlocksPerMultiProcessor = blocks_per_multiprocessor;
  properties->reservedSharedMemPerBlock = shared_reserved_per_block;
  properties->clusterLaunch = 1;
  return sticky_error;
}

// Asked for at each launch, so not by way of the properties, which ask how much memory is free.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return remember_error(cudaErrorInvalidDevice);
  if (sticky_error != cudaSuccess) return sticky_error;
  const auto answer = [value](auto number) {
    *value = static_cast<int>(number);
    return cudaSuccess;
  };
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return answer(max_threads);
    case cudaDevAttrMaxBlockDimZ:
      return answer(64);
    case cudaDevAttrMaxGridDimX:
      return answer(0x7fffffff);
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return answer(65535);
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return answer(shared_by_default);
    case cudaDevAttrWarpSize:
      return answer(warp_size);
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
    case cudaDevAttrGlobalMemoryBusWidth:
    case cudaDevAttrComputeCapabilityMinor:
      return answer(0);
    case cudaDevAttrMultiProcessorCount:
      return answer(multiprocessors());
    case cudaDevAttrIntegrated:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrClusterLaunch:
      return answer(1);
    case cudaDevAttrL2CacheSize:
      return answer(options().l2_bytes);
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return answer(threads_per_multiprocessor);
    case cudaDevAttrComputeCapabilityMajor:
      return answer(9);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return answer(shared_per_multiprocessor);
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return answer(registers_per_multiprocessor);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return answer(max_shared_bytes);
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return answer(blocks_per_multiprocessor);
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return answer(shared_reserved_per_block);
    default:
      return remember_error(cudaErrorInvalidValue);
  }
}

cudaError_t cudaDeviceSynchronize() {
  return sticky_error;
}
cudaError_t cudaDeviceReset() {
  free_all_allocations();
  clear_error();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// The part of the CUDA runtime API that a harness uses: devices, memory, streams, events, graphs, launches.
//
// Names, values and error codes are CUDA's. Every call is carried out before it returns; a stream only matters while
// it is being captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "vector_types.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidPitchValue = 12,
  cudaErrorInvalidSymbol = 13,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorIllegalState = 401,
  cudaErrorInvalidClusterSize = 912,
  cudaErrorUnknown = 999,
};
using cudaError = cudaError_t;

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
// The last error, which is forgotten unless a kernel left it: such an error is sticky, and is returned by every later
// call until cudaDeviceReset().
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

#define CUDART_VERSION 13000

// --- Devices: one, the CPU -----------------------------------------------------------------------------------------

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  int multiProcessorCount;
  int integrated;
  int canMapHostMemory;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryBusWidth;  // bits; 0: not known
  int l2CacheSize;     // bytes
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int cooperativeLaunch;
  size_t sharedMemPerBlockOptin;
  int maxBlocksPerMultiProcessor;
  size_t reservedSharedMemPerBlock;
  int clusterLaunch;
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxBlockDimX = 2,
  cudaDevAttrMaxBlockDimY = 3,
  cudaDevAttrMaxBlockDimZ = 4,
  cudaDevAttrMaxGridDimX = 5,
  cudaDevAttrMaxGridDimY = 6,
  cudaDevAttrMaxGridDimZ = 7,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrClockRate = 13,  // kHz; 0: not known
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrIntegrated = 18,
  cudaDevAttrConcurrentKernels = 31,
  cudaDevAttrMemoryClockRate = 36,  // kHz; 0: not known
  cudaDevAttrGlobalMemoryBusWidth = 37,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrUnifiedAddressing = 41,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxRegistersPerMultiprocessor = 82,
  cudaDevAttrManagedMemory = 83,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
  cudaDevAttrReservedSharedMemoryPerBlock = 111,
  cudaDevAttrClusterLaunch = 120,
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceReset();  // frees every allocation and forgets the last error
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);

// --- Memory --------------------------------------------------------------------------------------------------------

struct CUstream_st;
using cudaStream_t = CUstream_st*;
inline const cudaStream_t cudaStreamLegacy = reinterpret_cast<cudaStream_t>(1);
inline const cudaStream_t cudaStreamPerThread = reinterpret_cast<cudaStream_t>(2);

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

constexpr unsigned cudaHostAllocDefault = 0;
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaHostAllocMapped = 2;
constexpr unsigned cudaHostAllocWriteCombined = 4;
constexpr unsigned cudaMemAttachGlobal = 1;

// Allocations are 256-byte aligned, filled with 0xff bytes (a NaN in every type), and end at a page that may not be
// touched; the up to 255 bytes between are checked after each launch. Freed addresses are not used again for a while.
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal);
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
// Rows of `width` bytes, each of which begins at a multiple of 512 bytes, `pitch` bytes behind the one before.
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);

// Where managed memory lies, and how it is used: there is one memory here, and so nothing to do. The memory must be
// allocated, and the device be this one or the host.
constexpr int cudaCpuDeviceId = -1;
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly = 2,
  cudaMemAdviseSetPreferredLocation = 3,
  cudaMemAdviseUnsetPreferredLocation = 4,
  cudaMemAdviseSetAccessedBy = 5,
  cudaMemAdviseUnsetAccessedBy = 6,
};
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost = 2 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int device, cudaStream_t stream = nullptr);
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, int device);
// As CUDA 13 has them.
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream = nullptr);
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location);

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal) {
  return cudaMallocManaged(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
template <class T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height) {
  return cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width, height);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned = cudaHostAllocDefault) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}

// The device's side of a copy must lie within one allocation: cudaErrorInvalidValue.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
// `height` rows of `width` bytes, whose starts are `pitch` bytes apart.
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream = nullptr);

enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

// Device variables are the program's own.
template <class T>
cudaError_t cudaGetSymbolAddress(void** pointer, const T& symbol) {
  *pointer = const_cast<void*>(static_cast<const volatile void*>(&symbol));
  return cudaSuccess;
}
template <class T>
cudaError_t cudaGetSymbolSize(size_t* bytes, const T&) {
  *bytes = sizeof(T);
  return cudaSuccess;
}

// --- Streams, events, graphs ---------------------------------------------------------------------------------------

struct CUevent_st;
using cudaEvent_t = CUevent_st*;
struct CUgraph_st;
using cudaGraph_t = CUgraph_st*;
struct CUgraphExec_st;
using cudaGraphExec_t = CUgraphExec_st*;

constexpr unsigned cudaStreamDefault = 0;
constexpr unsigned cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);  // as a GPU's; all streams are alike here
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
#define CUDART_CB  // how Windows would call such a function
using cudaStreamCallback_t = void (*)(cudaStream_t stream, cudaError_t status, void* data);
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags);
using cudaHostFn_t = void (*)(void* data);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);

constexpr unsigned cudaEventDefault = 0;
constexpr unsigned cudaEventBlockingSync = 1;
constexpr unsigned cudaEventDisableTiming = 2;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);  // the host's steady clock
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop);

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
// Launches, copies and fills on a stream that is being captured are kept, in order, and carried out by
// cudaGraphLaunch.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
struct CUgraphNode_st;
using cudaGraphNode_t = CUgraphNode_st*;
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);  // nodes must be null
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// --- Launches ------------------------------------------------------------------------------------------------------

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  size_t constSizeBytes;
  size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;  // 0: a CPU cannot say
  int ptxVersion;
  int binaryVersion;
  int maxDynamicSharedSizeBytes;
};

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  char pad[8 - sizeof(cudaLaunchAttributeID)];
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncGetName(const char** name, const void* kernel);  // the symbol; kept for the program's life
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int block_size,
                                                          size_t dynamic_shared_bytes);
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config);
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* kernel, const cudaLaunchConfig_t* config);

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Parameters...), int block_size,
                                                          size_t dynamic_shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), block_size,
                                                       dynamic_shared_bytes);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, void (*kernel)(Parameters...),
                                                 const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxPotentialClusterSize(size, reinterpret_cast<const void*>(kernel), config);
}

// Of the block sizes that are whole warps, at most `limit` threads where one is given, the largest of those with which
// most threads are on a multiprocessor at once; and as many blocks as are then on all of them.
// `shared_bytes(block_size)`: of dynamic shared memory.
template <class... Parameters, class SharedBytes>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* grid_size, int* block_size,
                                                           void (*kernel)(Parameters...), SharedBytes shared_bytes,
                                                           int limit = 0) {
  if (grid_size == nullptr || block_size == nullptr || limit < 0) return cudaErrorInvalidValue;
  int most = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerBlock, 0)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0))
    return error;
  *grid_size = *block_size = 0;
  int threads_at_once = 0;
  if (limit > 0 && limit < most) most = limit;
  for (int size = most; size > 0; size = size % 32 == 0 ? size - 32 : size / 32 * 32) {
    int blocks = 0;
    const size_t bytes = static_cast<size_t>(shared_bytes(size));
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, size, bytes);
    if (error != cudaSuccess) return error;
    if (blocks * size > threads_at_once) {
      threads_at_once = blocks * size;
      *block_size = size;
      *grid_size = blocks * multiprocessors;
    }
  }
  return cudaSuccess;
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, void (*kernel)(Parameters...),
                                               size_t shared_bytes = 0, int limit = 0) {
  const auto same = [=](int) { return shared_bytes; };
  return cudaOccupancyMaxPotentialBlockSizeVariableSMem(grid_size, block_size, kernel, same, limit);
}

namespace simt::detail {

// A kernel with its arguments, as the engine takes it: `invoke(arguments)` runs it once, in one CUDA thread.
struct Call {
  const void* kernel;
  void (*invoke)(const void* arguments);
  const void* arguments;
  std::function<Call()> keep;  // a copy of the call that owns its arguments, for a graph
  std::shared_ptr<const void> owned;
};

cudaError_t launch(const cudaLaunchConfig_t& config, Call call);

template <class... Parameters>
struct BoundKernel {
  void (*kernel)(Parameters...);
  std::tuple<Parameters...> arguments;

  static void invoke(const void* self) {
    const auto& bound = *static_cast<const BoundKernel*>(self);
    std::apply(bound.kernel, bound.arguments);
  }
};

template <class... Parameters>
Call call_of(const BoundKernel<Parameters...>& bound) {
  Call call{reinterpret_cast<const void*>(bound.kernel), BoundKernel<Parameters...>::invoke, &bound, {}, {}};
  call.keep = [&bound] {
    auto copy = std::make_shared<const BoundKernel<Parameters...>>(bound);
    Call kept = call_of(*copy);
    kept.keep = {};
    kept.owned = copy;
    return kept;
  };
  return call;
}

}  // namespace simt::detail

// Runs the kernel, and returns when it is done. Refused launches return what CUDA returns; a kernel that fails leaves
// a sticky error, whose text is simt::last_error_message().
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const simt::detail::BoundKernel<Parameters...> bound{kernel, {std::forward<Arguments>(arguments)...}};
  return simt::detail::launch(*config, simt::detail::call_of(bound));
}

// `arguments` points to one pointer for each parameter.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  const cudaLaunchConfig_t config{grid, block, shared_bytes, stream, nullptr, 0};
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return cudaLaunchKernelEx(&config, kernel, *static_cast<std::remove_cvref_t<Parameters>*>(arguments[i])...);
  }
  (std::index_sequence_for<Parameters...>());
}
template <class... Parameters>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  const cudaLaunchConfig_t config{grid, block, shared_bytes, stream, &cooperative, 1};
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return cudaLaunchKernelEx(&config, kernel, *static_cast<std::remove_cvref_t<Parameters>*>(arguments[i])...);
  }
  (std::index_sequence_for<Parameters...>());
}

template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset > sizeof(T) || bytes > sizeof(T) - offset) return cudaErrorInvalidValue;
  return cudaMemcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes, cudaMemcpyHostToHost);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  if (offset > sizeof(T) || bytes > sizeof(T) - offset) return cudaErrorInvalidValue;
  return cudaMemcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes, cudaMemcpyHostToHost);
}

// The CUDA runtime API on the CPU: options, errors, the device, streams, events, graphs, launches.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "block.h"

namespace simt {

namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* allowed) {
  fmt::print(stderr, "simt: {}={}: must be {}\n", name, value, allowed);
  std::_Exit(2);
}

template <class T>
bool parse(const char* text, T& number) {
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  return error == std::errc() && rest == end && text != end;
}

void read_number(const char* name, unsigned least, unsigned most, auto&& use) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return;
  unsigned number = 0;
  if (!parse(text, number) || number < least || number > most) {
    refuse(name, text, fmt::format("a number from {} to {}", least, most).c_str());
  }
  use(number);
}

Options from_environment() {
  Options options;
  if (const char* const order = std::getenv("WORKLOG_SIMT_ORDER")) {
    const std::string_view word(order);
    if (word == "reverse") {
      options.order = Order::reverse;
    } else if (word.starts_with("shuffle:") && parse(order + 8, options.seed)) {
      options.order = Order::shuffle;
    } else if (word != "forward") {
      refuse("WORKLOG_SIMT_ORDER", order, "forward, reverse or shuffle:SEED");
    }
  }
  read_number("WORKLOG_SIMT_THREADS", 1, 1024, [&](unsigned n) { options.threads = n; });
  read_number("WORKLOG_SIMT_MULTIPROCESSORS", 1, 1024, [&](unsigned n) { options.multiprocessors = n; });
  read_number("WORKLOG_SIMT_BLOCKS_PER_MULTIPROCESSOR", 1, 32,
              [&](unsigned n) { options.blocks_per_multiprocessor = n; });
  read_number("WORKLOG_SIMT_L2_BYTES", 1u << 10, 1u << 31, [&](unsigned n) { options.l2_bytes = n; });
  const auto milliseconds = [](unsigned n) { return std::chrono::milliseconds(n); };
  read_number("WORKLOG_SIMT_SPIN_LIMIT_MS", 10, 1u << 30, [&](unsigned n) { options.spin_limit = milliseconds(n); });
  read_number("WORKLOG_SIMT_BLOCK_LIMIT_MS", 0, 1u << 30, [&](unsigned n) { options.block_limit = milliseconds(n); });
  return options;
}

// What a kernel takes of a GPU's multiprocessor, as nvcc compiled it.
struct KernelResources {
  int registers = 0;  // of a thread
  size_t static_shared_bytes = 0;
};

// By symbol; empty where nobody has said.
std::map<std::string, KernelResources> resources_from_environment() {
  std::map<std::string, KernelResources> resources;
  const char* const path = std::getenv("WORKLOG_SIMT_KERNELS");
  if (path == nullptr) return resources;
  std::ifstream file(path);
  if (!file) refuse("WORKLOG_SIMT_KERNELS", path, "a file that can be read");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string symbol;
    KernelResources of;
    if (!(words >> symbol >> of.registers >> of.static_shared_bytes)) {
      refuse("WORKLOG_SIMT_KERNELS", path, "a file of lines 'symbol registers shared-bytes'");
    }
    resources[symbol] = of;
  }
  return resources;
}

// How many clusters a GPU holds at once, by the blocks of a cluster and those that a multiprocessor holds.
using ClustersAtOnce = std::map<std::pair<int, int>, int>;

ClustersAtOnce clusters_from_environment() {
  constexpr const char* name = "WORKLOG_SIMT_CLUSTERS";
  ClustersAtOnce clusters;
  const char* const text = std::getenv(name);
  std::istringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int size = 0, blocks = 0, count = 0, read = 0;
    const int found = std::sscanf(entry.c_str(), "%d:%d=%d%n", &size, &blocks, &count, &read);
    if (found != 3 || static_cast<size_t>(read) != entry.size() || size < 1 || blocks < 1 || count < 0) {
      refuse(name, text, "a list such as 8:1=15,8:2=30: of clusters of 8 blocks, 15 at once");
    }
    clusters[{size, blocks}] = count;
  }
  return clusters;
}

struct State {
  std::mutex mutex;
  Options options = from_environment();
  const std::map<std::string, KernelResources> resources = resources_from_environment();
  const ClustersAtOnce clusters = clusters_from_environment();
  std::string message;
  std::map<const void*, int> dynamic_shared_allowed;  // bytes, by kernel
  std::set<const void*> large_clusters_allowed;       // kernels
};

State& state() {
  static State& instance = *new State();
  return instance;
}

std::atomic<cudaError_t> sticky_error{cudaSuccess};
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

Options options() {
  std::lock_guard lock(state().mutex);
  return state().options;
}

void set_options(const Options& options) {
  std::lock_guard lock(state().mutex);
  state().options = options;
}

std::string last_error_message() {
  std::lock_guard lock(state().mutex);
  return state().message;
}

void clear_error() {
  sticky_error = cudaSuccess;
  last_error = cudaSuccess;
  std::lock_guard lock(state().mutex);
  state().message.clear();
}

namespace detail {

void report(const std::string& message) {
  std::lock_guard lock(state().mutex);
  state().message = message;
  if (state().options.print_errors) fmt::print(stderr, "{}\n", message);
}

cudaError_t remember_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void set_sticky_error(cudaError_t error) {
  sticky_error = error;
}

cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                      cudaMemcpyKind kind);
cudaError_t fill(void* to, int byte, size_t bytes);

}  // namespace detail
}  // namespace simt

using namespace simt;
using namespace simt::detail;

// --- Errors --------------------------------------------------------------------------------------------------------

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "the capture has been invalidated"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find_text(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(error_texts), std::end(error_texts),
                                         [error](const ErrorText& text) { return text.code == error; });
  return found == std::end(error_texts) ? nullptr : found;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const text = find_text(error);
  return text ? text->text : "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const text = find_text(error);
  return text ? text->name : "unrecognized error code";
}
cudaError_t cudaPeekAtLastError() {
  return sticky_error != cudaSuccess ? sticky_error.load() : last_error;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

// --- The device ----------------------------------------------------------------------------------------------------

namespace {

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

int multiprocessors() {
  const Options current = options();
  return static_cast<int>(current.multiprocessors != 0 ? current.multiprocessors : std::max(4u, pool_threads(current)));
}

}  // namespace

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

// --- Streams, graphs, events ---------------------------------------------------------------------------------------

using Work = std::function<cudaError_t()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  CUgraph_st* capture = nullptr;  // what the stream is captured into, if it is
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
  bool timed = true;
};

namespace {

CUgraph_st* capture_of(cudaStream_t stream) {
  const bool named = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return named ? nullptr : stream->capture;
}

// Carries the work out, or keeps it for the graph that the stream is captured into.
cudaError_t carry_out(cudaStream_t stream, Work work) {
  if (sticky_error != cudaSuccess) return sticky_error;
  CUgraph_st* const graph = capture_of(stream);
  if (graph == nullptr) return work();
  graph->work.push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return carry_out(stream, [=] { return copy_rows(to, to_pitch, from, from_pitch, width, height, kind); });
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  return carry_out(stream, [=] { return fill(to, byte, bytes); });
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  return cudaMemsetAsync(to, byte, bytes, nullptr);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return carry_out(stream, [=] {
    function(data);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st();
  return sticky_error;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return remember_error(cudaErrorInvalidResourceHandle);
  delete stream->capture;
  delete stream;
  return sticky_error;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capture_of(stream) != nullptr) return remember_error(cudaErrorStreamCaptureUnsupported);
  return sticky_error;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return sticky_error;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st();
  return sticky_error;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st();
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return sticky_error;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return sticky_error;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr) return remember_error(cudaErrorInvalidResourceHandle);
  return carry_out(stream, [event] {
    event->at = std::chrono::steady_clock::now();
    event->recorded = true;
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return sticky_error;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return sticky_error;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (!start->recorded || !stop->recorded || !start->timed || !stop->timed) {
    return remember_error(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return sticky_error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream == cudaStreamLegacy) return remember_error(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream) != nullptr) return remember_error(cudaErrorIllegalState);
  stream->capture = new CUgraph_st();
  return sticky_error;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (capture_of(stream) == nullptr) return remember_error(cudaErrorIllegalState);
  *graph = std::exchange(stream->capture, nullptr);
  return sticky_error;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capture_of(stream) != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return sticky_error;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return remember_error(cudaErrorNotSupported);
  *count = graph->work.size();
  return sticky_error;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return sticky_error;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return sticky_error;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Work& work : executable->work) {
    const cudaError_t error = carry_out(stream, work);
    if (error != cudaSuccess) return error;
  }
  return sticky_error;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return sticky_error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return sticky_error;
}

// --- Launches ------------------------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  std::lock_guard lock(state().mutex);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || static_cast<size_t>(value) > max_shared_bytes) return remember_error(cudaErrorInvalidValue);
      state().dynamic_shared_allowed[kernel] = value;
      return sticky_error;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? remember_error(cudaErrorInvalidValue) : sticky_error.load();
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      value ? static_cast<void>(state().large_clusters_allowed.insert(kernel))
            : static_cast<void>(state().large_clusters_allowed.erase(kernel));
      return sticky_error;
  }
  return remember_error(cudaErrorInvalidValue);
}

namespace {

size_t dynamic_shared_allowed(const void* kernel) {
  std::lock_guard lock(state().mutex);
  const auto found = state().dynamic_shared_allowed.find(kernel);
  return found == state().dynamic_shared_allowed.end() ? shared_by_default : static_cast<size_t>(found->second);
}

KernelResources resources_of(const void* kernel) {
  const auto& known = state().resources;
  if (known.empty()) return {};
  const auto found = known.find(symbol_of(kernel));
  return found == known.end() ? KernelResources{} : found->second;
}

// Blocks of `threads` threads that a multiprocessor holds, by CUDA's rules of occupancy: as many as its threads, its
// shared memory and, where they are known, its registers allow.
int blocks_at_once(const void* kernel, int threads, size_t dynamic_shared_bytes) {
  const KernelResources resources = resources_of(kernel);
  const auto up_to = [](auto number, auto multiple) { return (number + multiple - 1) / multiple * multiple; };
  const int warps = std::max(1, up_to(threads, 32) / 32);
  const int by_threads = threads_per_multiprocessor / (32 * warps);
  const size_t shared_bytes =
      up_to(dynamic_shared_bytes + resources.static_shared_bytes + shared_reserved_per_block, shared_granularity);
  const auto by_shared = static_cast<int>(shared_per_multiprocessor / shared_bytes);
  int fewest = std::min({by_threads, by_shared, blocks_per_multiprocessor});
  if (resources.registers > 0) {
    const int of_warp = up_to(resources.registers * 32, registers_granularity);
    const int warps_of_part = registers_per_multiprocessor / parts_of_multiprocessor / of_warp;
    fewest = std::min(fewest, warps_of_part * parts_of_multiprocessor / warps);
  }
  const unsigned most = options().blocks_per_multiprocessor;
  return most == 0 ? fewest : std::min(fewest, static_cast<int>(most));
}

const cudaLaunchAttribute* find_attribute(const cudaLaunchConfig_t& config, cudaLaunchAttributeID id) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == id) return &config.attrs[i];
  }
  return nullptr;
}

cudaError_t refuse_launch(cudaError_t error, const void* kernel, const std::string& why) {
  report(fmt::format("simt: kernel {}: the launch is refused: {}", function_name(kernel), why));
  return remember_error(error);
}

cudaError_t run_request(const LaunchRequest& request) {
  if (sticky_error != cudaSuccess) return sticky_error;
  Launch launch(request);
  launch.options = options();
  launch.team_size = launch.cooperative ? static_cast<unsigned>(launch.blocks()) : launch.cluster_blocks();
  launch.teams = launch.blocks() / launch.team_size;
  observe_launch(launch);
  run_on_pool(launch);
  observe_launch_end(launch);
  if (launch.error() == cudaSuccess) {
    const std::string overrun = find_overrun();
    if (!overrun.empty()) {
      launch.fail(cudaErrorIllegalAddress,
                  fmt::format("simt: kernel {}: {}", function_name(launch.call.kernel), overrun));
    }
  }
  if (launch.error() != cudaSuccess) set_sticky_error(launch.error());
  return launch.error();
}

}  // namespace

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  static std::mutex mutex;
  static std::map<const void*, std::string> names;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = names.try_emplace(kernel);
  if (is_new) entry->second = symbol_of(kernel);
  *name = entry->second.c_str();
  return sticky_error;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = max_threads;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_allowed(kernel));
  return sticky_error;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int block_size,
                                                          size_t dynamic_shared_bytes) {
  if (block_size <= 0 || block_size > static_cast<int>(max_threads)) return remember_error(cudaErrorInvalidValue);
  *blocks = blocks_at_once(kernel, block_size, dynamic_shared_bytes);
  return sticky_error;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* kernel, const cudaLaunchConfig_t*) {
  std::lock_guard lock(state().mutex);
  *size = static_cast<int>(state().large_clusters_allowed.contains(kernel) ? largest_cluster : portable_cluster);
  return sticky_error;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
  const dim3& block = config->blockDim;
  const int threads = static_cast<int>(block.x * block.y * block.z);
  const int blocks = blocks_at_once(kernel, threads, config->dynamicSmemBytes);  // of a multiprocessor
  int size = 1;
  if (const auto* const attribute = find_attribute(*config, cudaLaunchAttributeClusterDimension)) {
    const auto& extent = attribute->val.clusterDim;
    size = static_cast<int>(extent.x * extent.y * extent.z);
  }
  const auto told = state().clusters.find({size, blocks});
  *clusters = told != state().clusters.end() ? told->second : multiprocessors() * blocks / size;
  return sticky_error;
}

cudaError_t simt::detail::launch(const cudaLaunchConfig_t& config, Call call) {
  if (sticky_error != cudaSuccess) return sticky_error;
  if (call.kernel == nullptr) return remember_error(cudaErrorInvalidDeviceFunction);
  if (BlockRunner* const runner = BlockRunner::current(); runner != nullptr && runner->in_kernel()) {
    return refuse_launch(cudaErrorNotSupported, call.kernel, "a kernel cannot launch another here");
  }
  const auto& [grid, block, shared_bytes, stream, attributes, count] = config;
  const auto refused = [&](cudaError_t error, const std::string& why) {
    return refuse_launch(error, call.kernel, why);
  };
  const auto text = [](const dim3& d) { return to_text({d.x, d.y, d.z}); };

  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return refused(cudaErrorInvalidConfiguration, fmt::format("a grid of {} blocks is empty", text(grid)));
  }
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    return refused(cudaErrorInvalidConfiguration,
                   fmt::format("a grid of {} blocks; the most is (2147483647, 65535, 65535)", text(grid)));
  }
  if (block.x == 0 || block.y == 0 || block.z == 0) {
    return refused(cudaErrorInvalidConfiguration, fmt::format("a block of {} threads is empty", text(block)));
  }
  if (block.x > max_threads || block.y > max_threads || block.z > 64 || block.x * block.y * block.z > max_threads) {
    return refused(cudaErrorInvalidConfiguration,
                   fmt::format("a block of {} threads; the most is 1024 in all, 64 along z", text(block)));
  }
  const size_t allowed = dynamic_shared_allowed(call.kernel);
  if (shared_bytes > allowed) {
    return refused(cudaErrorInvalidValue,
                   fmt::format("{} bytes of dynamic shared memory; this kernel may have {}, and up to {} after "
                               "cudaFuncSetAttribute",
                               shared_bytes, allowed, max_shared_bytes));
  }

  LaunchRequest request;
  request.grid = grid;
  request.block = block;
  request.shared_bytes = shared_bytes;
  if (const auto* const attribute = find_attribute(config, cudaLaunchAttributeClusterDimension)) {
    const auto& cluster = attribute->val.clusterDim;
    const unsigned blocks = cluster.x * cluster.y * cluster.z;
    int most = 0;
    cudaOccupancyMaxPotentialClusterSize(&most, call.kernel, &config);
    if (blocks == 0 || blocks > static_cast<unsigned>(most) || grid.x % cluster.x != 0 || grid.y % cluster.y != 0 ||
        grid.z % cluster.z != 0) {
      return refused(cudaErrorInvalidClusterSize,
                     fmt::format("a cluster of ({}, {}, {}) blocks; it must divide the grid {} and have at most {}",
                                 cluster.x, cluster.y, cluster.z, text(grid), most));
    }
    request.cluster = dim3(cluster.x, cluster.y, cluster.z);
  }
  if (const auto* const attribute = find_attribute(config, cudaLaunchAttributeCooperative)) {
    request.cooperative = attribute->val.cooperative != 0;
    const auto most =
        static_cast<uint64_t>(multiprocessors()) *
        static_cast<uint64_t>(blocks_at_once(call.kernel, static_cast<int>(request.threads_per_block()), shared_bytes));
    const uint64_t blocks = request.blocks();
    if (request.cooperative && blocks > most) {
      return refused(cudaErrorCooperativeLaunchTooLarge,
                     fmt::format("a cooperative launch of {} blocks; {} can run at the same time", blocks, most));
    }
  }

  if (capture_of(stream) != nullptr) {
    request.call = call.keep();
    return carry_out(stream, [request] { return run_request(request); });
  }
  request.call = std::move(call);
  return run_request(request);
}

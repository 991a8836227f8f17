// The runtime API of the CPU layer: the device, memory, streams, events, graphs, launches from several host threads.
#include <cstring>
#include <numeric>
#include <thread>

#include "common/tests/simt_fixture.h"

namespace worklog::test {
namespace {

class SimtRuntime : public SimtTest {};

TEST_F(SimtRuntime, Device) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "CPU (common/simt)");
  EXPECT_EQ(properties.major, 9);
  EXPECT_EQ(properties.warpSize, 32);
  EXPECT_EQ(properties.maxThreadsPerBlock, 1024);
  EXPECT_EQ(properties.sharedMemPerBlockOptin, 227u * 1024);
  EXPECT_GT(properties.totalGlobalMem, 1u << 28);
  int value = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(value, properties.multiProcessorCount);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error of the API is told once";

  simt::Options options = simt::options();
  options.multiprocessors = 132;
  simt::set_options(options);
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(value, 132);
}

TEST_F(SimtRuntime, ErrorNames) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
}

TEST_F(SimtRuntime, AllocationsAreAlignedAndFilledWithNan) {
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{255}, size_t{4096}, size_t{100'000}}) {
    unsigned char* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
    std::vector<unsigned char> host(bytes);
    ASSERT_EQ(cudaMemcpy(host.data(), data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (const unsigned char byte : host) ASSERT_EQ(byte, 0xff);
    ASSERT_EQ(cudaFree(data), cudaSuccess);
  }
  void* nothing = &nothing;
  EXPECT_EQ(cudaMalloc(&nothing, 0), cudaSuccess);
  EXPECT_EQ(nothing, nullptr);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&nothing, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&nothing, ~size_t{0}), cudaErrorMemoryAllocation);
  int on_stack = 0;
  EXPECT_EQ(cudaFree(&on_stack), cudaErrorInvalidValue);
}

TEST_F(SimtRuntime, RowsOfAPitch) {
  for (const size_t width : {size_t{1}, size_t{512}, size_t{1000}}) {
    char* rows = nullptr;
    size_t pitch = 0;
    ASSERT_EQ(cudaMallocPitch(&rows, &pitch, width, 3), cudaSuccess);
    EXPECT_EQ(pitch, width > 512 ? 1024u : 512u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rows) % 512, 0u);
    EXPECT_EQ(cudaMemset(rows, 0, 3 * pitch), cudaSuccess);
    EXPECT_EQ(cudaMemset(rows, 0, 3 * pitch + 1), cudaErrorInvalidValue);
    const std::vector<char> host(3 * width, 'x');
    EXPECT_EQ(cudaMemcpy2D(rows, pitch, host.data(), width, width, 3, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(rows[2 * pitch + width - 1], 'x');
    EXPECT_EQ(cudaFree(rows), cudaSuccess);
  }
  void* nothing = nullptr;
  size_t pitch = 0;
  EXPECT_EQ(cudaMallocPitch(&nothing, &pitch, ~size_t{0}, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMallocPitch(&nothing, &pitch, size_t{1} << 40, size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMallocPitch(&nothing, nullptr, 4, 4), cudaErrorInvalidValue);
}

TEST_F(SimtRuntime, AdviceAboutMemory) {
  int* data = nullptr;
  ASSERT_EQ(cudaMallocManaged(&data, 4000), cudaSuccess);
  EXPECT_EQ(cudaMemPrefetchAsync(data, 4000, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPrefetchAsync(data + 500, 2000, cudaCpuDeviceId, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemAdvise(data, 4000, cudaMemAdviseSetReadMostly, 0), cudaSuccess);
  const cudaMemLocation host{cudaMemLocationTypeHost, 0};  // as CUDA 13 has it
  EXPECT_EQ(cudaMemPrefetchAsync(data, 4000, host, 0u), cudaSuccess);
  EXPECT_EQ(cudaMemAdvise(data, 4000, cudaMemAdviseSetPreferredLocation, host), cudaSuccess);
  EXPECT_EQ(cudaMemPrefetchAsync(data, 8000, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPrefetchAsync(&data, 8, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPrefetchAsync(data, 4000, 1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST_F(SimtRuntime, CopiesAreChecked) {
  DeviceArray<int> a(std::vector<int>{1, 2, 3, 4}), b(4);
  std::vector<int> host(8, 9);
  EXPECT_EQ(cudaMemcpy(b, a, 16, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_EQ(b.values(), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(cudaMemcpy(host.data(), a, 17, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(static_cast<int*>(a) + 1, host.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), host.data() + 4, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(a, 0, 17), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(a, 1, 8), cudaSuccess);
  EXPECT_EQ(a.values(), (std::vector<int>{0x01010101, 0x01010101, 3, 4}));
  // Two rows of one int out of rows of two.
  EXPECT_EQ(cudaMemcpy2D(host.data(), 4, b, 8, 4, 2, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host[0], 1);
  EXPECT_EQ(host[1], 3);
  EXPECT_EQ(cudaMemcpy2D(host.data(), 4, b, 8, 12, 2, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);

  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 16), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(pinned, b, 16, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(pinned[3], 4);
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, pinned), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, static_cast<int*>(a)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  cudaGetLastError();
}

__constant__ float factors[4];
__device__ int calls;

__global__ void scale(float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] *= factors[i % 4];
  if (i == 0) atomicAdd(&calls, 1);
}

TEST_F(SimtRuntime, Symbols) {
  const float host[4] = {1, 2, 3, 4};
  ASSERT_EQ(cudaMemcpyToSymbol(factors, host, sizeof(host)), cudaSuccess);
  int zero = 0;
  ASSERT_EQ(cudaMemcpyToSymbol(calls, &zero, sizeof(int)), cudaSuccess);
  DeviceArray<float> x(8, 10.0f);
  launch(scale, {.grid = 1, .block = 32}, x, 8);
  EXPECT_EQ(x.values(), (std::vector<float>{10, 20, 30, 40, 10, 20, 30, 40}));
  int count = 0;
  ASSERT_EQ(cudaMemcpyFromSymbol(&count, calls, sizeof(int)), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaMemcpyToSymbol(calls, host, sizeof(host)), cudaErrorInvalidValue);
}

TEST_F(SimtRuntime, EventsMeasureTheHostsTime) {
  cudaEvent_t start, stop;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&stop), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, stop), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(start), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_EQ(cudaEventRecord(stop), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(stop), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  EXPECT_GE(milliseconds, 20.0f);
  EXPECT_LT(milliseconds, 2000.0f);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(stop), cudaSuccess);
  cudaGetLastError();
}

struct Addition {
  int* to;
  int value;
};
__global__ void add(Addition addition) {
  atomicAdd(addition.to, addition.value);
}

TEST_F(SimtRuntime, AGraphIsKeptAndRepeated) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  DeviceArray<int> sum(1), copy(1);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  {
    const Addition gone_when_the_graph_runs{sum, 3};
    launch(add, {.grid = 2, .block = 16, .stream = stream}, gone_when_the_graph_runs);
  }
  ASSERT_EQ(cudaMemcpyAsync(copy, sum, 4, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(sum, 0, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(sum.values()[0], 0) << "nothing runs while it is captured";
  size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 3u);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_EQ(cudaMemset(copy, 0, 4), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(copy.values()[0], 96);
    EXPECT_EQ(sum.values()[0], 0);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  cudaGetLastError();
}

TEST_F(SimtRuntime, HostThreadsMayLaunchAtOnce) {
  DeviceArray<int> sum(1);
  int* const data = sum;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([data] {
      for (int i = 0; i < 25; ++i) launch(add, {.grid = 4, .block = 32}, Addition{data, 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum.values()[0], 4 * 25 * 4 * 32);
}

TEST_F(SimtRuntime, LaunchByArgumentPointers) {
  DeviceArray<int> sum(1);
  Addition addition{sum, 5};
  void* arguments[] = {&addition};
  ASSERT_EQ(cudaLaunchKernel(add, dim3(1), dim3(8), arguments, 0, nullptr), cudaSuccess);
  EXPECT_EQ(sum.values()[0], 40);
}

TEST_F(SimtRuntime, Occupancy) {
  int blocks = 0;
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0), cudaSuccess);
  EXPECT_EQ(blocks, 8);
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 100 * 1024), cudaSuccess);
  EXPECT_EQ(blocks, 2);
  cudaFuncAttributes attributes;
  ASSERT_EQ(cudaFuncGetAttributes(&attributes, add), cudaSuccess);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 1024);
  EXPECT_EQ(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_F(SimtRuntime, BlockSizesThatAreProposed) {
  int blocks = 0, threads = 0, multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  ASSERT_EQ(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, add), cudaSuccess);
  EXPECT_EQ(threads, 1024);
  EXPECT_EQ(blocks, 2 * multiprocessors);
  ASSERT_EQ(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, add, 0, 200), cudaSuccess);
  EXPECT_EQ(threads, 128);  // 16 blocks of it are 2,048 threads; 10 of 192 are fewer, as are those of 200
  EXPECT_EQ(blocks, 16 * multiprocessors);
  const auto a_kilobyte_each = [](int size) { return size * 1024; };  // 227 KB are the most of a block
  ASSERT_EQ(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&blocks, &threads, add, a_kilobyte_each), cudaSuccess);
  EXPECT_EQ(threads * (blocks / multiprocessors), 224);
  EXPECT_EQ(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, add, 0, -1), cudaErrorInvalidValue);
}

void CUDART_CB count_up(cudaStream_t, cudaError_t status, void* data) {
  *static_cast<int*>(data) += status == cudaSuccess ? 1 : 100;
}

TEST_F(SimtRuntime, Priorities) {
  int least = 9, greatest = 9;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, least);  // smaller numbers come first
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(SimtRuntime, Callbacks) {
  int calls = 0;
  ASSERT_EQ(cudaStreamAddCallback(nullptr, count_up, &calls, 0), cudaSuccess);
  EXPECT_EQ(calls, 1);
}

TEST_F(SimtRuntime, ResetFreesAndForgets) {
  int* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_THROW(launch(add, {.grid = 1, .block = 1}, Addition{nullptr, 1}), CudaError);
  EXPECT_EQ(cudaMemset(data, 0, 4), cudaErrorIllegalAddress) << "after a fault every call fails";
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue) << "it has been freed";
  cudaGetLastError();
}

}  // namespace
}  // namespace worklog::test

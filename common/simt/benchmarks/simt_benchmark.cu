// How fast the CPU layer runs the shapes of kernels that the ladder is made of: LayerNorm of 1024 x 1024 fp32.
//
// These are times of this layer, for those who work on it. They say nothing about a GPU.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/device/launch.cuh"

namespace {

constexpr int rows = 1024;
constexpr int cols = 1024;
constexpr float eps = 1e-6f;

// One thread walks its row three times: no thread ever waits.
__global__ void thread_per_row(const float* x, float* y) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  x += row * cols;
  y += row * cols;
  float sum = 0.0f;
  for (int col = 0; col < cols; ++col) sum += x[col];
  const float mean = sum / cols;
  float squares = 0.0f;
  for (int col = 0; col < cols; ++col) squares += (x[col] - mean) * (x[col] - mean);
  const float rstd = 1.0f / std::sqrt(squares / cols + eps);
  for (int col = 0; col < cols; ++col) y[col] = (x[col] - mean) * rstd;
}

// The sum over a block by a tree in shared memory: log2(threads) + 1 barriers.
template <int threads>
__device__ float tree_sum(float value) {
  __shared__ float partial[threads];
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int stride = threads / 2; stride > 0; stride /= 2) {
    if (static_cast<int>(threadIdx.x) < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
    __syncthreads();
  }
  const float sum = partial[0];
  __syncthreads();  // so that the next call does not overwrite it too early
  return sum;
}

// The sum over a block by shuffles within each warp and then across the warps' sums: 10 shuffles, two barriers.
template <int threads>
__device__ float shuffle_sum(float value) {
  __shared__ float of_warp[threads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < threads / 32 ? of_warp[threadIdx.x % 32] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  return value;
}

// One block per row.
template <int threads, float (*block_sum)(float)>
__global__ void block_per_row(const float* x, float* y) {
  x += blockIdx.x * cols;
  y += blockIdx.x * cols;
  float sum = 0.0f;
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += threads) sum += x[col];
  const float mean = block_sum(sum) / cols;
  float squares = 0.0f;
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += threads) {
    squares += (x[col] - mean) * (x[col] - mean);
  }
  const float rstd = 1.0f / std::sqrt(block_sum(squares) / cols + eps);
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += threads) y[col] = (x[col] - mean) * rstd;
}

void layernorm(benchmark::State& state, void (*kernel)(const float*, float*), unsigned blocks, unsigned threads) {
  std::vector<float> host(rows * cols);
  for (int i = 0; i < rows * cols; ++i) host[static_cast<size_t>(i)] = static_cast<float>(i % cols);
  const size_t bytes = host.size() * sizeof(float);
  float* x = nullptr;
  float* y = nullptr;
  worklog::check_cuda(cudaMalloc(&x, bytes), "allocating x");
  worklog::check_cuda(cudaMalloc(&y, bytes), "allocating y");
  worklog::check_cuda(cudaMemcpy(x, host.data(), bytes, cudaMemcpyHostToDevice), "copying x");
  for (auto _ : state) worklog::launch(kernel, {.grid = blocks, .block = threads}, x, y);
  worklog::check_cuda(cudaMemcpy(host.data(), y, bytes, cudaMemcpyDeviceToHost), "copying y");
  // Each row is 0 .. 1023: its last value is 511.5 above the mean, in units of the deviation of those numbers.
  const double want = 511.5 / std::sqrt((1024.0 * 1024.0 - 1) / 12);
  for (int row = 0; row < rows; ++row) {
    if (std::abs(host[static_cast<size_t>(row * cols + cols - 1)] - want) > 1e-4) state.SkipWithError("wrong result");
  }
  cudaFree(x);
  cudaFree(y);
}

BENCHMARK_CAPTURE(layernorm, thread_per_row, thread_per_row, rows / 256, 256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(layernorm, tree_of_256, block_per_row<256, tree_sum<256>>, rows, 256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(layernorm, tree_of_1024, block_per_row<1024, tree_sum<1024>>, rows, 1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(layernorm, shuffles_of_256, block_per_row<256, shuffle_sum<256>>, rows, 256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(layernorm, shuffles_of_1024, block_per_row<1024, shuffle_sum<1024>>, rows, 1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();

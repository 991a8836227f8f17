// Sums by shuffles, a template whose arguments follow from the call, and a stream with events.
#include <cuda_runtime.h>

#include <cstdio>

constexpr unsigned kAll = 0xffffffffu;

template <typename T>
__inline__ __device__ T warp_sum(T v) {
#pragma unroll
  for (int offset = warpSize / 2; offset > 0; offset /= 2) v += __shfl_down_sync(kAll, v, offset);
  return v;
}

template <typename T>
__device__ T block_sum(T v) {
  static __shared__ T of_warp[32];
  const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  v = warp_sum(v);
  __syncthreads();
  if (lane == 0) of_warp[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / warpSize ? of_warp[lane] : T(0);
  if (warp == 0) v = warp_sum(v);
  if (threadIdx.x == 0) of_warp[0] = v;
  __syncthreads();
  return of_warp[0];
}

template <typename T>
__global__ __launch_bounds__(256) void layernorm_shuffle(const T* __restrict__ x, const T* __restrict__ g,
                                                         const T* __restrict__ b, T* __restrict__ y, int cols,
                                                         float eps) {
  const T* in = x + static_cast<long long>(blockIdx.x) * cols;
  T s = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) s += in[i];
  const T mean = block_sum(s) / cols;
  s = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) s += (in[i] - mean) * (in[i] - mean);
  const T r = rsqrtf(block_sum(s) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) {
    y[static_cast<long long>(blockIdx.x) * cols + i] = (in[i] - mean) * r * __ldg(g + i) + __ldg(b + i);
  }
}

extern "C" void solve(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols, float eps) {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaStreamCreate(&stream);
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  cudaMemsetAsync(y, 0, sizeof(float) * rows * cols, stream);
  cudaEventRecord(start, stream);
  layernorm_shuffle<<<dim3(rows), dim3(256), 0, stream>>>(x, gamma, beta, y, cols, eps);
  cudaEventRecord(stop, stream);
  cudaEventSynchronize(stop);
  float ms = 0;
  cudaEventElapsedTime(&ms, start, stop);
  if (ms < 0) printf("time goes back\n");
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
}

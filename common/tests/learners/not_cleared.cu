// LeetGPU 83: residual and RMS norm, with sums added into memory that nobody has set to zero.
#include <cuda_runtime.h>

__constant__ float c_eps;

__global__ void sum_squares(const float* x, const float* res, float* total, int C) {
  float s = 0.f;
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float z = x[blockIdx.x * C + c] + res[blockIdx.x * C + c];
    s += z * z;
  }
  atomicAdd(total + blockIdx.x, s);
}

__global__ void scale(const float* x, const float* res, const float* w, const float* total, float* out, int C) {
  float r = rsqrtf(total[blockIdx.x] / C + c_eps);
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    out[blockIdx.x * C + c] = (x[blockIdx.x * C + c] + res[blockIdx.x * C + c]) * r * w[c];
  }
}

// x, residual, weight, out are device pointers
extern "C" void solve(const float* x, const float* residual, const float* weight, float* out, int N, int C, float eps) {
  float* total;
  cudaMalloc(&total, N * sizeof(float));
  cudaMemcpyToSymbol(c_eps, &eps, sizeof(float));
  sum_squares<<<N, 128>>>(x, residual, total, C);
  scale<<<N, 128>>>(x, residual, weight, total, out, C);
  cudaFree(total);
}

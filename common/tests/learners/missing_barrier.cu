// The tree without the barrier inside its loop, with a static shared array.
#include <cuda_runtime.h>

__global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int D, float eps) {
  __shared__ float part[256];
  __shared__ float mean, inv_std;
  int tid = threadIdx.x;
  x += blockIdx.x * D;
  y += blockIdx.x * D;
  float s = 0;
  for (int i = tid; i < D; i += 256) s += x[i];
  part[tid] = s;
  __syncthreads();
  for (int k = 128; k > 0; k /= 2) {
    if (tid < k) part[tid] += part[tid + k];
  }
  if (tid == 0) mean = part[0] / D;
  __syncthreads();
  s = 0;
  for (int i = tid; i < D; i += 256) s += (x[i] - mean) * (x[i] - mean);
  part[tid] = s;
  __syncthreads();
  for (int k = 128; k > 0; k /= 2) {
    if (tid < k) part[tid] += part[tid + k];
    __syncthreads();
  }
  if (tid == 0) inv_std = rsqrtf(part[0] / D + eps);
  __syncthreads();
  for (int i = tid; i < D; i += 256) y[i] = (x[i] - mean) * inv_std * gamma[i] + beta[i];
}

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  layernorm<<<N, 256>>>(input, gamma, beta, output, D, eps);
}

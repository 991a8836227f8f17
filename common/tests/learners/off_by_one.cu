// A loop that goes one too far.
#include <cuda_runtime.h>

__global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int N, int D, float eps) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= N) return;
  float mean = 0.0f, var = 0.0f;
  for (int j = 0; j < D; j++) mean += x[row * D + j];
  mean /= D;
  for (int j = 0; j < D; j++) var += (x[row * D + j] - mean) * (x[row * D + j] - mean);
  float inv = rsqrtf(var / D + eps);
  for (int j = 0; j <= D; j++) y[row * D + j] = gamma[j] * (x[row * D + j] - mean) * inv + beta[j];
}

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  layernorm<<<(N + 31) / 32, 32>>>(input, gamma, beta, output, N, D, eps);
  cudaDeviceSynchronize();
}

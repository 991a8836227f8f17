// A loop whose step is zero where a row is short: it never ends.
#include <cuda_runtime.h>

__global__ void spin(const float* x, float* y, int D) {
  int step = D / 2048;
  for (int i = threadIdx.x; i < D; i += step) y[blockIdx.x * D + i] = x[blockIdx.x * D + i];
}

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  spin<<<N, 64>>>(input, output, D);
  cudaDeviceSynchronize();
}

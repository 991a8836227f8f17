// One pass: the variance as the mean of the squares less the square of the mean.
#include <cuda_runtime.h>

#define WARP 32

__global__ void fused_ln(const float* x, const float* gamma, const float* beta, float* y, int D, float eps) {
  x += (size_t)blockIdx.x * D;
  y += (size_t)blockIdx.x * D;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < D; i += WARP) {
    s += x[i];
    q += x[i] * x[i];
  }
  for (int o = WARP / 2; o; o >>= 1) {
    s += __shfl_xor_sync(~0u, s, o);
    q += __shfl_xor_sync(~0u, q, o);
  }
  float mean = s / D;
  float r = rsqrtf(q / D - mean * mean + eps);
  for (int i = threadIdx.x; i < D; i += WARP) y[i] = (x[i] - mean) * r * gamma[i] + beta[i];
}

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  fused_ln<<<N, WARP>>>(input, gamma, beta, output, D, eps);
}

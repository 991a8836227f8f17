// The pointers are the device's, and this takes them for the host's.
#include <cuda_runtime.h>

#include <cmath>

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  for (int i = 0; i < N; i++) {
    float mean = 0, var = 0;
    for (int j = 0; j < D; j++) mean += input[i * D + j] / D;
    for (int j = 0; j < D; j++) var += (input[i * D + j] - mean) * (input[i * D + j] - mean) / D;
    for (int j = 0; j < D; j++) output[i * D + j] = (input[i * D + j] - mean) / sqrtf(var + eps) * gamma[j] + beta[j];
  }
}

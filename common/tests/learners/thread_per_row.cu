// A thread to a row, three loops: right, and slow.
#include <cuda_runtime.h>

__global__ void normalize_rows(const float* X, const float* w, const float* b, float* Y, int rows, int cols,
                               float eps) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float total = 0.0f;
  for (int c = 0; c < cols; c++) total += X[r * cols + c];
  float mu = total / cols;
  float spread = 0.0f;
  for (int c = 0; c < cols; c++) {
    float d = X[r * cols + c] - mu;
    spread += d * d;
  }
  float inv = 1.0f / sqrtf(spread / cols + eps);
  for (int c = 0; c < cols; c++) Y[r * cols + c] = (X[r * cols + c] - mu) * inv * w[c] + b[c];
}

// input, weight, bias, output are device pointers
extern "C" void solve(const float* input, const float* weight, const float* bias, float* output, int N, int C,
                      float eps) {
  int threads = 128;
  int blocks = (N + threads - 1) / threads;
  normalize_rows<<<blocks, threads>>>(input, weight, bias, output, N, C, eps);
  cudaDeviceSynchronize();
}

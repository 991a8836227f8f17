// Sums by CUB's BlockReduce, whose result is thread 0's alone.
#include <cub/cub.cuh>

constexpr int kThreads = 128;

__global__ void layernorm_cub(const float* x, const float* gamma, const float* beta, float* y, int D, float eps) {
  typedef cub::BlockReduce<float, kThreads> Reduce;
  __shared__ typename Reduce::TempStorage temp;
  __shared__ float mean, rstd;
  const float* in = x + (size_t)blockIdx.x * D;
  float part = 0.0f;
  for (int i = threadIdx.x; i < D; i += kThreads) part += in[i];
  float total = Reduce(temp).Sum(part);
  if (threadIdx.x == 0) mean = total / D;
  __syncthreads();
  part = 0.0f;
  for (int i = threadIdx.x; i < D; i += kThreads) part += (in[i] - mean) * (in[i] - mean);
  total = Reduce(temp).Sum(part);
  if (threadIdx.x == 0) rstd = rsqrtf(total / D + eps);
  __syncthreads();
  for (int i = threadIdx.x; i < D; i += kThreads)
    y[(size_t)blockIdx.x * D + i] = (in[i] - mean) * rstd * gamma[i] + beta[i];
}

extern "C" void solve(const float* input, const float* gamma, const float* beta, float* output, int N, int D,
                      float eps) {
  layernorm_cub<<<N, kThreads>>>(input, gamma, beta, output, D, eps);
}

// Bug hunt: training is fine, validation is not.
#pragma once

#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::bug_hunt {

// A thread to a channel of [samples * pixels, channels].
__global__ void batchnorm_kernel(BatchNormTrain<float> p) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= p.channels) return;
  const int64_t rows = p.samples * p.pixels;

  float sum = 0.0f;
  for (int64_t row = 0; row < rows; ++row) sum += p.x[row * p.channels + channel];
  const float mean = sum / rows;
  float m2 = 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const float deviation = p.x[row * p.channels + channel] - mean;
    m2 += deviation * deviation;
  }
  const float variance = m2 / rows;
  const float invstd = rsqrtf(variance + p.eps);

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = (p.x[i] - mean) * invstd * gamma + beta;
  }
  p.save_mean[channel] = mean;
  p.save_invstd[channel] = invstd;
  if (p.running_mean) p.running_mean[channel] += p.momentum * (mean - p.running_mean[channel]);
  if (p.running_var) p.running_var[channel] += p.momentum * (variance - p.running_var[channel]);
}

inline void batch_norm(const BatchNormTrain<float>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  const auto blocks = static_cast<unsigned>((p.channels + 31) / 32);
  launch(batchnorm_kernel, {.grid = blocks, .block = 32, .stream = stream}, p);
}

}  // namespace worklog::bug_hunt

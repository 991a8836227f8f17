// Exercise: what a batch leaves behind for inference. Look for [task].
#pragma once

#include <algorithm>

#include "05_welford/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

// What one channel's batch statistics leave behind. `m2` is the sum of the squared deviations of `count` values.
template <class T, class G>
__device__ inline void write_statistics(const BatchNormTrain<T, G>& p, int channel, float count, float mean, float m2,
                                        float invstd) {
  p.save_mean[channel] = mean;
  p.save_invstd[channel] = invstd;
  // [task: running] What is given here keeps this batch's statistics and forgets all before. Let the running ones,
  // where there are any, take a step towards them: p.momentum is the weight of the new value. What is kept as the
  // running variance is an estimate for data that was not in the batch.
  if (p.running_mean) p.running_mean[channel] = mean;
  if (p.running_var) p.running_var[channel] = m2 / count;
  // [/task]
}

// The formula, a thread to a channel. Neighbouring threads have neighbouring channels, so that what a warp reads in one
// step lies together; but 1024 channels are 1024 threads, on a GPU that has room for 264 times as many.
__global__ void batchnorm_channel_per_thread(BatchNormTrain<float> p) {
  const int64_t rows = p.samples * p.pixels;
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= p.channels) return;

  float sum = 0.0f;
  for (int64_t row = 0; row < rows; ++row) sum += p.x[row * p.channels + channel];
  const float mean = sum / rows;
  float m2 = 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const float deviation = p.x[row * p.channels + channel] - mean;
    m2 += deviation * deviation;
  }
  const float invstd = 1.0f / sqrtf(m2 / rows + p.eps);

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = (p.x[i] - mean) * invstd * gamma + beta;
  }
  write_statistics(p, channel, rows, mean, m2, invstd);
}

// For [N, C], and for images with their channels last, which are [N * pixels, C].
inline void channel_per_thread(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  constexpr int threads = 32;  // a warp to a block: as many multiprocessors as there are warps
  launch(batchnorm_channel_per_thread,
         {.grid = static_cast<unsigned>((p.channels + threads - 1) / threads), .block = threads, .stream = stream}, p);
}

}  // namespace worklog::batchnorm

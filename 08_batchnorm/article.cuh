// The two ways that the article thinks of first, and leaves for the tile of kernels.cuh. It describes them and shows no
// code: see docs/sources.md.
#pragma once

#include "08_batchnorm/kernels.cuh"

namespace worklog::batchnorm {

// [snippet: samples_atomics]
// A thread to a sample: it adds each of its values, and the square, to the sums of that value's channel. All samples
// add to the same sums, and the 32 lanes of a warp to the same one at the same time. Which of them is first differs
// from run to run, and so do the last bits.
__global__ void add_samples(BatchNormTrain<float> p, float* sums, float* squares) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.samples * p.pixels) return;
  for (int64_t channel = 0; channel < p.channels; ++channel) {
    const float v = p.x[row * p.channels + channel];
    atomicAdd(sums + channel, v);
    atomicAdd(squares + channel, v * v);
  }
}

// Only a second kernel knows that all have added. It reads coalesced, so that the additions alone make the difference.
__global__ void normalize_by_sums(BatchNormTrain<float> p, const float* sums, const float* squares) {
  const int64_t rows = p.samples * p.pixels;
  const int64_t channel = int64_t{blockIdx.x} * tile + threadIdx.x;
  if (channel >= p.channels) return;
  const float mean = sums[channel] / rows;
  const float variance = fmaxf(squares[channel] / rows - mean * mean, 0.0f);
  const float invstd = rsqrtf(variance + p.eps);

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  const int64_t first = int64_t{blockIdx.y} * tile + threadIdx.y;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.y} * tile) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = gamma * ((p.x[i] - mean) * invstd) + beta;
  }
  if (first == 0) write_statistics(p, channel, rows, mean, variance * rows, invstd);
}
// [/snippet]

// [snippet: block_per_channel]
// A block to a channel, its threads to the samples. Neighbouring threads read addresses that lie `channels` floats
// apart: uncoalesced. The sums and the formula are those of the tile, so that only the addresses differ.
inline constexpr int threads_of_channel = 256;

__global__ void batchnorm_block_per_channel(BatchNormTrain<float> p) {
  __shared__ float sums[threads_of_channel];
  __shared__ float squares[threads_of_channel];
  const int64_t rows = p.samples * p.pixels;
  const int64_t channel = blockIdx.x;

  float sum = 0.0f;
  float square = 0.0f;
  for (int64_t row = threadIdx.x; row < rows; row += threads_of_channel) {
    const float v = p.x[row * p.channels + channel];
    sum += v;
    square += v * v;
  }
  sums[threadIdx.x] = sum;
  squares[threadIdx.x] = square;
  __syncthreads();
  for (int half = threads_of_channel / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      squares[threadIdx.x] += squares[threadIdx.x + half];
    }
    __syncthreads();
  }
  const float mean = sums[0] / rows;
  const float variance = fmaxf(squares[0] / rows - mean * mean, 0.0f);
  const float invstd = rsqrtf(variance + p.eps);

  const float gamma = p.gamma ? p.gamma[channel] : 1.0f;
  const float beta = p.beta ? p.beta[channel] : 0.0f;
  for (int64_t row = threadIdx.x; row < rows; row += threads_of_channel) {
    const int64_t i = row * p.channels + channel;
    p.y[i] = gamma * ((p.x[i] - mean) * invstd) + beta;
  }
  if (threadIdx.x == 0) write_statistics(p, channel, rows, mean, variance * rows, invstd);
}
// [/snippet]

// [snippet: article_launches]
// The workspace holds two sums of each of 1048576 channels, the most that the stage's program accepts.
inline void samples_atomics(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  const int64_t rows = p.samples * p.pixels;
  float* const sums = p.workspace;
  float* const squares = p.workspace + p.channels;
  check_cuda(cudaMemsetAsync(sums, 0, 2 * p.channels * sizeof(float), stream), "clearing the sums");
  constexpr int threads = 32;  // a warp to a block, so that they spread over all multiprocessors
  launch(add_samples,
         {.grid = static_cast<unsigned>((rows + threads - 1) / threads), .block = threads, .stream = stream}, p, sums,
         squares);
  const unsigned tiles = static_cast<unsigned>((p.channels + tile - 1) / tile);
  const unsigned parts = static_cast<unsigned>(std::min<int64_t>((rows + tile - 1) / tile, 128));
  launch(normalize_by_sums, {.grid = dim3(tiles, parts), .block = dim3(tile, tile), .stream = stream}, p, sums,
         squares);
}

inline void block_per_channel(const BatchNormTrain<float>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  const unsigned blocks = static_cast<unsigned>(p.channels);
  launch(batchnorm_block_per_channel, {.grid = blocks, .block = threads_of_channel, .stream = stream}, p);
}
// [/snippet]

}  // namespace worklog::batchnorm

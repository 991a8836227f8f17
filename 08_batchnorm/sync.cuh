// BatchNorm over the batches of several GPUs: what each has found goes to all, and all merge it in the same order.
#pragma once

#include "08_batchnorm/kernels.cuh"

namespace worklog::batchnorm {

// [snippet: sync_steps]
// The final kernel with nothing to write: it ends with what it has found of each channel.
template <class Steps>
struct FindingSteps : Steps {
  typename Steps::Shared* found;  // [channels]

  __host__ __device__ typename Steps::T* output() const { return nullptr; }
  __device__ typename Steps::Channel finish(const typename Steps::Shared& all, int channel, bool writes) const {
    if (writes) found[channel] = all;
    return {};
  }
};

// The final kernel's second half, with what is known of each channel.
template <class Steps>
struct ApplyingSteps : Steps {
  const typename Steps::Channel* channels;

  __device__ typename Steps::Channel channel(int channel) const { return channels[channel]; }
};

// `found` holds [ranks, channels]. A warp merges a channel, in the order of the ranks: every GPU gets the same bits.
template <class Steps>
__global__ void merge_ranks(Steps steps, const typename Steps::Shared* found, int ranks, int channels,
                            typename Steps::Channel* result) {
  const int channel = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / lanes);
  if (channel >= channels) return;
  const Team team = {lanes, static_cast<int>(threadIdx.x) % lanes};
  const typename Steps::Shared all =
      steps.combined(team, ranks, [&](int rank) { return found[int64_t{rank} * channels + channel]; });
  const typename Steps::Channel done = steps.finish(all, channel, team.lane == 0);
  if (team.lane == 0) result[channel] = done;
}
// [/snippet]

// [snippet: sync_launches]
// One rank's part in three steps: find(), then the caller gathers what all ranks have found, then merge() and apply().
// A rank without rows takes part in all of them.
template <class Steps>
void find(const Steps& steps, bool aligned, typename Steps::Shared* found, cudaStream_t stream) {
  const Shape shape = shape_of(steps.p);
  if (shape.samples == 0) {  // all bits zero: no values, and sums of nothing
    check_cuda(cudaMemsetAsync(found, 0, sizeof(*found) * shape.channels, stream), "clearing what is found");
    return;
  }
  normalize(FindingSteps<Steps>{steps, found}, aligned, stream);
}

template <class Steps>
void merge_found(const Steps& steps, const typename Steps::Shared* found, int ranks, typename Steps::Channel* channels,
                 cudaStream_t stream) {
  constexpr int64_t threads = 128;
  const int64_t count = steps.p.channels;
  launch(merge_ranks<Steps>,
         {.grid = static_cast<unsigned>((count * lanes + threads - 1) / threads), .block = threads, .stream = stream},
         steps, found, ranks, static_cast<int>(count), channels);
}

template <class Steps>
void apply_found(const Steps& steps, bool aligned, const typename Steps::Channel* channels, cudaStream_t stream) {
  if (steps.p.samples > 0) apply(ApplyingSteps<Steps>{steps, channels}, aligned, stream);
}
// [/snippet]

}  // namespace worklog::batchnorm

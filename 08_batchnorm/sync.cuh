// BatchNorm over the batches of several GPUs: what each has found goes to all, and all merge it in the same order.
#pragma once

#include "08_batchnorm/final/apply.cuh"
#include "08_batchnorm/final/backward_steps.cuh"
#include "08_batchnorm/final/launch.cuh"
#include "08_batchnorm/final/train_steps.cuh"

namespace worklog::batchnorm {

// [snippet: sync_steps]
// The final kernel with nothing to write: it ends with what it has found of each channel.
template <class Steps>
struct FindingSteps : Steps {
  typename Steps::Shared* found;  // [channels]

  __host__ __device__ typename Steps::T* output() const { return nullptr; }
  __device__ void write(const typename Steps::Shared& all, int channel, const typename Steps::Past&) const {
    found[channel] = all;
  }
};

// The final kernel's second half, with what is known of each channel.
template <class Steps>
struct ApplyingSteps : Steps {
  const typename Steps::Channel* channels;

  template <int size>
  __device__ void read_channels(const int (&found)[size], Neighbors, typename Steps::Channel (&known)[size]) const {
#pragma unroll
    for (int k = 0; k < size; ++k) known[k] = channels[found[k]];
  }
};

// `found` holds [ranks, channels]. A warp merges a channel, in the order of the ranks: every GPU gets the same bits.
template <class Steps>
__global__ void merge_ranks(Steps steps, const typename Steps::Shared* found, int ranks, int channels,
                            typename Steps::Channel* result) {
  const int channel = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / lanes);
  if (channel >= channels) return;
  const Team team = {lanes, 1, static_cast<int>(threadIdx.x) % lanes};
  const auto of_rank = [&](int rank) { return found[int64_t{rank} * channels + channel]; };
  int some = 0;  // a rank that has values
  while (some + 1 < ranks && steps.is_empty(of_rank(some))) ++some;
  // Ranks may have few values or many. Merged once more near the mean of all, none counts more than its values do.
  typename Steps::Shared all = steps.combined(team, ranks, of_rank(some), of_rank);
  all = steps.combined(team, ranks, all, of_rank);
  if (team.lane == 0) {
    result[channel] = steps.finish(all, steps.given(channel));
    steps.write(all, channel, steps.past(channel));
  }
}
// [/snippet]

// [snippet: sync_launches]
// One rank's part: find(), then the caller gathers what all ranks have found, then merge_found() and apply_found().
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
  if (steps.p.samples > 0) apply(ApplyingSteps<Steps>{steps, channels}, aligned, false, stream);
}
// [/snippet]

}  // namespace worklog::batchnorm

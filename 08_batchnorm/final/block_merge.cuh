// How the threads of a block put together what they have found of each channel. Each thread leaves its partial results
// in shared memory. Then each channel has a team of lanes, which merges them.
#pragma once

#include <cstdint>

#include "08_batchnorm/final/merge.cuh"
#include "08_batchnorm/final/parts.cuh"
#include "08_batchnorm/final/tiling.cuh"

namespace worklog::batchnorm {

// [snippet: merge_block]
// Leaves a thread's partials for its block: partial k of thread t at [k * (threads + 1) + t], so that neighbouring
// channels are in different banks. Where a vector has one or two channels, the thread merges those of each first.
template <int threads, bool images, class Steps, int size>
__device__ inline void keep_partials(const Steps& steps, int kept, const int (&channels)[size],
                                     const typename Steps::Partial (&mine)[size], typename Steps::Partial* partials) {
  typename Steps::Partial* const of_thread = partials + threadIdx.x;
  if (!images || kept == size) {
#pragma unroll
    for (int k = 0; k < size; ++k) of_thread[k * (threads + 1)] = mine[k];
    return;
  }
  int of_first = 0;  // elements of the vector's first channel
  typename Steps::Partial reversed[size];
#pragma unroll
  for (int k = 0; k < size; ++k) {
    of_first += channels[k] == channels[0];
    reversed[k] = mine[size - 1 - k];
  }
  of_thread[0] = steps.merged(mine, of_first);
  if (kept == 2) of_thread[threads + 1] = steps.merged(reversed, size - of_first);
}

// What the block has found of one channel, from what its threads have left. All lanes of a warp call this.
template <int threads, bool images, class Steps, int size>
__device__ inline typename Steps::Partial merge_block(const Steps& steps, const Tiling& tiling, const Part<size>& part,
                                                      const typename Steps::Partial* partials, const Team& team,
                                                      int channel, float scale) {
  using Partial = typename Steps::Partial;
  const int run = images ? part.run : 1;
  const int apart = images ? 1 : part.channels;  // on a line, from one of the channel's partials to the next
  const bool whole_vectors = images && tiling.kept < size;
  const int first = whole_vectors ? channel * run / size : channel * run;
  const auto get = [&](int i) -> Partial {
    const int line = tiling.parts_of_line == 1 ? i : i / tiling.parts_of_line;
    const int column = first + (i - line * tiling.parts_of_line) * apart;
    if (!whole_vectors) return partials[column % size * (threads + 1) + line * tiling.columns + column / size];
    if (column * size >= (channel + 1) * run) return {};  // some channels reach into one vector fewer
    const int k = column * size < channel * run ? 1 : 0;
    return partials[k * (threads + 1) + line * tiling.columns + column];
  };
  const Partial all = steps.merged(team, tiling.parts, get);
  if (images || part.rows_over == 0) return all;
  const int before = tiling.parts > 0 ? 1 : 0;
  return steps.merged(team, before + part.rows_over, [&](int i) {
    if (i < before) return all;
    const int64_t place = part.first_over + int64_t{i - before} * part.channels + channel;
    return steps.partial_of_element(place, part.first_channel + channel, scale);
  });
}
// [/snippet]

}  // namespace worklog::batchnorm

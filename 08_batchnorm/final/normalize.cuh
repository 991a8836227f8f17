// One launch. Each block takes its part of the rows of some channels, and reads it forwards through a ring in shared
// memory. The blocks of a tile leave each other what they found, and all blocks wait for each other, once. Then each
// merges what its tile's blocks found, and reads its part once more, backwards: what it read last is still in its ring.
// A small problem is in the rings altogether, and is read once.
//
// What runs once, between the two passes, costs time with every instruction: it waits for the one before, and is issued
// for every warp. So divisions that depend on the shape alone are made on the host, and every channel has a team of
// lanes from the start.
//
// What is summed up and what is written is a type, `Steps`: that of train_steps.cuh or of backward_steps.cuh.
#pragma once

#include <cooperative_groups.h>

#include "03_warp_shuffle/kernels.cuh"
#include "08_batchnorm/final/block_merge.cuh"
#include "08_batchnorm/final/merge.cuh"
#include "08_batchnorm/final/parts.cuh"
#include "08_batchnorm/final/passes.cuh"
#include "08_batchnorm/final/ring.cuh"
#include "08_batchnorm/final/tiling.cuh"
#include "08_batchnorm/final/vector.cuh"
#include "common/device/launch.cuh"

namespace worklog::batchnorm {

using warp_shuffle::lanes;

// [snippet: kernel]
// `images`: neighbouring elements are of one channel.
template <class Steps, int size, bool images, class Config, class Ring>
__device__ inline void normalize_tile(const Steps& steps, const Tiling& tiling, int tile, const Ring& ring,
                                      unsigned char* exchange) {
  using Partial = typename Steps::Partial;
  using Shared = typename Steps::Shared;
  using Channel = typename Steps::Channel;
  const int thread = static_cast<int>(threadIdx.x);
  const int split = static_cast<int>(blockIdx.y);
  using Walk = Walk<images>;
  const Part<size> part(tiling, tile, split);
  Walk walk(tiling, part);
  wait_for_previous_kernel();
  if constexpr (Ring::holds_all) fill_ring(ring, steps, part, walk);
  int my_channels[size];
  part.template find_channels<images>(my_channels);

  // This thread's team, and its channel. A team without a channel merges channel 0 again, so that its warp stays
  // together; a warp that has no channel at all merges nothing.
  const int teams = lanes >> tiling.team_bits;  // of a warp
  const int lane = thread % lanes;
  const Team team = {1 << tiling.team_bits, teams, lane >> (5 - tiling.team_bits)};
  const int of_team = thread / lanes * teams + (lane & (teams - 1));
  const int channel = of_team < part.channels ? of_team : 0;
  const bool writes = of_team < part.channels && team.lane == 0;
  const bool merges = thread / lanes * teams < part.channels;  // this warp
  const typename Steps::Given given = steps.given(part.first_channel + channel);

  // Once, and once more for the channels that have overflowed.
  typename Ring::Bits* last = nullptr;
  // Of two tensors, half as many vectors fit in the registers, and nothing was gained, as measured.
  constexpr bool reads_ahead = Steps::inputs == 1 && !Ring::holds_all;
  static_assert(Config::ahead % Ring::batch == 0);
  Ahead<Ring, Steps, size, Config::ahead> ahead;
  ahead.is_there = reads_ahead && steps.output() && part.count >= Ring::held + Config::ahead + Ring::batch;
  Shared found = {};
#pragma unroll 1
  for (float scale = 1.0f;; scale = small_scale) {
    typename Steps::Sums sums[size] = {};
    if constexpr (!Ring::holds_all) {
      walk = Walk(tiling, part);
      fill_ring(ring, steps, part, walk);
    }
    last = read_forwards(ring, steps, part, walk, my_channels, scale, sums);
    if (scale == 1.0f) ahead.ask(ring, steps, Walk(tiling, part));
    Partial* const partials = reinterpret_cast<Partial*>(exchange);
    Partial mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) {
      mine[k] = steps.partial(sums[k], part.count, part.first_channel + my_channels[k], scale);
    }
    keep_partials<Config::threads, images>(steps, tiling.kept, my_channels, mine, partials);
    __syncthreads();
    Partial merged = {};
    if (merges) merged = merge_block<Config::threads, images>(steps, tiling, part, partials, team, channel, scale);
    if (scale == 1.0f || steps.overflowed(found)) found = steps.share(merged, scale);
    if (!__syncthreads_or(steps.overflowed(merged)) || scale != 1.0f) break;
  }

  // What all blocks of the tile have found, each merges for itself: that costs less than to wait for each other again.
  if (tiling.splits > 1) {
    Shared* const all =
        reinterpret_cast<Shared*>(steps.p.workspace) + int64_t{tile} * tiling.splits * tiling.tile_channels + channel;
    if (writes) all[split * tiling.tile_channels] = found;
    cooperative_groups::this_grid().sync();
    if (merges) {
      const auto of_block = [&](int i) { return all[i * tiling.tile_channels]; };
      found = steps.combined(team, tiling.splits, steps.near_all(tiling.splits, of_block), of_block);
    }
  }
  let_next_kernel_start();
  Channel* const channels = reinterpret_cast<Channel*>(exchange);
  const Channel done = steps.finish(found, given);
  if (writes) channels[channel] = done;
  __syncthreads();

  const bool keeps = writes && split == 0;
  typename Steps::Past past = {};
  if (Ring::holds_all && keeps) past = steps.past(part.first_channel + channel);
  if (steps.output()) {
    Channel mine[size];
#pragma unroll
    for (int k = 0; k < size; ++k) mine[k] = channels[my_channels[k]];
    write_backwards(ring, steps, part, walk, last, mine, ahead);
    for (int i = thread; i < part.rows_over * part.channels; i += Config::threads) {
      const int64_t place = part.first_over + i;
      const float result = steps.result(to_float(steps.input(0)[place]),
                                        to_float(steps.input(Steps::inputs - 1)[place]), channels[i % part.channels]);
      steps.output()[place] = static_cast<typename Steps::T>(result);
    }
  }
  if (!Ring::holds_all && keeps) past = steps.past(part.first_channel + channel);  // not before: no register was free
  if (keeps) steps.write(found, part.first_channel + channel, past);
}

template <class Steps, int size, bool images, class Config>
__global__ void __launch_bounds__(Config::threads, 1) normalize_channels(Steps steps, Tiling tiling) {
  using Ring = Ring<typename Steps::T, size, Steps::inputs, Config>;
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const Ring ring = {reinterpret_cast<typename Ring::Bits*>(memory) + threadIdx.x, advice_of(tiling.eviction),
                     advice_of(tiling.eviction_at_last)};
  unsigned char* const exchange = memory + Ring::bytes_of_thread * Config::threads;
  if constexpr (Ring::holds_all) {
    normalize_tile<Steps, size, images, Config>(steps, tiling, blockIdx.x, ring, exchange);
  } else {
    for (int tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
      normalize_tile<Steps, size, images, Config>(steps, tiling, tile, ring, exchange);
      __syncthreads();  // all have read what the next tile overwrites
    }
  }
}
// [/snippet]

}  // namespace worklog::batchnorm

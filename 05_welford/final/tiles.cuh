// Narrow rows without gaps between them, many at a time: a block normalizes a tile (packed_rows.cuh) in shared memory.
// The tile comes and goes by whole vectors, whatever a single row is, and lanes take the rows from there.
#pragma once

#include <cuda_pipeline.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "05_welford/final/alignment.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/packed_rows.cuh"
#include "05_welford/final/share.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/steps.cuh"
#include "05_welford/final/store.cuh"
#include "05_welford/final/teams.cuh"
#include "05_welford/final/tuning_sm_90.h"
#include "common/device/launch.cuh"

namespace worklog::welford {

// [snippet: packed]
// One row of a tile in shared memory by one team, in place. A team without a row has an empty place.
template <class Steps, int each, int width>
__device__ inline void normalize_in_tile(const Steps& steps, int64_t row, typename Steps::Element* cells,
                                         const UnitPlace<each, width>& place, Count whole,
                                         const LaneShare<each, width>& gamma, const LaneShare<each, width>& beta) {
  using T = typename Steps::Element;
  LaneShare<each, width> x;
  x.load(cells, place);
  const auto for_each = [&](auto f) { x.for_each(place, f); };
  LaneTeam<width> team = {moments_of<T, Steps::about, width, Rest::rounded>(for_each, whole, 1.0f)};
  const Statistics statistics = statistics_of<T, Steps::about>(team, whole, steps.p.eps, [&](float scale) {
    return moments_of<T, Steps::about, width>(for_each, whole, scale);
  });

#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
#pragma unroll
    for (int j = 0; j < each; ++j) x.at[k][j] = normalized<Steps::about>(x.at[k][j], statistics);
    steps.scale(x.at[k], gamma.at[k], beta.at[k]);
    store_unit(cells + place.column(k), x.at[k]);
  }
  if (place.lane == 0 && place.has_row()) steps.write_statistics(row, statistics);
}

// A tile that has come to shared memory: `cells` hold it for each tensor that is read, `room` elements each, and y
// takes the place of the first.
template <class Steps, int each, int width>
__device__ inline void normalize_tile(const Steps& steps, const PackedTile<typename Steps::Element>& tile,
                                      typename Steps::Element* cells, int room, UnitPlace<each, width> place,
                                      const LaneShare<each, width>& gamma, const LaneShare<each, width>& beta) {
  if constexpr (Steps::reads > 1) {
    const auto join = [&]<class Part>(Part& cell, int i) {
      const Part read[2] = {cell, *reinterpret_cast<const Part*>(cells + room + i)};
      cell = steps.join(tile.first_row, i, read);
    };
    tile.for_each([&](int i) { join(*reinterpret_cast<uint4*>(cells + i), i); }, [&](int i) { join(cells[i], i); });
  }
  __syncthreads();
  const int cols = place.cols;
  const Count whole = count_of(static_cast<float>(cols));
#pragma unroll 1
  for (int first = 0; first < tile.rows; first += threads_of_tile / width) {
    const int row = first + static_cast<int>(threadIdx.x) / width;
    place.cols = row < tile.rows ? cols : 0;
    normalize_in_tile(steps, tile.first_row + row, cells + row * cols, place, whole, gamma, beta);
  }
  __syncthreads();
  tile.copy_out(steps.p.y + tile.first_row * cols, cells);
}

// A block has one tile, and while it waits for it or stores it, others of the multiprocessor normalize. Where there is
// most to do for a byte, that leaves the schedulers without work too often: there the block stays and takes more tiles,
// and the next is on its way while it normalizes one.
template <class Steps>
inline constexpr bool takes_more_tiles = Steps::reads == 1 && Steps::about == About::mean &&
                                         sizeof(typename Steps::Element) == 2;
inline constexpr int resident_blocks_of_tiles = 6;

template <class Steps, int each, int width>
__global__ void __launch_bounds__(threads_of_tile, blocks_that_fit(threads_of_tile, resident_blocks_of_tiles))
    normalize_packed_rows(Steps steps) {
  using T = typename Steps::Element;
  constexpr int height = rows_of_tile<T, width>;
  const int cols = static_cast<int>(steps.p.cols);
  const int room = height * cols;
  T* cells = dynamic_shared<T>();           // [reads][height][cols]
  T* others = cells + Steps::reads * room;  // as many again, for the next tile
  const uint64_t advice = advice_of(steps.eviction);
  const auto start_copies = [&](const PackedTile<T>& tile, T* to) {
#pragma unroll
    for (int tensor = 0; tensor < Steps::reads; ++tensor) {
      tile.copy_in(to + tensor * room, found_once(steps.source(tensor, tile.first_row)),
                   [&](uint4* to, const T* from) { copy_vector<undivided>(to, from, advice); });
    }
    __pipeline_commit();
  };
  PackedTile<T> tile = tile_of<T>(blockIdx.x, height, steps.p.rows, cols);
  wait_for_previous_kernel();
  start_copies(tile, cells);
  if constexpr (!takes_more_tiles<Steps>) let_next_kernel_start();

  // A lane has the same columns in all rows, and reads gamma and beta once.
  const UnitPlace<each, width> place = {static_cast<int>(threadIdx.x) % width, cols};
  LaneShare<each, width> gamma, beta;
  gamma.load_parameter(steps.p.gamma, place, 1.0f);
  beta.load_parameter(steps.beta(), place, 0.0f);

  if constexpr (takes_more_tiles<Steps>) {
#pragma unroll 1
    for (int64_t next = blockIdx.x + gridDim.x; tile.rows > 0; next += gridDim.x) {
      const PackedTile<T> next_tile = tile_of<T>(next, height, steps.p.rows, cols);
      start_copies(next_tile, others);
      __pipeline_wait_prior(1);
      normalize_tile(steps, tile, cells, room, place, gamma, beta);
      tile = next_tile;
      T* const empty = cells;
      cells = others;
      others = empty;
    }
  } else {
    __pipeline_wait_prior(0);
    normalize_tile(steps, tile, cells, room, place, gamma, beta);
  }
}
// [/snippet]

// [snippet: launch_packed]
// True where the rows of all tensors follow each other without gaps, from a 16-byte boundary on.
template <class Steps>
bool lies_packed(const Steps& steps) {
  for (const Rows& each : steps.tensors()) {
    if (each.stride != steps.p.cols || !starts_on_boundary(each.first)) return false;
  }
  return true;
}

template <int each, int width, class Steps>
void launch_packed(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  constexpr bool stays = takes_more_tiles<Steps>;
  constexpr int64_t height = rows_of_tile<T, width>;
  const int64_t tiles = (steps.p.rows + height - 1) / height;
  const size_t shared_bytes = (stays ? 2 : 1) * Steps::reads * height * steps.p.cols * sizeof(T);
  const auto kernel = normalize_packed_rows<Steps, each, width>;
  int64_t blocks = tiles;
  if constexpr (stays) {  // as many as work at the same time, and no more than measured faster
    const int64_t wished = int64_t{resident_blocks_of_tiles} * device_attribute(cudaDevAttrMultiProcessorCount);
    blocks = std::min({tiles, wished, blocks_at_once(kernel, threads_of_tile, shared_bytes)});
  }
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads_of_tile,
          .shared_bytes = shared_bytes,
          .overlap = !stays,
          .stream = stream},
         steps);
}

template <int width, class Steps>
void launch_packed(const Steps& steps, cudaStream_t stream) {
  if constexpr (sizeof(typename Steps::Parameter) == 2) {
    if (steps.p.cols % 2 == 0) return launch_packed<2, width>(steps, stream);
  }
  launch_packed<1, width>(steps, stream);
}

// Rows that are no whole vectors, where they have no gaps, and there are enough of them for all multiprocessors: by the
// fewest lanes that hold a row.
template <class Steps, size_t number = 0>
bool normalize_packed(const Steps& steps, cudaStream_t stream) {
  if constexpr (number < std::size(sm_90::lanes_of_packed_rows)) {
    constexpr int width = sm_90::lanes_of_packed_rows[number];
    if (steps.p.cols > width * elements_of_lane) return normalize_packed<Steps, number + 1>(steps, stream);
    const int64_t bytes = steps.p.rows * steps.p.cols * int64_t{sizeof(typename Steps::Element)};
    const int64_t few = sm_90::least_packed_bytes * device_attribute(cudaDevAttrMultiProcessorCount);
    if (!lies_packed(steps) || bytes < few) return false;
    return launch_packed<width>(steps, stream), true;
  }
  return false;
}
// [/snippet]

}  // namespace worklog::welford

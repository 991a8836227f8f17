// Narrow rows of odd length, without gaps between them. Many such rows together are one stretch of memory, which moves
// in whole vectors, where a single row cannot. Each row of such a tile then has a few lanes, which read it from shared
// memory.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "05_welford/final/packed_rows.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/shares.cuh"
#include "07_backward/final/teams.cuh"
#include "07_backward/partials.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

using welford::elements_of_lane;
using welford::LaneShare;
using welford::PackedTile;
using welford::UnitPlace;

// [snippet: packed]
// Narrow rows that are no whole vectors, without gaps between them, go by tiles as in stage 05: some rows that are one
// stretch of memory. A block stays and takes every so many tiles. They come through a ring, dx takes the place of x in
// it, and goes out from there.
inline constexpr int threads_of_packed = welford::threads_of_tile;

template <class Pass, int width, int stages>
struct PackedRing {
  using T = typename Pass::T;
  static constexpr int height = welford::rows_of_tile<T, width> / 2;  // with more tensors in a ring, half as high
  const Pass& pass;
  int cols;
  uint64_t advice;

  // Bytes of a tile: its tensors, then rstd and the mean of its rows.
  __host__ __device__ static constexpr int bytes_of_slot(int cols) {
    return height * (Pass::tensors * cols * static_cast<int>(sizeof(T)) + 2 * static_cast<int>(sizeof(float)));
  }
  __device__ T* cells(int slot, int tensor) const {
    return reinterpret_cast<T*>(dynamic_shared<unsigned char>() + slot * bytes_of_slot(cols)) + tensor * height * cols;
  }
  __device__ float* rstd(int slot) const { return reinterpret_cast<float*>(cells(slot, Pass::tensors)); }
  __device__ RowStatistics statistics(int slot, int row) const {
    return {Pass::centered ? rstd(slot)[height + row] : 0.0f, rstd(slot)[row]};
  }
  __device__ PackedTile<T> tile(int64_t index) const { return welford::tile_of<T>(index, height, pass.p.rows, cols); }

  // Commits once for a tile that does not exist, too: the waits count commits.
  __device__ void start_copy(int64_t index, int slot) const {
    const PackedTile<T> copied = tile(index);
    if (copied.rows > 0) {
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        copied.copy_in(cells(slot, tensor), pass.tensor(tensor) + copied.first_row * cols,
                       [&](uint4* to, const T* from) { copy_vector<welford::undivided>(to, from, advice); });
      }
      for (int row = static_cast<int>(threadIdx.x); row < copied.rows; row += threads_of_packed) {
        __pipeline_memcpy_async(rstd(slot) + row, pass.p.rstd + copied.first_row + row, sizeof(float));
        if constexpr (Pass::centered) {
          __pipeline_memcpy_async(rstd(slot) + height + row, pass.p.mean + copied.first_row + row, sizeof(float));
        }
      }
    }
    __pipeline_commit();
  }
};

// What a lane adds up over all its rows.
template <int each, int width>
struct LaneSums {
  LaneShare<each, width> dgamma = {};
  LaneShare<each, width> dbeta = {};
};

// One row of a tile by one team. A team without a row has an empty place.
template <class Pass, int each, int width, int stages>
__device__ inline void dx_in_tile(const PackedRing<Pass, width, stages>& ring, int slot, int row,
                                  const UnitPlace<each, width>& place, const LaneShare<each, width>& gamma,
                                  LaneSums<each, width>& column_sums, float inverse_cols) {
  const auto row_of = [&](int tensor) { return ring.cells(slot, tensor) + row * ring.cols; };
  const RowStatistics s = place.has_row() ? ring.statistics(slot, row) : RowStatistics{0.0f, 0.0f};
  LaneShare<each, width> xhat, wdy;
  xhat.load(row_of(0), place);
  wdy.load(row_of(1), place);
  RowSums sums = {0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const float dy = wdy.at[k][j];
      xhat.at[k][j] = xhat_of(xhat.at[k][j], s);
      wdy.at[k][j] *= gamma.at[k][j];
      if constexpr (Pass::centered) sums.wdy += wdy.at[k][j];
      sums.wdy_xhat = fmaf(wdy.at[k][j], xhat.at[k][j], sums.wdy_xhat);
      column_sums.dgamma.at[k][j] = fmaf(dy, xhat.at[k][j], column_sums.dgamma.at[k][j]);
      if constexpr (Pass::centered) column_sums.dbeta.at[k][j] += dy;
    }
  }
  LaneTeam<width> team;
  team.put(sums);
  if (!ring.pass.p.dx) return;
  const Gradient gradient = gradient_with(s, team.get(), inverse_cols);
  LaneShare<each, width> dh;
  if constexpr (Pass::adds_dh) dh.load(row_of(2), place);
#pragma unroll
  for (int k = 0; k < place.units; ++k) {
    if (!place.has(k)) continue;
    float dx[each];
#pragma unroll
    for (int j = 0; j < each; ++j) {
      dx[j] = gradient(wdy.at[k][j], xhat.at[k][j]);
      if constexpr (Pass::adds_dh) dx[j] += dh.at[k][j];
    }
    welford::store_unit(row_of(0) + place.column(k), dx);
  }
}

template <class Pass, int each, int width, int stages>
__global__ void __launch_bounds__(threads_of_packed, blocks_that_fit(threads_of_packed, 4))
    backward_packed_rows(Pass pass, PartialRows partial, float inverse_cols) {
  using TheRing = PackedRing<Pass, width, stages>;
  constexpr int teams = threads_of_packed / width;
  constexpr int warps = threads_of_packed / lanes;
  const int cols = static_cast<int>(pass.p.cols);
  const int thread = static_cast<int>(threadIdx.x);
  const TheRing ring = {pass, cols, advice_of(pass.eviction)};
  UnitPlace<each, width> place = {thread % width, cols};
  wait_for_previous_kernel();
  for (int ahead = 0; ahead < stages; ++ahead) ring.start_copy(blockIdx.x + int64_t{ahead} * gridDim.x, ahead);
  LaneShare<each, width> gamma;
  gamma.load_parameter(pass.p.gamma, place, 1.0f);
  LaneSums<each, width> sums;

  int slot = 0;
  int64_t index = blockIdx.x;
  for (; ring.tile(index).rows > 0; index += gridDim.x, slot = slot == stages - 1 ? 0 : slot + 1) {
    const auto tile = ring.tile(index);
    __pipeline_wait_prior(stages - 1);
    __syncthreads();  // all threads' copies are here
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += teams) {
      const int row = first + thread / width;
      place.cols = row < tile.rows ? cols : 0;
      dx_in_tile(ring, slot, row, place, gamma, sums, inverse_cols);
    }
    __syncthreads();  // all rows of dx are there, and dy has been read
    if (pass.p.dx) tile.copy_out(pass.p.dx + tile.first_row * cols, ring.cells(slot, 0));
    ring.start_copy(index + int64_t{stages} * gridDim.x, slot);
  }
  __pipeline_wait_prior(0);
  let_next_kernel_start();
  if (!partial.first) return;

  // The sums of a warp's teams, then those of the warps.
  place.cols = cols;
  __syncthreads();                            // nobody reads the ring any more
  float* of_warps = dynamic_shared<float>();  // [warps][2][cols]
  const auto hand_in = [&](const LaneShare<each, width>& of_lane, float* to) {
    of_lane.for_each_place(place, [&](float sum, int column) {
      for (int distance = width; distance < lanes; distance *= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
      if (thread % lanes < width && column < cols) to[column] = sum;
    });
  };
  hand_in(sums.dgamma, of_warps + thread / lanes * 2 * cols);
  if constexpr (Pass::centered) hand_in(sums.dbeta, of_warps + (thread / lanes * 2 + 1) * cols);
  __syncthreads();
  for (int i = thread; i < (Pass::centered ? 2 : 1) * cols; i += threads_of_packed) {
    double sum = 0.0;
    for (int warp = 0; warp < warps; ++warp) sum += of_warps[warp * 2 * cols + i];
    partial.dgamma(blockIdx.x)[i] = static_cast<float>(sum);
  }
}
// [/snippet]

// [snippet: launch]
template <int each, int width, int stages, class Pass>
bool launch_packed(const Pass& pass, cudaStream_t stream) {
  using TheRing = PackedRing<Pass, width, stages>;
  const auto kernel = backward_packed_rows<Pass, each, width, stages>;
  const int cols = static_cast<int>(pass.p.cols);
  const size_t shared_bytes = stages * TheRing::bytes_of_slot(cols);
  if (!block_can_have(shared_bytes)) return false;
  const int64_t tiles = (pass.p.rows + TheRing::height - 1) / TheRing::height;
  const int64_t blocks = teams_for(tiles, blocks_at_once(kernel, threads_of_packed, shared_bytes), cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads_of_packed,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .stream = stream},
         pass, partial_rows_of(pass.p, blocks), 1.0f / static_cast<float>(cols));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <int width, class Pass>
bool launch_packed(const Pass& pass, cudaStream_t stream) {
  constexpr int stages = 2;
  if constexpr (sizeof(typename Pass::G) == 2) {
    if (pass.p.cols % 2 == 0) return launch_packed<2, width, stages>(pass, stream);
  }
  return launch_packed<1, width, stages>(pass, stream);
}
// [/snippet]

}  // namespace worklog::backward

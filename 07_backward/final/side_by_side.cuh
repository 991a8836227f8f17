// Small problems: dx and the sums of columns at the same time, in different blocks of one launch. Both read x and dy,
// the second time from the L2 cache. That takes less time than to write partial rows and wait for a second kernel.
#pragma once

#include <cstdint>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/teams.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: side_by_side]
// A small problem lies in the second-level cache, and there reading x and dy twice costs less than a second kernel that
// waits for the first. Some blocks then find dx, a row to a team, while others find dgamma and dbeta, a tile of columns
// of all rows to a block. Nobody waits for anybody, and there are no partial rows.
inline constexpr int threads_side_by_side = 256;

// A block's tile of columns is `tile` vectors wide, and so many neighbouring lanes have a row of it. Narrow tiles are
// more blocks with fewer rows to a thread.
template <int tile, class T>
inline constexpr int tile_columns = (tile * vector_size<T>);

// The rows of a thread whose loads are on their way together.
template <int tile>
inline constexpr int tile_batch = tile == 4 ? 8 : 4;

// The sums of the columns of tile `number`. A thread has every 128th row of a tile of 2 vectors, or every 8th of one
// of 32.
template <int tile, class Pass>
__device__ inline void sum_tile(const Pass& pass, int number) {
  using T = typename Pass::T;
  using G = typename Pass::G;
  constexpr int columns = tile_columns<tile, T>;
  constexpr int groups = threads_side_by_side / tile;
  constexpr int warps = threads_side_by_side / lanes;
  constexpr int batch = tile_batch<tile>;
  __shared__ float of_warps[warps][2][columns];
  const auto& p = pass.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % tile * vector_size<T>;  // in the tile
  const int64_t first_column = int64_t{number} * columns;
  const bool has = first_column + column < p.cols;
  float dgamma[vector_size<T>] = {};
  float dbeta[vector_size<T>] = {};

  for (int64_t first = thread / tile; first < p.rows && has; first += batch * groups) {
    uint4 x[batch], dy[batch];
    RowStatistics s[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int64_t row = first + i * groups;
      if (row >= p.rows) break;
      x[i] = *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + first_column + column);
      dy[i] = *reinterpret_cast<const uint4*>(p.dy + row * p.dy_stride + first_column + column);
      s[i] = pass.statistics(row);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (first + i * groups >= p.rows) break;
      const Floats<T> xs = unpack<T>(x[i]);
      const Floats<T> dys = unpack<T>(dy[i]);
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) {
        dgamma[k] = fmaf(dys.at[k], xhat_of(xs.at[k], s[i]), dgamma[k]);
        if constexpr (Pass::centered) dbeta[k] += dys.at[k];
      }
    }
  }

  let_next_kernel_start_at_once();  // here, as in stage 05: before, it would hold up what is on its way
#pragma unroll
  for (int k = 0; k < vector_size<T>; ++k) {
    for (int distance = tile; distance < lanes; distance *= 2) {
      dgamma[k] += __shfl_xor_sync(all_lanes, dgamma[k], distance);
      if constexpr (Pass::centered) dbeta[k] += __shfl_xor_sync(all_lanes, dbeta[k], distance);
    }
    if (thread % lanes < tile) {
      of_warps[thread / lanes][0][column + k] = dgamma[k];
      of_warps[thread / lanes][1][column + k] = dbeta[k];
    }
  }
  __syncthreads();
  for (int i = thread; i < 2 * columns; i += threads_side_by_side) {
    const int own = i % columns;
    const int which = i / columns;  // of the two sums
    G* out = which == 0 ? p.dgamma : p.dbeta;
    if (!out || first_column + own >= p.cols) continue;
    float sum = 0.0f;
    for (int warp = 0; warp < warps; ++warp) sum += of_warps[warp][which][own];
    out[first_column + own] = static_cast<G>(sum);
  }
}

// The columns of thread `thread` of `threads` that have a whole row.
template <class Pass>
__device__ inline Columns<Layout::whole, typename Pass::T> columns_of_row(const Pass& pass, int thread, int threads) {
  const int cols = static_cast<int>(pass.p.cols);
  return {0, cols, cols, 0, cols, 0, thread, threads};
}

// dx of a row by a team, of whose threads this one has `columns`. A row of which the team has none is out of range.
template <int units, class Pass, class Team>
__device__ inline void dx_in_registers(const Pass& pass, int64_t row,
                                       const Columns<Layout::whole, typename Pass::T>& columns, Team team) {
  using T = typename Pass::T;
  const auto& p = pass.p;
  const bool has_row = row < p.rows;
  const auto vector_of = [&](const T* tensor, int64_t stride, int i) {
    return *reinterpret_cast<const uint4*>(tensor + row * stride + columns.column(i));
  };
  uint4 x[units], dy[units];
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    x[i] = vector_of(p.x, p.x_stride, i);
    dy[i] = vector_of(p.dy, p.dy_stride, i);
  }
  ParameterVector<T, typename Pass::G> gamma[units];
#pragma unroll
  for (int i = 0; i < units; ++i) {
    gamma[i].template load<welford::Fit::vectors, false>(columns.has(i) ? p.gamma : nullptr, columns.column(i), 1.0f);
  }
  team.open();
  const RowStatistics s = has_row ? pass.statistics(row) : RowStatistics{0.0f, 0.0f};

  RowSums sums = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    const Floats<T> xs = unpack<T>(x[i]);
    const Floats<T> dys = unpack<T>(dy[i]);
    const Floats<T> gammas = gamma[i].floats();
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      const float wdy = dys.at[k] * gammas.at[k];
      if constexpr (Pass::centered) sums.wdy += wdy;
      sums.wdy_xhat = fmaf(wdy, xhat_of(xs.at[k], s), sums.wdy_xhat);
    }
  }
  let_next_kernel_start_at_once();
  team.put(sums);
  constexpr bool dh_comes_early = Pass::adds_dh && units <= 4;  // where there are registers for it
  uint4 dh[units];
#pragma unroll
  for (int i = 0; i < units && dh_comes_early; ++i) {
    if (has_row && columns.has(i)) dh[i] = vector_of(p.dh, p.dh_stride, i);
  }
  const Gradient gradient = gradient_with(s, team.get(), pass.inverse_cols);
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!has_row || !columns.has(i)) continue;
    const Floats<T> xs = unpack<T>(x[i]);
    const Floats<T> dys = unpack<T>(dy[i]);
    const Floats<T> gammas = gamma[i].floats();
    Floats<T> dxs;
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      dxs.at[k] = gradient(dys.at[k] * gammas.at[k], xhat_of(xs.at[k], s));
    }
    if constexpr (Pass::adds_dh) {
      const Floats<T> dhs = unpack<T>(dh_comes_early ? dh[i] : vector_of(p.dh, p.dh_stride, i));
#pragma unroll
      for (int k = 0; k < vector_size<T>; ++k) dxs.at[k] += dhs.at[k];
    }
    *reinterpret_cast<uint4*>(p.dx + row * p.dx_stride + columns.column(i)) = pack<T>(dxs);
  }
}

// The first `tiles` blocks have tiles of columns, the others rows: one to a block, or one to a warp.
template <class Pass, int units, bool warp_per_row, int tile>
__global__ void __launch_bounds__(threads_side_by_side, 2) backward_side_by_side(Pass pass, int tiles) {
  constexpr int warps = threads_side_by_side / lanes;
  wait_for_previous_kernel();
  const int block = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  if (block < tiles) {
    sum_tile<tile>(pass, block);
  } else if constexpr (warp_per_row) {
    dx_in_registers<units>(pass, int64_t{block - tiles} * warps + thread / lanes,
                           columns_of_row(pass, thread % lanes, lanes), LaneTeam<lanes>{});
  } else {
    __shared__ RowSums scratch[warps];
    dx_in_registers<units>(pass, block - tiles, columns_of_row(pass, thread, threads_side_by_side),
                           BlockTeam<warps>{scratch});
  }
}

// Rows that are few and long: a cluster to a row, and tiles for those whose blocks come after `blocks_of_rows`.
template <class Pass, int units>
__global__ void __launch_bounds__(threads_side_by_side, 2)
    backward_clusters_side_by_side(Pass pass, int blocks_of_rows) {
  constexpr int warps = threads_side_by_side / lanes;
  __shared__ RowSums of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  wait_for_previous_kernel();
  const int block = static_cast<int>(blockIdx.x);
  if (block >= blocks_of_rows) return sum_tile<lanes>(pass, block - blocks_of_rows);
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int row = block / blocks;
  dx_in_registers<units>(pass, row,
                         columns_of<Layout::whole>(pass, row, static_cast<int>(threadIdx.x), threads_side_by_side,
                                                   static_cast<int>(cluster.block_rank()), blocks),
                         ClusterTeam<warps, AsyncStores>{cluster, {cluster, arrivals}, of_warps, of_blocks});
}
// [/snippet]

// [snippet: launch]
// `rows` to a block that finds dx.
template <int units, bool warp_per_row, int tile, class Pass>
bool launch_side_by_side(const Pass& pass, const char* rule, cudaStream_t stream) {
  const int64_t rows_of_block = warp_per_row ? threads_side_by_side / lanes : 1;
  constexpr int64_t columns = tile_columns<tile, typename Pass::T>;
  const int64_t tiles = (pass.p.cols + columns - 1) / columns;
  const int64_t blocks_of_rows = pass.p.dx ? (pass.p.rows + rows_of_block - 1) / rows_of_block : 0;
  launch(backward_side_by_side<Pass, units, warp_per_row, tile>,
         {.grid = static_cast<unsigned>(tiles + blocks_of_rows),
          .block = threads_side_by_side,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         pass, static_cast<int>(tiles));
  return true;
}
// The most vectors of a row that a thread beside tiles keeps: half as many beside a gamma that is wider than the
// elements, which takes as many registers as both of their tensors.
template <class Pass>
inline constexpr int units_of_long_rows = sizeof(typename Pass::G) == sizeof(typename Pass::T) ? 8 : 4;

// The blocks that have a row together where rows are few and long: up to 16. As measured, the rows take half of the
// multiprocessors, if that is enough blocks for them; the others have the tiles.
template <int most_units>
unsigned blocks_beside_tiles(int64_t rows, int64_t length) {
  constexpr int64_t threads = threads_side_by_side;
  unsigned size = std::min<unsigned>(most_blocks_of_cluster, blocks_for(length, threads / 4));
  while (size > blocks_for(length, most_units * threads) &&
         2 * rows * size > device_attribute(cudaDevAttrMultiProcessorCount)) {
    size /= 2;
  }
  return size;
}

template <int units, class Pass>
bool launch_clusters_side_by_side(const Pass& pass, const char* rule, cudaStream_t stream) {
  const int64_t length = pass.p.cols / vector_size<typename Pass::T>;
  const unsigned size = blocks_beside_tiles<units_of_long_rows<Pass>>(pass.p.rows, length);
  if (length > int64_t{size} * units * threads_side_by_side) return false;
  const auto kernel = backward_clusters_side_by_side<Pass, units>;
  if (clusters_at_once(kernel, size, threads_side_by_side, 0) == 0) return false;
  constexpr int64_t columns = tile_columns<lanes, typename Pass::T>;
  const int64_t tiles = pass.p.dgamma || pass.p.dbeta ? (pass.p.cols + columns - 1) / columns : 0;
  const int64_t blocks_of_rows = pass.p.dx ? pass.p.rows * size : 0;
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks_of_rows + (tiles + size - 1) / size * size),
          .block = threads_side_by_side,
          .cluster = size,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         pass, static_cast<int>(blocks_of_rows));
  return true;
}
// [/snippet]

}  // namespace worklog::backward

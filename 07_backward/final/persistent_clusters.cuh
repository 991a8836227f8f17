// Kernels whose blocks stay, where a row is too long for one block: each block of a cluster has a piece of it, and
// where it is too long for a cluster, blocks anywhere on the device have. The blocks of a team must run at the same
// time, since they wait for each other in every row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "07_backward/final/column_sums.cuh"
#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/shares.cuh"
#include "07_backward/final/teams.cuh"
#include "07_backward/final/walk.cuh"
#include "07_backward/partials.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: kernels_of_several_blocks]
// The rows of one kind of team `number`, of which each of the team's `pieces` blocks has one piece.
template <int units, int stages, int threads, Layout layout, class Pass, class Team>
__device__ inline void walk_kind(const Pass& pass, Team& team, const PartialRows& partial,
                                 const ClusterSplit<layout>& rows, int number, int kind, int piece, int pieces) {
  const Share share = rows.share_of(number, kind);
  if (share.count < 0) return;
  const auto columns = columns_of<layout>(pass, share.first, static_cast<int>(threadIdx.x), threads, piece, pieces);
  ColumnSums<Pass, layout, units> sums;
  if (share.count > 0) {
    walk_rows(pass, team,
              Ring<Pass, layout, units, stages>(pass, rows.split_of(number), columns, share, dynamic_shared<uint4>()),
              sums);
  }
  if (partial.first) sums.write_row(partial.dgamma(number + kind), partial.dbeta(number + kind), columns);
}

template <class Pass, Layout layout, int units, int stages, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_cluster_per_row(Pass pass, PartialRows partial, ClusterSplit<layout> rows) {
  constexpr int warps = threads / lanes;
  __shared__ RowSums of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  ClusterTeam<warps, ExchangeOf<layout, resident>> team{cluster, {cluster, arrivals}, of_warps, of_blocks};
  team.open();
  const int number = static_cast<int>(blockIdx.x) / blocks;
  for (int kind = 0; kind < rows.kinds_of(number); ++kind) {
    walk_kind<units, stages, threads>(pass, team, partial, rows, number, kind, static_cast<int>(cluster.block_rank()),
                                      blocks);
  }
  let_next_kernel_start();
}

// `blocks` to a team, which all run at the same time.
template <class Pass, Layout layout, int units, int stages, int threads>
__global__ void __launch_bounds__(threads, 1)
    backward_grid_per_row(Pass pass, PartialRows partial, ClusterSplit<layout> rows, TaggedSum* exchanged, int blocks) {
  constexpr int warps = threads / lanes;
  __shared__ RowSums of_warps[warps], of_messages[warps];
  const int number = static_cast<int>(blockIdx.x) / blocks;
  const int piece = static_cast<int>(blockIdx.x) % blocks;
  GridTeam<threads> team{exchanged + number * 4 * blocks, piece, blocks, of_warps, of_messages};
  for (int kind = 0; kind < rows.kinds_of(number); ++kind) {
    walk_kind<units, stages, threads>(pass, team, partial, rows, number, kind, piece, blocks);
  }
  let_next_kernel_start();
}
// [/snippet]

// [snippet: launch]
// A cluster's blocks for rows of so many units, of which a block has room for `of_block`: a power of 2.
inline unsigned blocks_for(int64_t row_units, int64_t of_block) {
  unsigned size = 2;
  while (row_units > size * of_block) size *= 2;
  return size;
}

// How many blocks a cluster has where two blocks, of different clusters, share a multiprocessor: one works while the
// other waits. 0 where it would need more than 16, or more than the 8 of a portable cluster for up to 8192 vectors,
// which four blocks of 512 threads hold. Seven blocks get eight: they fill the 16 or 18 multiprocessors of a group,
// which a cluster may not leave, worse.
inline unsigned pair_blocks_for(int64_t row_units, int64_t of_block) {
  const int64_t blocks = (row_units + of_block - 1) / of_block;
  if (blocks <= 6) return static_cast<unsigned>(blocks);
  if (blocks <= 8) return 8;
  return row_units > 8 * 1024 && blocks <= 16 ? 16 : 0;
}

// `size` blocks to a cluster, `resident` to a multiprocessor. Without overlap: beside what is left of the kernel before
// it, a cluster may find no room, and would begin with its rows when all others are through with theirs.
template <Layout layout, int units, int stages, int threads, int resident, class Pass>
bool launch_cluster(const Pass& pass, unsigned size, const char* rule, cudaStream_t stream) {
  constexpr size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(threads);
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_cluster_per_row<Pass, layout, units, stages, threads, resident>;
  const int at_once = clusters_at_once(kernel, size, threads, shared_bytes);
  if (at_once == 0) return false;
  const int64_t period = period_of<layout>(pass);
  const int64_t clusters = teams_for(pass.p.rows, at_once, pass.p.cols, period - 1);
  const ClusterSplit<layout> rows = cluster_split_of<layout>(pass, clusters, period);
  const int64_t partial_rows = partial_rows_of(rows, clusters);
  launch(kernel,
         {.grid = static_cast<unsigned>(clusters * size),
          .block = threads,
          .shared_bytes = shared_bytes,
          .cluster = size,
          .rule = rule,
          .stream = stream},
         pass, partial_rows_of(pass.p, partial_rows), rows);
  launch_sum<sums_in_halves<layout, typename Pass::T>>(pass.p, partial_rows, stream);
  return true;
}

// As many teams as hold a row each in their blocks' rings at the same time; they share out all blocks that there is
// room for. Their sums are exchanged where there would be one partial row more.
template <Layout layout, int units, int stages, int threads, class Pass>
bool launch_grid(const Pass& pass, const char* rule, cudaStream_t stream) {
  constexpr size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(threads);
  if (!block_can_have(shared_bytes) || !pass.p.workspace) return false;
  if (device_attribute(cudaDevAttrCooperativeLaunch) == 0) return false;
  const auto kernel = backward_grid_per_row<Pass, layout, units, stages, threads>;
  const int64_t at_once = blocks_at_once(kernel, threads, shared_bytes);
  const int64_t row_units = units_of_row<layout, typename Pass::T>(pass.p.cols);
  const int64_t least_blocks = (row_units + units * threads - 1) / (units * threads);
  if (least_blocks > std::min<int64_t>(at_once, threads)) return false;
  const int64_t period = period_of<layout>(pass);
  const int64_t teams = teams_for(pass.p.rows, at_once / least_blocks, pass.p.cols, period);
  const int64_t blocks = std::min<int64_t>(at_once / teams, threads);
  const ClusterSplit<layout> rows = cluster_split_of<layout>(pass, teams, period);
  const int64_t partial_rows = partial_rows_of(rows, teams);
  TaggedSum* const exchanged = reinterpret_cast<TaggedSum*>(pass.p.workspace + 2 * partial_rows * pass.p.cols);
  check_cuda(cudaMemsetAsync(exchanged, 0, teams * blocks * 4 * sizeof(TaggedSum), stream),
             "clearing the exchanged sums");
  launch(kernel,
         {.grid = static_cast<unsigned>(teams * blocks),
          .block = threads,
          .shared_bytes = shared_bytes,
          .cooperative = true,
          .rule = rule,
          .stream = stream},
         pass, partial_rows_of(pass.p, partial_rows), rows, exchanged, static_cast<int>(blocks));
  launch_sum<sums_in_halves<layout, typename Pass::T>>(pass.p, partial_rows, stream);
  return true;
}
// [/snippet]

}  // namespace worklog::backward

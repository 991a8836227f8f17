// Kernels whose blocks stay until all rows are done, where one block has whole rows: several rows at a time, some lanes
// to each, or one. A block writes one partial row at its end, however many rows it has had.
#pragma once

#include <cstdint>

#include "07_backward/final/column_sums.cuh"
#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/shares.cuh"
#include "07_backward/final/teams.cuh"
#include "07_backward/final/walk.cuh"
#include "07_backward/partials.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: kernels]
// Several rows to a block: `width` lanes to a row. Before the block writes its partial row, its teams' sums are added
// up: first those of a warp's lanes, then those of the warps, in shared memory. Where the
// offset is the same, a team's rows are all of one kind, since its step is a multiple of 8; and so are a warp's, since
// its teams start 8 rows apart.
template <class Pass, Layout layout, int units, int stages, int width, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_lanes_per_row(Pass pass, PartialRows partial, Split<layout> split) {
  constexpr int teams = threads / width;
  constexpr int warps = threads / lanes;
  constexpr bool in_order = layout != Layout::same_offset;  // a warp's teams take adjacent rows; or every `warps`-th
  static_assert(in_order || warps == 8);
  static_assert(Weights<Pass, layout, units>::in_registers);
  using TheRing = Ring<Pass, layout, units, stages>;
  constexpr int ring_size = TheRing::size_for(width);
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(pass.p.cols);
  const auto rows_from = [&](int64_t first) {
    return first < split.rows ? static_cast<int>((split.rows - first + split.step - 1) / split.step) : 0;
  };
  const int warp = thread / lanes;
  const int team_in_warp = thread % lanes / width;
  const int64_t first_of_warp = int64_t{blockIdx.x} * teams + warp * (in_order ? lanes / width : 1);
  const int64_t first = first_of_warp + team_in_warp * (in_order ? 1 : warps);
  const Share share = {first, rows_from(first), rows_from(first_of_warp)};
  const auto columns = columns_of<layout>(pass, first, thread % width, width);

  wait_for_previous_kernel();
  ColumnSums<Pass, layout, units> sums;
  LaneTeam<width> team;
  walk_rows(pass, team, TheRing(pass, split, columns, share, dynamic_shared<uint4>() + thread / width * ring_size),
            sums);
  let_next_kernel_start();
  if (!partial.first) return;

  for (int distance = width; distance < lanes; distance *= 2) sums.add_lane(distance);
  __syncthreads();                            // nobody reads the ring any more
  float* of_warps = dynamic_shared<float>();  // [warps][2][cols]
  if (thread % lanes < width) {
    float* own = of_warps + warp * 2 * cols;
    sums.write(own, own + cols, columns);
  }
  __syncthreads();
  for (int i = thread; i < (Pass::centered ? 2 : 1) * cols; i += threads) {
    double sum = 0.0;
    for (int each = 0; each < warps; ++each) sum += of_warps[each * 2 * cols + i];
    partial.dgamma(blockIdx.x)[i] = static_cast<float>(sum);
  }
}

template <class Pass, Layout layout, int units, int stages, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    backward_block_per_row(Pass pass, PartialRows partial, Split<layout> split) {
  constexpr int most_warps = power_of_2_from<threads / lanes>;
  __shared__ RowSums scratch[2 * most_warps];
  BlockTeam<most_warps> team{scratch};
  wait_for_previous_kernel();
  const Share share = split.share_of(blockIdx.x);
  const int block_threads = units > 2 ? threads : static_cast<int>(blockDim.x);
  const auto columns = columns_of<layout>(pass, share.first, static_cast<int>(threadIdx.x), block_threads);
  ColumnSums<Pass, layout, units> sums;
  walk_rows(pass, team, Ring<Pass, layout, units, stages>(pass, split, columns, share, dynamic_shared<uint4>()), sums);
  let_next_kernel_start();
  if (partial.first) sums.write_row(partial.dgamma(blockIdx.x), partial.dbeta(blockIdx.x), columns);
}
// [/snippet]

// [snippet: launch]
template <Layout layout, int units, int stages, int width, int threads, int resident, class Pass>
bool launch_lanes(const Pass& pass, const char* rule, cudaStream_t stream) {
  constexpr int teams = threads / width;
  constexpr size_t shared_bytes = teams * shared_of_ring<Pass, layout, units, stages>(width);
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_lanes_per_row<Pass, layout, units, stages, width, threads, resident>;
  const int64_t rows_of_teams = (pass.p.rows + teams - 1) / teams;
  const int64_t blocks = teams_for(rows_of_teams, blocks_at_once(kernel, threads, shared_bytes), pass.p.cols);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         pass, partial_rows_of(pass.p, blocks), split_of<layout>(pass, pass.p.rows, blocks * teams));
  launch_sum(pass.p, blocks, stream);
  return true;
}

template <Layout layout, int units, int stages, int threads, int resident, class Pass>
bool launch_block(const Pass& pass, const char* rule, cudaStream_t stream) {
  // With many units the compiler needs to know how many threads there are: else registers run out.
  const unsigned block_threads =
      units > 2 ? threads : welford::threads_for(units_of_row<layout, typename Pass::T>(pass.p.cols), units);
  const size_t shared_bytes = shared_of_ring<Pass, layout, units, stages>(static_cast<int>(block_threads));
  if (!block_can_have(shared_bytes)) return false;
  const auto kernel = backward_block_per_row<Pass, layout, units, stages, threads, resident>;
  const int64_t at_once = blocks_at_once(kernel, static_cast<int>(block_threads), shared_bytes);
  const int64_t blocks =
      teams_of_kinds(teams_for(pass.p.rows, at_once, pass.p.cols), period_of<layout>(pass), pass.p.rows);
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = block_threads,
          .shared_bytes = shared_bytes,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         pass, partial_rows_of(pass.p, blocks), split_of<layout>(pass, pass.p.rows, blocks));
  launch_sum<sums_in_halves<layout, typename Pass::T>>(pass.p, blocks, stream);
  return true;
}
// [/snippet]

}  // namespace worklog::backward

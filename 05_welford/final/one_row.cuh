// One row by one team, from its first load to its last store, and the three kernels that differ only in the team. The
// row is read once and stays in registers. What is loaded when depends on how many rows there are: see Amount.
#pragma once

#include <cstdint>
#include <type_traits>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/one_pass.cuh"
#include "05_welford/final/parameters.cuh"
#include "05_welford/final/plan.h"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/share.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/store.cuh"
#include "05_welford/final/teams.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::lanes;

// [snippet: row_of_a_team]
// Where rows are few, a branch before the loads counts, too: it is not asked whether the row is empty.
template <Amount amount>
__device__ inline Count count_of_row(int cols) {
  const auto count = static_cast<float>(cols);
  if constexpr (amount == Amount::many) return count_of(count);
  return {count, __fdividef(1.0f, count)};
}

// One row by one team, of which this is `thread`. `width` lanes hold a part of the row, `held` values; the row has
// `whole`. A team without a row has an empty place, and keeps the others of its warp company.
template <Fit fit, bool given, Amount amount, int width, int vectors, class Steps, class Team>
__device__ inline void normalize_row(const Steps& steps, int64_t row, const Place<fit>& place, int thread, Count held,
                                     Count whole, Team team) {
  using T = typename Steps::Element;
  constexpr bool are_blocks = amount == Amount::few_blocks || amount == Amount::fewest_blocks;
  constexpr bool are_few_of_sum = amount == Amount::few && Team::rows_share_warps && Steps::reads == 2;
  constexpr bool parameters_first = are_blocks || are_few_of_sum;
  wait_for_previous_kernel();
  ParameterVector<T, typename Steps::Parameter> gamma[vectors], beta[vectors];
  const auto load_parameters = [&](int i) {
    gamma[i].template load<fit, given>(steps.p.gamma, place.column(i), 1.0f);
    beta[i].template load<fit, given && Steps::has_beta>(steps.beta(), place.column(i), 0.0f);
  };
  const auto load_all_parameters = [&] {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (place.has(i)) load_parameters(i);
    }
  };
  if constexpr (parameters_first) load_all_parameters();
  RowShare<T, vectors, amount == Amount::many> share;  // few rows fit into the cache: there is nothing to tell
  steps.load(share, row, place);
  if constexpr (amount == Amount::few && !parameters_first) load_all_parameters();
  if constexpr (!are_blocks) let_next_kernel_start();

  const auto first_moments = [&] {
    if constexpr (merge_for<T, amount> == Merge::one_round && Steps::about == About::mean &&
                  !std::is_same_v<Team, LaneTeam<width>>) {
      return moments_in_one_round<T, Steps::about, width>(share, place, held);
    } else {
      constexpr bool short_sums = in_short_sums<T, vectors, (width < lanes)>;
      return moments_of<T, Steps::about, width, Rest::rounded, short_sums>([&](auto f) { share.for_each(place, f); },
                                                                           held, 1.0f);
    }
  };
  const SplitMoments first = first_moments();
  if constexpr (amount == Amount::fewest_blocks) let_next_kernel_start_at_once();
  team.put(first);
  const auto again = [&](float scale) {
    const auto for_each = [&](auto f) { place.template for_each<vectors>(steps.row(row), f); };
    return moments_of<T, Steps::about, width>(for_each, held, scale);
  };
  const Statistics statistics = statistics_of<T, Steps::about>(team, whole, steps.p.eps, again);

  T* y = steps.p.y + row * steps.p.y_stride;
  if constexpr (fit != Fit::any || sizeof(T) == 2) y = found_once(y);  // elsewhere there are no registers for it
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (!place.has(i)) continue;
    if constexpr (amount == Amount::many) load_parameters(i);
    store_vector(steps, y + place.column(i), share.vector[i], statistics, gamma[i], beta[i]);
  }
  if (place.has_edge()) store_element(steps, row, place.edge, vectorized::to_float(share.edge), statistics);
  if (thread == 0 && row < steps.p.rows) steps.write_statistics(row, statistics);
}
// [/snippet]

// [snippet: rows_of_teams]
template <class Steps, Fit fit, bool given, int vectors, int width, Amount amount = Amount::many>
__global__ void __launch_bounds__(largest_block_of_lane_teams) normalize_lanes_per_row(Steps steps) {
  const int thread = static_cast<int>(threadIdx.x) % width;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / width;
  const int cols = static_cast<int>(steps.p.cols);
  Place<fit> place = place_of<fit>(layout_of<fit>(steps.row(row), cols), 0, 1, thread, width);
  if (row >= steps.p.rows) place = {0, 0, 0, -1};  // no vectors, no edge
  const Count whole = count_of_row<amount>(cols);
  normalize_row<fit, given, amount, width, vectors>(steps, row, place, thread, whole, whole, LaneTeam<width>{});
}

// `resident` blocks are to fit on a multiprocessor: that bounds the registers.
template <class Steps, Fit fit, bool given, Amount amount, int vectors, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident)) normalize_block_per_row(Steps steps) {
  constexpr int warps = warps_of<threads>;
  __shared__ SplitMoments scratch[warps];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const Place<fit> place =
      place_of<fit>(layout_of<fit>(steps.row(row), cols), 0, 1, thread, static_cast<int>(blockDim.x));
  using T = typename Steps::Element;
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Count whole = count_of_row<amount>(cols);
  normalize_row<fit, given, amount, lanes, vectors>(
      steps, row, place, thread, held, whole, BlockTeam<Steps::about, warps, merge_for<T, amount>>{whole, scratch});
}

template <class Steps, Fit fit, bool given, Amount amount, int vectors, int threads, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident)) normalize_cluster_per_row(Steps steps) {
  constexpr int warps = warps_of<threads>;
  __shared__ SplitMoments block_scratch[warps];
  __shared__ SplitMoments cluster_scratch[portable_cluster];
  const Cluster cluster = this_cluster();
  cluster.barrier_arrive();
  const int64_t row = blockIdx.x / cluster.num_blocks();
  const int block = static_cast<int>(cluster.block_rank());
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const auto layout = layout_of<fit>(steps.row(row), cols);
  const Place<fit> place = place_of<fit>(layout, block, blocks, thread, static_cast<int>(blockDim.x));
  using T = typename Steps::Element;
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Piece piece = piece_of(layout, block, blocks);
  const int vectors_of_block = piece.begin < piece.end ? piece.end - piece.begin : 0;
  const Count in_block =
      count_of(static_cast<float>(vectors_of_block * vector_size<T> + (block == 0 ? layout.edges : 0)));
  const Count whole = count_of_row<amount>(cols);
  const ClusterTeam<Steps::about, warps, merge_for<T, amount>> team{
      cluster, {in_block, block_scratch}, whole, cluster_scratch};
  // block + thread is 0 in one thread of the cluster alone, which writes the statistics.
  normalize_row<fit, given, amount, lanes, vectors>(steps, row, place, block + thread, held, whole, team);
}
// [/snippet]

}  // namespace worklog::welford

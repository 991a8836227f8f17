// How a persistent team walks its rows (persistent_blocks.cuh, persistent_clusters.cuh): the next rows are on their way
// while one is normalized; and gamma and beta, which each row would ask the L2 cache for, stay in registers.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/one_pass.cuh"
#include "05_welford/final/parameters.cuh"
#include "05_welford/final/row_ring.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "05_welford/final/store.cuh"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::lanes;

// [snippet: walk_rows]
// The next row's values are added up before this row's moments are asked for, so that the team's threads have work
// while they wait for each other.
//
// y, and in stage 06 h, may be a tensor that is read: a row is written by the threads that have read it, after they
// have; and the rows that are fetched ahead are this team's own, which nobody else writes.
template <class Steps, Fit fit, int vectors, int threads, int stages, class Team>
__device__ inline void walk_rows(RowRing<Steps, fit, vectors, threads, stages> ring, Team& team, Count held,
                                 Count whole, bool writes_statistics) {
  using T = typename Steps::Element;
  // Where the schedulers have most to do, the warp's moments are merged only when those of the other blocks are here,
  // so that the shuffles of the two merges wait side by side. Elsewhere it is better to do that while waiting. (A team
  // of one block has nothing to wait for here.)
  constexpr bool merges_together = sizeof(T) == 2 && fit != Fit::any && Steps::reads == 1;
  const Steps& steps = ring.steps;
  const Place<fit>& place = ring.place;
#pragma unroll 1
  for (int slot = 0; slot < stages; ++slot) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) ring.start_copy(slot, i);
    ring.end_row(slot);
  }
  ParameterVector<T, typename Steps::Parameter> gamma[vectors], beta[vectors];
  constexpr bool given = fit == Fit::any;  // elsewhere there is time to ask, once
  float own = 0.0f;                        // elements of this thread
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (!ring.has(i)) continue;
    gamma[i].template load<fit, given>(steps.p.gamma, place.column(i), 1.0f);
    beta[i].template load<fit, given && Steps::has_beta>(steps.beta(), place.column(i), 0.0f);
    own += vector_size<T>;
  }
  float edge_gamma[1] = {1.0f};
  float edge_beta[1] = {0.0f};
  if (place.has_edge()) {
    own += 1.0f;
    edge_gamma[0] = vectorized::to_float(steps.p.gamma[place.edge]);
    if constexpr (Steps::has_beta) edge_beta[0] = vectorized::to_float(steps.beta()[place.edge]);
  }
  const Count in_thread = count_of(own);

  using Values = ThreadMoments<Steps::about, in_short_sums<T, vectors, false>>;
  const auto look_at = [&](int slot, int turn) {
    Values values;
    ring.for_each(
        slot, turn, [&](const auto& first) { values.begin(first); }, [&](const auto& vector) { values.add(vector); });
    return values;
  };
  const auto of_warp = [&](const Values& values) {
    return with_mean_as_pivot(merge_lanes<Steps::about, lanes>(values.of(in_thread), held));
  };
  // Of a row that is here, or of none.
  const auto find_next = [&](int slot, int turn) {
    Values values;
    if (turn < ring.walk.count) values = look_at(slot, turn);
    if constexpr (merges_together) team.wait();
    return of_warp(values);
  };
  __pipeline_wait_prior(stages - 1);
  team.put(of_warp(look_at(0, 0)));
  int slot = 0;
#pragma unroll 1
  for (int turn = 0; turn < ring.walk.count; ++turn) {
    const int next_slot = slot == stages - 1 ? 0 : slot + 1;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      gamma[i].keep_packed();
      if constexpr (Steps::has_beta) beta[i].keep_packed();
    }
    __pipeline_wait_prior(stages - 2);  // the next row is here
    const SplitMoments next = find_next(next_slot, turn + 1);

    const int64_t row = ring.row(turn);
    const auto again = [&](float scale) {
      const auto for_each = [&](auto f) { place.template for_each<vectors>(steps.row(row), f); };
      return moments_of<T, Steps::about, lanes>(for_each, held, scale);
    };
    const Statistics statistics = statistics_of<T, Steps::about>(team, whole, steps.p.eps, again);
    team.put(next);

    T* y = steps.p.y + row * steps.p.y_stride;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (ring.has(i)) store_vector(steps, y + place.column(i), *ring.cell(slot, 0, i), statistics, gamma[i], beta[i]);
      ring.start_copy(slot, i);
    }
    if (place.has_edge()) {
      float v[1] = {normalized<Steps::about>(vectorized::to_float(*ring.edge(slot, 0, turn)), statistics)};
      steps.scale(v, edge_gamma, edge_beta);
      y[place.edge] = static_cast<T>(v[0]);
    }
    ring.end_row(slot);
    if (writes_statistics) steps.write_statistics(row, statistics);
    slot = next_slot;
  }
  team.merge();  // the last put(), of a row that does not exist
  __pipeline_wait_prior(0);
}
// [/snippet]

}  // namespace worklog::welford

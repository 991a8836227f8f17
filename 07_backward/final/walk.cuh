// The way of a team through its rows. Each row is read from the ring twice: once for its sums, once for dx. Between the
// two the team adds up the next row, so that no thread only waits for the others.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>
#include <type_traits>

#include "07_backward/final/column_sums.cuh"
#include "07_backward/final/columns.cuh"
#include "07_backward/final/gamma.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/ring.cuh"
#include "07_backward/final/ring_any_offset.cuh"
#include "07_backward/final/shares.cuh"
#include "07_backward/final/teams.cuh"

namespace worklog::backward {

// [snippet: walk]
// A thread's share of a row's sums; its columns' sums grow by the row.
template <class Pass, Layout layout, int units, int stages>
__device__ inline RowSums add_row(const Ring<Pass, layout, units, stages>& ring, int place, int turn,
                                  const RowStatistics& s, const Weights<Pass, layout, units>& weights,
                                  ColumnSums<Pass, layout, units>& column_sums) {
  RowSums sums = {0.0f, 0.0f};
  ring.prepare(place, turn < ring.share.count);
  if (turn >= ring.share.count) return sums;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (!ring.reads(i)) continue;
    const auto xs = ring.read(place, 0, i, turn);
    const auto dys = ring.read(place, 1, i, turn);
    const auto gammas = weights.get(i);
#pragma unroll
    for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) {
      const float xhat = xhat_of(xs.at[k], s);
      const float wdy = dys.at[k] * gammas.at[k];
      if constexpr (Pass::centered) sums.wdy += wdy;
      sums.wdy_xhat = fmaf(wdy, xhat, sums.wdy_xhat);
      column_sums.add(i, k, dys.at[k], xhat);
    }
  }
  return sums;
}

// A thread's share of a row's dx, once the row's sums are known. The row is then read for the last time, and the copy
// of another starts.
template <class Pass, Layout layout, int units, int stages>
__device__ inline void write_dx(Ring<Pass, layout, units, stages>& ring, int place, int place_of_copy, int turn,
                                typename Pass::T* dx, const RowStatistics& s, const Gradient& gradient,
                                const Weights<Pass, layout, units>& weights) {
  using TheRing = Ring<Pass, layout, units, stages>;
  const bool writes = ring.pass.p.dx && turn < ring.share.count;
#pragma unroll
  for (int i = 0; i < units; ++i) {
    if (writes && ring.reads(i)) {
      const auto xs = ring.read(place, 0, i, turn);
      const auto dys = ring.read(place, 1, i, turn);
      const auto gammas = weights.get(i);
      auto dxs = xs;
#pragma unroll
      for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) {
        dxs.at[k] = gradient(dys.at[k] * gammas.at[k], xhat_of(xs.at[k], s));
      }
      if constexpr (Pass::adds_dh) {
        const auto dhs = ring.read(place, 2, i, turn);
#pragma unroll
        for (int k = 0; k < ColumnSums<Pass, layout, units>::each; ++k) dxs.at[k] += dhs.at[k];
      }
      ring.write(dx, i, dxs);
    }
    if constexpr (TheRing::has_edges) __syncwarp();  // lanes read where others copy to
    if constexpr (TheRing::reads_own) ring.start_copy(place_of_copy, i);
  }
  ring.write_edges(dx, writes);
  if constexpr (TheRing::reads_own) ring.end_row(place_of_copy);
}

// A share of rows by one team. The row after this one is added up before this one's sums are asked for, so that the
// team's threads have work while they wait for each other. A team that has run out of rows keeps the others of its warp
// company.
//
// The error of a sum grows with the square root of the number of terms that are added one after the other. A thread
// with up to 8 columns has registers to add up `rows_of_sum` rows at a time, and then those sums: in fp32, one of up to
// two vectors. 16-bit elements are themselves rounded so much that it would hardly show.
inline constexpr int rows_of_sum = 8;
template <class Pass, Layout layout, int units, int stages, class Team>
__device__ inline void walk_rows(const Pass& pass, Team& team, Ring<Pass, layout, units, stages> ring,
                                 ColumnSums<Pass, layout, units>& column_sums) {
  // Where a thread reads only what it has copied itself, it waits for that alone. Else it waits for its copies one
  // barrier earlier, and their place is reused one barrier later.
  constexpr bool reads_own = Ring<Pass, layout, units, stages>::reads_own;
  static_assert(stages >= (reads_own ? 3 : 4));
  constexpr bool in_steps = units * ColumnSums<Pass, layout, units>::each <= 8;
  ColumnSums<Pass, layout, units> of_step;
  ColumnSums<Pass, layout, units>& growing = in_steps ? of_step : column_sums;
  const Share share = ring.share;
  const auto statistics = [&](int turn) {
    const int64_t row = share.first + turn * ring.split.step;
    return turn < share.count ? pass.statistics(row) : RowStatistics{0.0f, 0.0f};
  };
  for (int slot = 0; slot < (reads_own ? stages : stages - 1); ++slot) ring.start_row(slot);
  Weights<Pass, layout, units> weights;
  weights.load(pass.p.gamma, ring.columns, ring.end());
  RowStatistics now = statistics(0);
  RowStatistics next = statistics(1);
  __pipeline_wait_prior(reads_own ? stages - 1 : stages - 3);
  if constexpr (!reads_own) team.sync();
  team.put(add_row(ring, ring.place_of(0, 0), 0, now, weights, growing));

  typename Pass::T* dx = pass.p.dx + share.first * pass.p.dx_stride + ring.first_column();
  int slot = 0;
  for (int turn = 0; turn < share.turns; ++turn, dx += ring.split.advance_dx) {
    const int next_slot = slot == stages - 1 ? 0 : slot + 1;
    const RowStatistics after_next = statistics(turn + 2);
    if constexpr (reads_own) __pipeline_wait_prior(stages - 2);  // the next row is here
    const RowSums next_share = add_row(ring, ring.place_of(next_slot, turn + 1), turn + 1, next, weights, growing);
    if constexpr (!reads_own) __pipeline_wait_prior(stages - 4);  // the row after the next is here
    const RowSums sums = team.get();
    team.put(next_share);
    if constexpr (!reads_own) ring.start_row(slot == 0 ? stages - 1 : slot - 1);  // where the row before this one was
    write_dx(ring, ring.place_of(slot, turn), ring.place_of(slot, turn + stages), turn, dx, now,
             gradient_with(now, sums, ring.split.inverse_cols), weights);
    slot = next_slot;
    now = next;
    next = after_next;
    if (in_steps && turn % rows_of_sum == rows_of_sum - 1) column_sums.take(of_step);
  }
  if constexpr (in_steps) column_sums.take(of_step);
  team.get();  // the last put(), of a row that does not exist
  __pipeline_wait_prior(0);
}
// [/snippet]

// Bytes for a team's threads in a block: the ring, and gamma behind it.
template <class Pass, Layout layout, int units, int stages>
constexpr size_t shared_of_ring(int threads) {
  const int ring = Ring<Pass, layout, units, stages>::size_for(threads);
  return sizeof(uint4) * (ring + Weights<Pass, layout, units>::vectors_for(threads));
}

}  // namespace worklog::backward

// Which team takes which rows. As many teams run as the device has room for at the same time, and they take turns.
// Where rows start at different places in a 16-byte vector, the number of teams is chosen so that every row of a team
// starts at the same place.
#pragma once

#include <algorithm>
#include <cstdint>

#include "07_backward/final/pass.cuh"
#include "07_backward/partials.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: shares]
// A team's rows: the first of them, and how many. `turns` is the largest count of the teams that must keep step with
// this one.
struct Share {
  int64_t first;
  int count;
  int turns;
};

// Who takes which rows: teams take turns, so that the rows that are worked on at the same time are neighbours.
//
// A thread reads 16-byte vectors on 16-byte boundaries. Where rows are no whole vectors, the columns that such a vector
// holds change from row to row; but every `period`-th row starts equally far past a boundary, and is of one *kind* with
// it. There the number of teams is a multiple of the period: a team's rows are all of one kind, and its threads keep
// their columns.
template <Layout layout>
struct Split {
  int64_t rows;
  int64_t step;        // from a team's row to its next: how many teams take turns
  int64_t advance[3];  // and the elements from the one to the other in x, dy and dh
  int64_t advance_dx;
  float inverse_cols;

  __device__ Share share_of(int64_t team) const {
    const int count = team < rows ? static_cast<int>((rows - team + step - 1) / step) : 0;
    return {team, count, count};
  }
};

// Rows in parts of nearly the same size: the first `larger` parts have one row more than the others.
struct Parts {
  int64_t size;
  int64_t larger;

  __device__ int64_t begin_of(int64_t part) const { return part * size + (part < larger ? part : larger); }
};

// Clusters are few, and those beyond a multiple of the period are too many to do without. They take the last rows.
// These are put in an order, first all of one kind, then all of the next, and each of these clusters has a *stretch* of
// it. Where the kind changes, so do the columns, and the cluster begins anew, with another partial row.
template <Layout layout>
struct ClusterSplit {
  int period;
  int kind_count;          // the period, or how many last rows there are if they are fewer
  int turning;             // clusters that take turns, with the first rows
  Split<layout> split[2];  // for those clusters; for the others, from a row to the next of its kind
  Parts kinds;             // of the last rows
  Parts stretches;

  __device__ bool takes_turns(int cluster) const { return layout != Layout::same_offset || cluster < turning; }
  __device__ const Split<layout>& split_of(int cluster) const { return split[takes_turns(cluster) ? 0 : 1]; }
  // The kinds to ask share_of() for.
  __device__ int kinds_of(int cluster) const { return takes_turns(cluster) ? 1 : kind_count; }
  // The cluster's rows of a kind. A count below 0: the kind is not the cluster's. A count of 0, where the kind begins
  // just where the stretch ends, still has a partial row.
  __device__ Share share_of(int cluster, int kind) const {
    if (takes_turns(cluster)) return split[0].share_of(cluster);
    const int64_t begin = stretches.begin_of(cluster - turning);
    const int64_t end = stretches.begin_of(cluster - turning + 1);
    const int64_t first = kinds.begin_of(kind);
    const int64_t next = kinds.begin_of(kind + 1);
    if (first > end || next <= begin) return {0, -1, 0};
    const int64_t from = begin < first ? first : begin;
    const int count = static_cast<int>((end < next ? end : next) - from);
    return {split[0].rows + kind + (from - first) * period, count, count};
  }
};
// [/snippet]

// [snippet: launch]
// After how many rows one of the same kind comes again.
template <Layout layout, class Pass>
int64_t period_of(const Pass& pass) {
  return layout == Layout::same_offset ? period_of_rows<typename Pass::T>(pass.p.x_stride) : 1;
}

template <Layout layout, class Pass>
Split<layout> split_of(const Pass& pass, int64_t rows, int64_t step) {
  const auto& p = pass.p;
  return {rows,
          step,
          {step * p.x_stride, step * p.dy_stride, step * p.dh_stride},
          step * p.dx_stride,
          1.0f / static_cast<float>(p.cols)};
}

// `count` rows, divided into `parts`.
inline Parts parts_of(int64_t count, int64_t parts) {
  return parts > 0 ? Parts{count / parts, count % parts} : Parts{0, 0};
}

template <Layout layout, class Pass>
ClusterSplit<layout> cluster_split_of(const Pass& pass, int64_t clusters, int64_t period) {
  const int64_t turning = clusters / period * period;
  const int64_t first_rows = pass.p.rows * turning / clusters;
  const int64_t last_rows = pass.p.rows - first_rows;
  const int64_t kinds = std::min(period, last_rows);
  return {static_cast<int>(period),
          static_cast<int>(kinds),
          static_cast<int>(turning),
          {split_of<layout>(pass, first_rows, turning), split_of<layout>(pass, last_rows, period)},
          parts_of(last_rows, kinds),
          parts_of(last_rows, clusters - turning)};
}

template <Layout layout>
int64_t partial_rows_of(const ClusterSplit<layout>& rows, int64_t teams) {
  return rows.turning + (rows.kind_count > 0 ? teams - rows.turning + rows.kind_count - 1 : 0);
}
// [/snippet]

}  // namespace worklog::backward

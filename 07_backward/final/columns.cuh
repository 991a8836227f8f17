// Which columns of a row a thread has. They are the same in every row of its team, so that their sums can stay in its
// registers. The first vector of a row and the last may hold elements of the neighbouring rows, and this is where it is
// worked out which elements count.
#pragma once

#include <cstdint>

#include "07_backward/final/pass.cuh"

namespace worklog::backward {

// [snippet: columns]
template <int count>
struct Unit {
  float at[count];
};

// The columns of a row that a thread has: units of one vector, or of one element where they have any offset.
//
// Where the offset is the same, the first vector begins with the last elements of the row before, and the last one ends
// with the first of the row after. Where there is room, the row's own last elements take the place of the former, so
// that the two are one unit: such a row has no more units than one that starts on a boundary.
template <Layout layout, class T>
struct Columns {
  static constexpr int unit = layout == Layout::any_offset ? 1 : vector_size<T>;
  int begin;  // of the block's piece of the row, which ends before `end`: below 0 where neighbours come first
  int end;
  int row_end;  // of the row, without the moved elements
  int moved;    // elements of the row's end that are in the first vector
  int tail;     // where the row's last vector begins, if it is not whole: else the row's length
  int last;     // elements of it
  int thread;   // of the team's threads in this block
  int threads;

  __device__ int column(int i) const { return begin + (thread + i * threads) * unit; }
  __device__ bool has(int i) const { return column(i) < end; }
  // The column of element k of the unit that begins at column `first`; -1 where it is not the row's.
  __device__ int column_of_element(int first, int k) const {
    if (first + k < 0) return k < moved ? row_end + k : -1;
    return first + k < row_end ? first + k : -1;
  }
  __device__ int column(int i, int k) const { return column_of_element(column(i), k); }
};

// Those of a team whose rows start like row `row`; the team has `pieces` blocks, of which this is number `piece`.
template <Layout layout, class Pass>
__device__ inline Columns<layout, typename Pass::T> columns_of(const Pass& pass, int64_t row, int thread, int threads,
                                                               int piece = 0, int pieces = 1) {
  using T = typename Pass::T;
  constexpr int unit = Columns<layout, T>::unit;
  const int cols = static_cast<int>(pass.p.cols);
  int past_boundary = 0;
  int moved = 0;
  int last = 0;  // elements of the last vector, where it is not whole
  if constexpr (layout == Layout::same_offset) {
    const auto address = reinterpret_cast<uintptr_t>(pass.p.x + row * pass.p.x_stride);
    past_boundary = static_cast<int>(address % 16 / sizeof(T));
    last = (past_boundary + cols) % unit;
    if (last <= past_boundary) moved = last;
  }
  const int row_end = cols - moved;
  const int row_units = (past_boundary + row_end + unit - 1) / unit;
  const int piece_units = (row_units + pieces - 1) / pieces;
  const int begin = piece * piece_units * unit - past_boundary;
  const int end = begin + piece_units * unit;
  return {begin, end < row_end ? end : row_end, row_end, moved, cols - last, last, thread, threads};
}
// [/snippet]

template <Layout layout, class T>
int64_t units_of_row(int64_t cols) {
  constexpr int64_t unit = Columns<layout, T>::unit;
  return (cols + unit - 1) / unit;
}

}  // namespace worklog::backward

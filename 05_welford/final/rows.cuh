// Where a row lies, and which part of it a thread holds. A row is 16-byte vectors with a few elements at its two ends,
// the edges; a thread takes vectors a fixed distance apart, and perhaps one edge. What is known of this before the
// launch is `Fit`, and saves the kernel its questions.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/plan.h"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::all_lanes;
using warp_shuffle::lanes;

// [snippet: layout]
// How a row lies in memory: 16-byte vectors on 16-byte boundaries, and at its two ends the *edges*, elements that fill
// no vector.
template <class T>
struct RowLayout {
  int first;    // column of the first vector
  int vectors;  // in the row
  int edges;    // columns outside of the vectors: at most 31

  __device__ int edge_column(int edge) const { return edge < first ? edge : edge + vectors * vector_size<T>; }
};

// Where not all rows start on a boundary, gamma's vectors do not lie where those of x do: reading 16 bytes of gamma
// takes the two vectors that they straddle. One vector at each end counts among the edges then, so that the two exist.
template <Fit fit, class T>
__device__ inline RowLayout<T> layout_of(const T* row, int cols) {
  if constexpr (fit != Fit::any) return {0, cols / vector_size<T>, 0};
  const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int first = 2 * vector_size<T> - past_boundary;
  const int vectors = cols < first + 2 * vector_size<T> ? 0 : (cols - first) / vector_size<T> - 1;
  return {first, vectors, cols - vectors * vector_size<T>};
}
// [/snippet]

// [snippet: place]
// Which columns of a row a thread holds: vectors `step` columns apart, and perhaps one of the edges.
template <Fit fit>
struct Place {
  int first;  // column of the first vector
  int step;
  int end;   // the vectors lie before this column
  int edge;  // column, or -1

  __device__ int column(int i) const { return first + i * step; }
  __device__ bool has(int i) const { return fit == Fit::full || column(i) < end; }
  __device__ bool has_edge() const { return fit == Fit::any && edge >= 0; }

  // Calls f(value) for each of the thread's elements, read from memory one by one: short code, for what is rarely done.
  template <int vectors, class T, class Function>
  __device__ void for_each(const T* row, Function f) const {
#pragma unroll 1
    for (int i = 0; i < vectors * vector_size<T>; ++i) {
      if (!has(i / vector_size<T>)) continue;
      const float one[1] = {vectorized::to_float(row[column(i / vector_size<T>) + i % vector_size<T>])};
      f(one);
    }
    const float one[1] = {has_edge() ? vectorized::to_float(row[edge]) : 0.0f};
    if (has_edge()) f(one);
  }

  // Of all lanes of the warp together.
  template <class T, int vectors>
  __device__ int elements_of_warp() const {
    if constexpr (fit == Fit::full) return lanes * vectors * vector_size<T>;
    int elements = __popc(__ballot_sync(all_lanes, has_edge()));
#pragma unroll
    for (int i = 0; i < vectors; ++i) elements += __popc(__ballot_sync(all_lanes, has(i))) * vector_size<T>;
    return elements;
  }
};

// A team's blocks hold one piece of the row each: its vectors from `begin` to before `end`.
struct Piece {
  int begin;
  int end;
};

template <class T>
__device__ inline Piece piece_of(const RowLayout<T>& layout, int block, int blocks) {
  const int piece = (layout.vectors + blocks - 1) / blocks;
  const int begin = block * piece;
  return {begin, begin + piece < layout.vectors ? begin + piece : layout.vectors};
}

// `thread` of `threads` counts within the block. The edges are few: one to a thread of the first block.
template <Fit fit, class T>
__device__ inline Place<fit> place_of(const RowLayout<T>& layout, int block, int blocks, int thread, int threads) {
  const auto [begin, end] = piece_of(layout, block, blocks);
  return {layout.first + (begin + thread) * vector_size<T>, threads * vector_size<T>,
          layout.first + end * vector_size<T>, block == 0 && thread < layout.edges ? layout.edge_column(thread) : -1};
}

// Threads that hold `vectors` vectors, `each` to a thread: whole warps.
inline unsigned threads_for(int64_t vectors, int64_t each) {
  const int64_t threads = (vectors + each - 1) / each;
  return static_cast<unsigned>((threads + lanes - 1) / lanes * lanes + (threads == 0 ? lanes : 0));
}
// [/snippet]

}  // namespace worklog::welford

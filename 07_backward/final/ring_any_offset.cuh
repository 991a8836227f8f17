// The ring of rows that start at a different place in each tensor. No thread can use a whole vector of such a row. So
// whole vectors are copied, and the team's threads read single elements of what they all have copied.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/ring.cuh"
#include "07_backward/final/shares.cuh"

namespace worklog::backward {

// [snippet: ring_any_offset]
// The ring of rows of any offset. It takes the aligned vectors that cover a piece of a row, with some of its
// neighbours' elements, and a thread's columns are single elements in them. It reads what other threads have copied.
template <class Pass, int units, int stages_>
struct Ring<Pass, Layout::any_offset, units, stages_> {
  using T = typename Pass::T;
  using Its = Columns<Layout::any_offset, T>;
  static constexpr int stages = stages_;
  static constexpr bool reads_own = false;
  static constexpr bool has_edges = false;
  const Pass& pass;
  const Split<Layout::any_offset>& split;
  Its columns;
  Share share;
  uint4* cells;  // [stages][tensors][vectors_for(threads)]
  int copied = 0;

  __host__ __device__ static constexpr int vectors_for(int threads) {
    return (units * threads * static_cast<int>(sizeof(T)) + 14) / 16 + 1;
  }
  __host__ __device__ static constexpr int size_for(int threads) {
    return stages * Pass::tensors * vectors_for(threads);
  }

  __device__ Ring(const Pass& pass, const Split<Layout::any_offset>& split, const Its& columns, const Share& share,
                  uint4* shared)
      : pass(pass), split(split), columns(columns), share(share), cells(shared) {}

  __device__ int place_of(int slot, int) const { return slot; }
  __device__ uint4* cell(int slot, int tensor) const {
    return cells + (slot * Pass::tensors + tensor) * vectors_for(columns.threads);
  }
  __device__ const T* source(int tensor, int turn) const {
    return pass.tensor(tensor) + (share.first + turn * split.step) * pass.stride(tensor) + columns.begin;
  }
  __device__ Unit<1> read(int slot, int tensor, int i, int turn) const {
    const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(source(tensor, turn)) % 16 / sizeof(T));
    const T* piece = reinterpret_cast<const T*>(cell(slot, tensor)) + past_boundary;
    return {{to_float(piece[columns.column(i) - columns.begin])}};
  }
  __device__ uint4* end() const { return cell(stages, 0); }
  __device__ int first_column() const { return 0; }
  __device__ bool reads(int i) const { return columns.has(i); }
  __device__ void prepare(int, bool) const {}
  __device__ void write_edges(T*, bool) const {}
  __device__ void write(T* dx, int i, const Unit<1>& floats) const {
    dx[columns.column(i)] = static_cast<T>(floats.at[0]);
  }

  __device__ void start_row(int slot) {
    if (copied < share.count) {
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) copy_piece(cell(slot, tensor), tensor);
    }
    __pipeline_commit();
    ++copied;
  }

 private:
  __device__ void copy_piece(uint4* to, int tensor) const {
    const T* from = source(tensor, copied);
    const int past_boundary = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
    const int vectors = (past_boundary + columns.end - columns.begin + vector_size<T> - 1) / vector_size<T>;
    const T* begin = pass.tensor(tensor);
    const T* end = begin + (pass.p.rows - 1) * pass.stride(tensor) + pass.p.cols;
    for (int i = columns.thread; i < vectors; i += columns.threads) {
      const T* vector = from - past_boundary + i * vector_size<T>;
      if (vector >= begin && vector + vector_size<T> <= end) {
        __pipeline_memcpy_async(to + i, vector, 16);
      } else {  // the tensor's first or last: what lies around it is not ours to read
        for (int k = 0; k < vector_size<T>; ++k) {
          if (vector + k >= begin && vector + k < end) reinterpret_cast<T*>(to + i)[k] = vector[k];
        }
      }
    }
  }
};
// [/snippet]

}  // namespace worklog::backward

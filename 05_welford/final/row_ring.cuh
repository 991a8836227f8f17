// A ring of rows in shared memory, filled by asynchronous copies. While a cluster normalizes a row, its next ones are
// on their way here. A thread copies what it will read itself, so it waits for its own copies only, and needs no
// barrier.
#pragma once

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/share.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::Floats;
using vectorized::unpack;
using vectorized::vector_size;
using warp_shuffle::lanes;

// [snippet: row_ring]
// A cluster's rows: `count` of them, `step` apart, which all start equally far past a 16-byte boundary.
struct RowWalk {
  int64_t first;
  int64_t step;
  int count;
};

// A block's piece of `stages` rows in shared memory, of each tensor that is read. Copies start on their way and are
// waited for later. A thread copies what it will read itself, so that it needs no barrier to read it; and as soon as it
// has read a vector for the last time, the copy of the row that is `stages` rows later starts into its place.
//
// An edge is copied as the 4 bytes that it lies in. They may hold an element of the neighbouring row too, which another
// cluster may be writing: that half is not looked at.
template <class Steps, Fit fit, int vectors, int threads, int stages>
struct RowRing {
  using T = typename Steps::Element;
  static constexpr int reads = Steps::reads;
  static constexpr int slot_vectors = reads * vectors * threads;
  static constexpr int ring_vectors = stages * slot_vectors;
  static constexpr int most_edges = lanes;
  // All threads have the first `certain` vectors, which the launch sees to: what is not asked takes no branch.
  static constexpr int certain = vectors <= 4 ? vectors - 1 : vectors - 2;
  static constexpr size_t bytes = ring_vectors * sizeof(uint4) + stages * reads * most_edges * sizeof(unsigned);

  const Steps& steps;
  const Place<fit>& place;
  RowWalk walk;
  uint4* cells;           // [stages][reads][vectors][threads], from this thread's on
  unsigned* edges;        // [stages][reads][most_edges], from this thread's on
  int copied = 0;         // rows whose copies have started
  const T* ahead[reads];  // this thread's first vector of the row to copy next

  __device__ RowRing(const Steps& steps, const Place<fit>& place, const RowWalk& walk)
      : steps(steps),
        place(place),
        walk(walk),
        cells(dynamic_shared<uint4>() + threadIdx.x),
        edges(reinterpret_cast<unsigned*>(dynamic_shared<uint4>() + ring_vectors) + threadIdx.x) {
    look_ahead();
  }

  __device__ int64_t row(int turn) const { return walk.first + turn * walk.step; }
  __device__ bool has(int i) const { return i < certain || place.has(i); }
  __device__ uint4* cell(int slot, int tensor, int i) const {
    return cells + slot * slot_vectors + (tensor * vectors + i) * threads;
  }
  __device__ T* edge(int slot, int tensor, int turn) const {
    const auto address = reinterpret_cast<uintptr_t>(steps.source(tensor, row(turn)) + place.edge);
    return reinterpret_cast<T*>(edges + (slot * reads + tensor) * most_edges) + address % sizeof(unsigned) / sizeof(T);
  }

  // Starts the copies of a thread's vector, then of its next. end_row() when those of a row have all started.
  __device__ void start_copy(int slot, int i) const {
    if (copied >= walk.count || !has(i)) return;
#pragma unroll
    for (int tensor = 0; tensor < reads; ++tensor) {
      copy_vector<undivided>(cell(slot, tensor, i), ahead[tensor] + i * place.step, advice_of(Eviction::last));
    }
  }
  __device__ void end_row(int slot) {
    if (place.has_edge() && copied < walk.count) copy_edge(slot);
    __pipeline_commit();
    ++copied;
    look_ahead();
  }

  // Reads a row for the first time: f(values) gets the elements of each vector, and begin(values) before that those of
  // the thread's first.
  template <class Begin, class Function>
  __device__ void for_each(int slot, int turn, Begin begin, Function f) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (!has(i)) continue;
      uint4 read[reads];
#pragma unroll
      for (int tensor = 0; tensor < reads; ++tensor) read[tensor] = *cell(slot, tensor, i);
      const uint4 bits = steps.join(row(turn), place.column(i), read);
      if constexpr (reads > 1) *cell(slot, 0, i) = bits;
      const Floats<T> x = unpack<T>(bits);
      if (i == 0) begin(x.at);
      f(x.at);
    }
    if (place.has_edge()) {
      T read[reads];
#pragma unroll
      for (int tensor = 0; tensor < reads; ++tensor) read[tensor] = *edge(slot, tensor, turn);
      const T x = steps.join(row(turn), place.edge, read);
      if constexpr (reads > 1) *edge(slot, 0, turn) = x;
      const float one[1] = {vectorized::to_float(x)};
      f(one);
    }
  }

 private:
  // The way from a row's number to an address is long. It is taken once for a row: not, as the compiler would, for each
  // vector.
  __device__ void look_ahead() {
#pragma unroll
    for (int tensor = 0; tensor < reads; ++tensor) ahead[tensor] = steps.source(tensor, row(copied)) + place.first;
  }

  // What lies around a tensor is not ours to read: the edges of its first and last rows are copied one element each.
  __device__ void copy_edge(int slot) const {
    const bool amid = row(copied) > 0 && row(copied) < steps.p.rows - 1;
#pragma unroll
    for (int tensor = 0; tensor < reads; ++tensor) {
      const T* from = steps.source(tensor, row(copied)) + place.edge;
      if (amid) {
        const auto address = reinterpret_cast<uintptr_t>(from);
        __pipeline_memcpy_async(edges + (slot * reads + tensor) * most_edges,
                                reinterpret_cast<const void*>(address - address % sizeof(unsigned)), sizeof(unsigned));
      } else {
        *edge(slot, tensor, copied) = *from;
      }
    }
  }
};
// [/snippet]

}  // namespace worklog::welford

// A ring of rows in shared memory. While a team works on one row, the copies of the next rows are on their way, so that
// memory always has something to do. This is the ring of rows that start equally far past a 16-byte boundary in all
// tensors; ring_any_offset.cuh has that of all others.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/shares.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: ring]
// Pieces of `stages` rows in shared memory, of each tensor. Copies of 16 bytes start on their way and are waited for
// later. A thread copies the vectors that it will read itself: it needs no barrier to read them. As soon as it has read
// one for the last time, the copy of the row that is `stages` rows later starts into its place.
//
// The copies of two lanes share a sector of 32 bytes only if it is one sector in shared memory, too. Every other row of
// the same offset starts in mid-sector, so its vectors are stored one place further on. The places of a warp form a
// circle: a copy overwrites only what its own warp has read.
//
// Where the offset is the same, the first vector of a row and the last are *edges*: they hold elements of its
// neighbours too. The first is copied whole. (If dx is written over x or dy, the neighbour's elements in it may be old
// or new: prepare() overwrites them before anyone uses them.) Of the last only the row's own elements are copied, with
// zeros behind them. Single elements of an edge are the work of as many lanes of its warp, at once: if one thread did
// them one by one, the whole team would wait for it in every row.
template <class Pass, Layout layout, int units, int stages_>
struct Ring {
  using T = typename Pass::T;
  using Its = Columns<layout, T>;
  static constexpr int stages = stages_;
  static constexpr bool reads_own = true;
  static constexpr bool has_edges = layout == Layout::same_offset;
  static constexpr int elements = vector_size<T>;
  const Pass& pass;
  const Split<layout>& split;
  Its columns;
  Share share;
  uint4* cells;   // [stages][tensors][vectors_for(threads)], from this thread's on
  int slot_size;  // vectors
  uint64_t advice;

  int on_in_even = 0;  // how far the thread's vectors are moved on in the row of an even turn,
  int on_in_odd = 0;   // and in that of an odd one

  const T* from[Pass::tensors];  // the thread's first column in the row that is copied next
  int copied = 0;                // rows whose copies have started
  int units_of_thread = 0;       // that the thread has
  int units_copied = 0;          // without the last, where that is the row's last vector and an edge
  bool edge_in_warp = false;
  bool writes_edge = false;  // an element of it,
  int edge_offset = 0;       // so far from the thread's first column

  // Vectors of a tensor's piece of a row. After the threads' there is one more, for elements that have to be moved; it
  // has two possible places, since it moves on with the others.
  __host__ __device__ static constexpr int vectors_for(int threads) { return units * threads + (has_edges ? 2 : 0); }
  // Vectors of the whole ring. The last are a row's two edges of dx.
  __host__ __device__ static constexpr int size_for(int threads) {
    return stages * Pass::tensors * vectors_for(threads) + (has_edges ? 2 : 0);
  }

  __device__ Ring(const Pass& pass, const Split<layout>& split, const Its& columns, const Share& share, uint4* shared)
      : pass(pass),
        split(split),
        columns(columns),
        share(share),
        cells(shared + columns.thread),
        slot_size(Pass::tensors * vectors_for(columns.threads)),
        advice(advice_of(pass.eviction)) {
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
      from[tensor] = pass.tensor(tensor) + share.first * pass.stride(tensor) + columns.column(0);
    }
#pragma unroll
    for (int i = 0; i < units; ++i) units_of_thread += columns.has(i) ? 1 : 0;
    units_copied = units_of_thread;
    if constexpr (has_edges) {
      find_edges();
      find_places();
      for (int slot = 0; slot < stages && starts_before_row(0) && columns.moved == 0; ++slot) {
        for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
          for (int on = 0; on < 2; ++on) *cell(slot * slot_size + on, tensor, units) = {0, 0, 0, 0};
        }
      }
    } else {
      // A unit that the thread does not have is zeros, which add nothing to a sum: it need not be asked for.
#pragma unroll
      for (int i = 0; i < units; ++i) {
        for (int slot = 0; slot < stages && !has(i); ++slot) {
          for (int tensor = 0; tensor < Pass::tensors; ++tensor) *cell(slot * slot_size, tensor, i) = {0, 0, 0, 0};
        }
      }
    }
  }

  __device__ bool has(int i) const {
    return i < units_of_thread;
  }
  // What is behind the ring.
  __device__ uint4* end() const {
    return cells - columns.thread + size_for(columns.threads);
  }
  // Where the thread's vectors of a turn's row are in the ring.
  __device__ int place_of(int slot, int turn) const {
    return slot * slot_size + (!has_edges ? 0 : turn % 2 == 0 ? on_in_even : on_in_odd);
  }
  // The column that write() and write_edges() count from.
  __device__ int first_column() const {
    return columns.column(0);
  }
  // To ask costs a branch; not to ask costs arithmetic on zeros. With many units it pays to ask. With edges one has to:
  // where the places move on, the zeros do not stay.
  __device__ bool reads(int i) const {
    return (units <= 2 && !has_edges) || has(i);
  }
  __device__ auto read(int place, int tensor, int i, int) const {
    const Floats<T> all = unpack<T>(*cell(place, tensor, i));
    Unit<elements> floats;
#pragma unroll
    for (int k = 0; k < elements; ++k) floats.at[k] = all.at[k];
    return floats;
  }
  // Before the first read, by whole warps: puts what the row's last vector has, and zeros behind that, over the
  // neighbour's elements in the first.
  __device__ void prepare(int place, bool has_row) const {
    if constexpr (has_edges) {
      if (columns.begin >= 0 || columns.thread >= lanes) return;
      __syncwarp();
      if (has_row && columns.thread < -columns.begin) {
#pragma unroll
        for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
          first_vector(place, tensor)[columns.thread] = moved(place, tensor)[columns.thread];
        }
      }
      __syncwarp();
    }
  }
  // After the last read: unit i of a row of dx, of which this is the thread's first column. An edge is left for
  // write_edges().
  __device__ void write(T* dx, int i, const Unit<elements>& floats) const {
    if (!has(i)) return;
    Floats<T> all;
#pragma unroll
    for (int k = 0; k < elements; ++k) all.at[k] = floats.at[k];
    // Two stores: one through a pointer that may be to shared or to global memory is slower.
    if (has_edges && (starts_before_row(i) || i >= units_copied)) {
      edges_of_dx()[starts_before_row(i) ? 0 : 1] = pack<T>(all);
    } else {
      *reinterpret_cast<uint4*>(dx + i * columns.threads * elements) = pack<T>(all);
    }
  }
  // By whole warps.
  __device__ void write_edges(T* dx, bool has_row) const {
    if constexpr (has_edges) {
      if (!edge_in_warp) return;
      __syncwarp();
      if (has_row && writes_edge) {
        dx[edge_offset] = reinterpret_cast<const T*>(edges_of_dx())[columns.thread % lanes];
      }
    }
  }

  // Starts the copies of unit i of the thread. Called for each in turn, and then end_row().
  __device__ void start_copy(int place, int i) const {
    if (copied >= share.count || i >= units_copied) return;
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
      constexpr unsigned address = has_edges ? welford::undivided : ~0u;
      copy_vector<address>(cell(place, tensor, i), from[tensor] + i * columns.threads * elements, advice);
    }
  }
  __device__ void end_row(int place) {
    if (copied < share.count && copies_row_end()) {
      const int i = units_copied < units_of_thread ? units_copied : units;
#pragma unroll
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        copy_first(cell(place, tensor, i), from[tensor] + (columns.tail - columns.column(0)), columns.last);
      }
    }
    __pipeline_commit();
    ++copied;
#pragma unroll
    for (int tensor = 0; tensor < Pass::tensors; ++tensor) from[tensor] += split.advance[tensor];
  }
  // A whole row: one of a share's first.
  __device__ void start_row(int slot) {
    const int place = place_of(slot, copied);
    const bool starts_before_tensor = starts_before_row(0) && share.first == 0 && copied == 0;
    if (starts_before_tensor && share.count > 0) {  // what lies before the tensor is not ours to read
      for (int tensor = 0; tensor < Pass::tensors; ++tensor) {
        for (int k = -columns.begin; k < elements; ++k) first_vector(place, tensor)[k] = from[tensor][k];
      }
    }
#pragma unroll
    for (int i = 0; i < units; ++i) {
      if (i > 0 || !starts_before_tensor) start_copy(place, i);
    }
    end_row(place);
  }

 private:
  __device__ uint4* cell(int place, int tensor, int i) const {
    return cells + place + tensor * vectors_for(columns.threads) + i * columns.threads;
  }
  // Of the team's first thread.
  __device__ T* first_vector(int place, int tensor) const {
    return reinterpret_cast<T*>(cell(place, tensor, 0) - columns.thread);
  }
  // The row's elements that have to be moved, and zeros.
  __device__ T* moved(int place, int tensor) const {
    return reinterpret_cast<T*>(cell(place, tensor, units) - columns.thread);
  }
  __device__ uint4* edges_of_dx() const {
    return end() - 2;
  }
  __device__ bool starts_before_row(int i) const {
    return has_edges && i == 0 && columns.column(0) < 0;
  }
  // The last vector, where it is not whole: one of the thread's units, or to be moved to its first.
  __device__ bool copies_row_end() const {
    return has_edges && (units_copied < units_of_thread || (columns.moved > 0 && starts_before_row(0)));
  }

  // A share's first row starts in mid-sector or not. The next one does what it does, or the two alternate.
  __device__ void find_places() {
    const int circle = columns.threads < lanes ? columns.threads : lanes;
    const int next = columns.thread % circle == circle - 1 ? 1 - circle : 1;
    const auto apart = reinterpret_cast<uintptr_t>(from[0]) ^ reinterpret_cast<uintptr_t>(cells);
    on_in_even = apart / 16 % 2 == 0 ? 0 : next;
    on_in_odd = split.advance[0] / elements % 2 == 0 ? on_in_even : next - on_in_even;
  }
  // A lane for each element of the first vector, then one for each of the last.
  __device__ void find_edges() {
    const int warp = columns.thread / lanes;
    const int lane = columns.thread % lanes;
    if (columns.begin < 0 && warp == 0) {
      edge_in_warp = true;
      if (lane < elements) find_edge_element(columns.begin, lane);
    }
    if (columns.tail < columns.begin || columns.tail >= columns.end) return;
    const int unit = (columns.tail - columns.begin) / elements;
    if (unit % columns.threads == columns.thread) --units_copied;
    if (unit % columns.threads / lanes == warp) {
      edge_in_warp = true;
      if (lane / elements == 1) find_edge_element(columns.tail, lane - elements);
    }
  }
  __device__ void find_edge_element(int first, int k) {
    const int column = columns.column_of_element(first, k);
    writes_edge = column >= 0;
    edge_offset = column - columns.column(0);
  }

  // Starts the copy of a vector's first `count` elements, and of zeros behind them: nothing is read there. The
  // runtime's function has a branch for each number of zeros, where the instruction has an operand.
  __device__ static void copy_first(uint4* to, const T* from, int count) {
    const int bytes = count * static_cast<int>(sizeof(T));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(bytes)
        : "memory");
#else
    __pipeline_memcpy_async(to, from, 16, 16 - bytes);
#endif
  }
};

// In ring_any_offset.cuh.
template <class Pass, int units, int stages_>
struct Ring<Pass, Layout::any_offset, units, stages_>;
// [/snippet]

}  // namespace worklog::backward

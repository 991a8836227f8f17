// A thread's sums of its columns, dgamma and dbeta. They grow in registers from the thread's first row to its last, and
// go to memory once, as a partial row.
#pragma once

#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: column_sums]
// A thread with vectors of eight columns has 32 bytes of sums for each, and stores 16 at a time. In the order of the
// columns, a warp's store would leave out every other 16 bytes. So a partial row has the lower halves of all vectors
// first, and then the upper ones.
template <Layout layout, class T>
inline constexpr bool sums_in_halves = layout == Layout::whole && sizeof(T) == 2;

// What a thread keeps from its first row to its last.
template <class Pass, Layout layout, int units>
struct ColumnSums {
  using Its = Columns<layout, typename Pass::T>;
  static constexpr int each = Its::unit;
  float dgamma[units][each] = {};
  float dbeta[units][each] = {};

  __device__ void add(int i, int k, float dy, float xhat) {
    dgamma[i][k] = fmaf(dy, xhat, dgamma[i][k]);
    if constexpr (Pass::centered) dbeta[i][k] += dy;
  }
  // Takes what another has added up, which begins anew.
  __device__ void take(ColumnSums& other) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        dgamma[i][k] += other.dgamma[i][k];
        if constexpr (Pass::centered) dbeta[i][k] += other.dbeta[i][k];
      }
    }
    other = {};
  }
  // The sums of lanes `distance` apart, in both of them.
  __device__ void add_lane(int distance) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        dgamma[i][k] += __shfl_xor_sync(all_lanes, dgamma[i][k], distance);
        if constexpr (Pass::centered) dbeta[i][k] += __shfl_xor_sync(all_lanes, dbeta[i][k], distance);
      }
    }
  }
  // To a partial row, by all threads of a block.
  __device__ void write_row(float* to_dgamma, float* to_dbeta, const Its& columns) const {
    if constexpr (layout == Layout::same_offset) {
      write_through_shared(to_dgamma, dgamma, columns);
      if constexpr (Pass::centered) write_through_shared(to_dbeta, dbeta, columns);
    } else if constexpr (sums_in_halves<layout, typename Pass::T>) {
      write_halves(to_dgamma, dgamma, columns);
      if constexpr (Pass::centered) write_halves(to_dbeta, dbeta, columns);
    } else {
      write(to_dgamma, to_dbeta, columns);
    }
  }
  // By each thread for itself.
  __device__ void write(float* to_dgamma, float* to_dbeta, const Its& columns) const {
#pragma unroll
    for (int i = 0; i < units; ++i) {
      if (!columns.has(i)) continue;
      write_unit(to_dgamma, columns, i, dgamma[i]);
      if constexpr (Pass::centered) write_unit(to_dbeta, columns, i, dbeta[i]);
    }
  }

 private:
  // A lane has neighbouring columns, and no boundary to write them to as vectors: if each wrote its own, a store of a
  // warp would go to as many sectors as it has lanes. So they change places in shared memory, where the ring was.
  __device__ static void write_through_shared(float* row, const float (&sums)[units][each], const Its& columns) {
    float* of_block = dynamic_shared<float>();  // [units][threads][each]
    __syncthreads();                            // all have read what was there before
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int k = 0; k < each; ++k) of_block[(columns.thread + i * columns.threads) * each + k] = sums[i][k];
    }
    __syncthreads();
    for (int k = columns.thread; k < columns.end - columns.begin; k += columns.threads) {
      const int column = columns.column_of_element(columns.begin + k - k % each, k % each);
      if (column >= 0) row[column] = of_block[k];
    }
    __syncthreads();
  }
  __device__ static void write_halves(float* row, const float (&sums)[units][each], const Its& columns) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
      if (!columns.has(i)) continue;
      float4* const lower = reinterpret_cast<float4*>(row) + columns.column(i) / each;
      *lower = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
      lower[columns.row_end / each] = {sums[i][4], sums[i][5], sums[i][6], sums[i][7]};
    }
  }
  __device__ static void write_unit(float* row, const Its& columns, int i, const float (&sums)[each]) {
    if constexpr (layout == Layout::whole) {
#pragma unroll
      for (int k = 0; k < each; k += 4) {
        *reinterpret_cast<float4*>(row + columns.column(i) + k) = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
      }
    } else {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        const int column = columns.column(i, k);
        if (column >= 0) row[column] = sums[k];
      }
    }
  }
};
// [/snippet]

}  // namespace worklog::backward

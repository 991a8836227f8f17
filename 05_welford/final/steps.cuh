// What is done to a row, as a type: load, statistics, store. The kernels know only the names in LayerNormSteps, so
// stage 06 gives them steps of its own and has their speed. The calls are resolved when a kernel is compiled.
#pragma once

#include <array>
#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/statistics.cuh"
#include "common/device/arguments.h"

namespace worklog::welford {

// [snippet: steps]
// Where the rows of a tensor lie.
struct Rows {
  const void* first;
  int64_t stride;  // elements
};

// The steps of layer normalization. The kernels (one_row.cuh and its like) know only the names in here.
template <class T, class G>
struct LayerNormSteps {
  using Element = T;
  using Parameter = G;
  static constexpr About about = About::mean;
  static constexpr bool has_beta = true;
  static constexpr int reads = 1;  // tensors
  LayerNormForward<T, G> p;
  Eviction eviction = Eviction::normal;  // of what is read: the launch knows it

  // The row that is normalized, for a second look at it.
  __device__ const T* row(int64_t i) const { return p.x + i * p.x_stride; }
  __host__ __device__ const G* beta() const { return p.beta; }

  // The load step: a thread's share of row i.
  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    share.load(row(i), place, eviction);
  }
  // The same in two halves, for a kernel that fetches rows ahead: where row i of a tensor lies, and what becomes of the
  // vectors, or elements, that were read at a column.
  __device__ const T* source(int, int64_t i) const { return row(i); }
  template <class Part>
  __device__ Part join(int64_t, int, const Part (&read)[reads]) const {
    return read[0];
  }
  // The same for one element, where vectors are of no use.
  __device__ float load(int64_t i, int64_t col) const { return vectorized::to_float(row(i)[col]); }

  // The store step: elements of y from the normalized ones.
  template <int count>
  __device__ void scale(float (&v)[count], const float (&gamma)[count], const float (&beta)[count]) const {
#pragma unroll
    for (int k = 0; k < count; ++k) v[k] = fmaf(v[k], gamma[k], beta[k]);
  }

  __device__ void write_statistics(int64_t i, const Statistics& s) const {
    if (p.mean) p.mean[i] = mean_of(s);
    if (p.rstd) p.rstd[i] = rstd_of(s);
  }

  // For the launch: the tensors that are walked row by row, and what is known of the parameters.
  std::array<Rows, 2> tensors() const {
    return {{{p.x, p.x_stride}, {p.y, p.y_stride}}};
  }
  bool is_given() const {
    return p.gamma && p.beta;
  }
  void skip(int64_t rows) {
    p.x += rows * p.x_stride;
    p.y += rows * p.y_stride;
    if (p.mean) p.mean += rows;
    if (p.rstd) p.rstd += rows;
  }
};
// [/snippet]

}  // namespace worklog::welford

// x + residual in the load step of any norm's steps, for stage 05's kernels.
#pragma once

#include <array>
#include <cstdint>

#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/steps.cuh"
#include "06_fused_residual/add.cuh"

namespace worklog::fused_residual {

using welford::advice_of;
using welford::load_vector;
using welford::Rows;

// [snippet: add_steps]
// x + residual in the load step, and from there on the steps of `Norm`, for which its x is h: the *rounded* sum that is
// stored. Each element of h is written by the thread that has read those of x and residual, so that h may be either.
template <class Norm>
struct AddSteps : Norm {
  using T = typename Norm::Element;
  static constexpr int reads = 2;
  const T* x;
  const T* residual;
  T* h;
  int64_t x_stride, residual_stride;

  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    // [task: add_vectors]
    constexpr int batch = Share::vectors < 4 ? Share::vectors : 4;  // 8 loads are on their way at once
    const T* x_row = x + i * x_stride;
    const T* residual_row = residual + i * residual_stride;
    T* h_row = h + i * this->p.x_stride;
    const uint64_t advice = advice_of(this->eviction);
#pragma unroll
    for (int first = 0; first < Share::vectors; first += batch) {
      uint4 a[batch], b[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (!place.has(first + j)) continue;
        a[j] = load_vector<Share::advised>(x_row + place.column(first + j), advice);
        b[j] = load_vector<Share::advised>(residual_row + place.column(first + j), advice);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (!place.has(first + j)) continue;
        const uint4 sum = add_vectors<T>(a[j], b[j]);
        share.vector[first + j] = sum;
        *reinterpret_cast<uint4*>(h_row + place.column(first + j)) = sum;
      }
    }
    if (place.has_edge()) {
      share.edge = sum_of(x_row[place.edge], residual_row[place.edge]);
      h_row[place.edge] = share.edge;
    }
    // [/task]
  }

  __device__ float load(int64_t i, int64_t col) const {
    const T sum = sum_of(x[i * x_stride + col], residual[i * residual_stride + col]);
    h[i * this->p.x_stride + col] = sum;
    return vectorized::to_float(sum);
  }

  __device__ const T* source(int tensor, int64_t i) const {
    return tensor == 0 ? x + i * x_stride : residual + i * residual_stride;
  }
  __device__ uint4 join(int64_t i, int col, const uint4 (&read)[reads]) const {
    const uint4 sum = add_vectors<T>(read[0], read[1]);
    *reinterpret_cast<uint4*>(h + i * this->p.x_stride + col) = sum;
    return sum;
  }
  __device__ T join(int64_t i, int col, const T (&read)[reads]) const {
    return h[i * this->p.x_stride + col] = sum_of(read[0], read[1]);
  }

  __device__ static T sum_of(T a, T b) {
    return static_cast<T>(vectorized::to_float(a) + vectorized::to_float(b));
  }

  std::array<Rows, 4> tensors() const {
    const auto [own, y] = Norm::tensors();
    return {{own, y, {x, x_stride}, {residual, residual_stride}}};
  }
  void skip(int64_t rows) {
    Norm::skip(rows);
    x += rows * x_stride;
    residual += rows * residual_stride;
    h += rows * this->p.x_stride;
  }
};
// [/snippet]

}  // namespace worklog::fused_residual

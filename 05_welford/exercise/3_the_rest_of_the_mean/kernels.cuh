// Exercise: the mean of a row in two floats. Look for [task].
#pragma once

#include <array>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;

using warp_shuffle::block_sum;

using warp_shuffle::lanes;

inline constexpr float small_scale = 0x1p-80f;  // the squares of the largest floats then fit, and 2^20 of them

// When the lines that are read leave the L2 cache: before others, in turn, or after others. Where tensors are much
// larger than the cache, they leave last. It is not for their own sake: so the lines of y, which are written, leave
// first.
enum class Leaves { first, in_turn, last };

// Deviations are taken from the mean, for a variance; or from zero, for a mean square (stage 06).
enum class About { mean, zero };

// Of x * scale: its mean in two parts, pivot + rest, and 1 / sqrt(variance + eps). scale is 1 but for rows whose
// squares, or whose sum, overflow: these are done again with a small power of two, by which nothing is rounded.
struct Statistics {
  float scale;
  float pivot;
  float rest;
  float rstd;
};

// Of x * scale. Scaled down, eps is too small for a float. It counts only where the variance is nothing, since where
// sums overflow, values that are not equal differ by far more than eps.
__device__ inline float rstd_of(float variance, float eps, float scale) {
  if (scale == 1.0f) return rsqrtf(variance + eps);
  return variance == 0.0f ? rsqrtf(eps) * (1.0f / small_scale) : rsqrtf(variance);
}

// What the caller is told is of x, without the scale.
__device__ inline float mean_of(const Statistics& s) {
  return (s.pivot + s.rest) * (s.scale == 1.0f ? 1.0f : 1.0f / small_scale);
}

__device__ inline float rstd_of(const Statistics& s) {
  return s.rstd * s.scale;
}

// Where the rows of a tensor lie.
struct Rows {
  const void* first;
  int64_t stride;  // elements
};

// The steps of layer normalization. The kernels below know only the names in here.
template <class T, class G>
struct LayerNormSteps {
  using Element = T;
  using Parameter = G;
  static constexpr About about = About::mean;
  static constexpr bool has_beta = true;
  static constexpr int reads = 1;  // tensors
  LayerNormForward<T, G> p;
  Leaves leaves = Leaves::in_turn;  // what is read leaves the L2 cache: the launch knows when

  // The row that is normalized, for a second look at it.
  __device__ const T* row(int64_t i) const { return p.x + i * p.x_stride; }
  __host__ __device__ const G* beta() const { return p.beta; }

  // The load step: a thread's share of row i.
  template <class Share, class Place>
  __device__ void load(Share& share, int64_t i, const Place& place) const {
    share.load(row(i), place, leaves);
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

template <About about>
__device__ inline float normalized(float x, const Statistics& s) {
  if constexpr (about == About::zero) return x * s.scale * s.rstd;
  return fmaf(fmaf(x, s.scale, -s.pivot), s.rstd, -s.rest * s.rstd);
}

template <class Steps>
__device__ inline void store_element(const Steps& steps, int64_t row, int64_t col, float x, const Statistics& s) {
  const float weight[1] = {steps.p.gamma ? vectorized::to_float(steps.p.gamma[col]) : 1.0f};
  const float bias[1] = {steps.beta() ? vectorized::to_float(steps.beta()[col]) : 0.0f};
  float v[1] = {normalized<Steps::about>(x, s)};
  steps.scale(v, weight, bias);
  steps.p.y[row * steps.p.y_stride + col] = static_cast<typename Steps::Element>(v[0]);
}

inline constexpr int threads_of_reread = 1024;

// A row is read once for the sum of it, and again for each further sum.
template <class Steps>
__global__ void __launch_bounds__(threads_of_reread) normalize_reread(Steps steps) {
  __shared__ float scratch[lanes];
  const int64_t row = blockIdx.x;
  const auto sum_over_row = [&](auto value, auto f) {
    float sum = 0.0f;
    for (int64_t col = threadIdx.x; col < steps.p.cols; col += blockDim.x) sum += f(value(col));
    return block_sum(sum, scratch);
  };
  wait_for_previous_kernel();
  const auto first_value = [&](int64_t col) { return steps.load(row, col); };
  const auto value = [&](int64_t col) { return vectorized::to_float(steps.row(row)[col]); };

  Statistics s = {1.0f, sum_over_row(first_value, [](float v) { return v; }) / steps.p.cols, 0.0f, 0.0f};
  for (;;) {
    if constexpr (Steps::about == About::zero) {
      s.pivot = 0.0f;
    } else {
      // [task: rest] s.pivot is a float near the row's mean. Find what the mean is beside it.
      s.rest = 0.0f;
      // [/task]
    }
    const float m2 = sum_over_row(value, [&](float v) {
      // [task: deviation] The deviation of v from the mean, as exactly as the two parts have it.
      const float d = fmaf(v, s.scale, -s.pivot);
      // [/task]
      return d * d;
    });
    s.rstd = rstd_of(m2 / steps.p.cols, steps.p.eps, s.scale);
    if (isfinite(m2) || s.scale != 1.0f) break;
    s.scale = small_scale;
    s.pivot = sum_over_row(value, [&](float v) { return v * s.scale; }) / steps.p.cols;
  }
  for (int64_t col = threadIdx.x; col < steps.p.cols; col += blockDim.x) store_element(steps, row, col, value(col), s);
  if (threadIdx.x == 0) steps.write_statistics(row, s);
}

}  // namespace worklog::welford

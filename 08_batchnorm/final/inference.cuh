// BatchNorm with the running statistics: a subtraction and a multiply-add for each element. The trip through memory is
// that of apply.cuh.
#pragma once

#include "04_vectorized/vectors.cuh"
#include "08_batchnorm/final/apply.cuh"
#include "08_batchnorm/final/vector.cuh"
#include "common/device/arguments.h"

namespace worklog::batchnorm {

using vectorized::to_float;

// [snippet: inference]
// Inference. The mean is not folded into an offset with beta: where it is large, x - mean is exact, and x * factor is
// not.
template <class T_, class G>
struct InferenceSteps {
  using T = T_;
  BatchNormInference<T, G> p;
  static constexpr int inputs = 1;
  __device__ const T* input(int) const { return p.x; }
  __device__ T* output() const { return p.y; }

  struct Channel {
    float mean, factor, beta;
  };
  __device__ float result(float x, float, const Channel& c) const { return fmaf(x - c.mean, c.factor, c.beta); }

  template <int size>
  __device__ void read_channels(const int (&channels)[size], Neighbors neighbors, Channel (&known)[size]) const {
    if (size > 2 && neighbors == Neighbors::two) {
      const int ends[2] = {channels[0], channels[size - 1]};
      Channel of_end[2];
      read_each<false>(ends, of_end);
#pragma unroll
      for (int k = 0; k < size; ++k) known[k] = channels[k] == ends[0] ? of_end[0] : of_end[1];
    } else if (neighbors == Neighbors::in_a_row) {
      read_each<true>(channels, known);
    } else {
      read_each<false>(channels, known);
    }
  }

 private:
  template <bool in_a_row, int size>
  __device__ void read_each(const int (&channels)[size], Channel (&known)[size]) const {
    float gamma[size], beta[size], mean[size], variance[size];
    read_values<in_a_row>(p.gamma, 1.0f, channels, gamma);
    read_values<in_a_row>(p.beta, 0.0f, channels, beta);
    read_values<in_a_row>(p.running_mean, 0.0f, channels, mean);
    read_values<in_a_row>(p.running_var, 1.0f, channels, variance);
#pragma unroll
    for (int k = 0; k < size; ++k) {
      known[k] = {mean[k], gamma[k] * rsqrtf(variance[k] + p.eps), beta[k]};
    }
  }
  template <bool in_a_row, class V, int size>
  __device__ static void read_values(const V* from, float otherwise, const int (&channels)[size],
                                     float (&values)[size]) {
    constexpr int together = size < static_cast<int>(vector_size<V>) ? size : static_cast<int>(vector_size<V>);
    if (!from) {
#pragma unroll
      for (int k = 0; k < size; ++k) values[k] = otherwise;
    } else if constexpr (in_a_row) {
#pragma unroll
      for (int first = 0; first < size; first += together) {
        const auto some = *reinterpret_cast<const Vector<V, together>*>(from + channels[0] + first);
#pragma unroll
        for (int k = 0; k < together; ++k) values[first + k] = to_float(some.at[k]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < size; ++k) values[k] = to_float(from[channels[k]]);
    }
  }
};
// [/snippet]

}  // namespace worklog::batchnorm

// Exercise: the sum of x and the residual, on the way into a norm. Look for [task].
#pragma once

#include "04_vectorized/vectors.cuh"
#include "05_welford/held.cuh"
#include "06_fused_residual/add.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::Floats;
using vectorized::vector_size;
using welford::launch_held;
using welford::LayerNorm;

// x + residual when a vector is loaded, and from there on `Norm`, for which its x is h: the *rounded* sum. h is stored
// at once, by the thread that has read x and residual there and needs them no more. So h may be either.
template <class Norm>
struct AddNorm : Norm {
  using T = typename Norm::Element;
  static constexpr bool stores_sum = true;
  const T* x;
  const T* residual;
  T* h;
  int64_t x_stride, residual_stride;

  template <bool whole>
  __device__ uint4 load(int64_t row, int col) const {
    const int cols = static_cast<int>(this->p.cols);
    // [task: add_vector] What is given here passes x on as it is. Make it the vector of h = x + residual, rounded to T:
    // it is stored in h, and returned. The kernel calls this once for each vector of a row.
    const uint4 bits = vectorized::load<whole>(x + row * x_stride, col, cols);
    this->template store_vector<whole>(h + row * this->p.x_stride, col, bits);
    return bits;
    // [/task]
  }

  bool is_whole() const {
    return Norm::is_whole() && welford::on_boundaries(x, x_stride) && welford::on_boundaries(residual, residual_stride);
  }
};

// h may be x or residual, and y may be x, residual or h where those are not needed any more; any other overlap of the
// tensors is not allowed.
template <class T, class G>
void held_add_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream) {
  using Operation = AddNorm<LayerNorm<T, G>>;
  launch_held(Operation{{norm_of_sum(p)}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}

}  // namespace worklog::fused_residual

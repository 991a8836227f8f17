// For comparison, eight bits in two kernels: a norm has written y in T, and the second kernel reads, scales and stores
// it.
#pragma once

#include "06_fused_residual/quantized.cuh"

namespace worklog::fused_residual {

template <class T, int vectors, bool whole>
__global__ void __launch_bounds__(most_threads_of_quantized, vectors > 4 ? 1 : 2) quantize_rows(QuantizedNorm<T> p) {
  __shared__ unsigned scratch[lanes];
  const int step = static_cast<int>(blockDim.x) * vector_size<T>;
  const VectorsOfRow walk = {static_cast<int>(threadIdx.x) * vector_size<T>, step, static_cast<int>(p.cols)};
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* const y = p.unrounded + row * p.cols;
    const auto read = [&](int col) {
      return vectorized::unpack<T>(col < walk.cols ? vectorized::load<whole>(y, col, walk.cols) : uint4{});
    };
    Floats<T> held[vectors];
#pragma unroll
    for (int i = 0; i < vectors; ++i) held[i] = read(walk.first + i * step);
    quantize_row<T, T, whole>(p, row, walk, held, scratch, read);
  }
}

// Quantizes `p.unrounded`, which has no gaps and starts on a boundary.
template <class T, class G>
void quantize(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  QuantizedNorm<T> only_y = {};
  only_y.y = p.y;
  only_y.scale = p.scale;
  only_y.scales = p.scales;
  only_y.unrounded = p.unrounded;
  only_y.rows = p.rows;
  only_y.cols = p.cols;
  only_y.y_stride = p.y_stride;
  only_y.scales_stride = p.scales_stride;
  only_y.format = p.format;
  only_y.scaling = p.scaling;
  const auto launch_with = [&](auto kernel, int vectors) {
    launch(kernel, {.grid = blocks_for(p.rows, 1), .block = threads_of_quantized(p, vectors), .stream = stream},
           only_y);
  };
  if (!has_whole_rows(only_y)) return launch_with(quantize_rows<T, 8, false>, 8);
  if (is_short_row(only_y)) return launch_with(quantize_rows<T, 4, true>, 4);
  launch_with(quantize_rows<T, 8, true>, 8);
}

}  // namespace worklog::fused_residual

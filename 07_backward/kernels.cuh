// The backward pass: dx reduces along the rows, dgamma and dbeta along the columns, over the same data. separate.cuh
// does the one after the other. Here is the plainest way to do both in one trip, atomic additions. In grouped.cuh fewer
// blocks wait for each other; staying.cuh has the kernel that the lesson ends with. partials.cuh adds up the sums of
// columns that they leave. The kernel for every shape is in final/.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "07_backward/grouped.cuh"
#include "07_backward/partials.cuh"
#include "07_backward/row.cuh"
#include "07_backward/separate.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using warp_shuffle::lanes;

// [snippet: atomics]
// One row of sums for all: every block adds its elements to it.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row) dx_and_atomics(LayerNormBackward<T, G> p, PartialRows partial) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [&](int64_t col, float dy, float xhat) {
      atomicAdd(partial.dgamma(0) + col, dy * xhat);
      atomicAdd(partial.dbeta(0) + col, dy);
    });
  }
}
// [/snippet]

// [snippet: steps_on_the_way]
template <class T, class G>
void atomics(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const PartialRows partial = {p.workspace, 1, p.cols};
  check_cuda(cudaMemsetAsync(p.workspace, 0, 2 * p.cols * sizeof(float), stream), "clearing the sums");
  if (p.rows > 0) launch(dx_and_atomics<T, G>, block_per_row(p, stream), p, partial);
  launch_sum(p, 1, stream);
}
// [/snippet]

}  // namespace worklog::backward

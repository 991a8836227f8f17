// The backward pass: dx reduces along the rows, dgamma and dbeta along the columns, over the same data. separate.cuh
// does the one after the other. Here are two ways to do both in one trip; staying.cuh has the kernel that the lesson
// ends with. partials.cuh adds up the sums of columns that they leave. The kernel for every shape is in final/.
#pragma once

#include <algorithm>
#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "07_backward/partials.cuh"
#include "07_backward/row.cuh"
#include "07_backward/separate.cuh"
#include "common/device/arguments.h"
#include "common/device/launch.cuh"

namespace worklog::backward {

using vectorized::to_float;
using warp_shuffle::lanes;

// [snippet: atomics]
// One partial row for all: every block adds each of its elements to it.
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

// [snippet: grouped]
// `partial.count` partial rows, each with a lock: row i of x adds to partial row i % count. Whoever comes first adds
// first, so that the order of a sum's terms, and with it its rounding, is another on every run.
template <class T, class G>
__global__ void __launch_bounds__(threads_of_row)
    dx_and_groups(LayerNormBackward<T, G> p, PartialRows partial, int* locks) {
  __shared__ float scratch[lanes];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    dx_of_row(p, row, scratch, [](int64_t, float, float) {});
    const int64_t group = row % partial.count;
    const RowStatistics s = {p.mean[row], p.rstd[row]};
    if (threadIdx.x == 0) {
      while (atomicCAS(locks + group, 0, 1) != 0) {
      }
      __threadfence();  // nothing of what follows is read before the lock is ours
    }
    __syncthreads();
    for (int64_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
      const float dy = to_float(p.dy[row * p.dy_stride + col]);
      float* dgamma = partial.dgamma(group) + col;
      float* dbeta = partial.dbeta(group) + col;
      // Past the first-level cache, which may hold what was there before another block's addition.
      *dgamma = __ldcg(dgamma) + dy * xhat_of(to_float(p.x[row * p.x_stride + col]), s);
      *dbeta = __ldcg(dbeta) + dy;
    }
    __threadfence();  // each thread's sums are there for all before the lock is given back
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(locks + group, 0);
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

// As many groups as the Triton article has at its widest rows, or as there is room for beside the locks.
template <class T, class G>
void grouped(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t groups = std::min<int64_t>(64, backward_partial_rows(p.cols) - 1);
  const PartialRows partial = {p.workspace, groups, p.cols};
  int* locks = reinterpret_cast<int*>(p.workspace + 2 * groups * p.cols);
  const size_t bytes = 2 * groups * p.cols * sizeof(float) + groups * sizeof(int);
  check_cuda(cudaMemsetAsync(p.workspace, 0, bytes, stream), "clearing the sums and the locks");
  if (p.rows > 0) launch(dx_and_groups<T, G>, block_per_row(p, stream), p, partial, locks);
  launch_sum(p, groups, stream);
}
// [/snippet]

}  // namespace worklog::backward

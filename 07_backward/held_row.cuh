// A row of x and of dy that a block holds in registers, so that each is read once: dx, and what dgamma and dbeta are
// made of, both come from there.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/kernels.cuh"
#include "05_welford/held.cuh"
#include "07_backward/row.cuh"
#include "common/device/arguments.h"

namespace worklog::backward {

using vectorized::Floats;
using vectorized::Parameter;
using vectorized::vector_size;

// [snippet: held_row]
// A thread's share of a row of x and of dy. It stays in registers as it is stored, so that 16 bits stay 16 bits; xhat
// is computed where it is needed.
template <class T, int vectors, bool whole>
struct HeldRow {
  RowStatistics statistics;
  int first, step, cols;
  vectorized::RowInRegisters<T, vectors> x, dy;

  __device__ int col(int i) const { return first + i * step; }  // of the thread's vector i
  __device__ Floats<T> dys(int i) const { return vectorized::unpack<T>(dy.bits[i]); }
  __device__ Floats<T> xhats(int i) const {
    Floats<T> xhat = vectorized::unpack<T>(x.bits[i]);
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      // Beyond the row's ends dy is 0, but xhat could be infinite, and 0 times infinity is not 0.
      const int at = col(i) + (whole ? 0 : k);
      xhat.at[k] = at >= 0 && at < cols ? xhat_of(xhat.at[k], statistics) : 0.0f;
    }
    return xhat;
  }

  // Here the compiler may not look through: it would unpack all vectors at once, or keep what it has unpacked, in more
  // registers than there are.
  __device__ void keep_packed([[maybe_unused]] int i) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(x.bits[i].x), "+r"(x.bits[i].y), "+r"(x.bits[i].z), "+r"(x.bits[i].w));
    asm volatile("" : "+r"(dy.bits[i].x), "+r"(dy.bits[i].y), "+r"(dy.bits[i].z), "+r"(dy.bits[i].w));
#endif
  }
};

// Stores a vector in one piece; of vectorized::store nvcc would make four stores.
template <bool whole, class T>
__device__ inline void store_vector(T* row, int col, int cols, uint4 bits) {
  if (!whole && !vectorized::is_whole(row, col, cols)) return vectorized::store(row, col, cols, bits);
  __stcg(reinterpret_cast<uint4*>(row + col), bits);
}

template <class T, class G, int vectors, bool whole>
__device__ inline void write_dx(const LayerNormBackward<T, G>& p, int64_t row, HeldRow<T, vectors, whole>& held,
                                float2* scratch) {
  constexpr bool holds_gamma = vectors <= 2;  // for more a thread has no registers
  Parameter<T, G> gamma[vectors] = {};
  const auto load_gamma = [&](int i) {
    if (held.col(i) < held.cols) gamma[i].template load<whole>(p.gamma, held.col(i), held.cols, 1.0f);
  };
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (holds_gamma) load_gamma(i);
  }
  RowSums sums = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (!holds_gamma) load_gamma(i);
    held.keep_packed(i);
    const Floats<T> gammas = gamma[i].unpack(), xhat = held.xhats(i), dy = held.dys(i);
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) {
      const float wdy = dy.at[k] * gammas.at[k];
      sums.wdy += wdy;
      sums.wdy_xhat += wdy * xhat.at[k];
    }
  }
  const float2 of_row = welford::block_sums({sums.wdy, sums.wdy_xhat}, scratch);
  const Gradient gradient = gradient_of(held.statistics, {of_row.x, of_row.y}, p.cols);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int col = held.col(i);
    if (col >= held.cols) break;
    if (!holds_gamma) load_gamma(i);
    held.keep_packed(i);
    const Floats<T> gammas = gamma[i].unpack(), xhat = held.xhats(i), dy = held.dys(i);
    Floats<T> dx = {};
    if (p.dh) dx = vectorized::unpack<T>(vectorized::load<whole>(p.dh + row * p.dh_stride, col, held.cols));
#pragma unroll
    for (int k = 0; k < vector_size<T>; ++k) dx.at[k] += gradient(dy.at[k] * gammas.at[k], xhat.at[k]);
    store_vector<whole>(p.dx + row * p.dx_stride, col, held.cols, vectorized::pack<T>(dx));
  }
}
// [/snippet]

}  // namespace worklog::backward

// The backward pass with weights about zero: wdy = dy * (1 + gamma). The gradients are the same formulas, since the
// gradient of 1 + gamma is that of gamma. The kernels are those of plain weights, given another type of parameter.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <span>

#include "05_welford/held.cuh"
#include "07_backward/final/dispatch.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/plan.h"
#include "07_backward/final/reread.cuh"
#include "07_backward/final/tuning_sm_90.h"
#include "07_backward/staying.cuh"
#include "common/device/arguments.h"

namespace worklog::backward {

// [snippet: weight]
// A weight that lies about zero, as it is stored: where a kernel takes it as a float, one is added.
template <class G>
struct AboutZero {
  G stored;

  AboutZero() = default;
  __device__ explicit AboutZero(float value) : stored(static_cast<G>(value)) {}
  __device__ operator float() const { return 1.0f + to_float(stored); }
};
// [/snippet]

// Parameter::load packs what stands in for absent columns, which nobody reads: these let it.
__device__ inline __half2 round_pair(float a, float b, AboutZero<__half>) {
  return vectorized::round_pair(a, b, __half());
}
__device__ inline __nv_bfloat162 round_pair(float a, float b, AboutZero<__nv_bfloat16>) {
  return vectorized::round_pair(a, b, __nv_bfloat16());
}

// [snippet: parameters]
// The same arguments with gamma, dgamma and dbeta of another type of the same size.
template <class Other, class T, class G>
LayerNormBackward<T, Other> with_parameters(const LayerNormBackward<T, G>& p) {
  static_assert(sizeof(Other) == sizeof(G));
  return {p.dy,
          p.x,
          p.dh,
          reinterpret_cast<const Other*>(p.gamma),
          p.mean,
          p.rstd,
          p.dx,
          reinterpret_cast<Other*>(p.dgamma),
          reinterpret_cast<Other*>(p.dbeta),
          p.workspace,
          p.rows,
          p.cols,
          p.dy_stride,
          p.x_stride,
          p.dh_stride,
          p.dx_stride,
          p.batch_invariant};
}

// Sums over rows have no gamma in them: the kernels for plain weights write them.
template <bool in_halves = false, class T, class G>
void launch_sum(const LayerNormBackward<T, AboutZero<G>>& p, int64_t partial_rows, cudaStream_t stream) {
  launch_sum<in_halves>(with_parameters<G>(p), partial_rows, stream);
}
// [/snippet]

// [snippet: rules]
// RMSNorm's rows of whole vectors, elements and weights of the same 16 bits: from 1024 columns on the kernels that
// plain weights have.
namespace zero_centered_tiles {

using sm_90::block;
using sm_90::lanes;

// clang-format off
inline constexpr Rule rules[] = {
    // pass      types   work  rows: from to  vectors  kernel: team(units, stages, lanes or threads)
    {every_pass, bits16, Size::any, 0, many,   32, lanes(2, 4, 16)},  // heads of 64, 128 and 256
    {every_pass, bits16, Size::any, 0, many,  512, block(2, 3, 512), "about zero: 1024 to 4096 columns"},
    {plain,      bits16, Size::any, 0, many,  768, block(4, 3, 192, 2)},  // 5376 columns
    {plain,      bits16, Size::any, 0, many, 1024, block(2, 3, 512)},
    {adds_dh,    bits16, Size::any, 0, many, 1024, block(2, 4, 512)},
};
// clang-format on

}  // namespace zero_centered_tiles
// [/snippet]

// [snippet: launch]
struct ZeroCenteredVectors {
  static constexpr std::span<const Rule> rules = zero_centered_tiles::rules;
  static constexpr Layout layout = Layout::whole;
};

template <class T, class W, bool adds_dh>
bool launch_by_zero_centered_rules(const LayerNormBackward<T, W>& p, cudaStream_t stream) {
  const int64_t bytes_read = p.rows * p.cols * int64_t{sizeof(T)} * (adds_dh ? 3 : 2);
  const Pass<T, W, false, adds_dh> pass = {p, eviction_of(bytes_read, 1), 1.0f / static_cast<float>(p.cols)};
  return launch_by_rules<ZeroCenteredVectors>(pass, stream);
}

// LayerNorm's pass, or RMSNorm's, which has no mean. Rows of whole vectors that no rule takes have the lesson's kernel
// `staying`, if its threads hold them. Of what is left, dx alone: it is read twice, an element at a time, and false
// says that the sums over rows are still to come.
template <class T, class G, bool centered>
bool zero_centered_pass(const LayerNormBackward<T, G>& plain, cudaStream_t stream) {
  using W = AboutZero<G>;
  using welford::on_boundaries;
  const LayerNormBackward<T, W> p = with_parameters<W>(plain);
  const auto are_whole = [&](const T* first, int64_t stride) { return on_boundaries(first, p.rows == 1 ? 0 : stride); };
  const bool whole_vectors = p.cols % vector_size<T> == 0 && are_whole(p.x, p.x_stride) &&
                             are_whole(p.dy, p.dy_stride) && are_whole(p.dh, p.dh_stride) &&
                             are_whole(p.dx, p.dx_stride) && on_boundaries(p.gamma, 0);
  if constexpr (!centered && types_of<T, W> == bits16) {
    if (whole_vectors && p.dh && launch_by_zero_centered_rules<T, W, true>(p, stream)) return true;
    if (whole_vectors && !p.dh && launch_by_zero_centered_rules<T, W, false>(p, stream)) return true;
  }
  const unsigned threads = warp_shuffle::blocks_for(p.cols, lanes * columns_of_thread) * lanes;
  if (whole_vectors && threads <= most_threads) {
    launch_staying<true>(p, threads, stream);
    return true;
  }
  if (p.rows > 0 && p.dx) {
    LaunchShape shape = block_per_row(p, stream);
    shape.block = threads_of_reread;
    launch(dx_reread<T, W>, shape, p, 1.0f / static_cast<float>(p.cols));
  }
  return !p.dgamma && !p.dbeta;
}
// [/snippet]

}  // namespace worklog::backward

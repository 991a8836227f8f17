// Norms with weights about zero, as Gemma has them: y = xhat * (1 + gamma). The kernels are stage 05's, with one
// addition in the store step. There are fewer rules than for plain weights, so that few kernels come on top.
#pragma once

#include <span>

#include "05_welford/final/launch_rule.cuh"
#include "05_welford/final/normalize_rows.cuh"
#include "05_welford/final/plan.h"
#include "05_welford/final/steps.cuh"

namespace worklog::fused_residual {

// [snippet: steps]
// The steps of `Norm`, whose weights are about zero. gamma is there: without one, the plain steps do.
template <class Norm>
struct ZeroCenteredSteps : Norm {
  template <int count>
  __device__ void scale(float (&v)[count], const float (&gamma)[count], const float (&beta)[count]) const {
    float weight[count];
#pragma unroll
    for (int k = 0; k < count; ++k) weight[k] = 1.0f + gamma[k];
    Norm::scale(v, weight, beta);
  }
};
// [/snippet]

// [snippet: rules]
// Rows of whole vectors. Where elements and weights have the same 16 bits, RMSNorm has a few kernels, at most widths of
// models those that plain weights have; all others have one that takes any row of its length. A rule with a text in
// quotes is reached by some case of the stage's results.
namespace zero_centered_tiles {

using enum welford::Operations;
using enum welford::Known;
using enum welford::Amount;
using welford::tiles::block;
using welford::tiles::lanes;

// clang-format off
inline constexpr welford::Rule rules[] = {
    // norm       types    from vectors    to  work  kernel: team(known, vectors, threads, resident blocks)
    {rms_of_x,   bits16,       1,      32,    0, lanes(given, 4, 8)},  // heads of 64, 128 and 256
    {rms_of_sum, bits16,       1,      64,    0, lanes(given, 2, 32)},
    {rms_of_x,   bits16,      65,    1024, 1024, block(given, 2, 512, 1, few_blocks), "about zero: 1024 x 1024"},
    {rms_of_sum, bits16,      65,    1024, 1024, block(given, 2, 512, 1, few_blocks), "about zero: sum of 1024 x 1024"},
    {rms_of_x,   bits16,      33,    2048,    0, block(given, 4, 512, 3), "about zero: 262144 x 1024"},
    {rms_of_sum, bits16,      65,    1024,    0, block(given, 4, 256, 4), "about zero: sum of 262144 x 1024"},
    {layer_of_x, any_types,    1,    2048,    0, block(asked, 4, 512, 1), "about zero: LayerNorm"},
    {rms_of_x,   fp32 | mixed, 1,    2048,    0, block(asked, 4, 512, 1), "about zero: 1024 columns of fp32"},
    {of_sum,     any_types,    1,    2048,    0, block(asked, 4, 512, 1), "about zero: sum, 1024 columns of fp32"},
};
// clang-format on

}  // namespace zero_centered_tiles
// [/snippet]

// [snippet: launch]
struct ZeroCenteredVectors {
  static constexpr std::span<const welford::Rule> rules = zero_centered_tiles::rules;
  static constexpr bool are_whole = true;
};

// Rows that start between boundaries, and those that no rule takes, are read three times, an element at a time.
template <class Steps>
void normalize_zero_centered(const Steps& steps, cudaStream_t stream) {
  welford::for_each_grid(steps, [&](const Steps& of_a_grid) {
    const bool are_whole = welford::are_whole_vectors(of_a_grid);
    if (are_whole && welford::launch_by_rules<ZeroCenteredVectors>(of_a_grid, stream)) return;
    welford::launch_reread(of_a_grid, stream);
  });
}
// [/snippet]

}  // namespace worklog::fused_residual

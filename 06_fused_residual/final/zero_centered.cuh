// Norms with weights about zero, as Gemma has them: y = xhat * (1 + gamma). The kernels are stage 05's, with one
// addition in the store step. There are fewer rules than for plain weights, so that few kernels come on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "05_welford/final/alignment.cuh"
#include "05_welford/final/cache_advice.cuh"
#include "05_welford/final/launch_rule.cuh"
#include "05_welford/final/plan.h"
#include "05_welford/final/reread.cuh"
#include "05_welford/final/steps.cuh"
#include "common/device/launch.cuh"

namespace worklog::fused_residual {

using vectorized::vector_size;

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
    {rms_of_x,   bits16,      33,    2048,    0, block(given, 4, 512, 3)},  // measured at 2048 to 8192 columns
    {rms_of_sum, bits16,      65,    1024,    0, block(given, 4, 256, 4)},  // measured at 2048 to 8192 columns
    {layer_of_x, any_types,    1,    2048,    0, block(asked, 4, 512, 1), "about zero: LayerNorm"},
    {rms_of_x,   fp32 | mixed, 1,    2048,    0, block(asked, 4, 512, 1), "about zero: 1024 columns of fp32"},
    {of_sum,     any_types,    1,    2048,    0, block(asked, 4, 512, 1), "about zero: sum, 1024 columns of fp32"},
};
// clang-format on

}  // namespace zero_centered_tiles
// [/snippet]

// [snippet: launch]
// As stage 05's launch_rule(), for the two teams that the rules name.
template <size_t number, class Steps>
bool launch_zero_centered_rule(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  constexpr welford::Rule rule = zero_centered_tiles::rules[number];
  constexpr welford::Tile tile = rule.tile;
  constexpr bool given = tile.known != welford::Known::asked;
  constexpr welford::Fit fit = welford::Fit::vectors;
  const char* const measured = zero_centered_tiles::rules[number].measured;
  const char* const name = measured ? measured : "";
  if constexpr (!is_for(rule, welford::operation_of<Steps>, types_of<T, typename Steps::Parameter>)) {
    return false;
  } else if constexpr (tile.team == welford::Team::lanes) {
    welford::launch_lanes<fit, given, tile.amount, tile.vectors, tile.threads>(steps, name, stream);
  } else {
    welford::launch_block<fit, given, tile.amount, tile.vectors, tile.threads, tile.resident>(steps, name, stream);
  }
  return true;
}

// As many rows as a grid can have. Rows that start between boundaries, and those that no rule takes, are read three
// times, an element at a time.
template <class Steps>
void normalize_zero_centered_of_a_grid(const Steps& steps, cudaStream_t stream) {
  using T = typename Steps::Element;
  const auto& p = steps.p;
  const welford::Rows first = steps.tensors()[0];
  const bool whole_vectors = welford::have_same_offset<T>(steps.tensors(), p.rows) &&
                             welford::starts_on_boundary(first.first) && welford::starts_on_boundary(p.gamma) &&
                             welford::starts_on_boundary(steps.beta()) && p.cols % vector_size<T> == 0 &&
                             (p.rows == 1 || first.stride % vector_size<T> == 0);
  const welford::RowFacts facts = {.operation = welford::operation_of<Steps>,
                                   .types = types_of<T, typename Steps::Parameter>,
                                   .are_given = steps.is_given(),
                                   .batch_invariant = p.batch_invariant,
                                   .rows = p.rows,
                                   .vectors = p.cols / vector_size<T>,
                                   .multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount)};
  constexpr std::span<const welford::Rule> rules = zero_centered_tiles::rules;
  const auto launch_number = [&]<size_t number>() { return launch_zero_centered_rule<number>(steps, stream); };
  if (whole_vectors && launch_first<rules.size()>(rules, facts, launch_number)) return;
  launch(
      welford::normalize_reread<Steps>,
      {.grid = static_cast<unsigned>(p.rows), .block = welford::threads_of_reread, .overlap = true, .stream = stream},
      steps);
}

template <class Steps>
void normalize_zero_centered(Steps steps, cudaStream_t stream) {
  const int64_t rows = steps.p.rows;
  const int64_t largest_grid = int64_t{1} << 27;  // rows, as in normalize_rows()
  const int64_t bytes_read = rows * steps.p.cols * int64_t{sizeof(typename Steps::Element)} * Steps::reads;
  steps.eviction = welford::eviction_of(bytes_read, 2);
  for (int64_t done = 0; done < rows; done += largest_grid) {
    steps.p.rows = rows - done < largest_grid ? rows - done : largest_grid;
    normalize_zero_centered_of_a_grid(steps, stream);
    steps.skip(largest_grid);
  }
}
// [/snippet]

}  // namespace worklog::fused_residual

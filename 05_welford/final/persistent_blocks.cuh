// For more rows than run at once, but only a few times as many, that a block holds: each block takes one row after the
// other.
#pragma once

#include <cstdint>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/persistent_team.cuh"
#include "05_welford/final/row_ring.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/teams.cuh"
#include "05_welford/final/walk_rows.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::lanes;

// [snippet: persistent_blocks]
// Block i of n takes the rows i, i + n, i + 2 n, ...
template <class Steps, int vectors, int threads, int stages, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    normalize_persistent_blocks(Steps steps) {
  using T = typename Steps::Element;
  constexpr Fit fit = Fit::vectors;
  constexpr int warps = threads / lanes;
  static_assert(warps == warps_of<threads>);
  __shared__ SplitMoments of_warps[2 * warps];
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const int64_t first = blockIdx.x;
  const int64_t blocks = gridDim.x;
  const RowWalk walk = {first, blocks, static_cast<int>((steps.p.rows - first + blocks - 1) / blocks)};

  const Place<fit> place = place_of<fit>(layout_of<fit>(steps.row(first), cols), 0, 1, thread, threads);
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Count whole = count_of(static_cast<float>(cols));
  PersistentBlockTeam<Steps::about, warps, merge_for<T, Amount::many>> team{whole, of_warps};
  wait_for_previous_kernel();
  let_next_kernel_start_at_once();
  walk_rows(RowRing<Steps, fit, vectors, threads, stages>(steps, place, walk), team, held, whole, thread == 0);
}

// Launches as many blocks as run at once, and returns true, if each thread has the vectors that the kernel does not ask
// for, and three quarters of the blocks have a second row: with fewer rows, a block to a row is faster from a graph.
template <int vectors, int threads, int stages, int resident, class Steps>
bool launch_persistent_block(const Steps& steps, const char* rule, cudaStream_t stream) {
  using Ring = RowRing<Steps, Fit::vectors, vectors, threads, stages>;
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  if (length < Ring::certain * threads || length > vectors * threads) return false;
  if (!block_can_have(Ring::bytes)) return false;
  const auto kernel = normalize_persistent_blocks<Steps, vectors, threads, stages, resident>;
  const int64_t blocks = blocks_at_once(kernel, threads, Ring::bytes);
  if (4 * steps.p.rows < 7 * blocks) return false;
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks),
          .block = threads,
          .shared_bytes = Ring::bytes,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         steps);
  return true;
}
// [/snippet]

}  // namespace worklog::welford

// Wide rows, if there are many: persistent clusters, which walk the rows. A row that takes a cluster has a long
// way from its first load to its last store: the blocks start together, load, meet, and store. Here the next rows are
// on their way meanwhile.
#pragma once

#include <cstdint>
#include <numeric>

#include "03_warp_shuffle/kernels.cuh"
#include "04_vectorized/vectors.cuh"
#include "05_welford/final/persistent_team.cuh"
#include "05_welford/final/row_ring.cuh"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/split_moments.cuh"
#include "05_welford/final/teams.cuh"
#include "05_welford/final/walk_rows.cuh"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;
using warp_shuffle::block_sum;
using warp_shuffle::lanes;

// [snippet: persistent_clusters]
// Cluster i of n takes the rows i, i + n, i + 2 n, ... Rows that are no whole vectors start at other columns of their
// vectors than those before, but every 8th starts like the first (every 4th in fp32); n is a multiple of that, so that
// a cluster's rows are all of one kind, and its threads keep their columns.
template <class Steps, Fit fit, class Exchange, int vectors, int threads, int stages, int resident>
__global__ void __launch_bounds__(threads, blocks_that_fit(threads, resident))
    normalize_persistent_clusters(Steps steps) {
  using T = typename Steps::Element;
  constexpr int warps = threads / lanes;
  static_assert(warps == warps_of<threads>);
  __shared__ SplitMoments of_warps[2 * warps];
  __shared__ float4 of_blocks[2 * most_blocks_of_cluster];
  __shared__ uint64_t arrivals[2];
  __shared__ float sums[lanes];
  const Cluster cluster = this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int block = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(steps.p.cols);
  const int64_t first = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;
  const RowWalk walk = {first, clusters, static_cast<int>((steps.p.rows - first + clusters - 1) / clusters)};

  const Place<fit> place = place_of<fit>(layout_of<fit>(steps.row(first), cols), block, blocks, thread, threads);
  const Count held = count_of(static_cast<float>(place.template elements_of_warp<T, vectors>()));
  const Count in_block = count_of(block_sum(thread % lanes == 0 ? held.count : 0.0f, sums));
  const Count whole = count_of(static_cast<float>(cols));
  PersistentClusterTeam<Steps::about, warps, merge_for<T, Amount::many>, Exchange> team{
      Exchange(cluster, arrivals), whole, in_block, of_warps, of_blocks};
  team.exchange.open();  // all blocks have started, and have shared memory to write into
  walk_rows(RowRing<Steps, fit, vectors, threads, stages>(steps, place, walk), team, held, whole, block + thread == 0);
  let_next_kernel_start();
}
// [/snippet]

// [snippet: launch_persistent_cluster]
// Launches the kernel above, and returns true, if the device has room for such clusters, each cluster gets at least
// four rows, and each thread has the vectors that the kernel does not ask for.
template <Fit fit, class Exchange, int vectors, int threads, int stages, int resident, class Steps>
bool launch_persistent_cluster(const Steps& steps, const char* rule, cudaStream_t stream) {
  using T = typename Steps::Element;
  using Ring = RowRing<Steps, fit, vectors, threads, stages>;
  const int64_t length = steps.p.cols / vector_size<T>;
  const int64_t blocks = (length + vectors * threads - 1) / (vectors * threads);
  if (blocks < 2 || blocks > most_blocks_of_cluster) return false;
  // Rows that straddle boundaries have up to 3 whole vectors fewer; how many, depends on where one starts.
  for (int64_t vectors_of_row = fit == Fit::any ? length - 3 : length; vectors_of_row <= length; ++vectors_of_row) {
    const int64_t last_piece = vectors_of_row - (blocks - 1) * ((vectors_of_row + blocks - 1) / blocks);
    if (last_piece < Ring::certain * threads) return false;
  }
  if (!block_can_have(Ring::bytes)) return false;

  const auto kernel = normalize_persistent_clusters<Steps, fit, Exchange, vectors, threads, stages, resident>;
  const int at_once = clusters_at_once(kernel, static_cast<unsigned>(blocks), threads, Ring::bytes);
  const int64_t stride = steps.tensors()[0].stride;
  const int64_t period = fit == Fit::any ? vector_size<T> / std::gcd<int64_t>(vector_size<T>, stride) : 1;
  // Clusters are not equally fast, and a multiple of the period leaves places empty. So odd rows have more clusters
  // than there is room for, which take the places in turns: as many turns as measured faster.
  constexpr int64_t of_16_bits = Steps::about == About::zero ? 4 : 2;
  constexpr int64_t turns = fit != Fit::any ? 1 : Steps::reads == 2 ? 2 : sizeof(T) == 2 ? of_16_bits : 1;
  const int64_t places = steps.p.rows < 4 * turns * at_once ? at_once : turns * at_once;
  const int64_t clusters = places / period * period;
  if (clusters == 0 || steps.p.rows < 4 * clusters) return false;
  // Not overlapped: where the kernel before it still holds places, a cluster may find no room, and start when others
  // end.
  launch(kernel,
         {.grid = static_cast<unsigned>(clusters * blocks),
          .block = threads,
          .shared_bytes = Ring::bytes,
          .cluster = static_cast<unsigned>(blocks),
          .rule = rule,
          .stream = stream},
         steps);
  return true;
}
// [/snippet]

}  // namespace worklog::welford

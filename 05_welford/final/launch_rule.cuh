// Launches the kernel of a rule (plan.h): how many blocks, how many threads. A kernel is instantiated because a rule
// names it, and for no other reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/one_row.cuh"
#include "05_welford/final/persistent_blocks.cuh"
#include "05_welford/final/persistent_clusters.cuh"
#include "05_welford/final/plan.h"
#include "05_welford/final/rows.cuh"
#include "05_welford/final/teams.cuh"
#include "05_welford/final/tuning_sm_90.h"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::welford {

using vectorized::vector_size;

// [snippet: launch_one_row]
template <Fit fit, bool given, Amount amount, int vectors, int width, class Steps>
void launch_lanes(const Steps& steps, const char* rule, cudaStream_t stream) {
  launch(normalize_lanes_per_row<Steps, fit, given, vectors, width, amount>,
         {.grid = blocks_of_lane_teams(steps.p.rows, width),
          .block = largest_block_of_lane_teams,
          .overlap = true,
          .rule = rule,
          .stream = stream},
         steps);
}

template <Fit fit, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
void launch_block(const Steps& steps, const char* rule, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  launch(normalize_block_per_row<Steps, fit, given, amount, vectors, threads, resident>,
         {.grid = static_cast<unsigned>(steps.p.rows),
          .block = threads_for(length, vectors),
          .overlap = true,
          .rule = rule,
          .stream = stream},
         steps);
}

// False where the device has no clusters of as many blocks as the row takes.
template <Fit fit, bool given, Amount amount, int vectors, int threads, int resident, class Steps>
bool launch_cluster(const Steps& steps, const char* rule, cudaStream_t stream) {
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  const int64_t blocks = (length + vectors * threads - 1) / (vectors * threads);
  const auto kernel = normalize_cluster_per_row<Steps, fit, given, amount, vectors, threads, resident>;
  if (blocks > portable_cluster) return false;
  if (blocks > 1 && !has_clusters(reinterpret_cast<const void*>(kernel))) return false;
  launch(kernel,
         {.grid = static_cast<unsigned>(steps.p.rows * blocks),
          .block = threads_for((length + blocks - 1) / blocks, vectors),
          .cluster = static_cast<unsigned>(blocks),
          .overlap = true,
          .rule = rule,
          .stream = stream},
         steps);
  return true;
}
// [/snippet]

// [snippet: launch_rule]
// A table of rules, and whether its rows are whole vectors.
struct WholeVectors {
  static constexpr std::span<const Rule> rules = sm_90::whole_vectors;
  static constexpr bool are_whole = true;
};
struct Straddling {
  static constexpr std::span<const Rule> rules = sm_90::straddling;
  static constexpr bool are_whole = false;
};

// What rules call the operation of some steps.
template <class Steps>
inline constexpr unsigned operation_of = (Steps::about == About::zero ? rms_of_x : layer_of_x)
                                         << (Steps::reads == 2 ? 2 : 0);

// Launches the kernel of rule `number`. False where the device cannot, or the rule is not for these steps.
template <class Table, size_t number, class Steps>
bool launch_rule(const Steps& steps, cudaStream_t stream) {
  constexpr Rule rule = Table::rules[number];
  constexpr Tile tile = rule.tile;
  constexpr bool given = tile.known != Known::asked;
  constexpr Fit fit = !Table::are_whole ? Fit::any : tile.known == Known::full ? Fit::full : Fit::vectors;
  const char* const name = Table::rules[number].measured ? Table::rules[number].measured : "";
  if constexpr (!is_for(rule, operation_of<Steps>, types_of<typename Steps::Element, typename Steps::Parameter>)) {
    return false;
  } else if constexpr (tile.team == Team::lanes) {
    return launch_lanes<fit, given, tile.amount, tile.vectors, tile.threads>(steps, name, stream), true;
  } else if constexpr (tile.team == Team::block) {
    launch_block<fit, given, tile.amount, tile.vectors, tile.threads, tile.resident>(steps, name, stream);
    return true;
  } else if constexpr (tile.team == Team::cluster) {
    return launch_cluster<fit, given, tile.amount, tile.vectors, tile.threads, tile.resident>(steps, name, stream);
  } else if constexpr (tile.team == Team::persistent_block) {
    static_assert(Table::are_whole);
    return launch_persistent_block<tile.vectors, tile.threads, tile.stages, tile.resident>(steps, name, stream);
  } else {
    using Exchange = std::conditional_t<Table::are_whole, ClusterBarrier, AsyncStores>;
    return launch_persistent_cluster<fit, Exchange, tile.vectors, tile.threads, tile.stages, tile.resident>(steps, name,
                                                                                                            stream);
  }
}

// By the first rule that takes the rows and can be launched. False where there is none.
template <class Table, class Steps>
bool launch_by_rules(const Steps& steps, cudaStream_t stream) {
  const RowFacts facts = {.operation = operation_of<Steps>,
                          .types = types_of<typename Steps::Element, typename Steps::Parameter>,
                          .are_given = steps.is_given(),
                          .batch_invariant = steps.p.batch_invariant,
                          .rows = steps.p.rows,
                          .vectors = steps.p.cols / vector_size<typename Steps::Element>,
                          .multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount)};
  return launch_first<Table::rules.size()>(Table::rules, facts,
                                           [&]<size_t number>() { return launch_rule<Table, number>(steps, stream); });
}
// [/snippet]

}  // namespace worklog::welford

// Which kernel takes which rows. That is data: the rules in tuning_sm_90.h, each with what it gained when it was
// measured. Here is what a rule is made of, and which rows it takes. Neither needs CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/device/rules.h"

namespace worklog::welford {

// [snippet: plan]
// What is known of a launch's rows when its kernel is compiled.
enum class Fit {
  any,      // they start and end anywhere, aligned to the element only
  vectors,  // they are whole 16-byte vectors on 16-byte boundaries
  full,     // and just as many as the threads of a team hold: there is nothing to ask
};

// What happens when depends on how many rows there are.
//   many           Each hides behind others' work. gamma and beta are loaded when they are used, into few registers.
//   few            They hide behind nobody's, so that gamma and beta are loaded with x: that saves a trip to memory.
//   few_blocks     The same, a block to a row. gamma and beta are loaded before x: behind it they would wait for the
//                  store of a fused h, which itself waits for x. (So it is where rows of a sum share a warp, too.)
//   fewest_blocks  And the blocks of the next kernel find places beside them. It may start when a thread has its
//                  moments; to say so earlier would delay the loads and sums that lead to them.
enum class Amount { many, few, few_blocks, fewest_blocks };

// Who has a row: some lanes of a warp, a block, a cluster of blocks; or a block, or cluster, that takes one row after
// the other.
enum class Team { lanes, block, cluster, persistent_block, persistent_cluster };

// What a kernel need not ask.
enum class Known {
  full,   // whether a thread has a vector: all have all theirs; and whether there are gamma and beta
  given,  // whether there are gamma and, where the operation has one, beta
  asked,  // nothing: it takes every row of its length
};

// A kernel, by its template arguments.
struct Tile {
  Team team;
  Known known;
  Amount amount;
  int vectors;   // 16-byte vectors that a thread holds
  int threads;   // that have a row together; of a cluster, in each block
  int stages;    // of a persistent team: rows in its ring
  int resident;  // blocks that are to fit on a multiprocessor, which bounds the registers
};

// How the rules write them.
namespace tiles {
constexpr Tile lanes(Known known, int vectors, int width, Amount amount = Amount::many) {
  return {Team::lanes, known, amount, vectors, width, 0, 0};
}
constexpr Tile block(Known known, int vectors, int threads, int resident, Amount amount = Amount::many) {
  return {Team::block, known, amount, vectors, threads, 0, resident};
}
constexpr Tile cluster(Known known, int vectors, int threads, int resident, Amount amount = Amount::many) {
  return {Team::cluster, known, amount, vectors, threads, 0, resident};
}
constexpr Tile persistent_block(int vectors, int threads, int stages, int resident) {
  return {Team::persistent_block, Known::asked, Amount::many, vectors, threads, stages, resident};
}
constexpr Tile persistent(Known known, int vectors, int threads, int stages, int resident) {
  return {Team::persistent_cluster, known, Amount::many, vectors, threads, stages, resident};
}
}  // namespace tiles

// What a rule is for, as sets.
enum Operations : unsigned {
  layer_of_x = 1,
  rms_of_x = 2,
  layer_of_sum = 4,  // the norm of x + residual: two tensors are read
  rms_of_sum = 8,
  of_x = layer_of_x | rms_of_x,
  of_sum = layer_of_sum | rms_of_sum,
  every_layer = layer_of_x | layer_of_sum,
  every_norm = of_x | of_sum,
};

struct Rule {
  unsigned operations, types;
  int64_t least_vectors, most_vectors;  // of a row
  int64_t most_work;                    // vectors of all rows, for each multiprocessor; 0: any number
  Tile tile;
  const char* measured = nullptr;  // what is measured: a case of the stages' results reaches the rule
};

// What the launch knows of its rows.
struct RowFacts {
  unsigned operation, types;
  bool are_given;        // gamma and, where the operation has one, beta
  bool batch_invariant;  // the rule must be the same for any number of rows
  int64_t rows;
  int64_t vectors;  // of a row, without a last one that is not whole
  int64_t multiprocessors;
};

inline constexpr int largest_block_of_lane_teams = 128;
inline constexpr int64_t least_work = 64;  // vectors that a row counts as, at least: a warp has two to a lane

// True where every thread of every team has all its vectors. Of a block, whole warps are what counts: it has as many
// threads as its row takes.
constexpr bool is_full(const Tile& tile, const RowFacts& facts) {
  if (tile.team != Team::lanes) return facts.vectors % (tile.vectors * 32) == 0;
  return facts.vectors == tile.vectors * tile.threads && facts.rows % (largest_block_of_lane_teams / tile.threads) == 0;
}

// True where the number of rows decides whether the rule takes them.
constexpr bool is_for_some_batches(const Rule& rule) {
  const bool asks_for_full_blocks = rule.tile.team == Team::lanes && rule.tile.known == Known::full;
  const bool is_persistent = rule.tile.team == Team::persistent_block || rule.tile.team == Team::persistent_cluster;
  return rule.most_work > 0 || is_persistent || asks_for_full_blocks;
}

constexpr bool is_for(const Rule& rule, unsigned operation, unsigned types) {
  return (rule.operations & operation) != 0 && (rule.types & types) != 0;
}

constexpr bool takes(const Rule& rule, const RowFacts& facts) {
  if (!is_for(rule, facts.operation, facts.types)) return false;
  if (facts.vectors < rule.least_vectors || facts.vectors > rule.most_vectors) return false;
  if (facts.batch_invariant && is_for_some_batches(rule)) return false;
  const int64_t work = facts.rows * std::max(facts.vectors, least_work);
  if (rule.most_work > 0 && work > rule.most_work * facts.multiprocessors) return false;
  if (rule.tile.known != Known::asked && !facts.are_given) return false;
  return rule.tile.known != Known::full || is_full(rule.tile, facts);
}
// [/snippet]

}  // namespace worklog::welford

// Which kernel takes which rows, as in stage 05 (05_welford/final/plan.h): rules in tuning_sm_90.h, of which the first
// that fits is taken. Neither needs CUDA.
#pragma once

#include <cstdint>

#include "common/device/rules.h"

namespace worklog::backward {

// [snippet: plan]
// Who has a row: some lanes of a warp, a block, a cluster or the whole grid, which all take one row after the other. Or
// the blocks of rows work beside blocks that have tiles of columns, each reading all it needs: where all fits into the
// L2 cache. There a row is for a warp, a block or a cluster.
enum class Team { lanes, block, cluster, grid, warp_beside_tiles, block_beside_tiles, cluster_beside_tiles };

// How many blocks a cluster has.
enum class Blocks {
  needed,  // as few as hold a row, a power of two
  pairs,   // two to a multiprocessor: see pair_blocks_for
  eight,
};

// A kernel, by its template arguments.
struct Tile {
  Team team;
  int units;     // that a thread holds: 16-byte vectors, or elements
  int stages;    // of the ring; beside tiles of columns: the lanes of a tile's row
  int threads;   // of a block; of Team::lanes, of a row
  int resident;  // blocks that are to fit on a multiprocessor
  Blocks blocks = Blocks::needed;
};

// What a rule is for, as sets. A pass may add dh, the gradient that comes past the norm: a third tensor to read.
enum Passes : unsigned { plain = 1, adds_dh = 2, every_pass = plain | adds_dh };

// How much work there is.
enum class Size {
  any,
  small,     // x and dy are a small part of the L2 cache, and dgamma or dbeta are wanted: see is_small
  few_long,  // few rows that are long: see are_few_and_long
};

inline constexpr int64_t many = int64_t{1} << 62;  // rows: any number

struct Rule {
  unsigned passes, types;
  Size size;
  int64_t least_rows, most_rows;
  int64_t most_units;  // of a row
  Tile tile;
  const char* measured = nullptr;  // what is measured: a case of the stage's results reaches the rule
};

// What the launch knows of its rows.
struct RowFacts {
  unsigned pass, types;
  bool is_small, are_few_and_long;
  bool batch_invariant;  // the rule must be the same for any number of rows
  int64_t rows;
  int64_t units;  // of a row
};

constexpr bool is_for(const Rule& rule, unsigned pass, unsigned types) {
  return (rule.passes & pass) != 0 && (rule.types & types) != 0;
}

// Whether it depends on the number of rows if the rule takes them, or into how many parts it cuts a row.
constexpr bool is_for_some_batches(const Rule& rule) {
  return rule.size != Size::any || rule.least_rows > 0 || rule.most_rows < many || rule.tile.team == Team::grid;
}

constexpr bool takes(const Rule& rule, const RowFacts& facts) {
  if (!is_for(rule, facts.pass, facts.types)) return false;
  if (facts.batch_invariant && is_for_some_batches(rule)) return false;
  if (rule.size == Size::small && !facts.is_small) return false;
  if (rule.size == Size::few_long && !facts.are_few_and_long) return false;
  return facts.rows >= rule.least_rows && facts.rows <= rule.most_rows && facts.units <= rule.most_units;
}
// [/snippet]

}  // namespace worklog::backward

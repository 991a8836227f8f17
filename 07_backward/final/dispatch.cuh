// Which of the kernels of this folder takes which rows. Blocks stay, and a thread has the same columns in all its rows,
// so that their sums add up in its registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/packed.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/persistent_blocks.cuh"
#include "07_backward/final/persistent_clusters.cuh"
#include "07_backward/final/plan.h"
#include "07_backward/final/reread.cuh"
#include "07_backward/final/side_by_side.cuh"
#include "07_backward/final/tuning_sm_90.h"
#include "common/device/arguments.h"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: dispatch]
// A table of rules, and the layout of its rows.
struct WholeVectors {
  static constexpr std::span<const Rule> rules = sm_90::whole_vectors;
  static constexpr Layout layout = Layout::whole;
};
struct SameOffset {
  static constexpr std::span<const Rule> rules = sm_90::same_offset;
  static constexpr Layout layout = Layout::same_offset;
};
struct AnyOffset {
  static constexpr std::span<const Rule> rules = sm_90::any_offset;
  static constexpr Layout layout = Layout::any_offset;
};

// What rules call a pass.
template <class Pass>
inline constexpr unsigned pass_of = Pass::adds_dh ? Passes::adds_dh : Passes::plain;

// Launches the kernel of rule `number`. False where there is no room for it, or the rule is not for this pass.
template <class Table, size_t number, class Pass>
bool launch_rule(const Pass& pass, cudaStream_t stream) {
  constexpr Layout layout = Table::layout;
  constexpr Rule rule = Table::rules[number];
  constexpr Tile tile = rule.tile;
  const char* const name = Table::rules[number].measured ? Table::rules[number].measured : "";
  if constexpr (!is_for(rule, pass_of<Pass>, types_of<typename Pass::T, typename Pass::G>)) {
    return false;
  } else if constexpr (tile.team == Team::lanes) {
    return launch_lanes<layout, tile.units, tile.stages, tile.threads, 256, tile.resident>(pass, name, stream);
  } else if constexpr (tile.team == Team::block) {
    return launch_block<layout, tile.units, tile.stages, tile.threads, tile.resident>(pass, name, stream);
  } else if constexpr (tile.team == Team::cluster) {
    const int64_t units = units_of_row<layout, typename Pass::T>(pass.p.cols);
    const unsigned blocks = tile.blocks == Blocks::eight   ? 8
                            : tile.blocks == Blocks::pairs ? pair_blocks_for(units, tile.units * tile.threads)
                                                           : blocks_for(units, tile.units * tile.threads);
    if (blocks == 0) return false;
    return launch_cluster<layout, tile.units, tile.stages, tile.threads, tile.resident>(pass, blocks, name, stream);
  } else if constexpr (tile.team == Team::grid) {
    return launch_grid<layout, tile.units, tile.stages, tile.threads>(pass, name, stream);
  } else if constexpr (tile.team == Team::cluster_beside_tiles) {
    return launch_clusters_side_by_side<tile.units>(pass, name, stream);
  } else {
    constexpr bool warp_per_row = tile.team == Team::warp_beside_tiles;
    return launch_side_by_side<tile.units, warp_per_row, tile.stages>(pass, name, stream);
  }
}

// x and dy take a small part of the second-level cache together, a block of columns has few rows to read, and no row is
// longer than a block of rows can hold. Rows that leave most of a warp without work are small where they are few.
template <class Pass>
bool is_small(const Pass& pass) {
  constexpr int64_t longest_row = int64_t{threads_side_by_side} * units_of_long_rows<Pass> * 16;
  const auto& p = pass.p;
  const int64_t row_bytes = p.cols * int64_t{sizeof(typename Pass::T)};
  const int64_t shortest_row = p.rows <= 512 ? 128 : 512;
  return (p.dgamma || p.dbeta) && p.rows <= 2048 && p.rows * row_bytes <= (int64_t{8} << 20) &&
         row_bytes >= shortest_row && row_bytes <= longest_row;
}

// As is_small, but rows are longer; or so few that a block to each would be slow.
template <class Pass>
bool are_few_and_long(const Pass& pass) {
  const auto& p = pass.p;
  const int64_t length = p.cols / vector_size<typename Pass::T>;
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  return length > (p.rows <= 8 ? 2 : 8) * threads_side_by_side && bytes <= (int64_t{8} << 20) &&
         (p.dx || p.dgamma || p.dbeta);
}

// Goes through the rules from the first on, until one takes the rows and has room. False where none is left.
template <class Table, class Pass>
bool launch_by_rules(const Pass& pass, cudaStream_t stream) {
  const RowFacts facts = {.pass = pass_of<Pass>,
                          .types = types_of<typename Pass::T, typename Pass::G>,
                          .is_small = is_small(pass),
                          .are_few_and_long = are_few_and_long(pass),
                          .batch_invariant = pass.p.batch_invariant,
                          .rows = pass.p.rows,
                          .units = units_of_row<Table::layout, typename Pass::T>(pass.p.cols)};
  return launch_first<Table::rules.size()>(Table::rules, facts,
                                           [&]<size_t number>() { return launch_rule<Table, number>(pass, stream); });
}

template <class Pass, size_t number = 0>
bool launch_packed_by_width(const Pass& pass, cudaStream_t stream) {
  if constexpr (number < std::size(sm_90::lanes_of_packed_rows)) {
    constexpr int width = sm_90::lanes_of_packed_rows[number];
    if (pass.p.cols <= width * elements_of_lane) return launch_packed<width>(pass, stream);
    return launch_packed_by_width<Pass, number + 1>(pass, stream);
  }
  return false;
}

// Narrow rows that start anywhere, without gaps between them, if there are enough for all multiprocessors.
template <class Pass>
bool rows_packed(const Pass& pass, cudaStream_t stream) {
  const auto& p = pass.p;
  const auto is_packed = [&](const typename Pass::T* first, int64_t stride) {
    return !first || (stride == p.cols && reinterpret_cast<uintptr_t>(first) % 16 == 0);
  };
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  if (bytes < sm_90::least_packed_bytes * device_attribute(cudaDevAttrMultiProcessorCount)) return false;
  if (!is_packed(p.x, p.x_stride) || !is_packed(p.dy, p.dy_stride)) return false;
  if (!is_packed(p.dh, p.dh_stride) || !is_packed(p.dx, p.dx_stride)) return false;
  return launch_packed_by_width(pass, stream);
}

template <class T, class G, bool centered, bool adds_dh>
void persistent_pass(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t bytes_read = p.rows * p.cols * int64_t{sizeof(T)} * (adds_dh ? 3 : 2);
  const Pass<T, G, centered, adds_dh> pass = {p, eviction_of(bytes_read, 1), 1.0f / static_cast<float>(p.cols)};
  // A tensor that is not there lies like any other.
  const auto starts_like_x = [&](const T* first, int64_t stride) {
    const auto apart = reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(p.x);
    return !first || (apart % 16 == 0 && (p.rows == 1 || (stride - p.x_stride) % vector_size<T> == 0));
  };
  const bool have_same_offset =
      starts_like_x(p.dy, p.dy_stride) && starts_like_x(p.dh, p.dh_stride) && starts_like_x(p.dx, p.dx_stride);
  const bool whole_vectors = have_same_offset && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                             p.cols % vector_size<T> == 0 && (p.rows == 1 || p.x_stride % vector_size<T> == 0) &&
                             reinterpret_cast<uintptr_t>(p.gamma) % 16 == 0;
  // By elements, what is added up in what order is the same for all rows, wherever they start.
  const bool by_offset = !whole_vectors && !p.batch_invariant;
  if (by_offset && rows_packed(pass, stream)) return;
  const bool done = whole_vectors                                      ? launch_by_rules<WholeVectors>(pass, stream)
                    : by_offset && have_same_offset && p.cols > 4 * 32 ? launch_by_rules<SameOffset>(pass, stream)
                                                                       : launch_by_rules<AnyOffset>(pass, stream);
  if (!done) reread(p, stream);  // no cluster holds the row, and the grid rules do not take it either
}

template <class T, class G, bool centered>
void persistent_any(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.dh) {
    persistent_pass<T, G, centered, true>(p, stream);
  } else {
    persistent_pass<T, G, centered, false>(p, stream);
  }
}
// [/snippet]

}  // namespace worklog::backward

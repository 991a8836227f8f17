// The backward pass of LayerNorm and RMSNorm, for rows of any length, any number of them, any stride and alignment.
// Blocks stay, and a thread has the same columns in all its rows, so that their sums add up in its registers. Here it
// is decided which of the kernels of this folder takes which rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/packed.cuh"
#include "07_backward/final/pass.cuh"
#include "07_backward/final/persistent_blocks.cuh"
#include "07_backward/final/persistent_clusters.cuh"
#include "07_backward/final/side_by_side.cuh"
#include "07_backward/kernels.cuh"
#include "common/device/arguments.h"
#include "common/device/cluster.cuh"
#include "common/device/launch.cuh"

namespace worklog::backward {

// [snippet: dispatch]
// The stages of a large ring: what compute capability 9.0 has room for.
template <class Pass>
inline constexpr int stages_in_room = Pass::adds_dh ? 4 : 6;

// And whether three stages of four vectors to a thread have: not of three tensors, nor beside a gamma that is wider
// than the elements.
template <class Pass>
inline constexpr bool has_room_for_four = !Pass::adds_dh && sizeof(typename Pass::G) == sizeof(typename Pass::T);

// The vectors of a row that a thread of a small problem keeps in registers: half as many beside a gamma that is wider
// than the elements, which takes as many registers as both of their tensors.
template <class Pass>
inline constexpr int most_units_side_by_side = sizeof(typename Pass::G) == sizeof(typename Pass::T) ? 8 : 4;

// The form of clusters that is fastest where it fits: two blocks of 224 threads to a multiprocessor, with four vectors
// to a thread. Their rows have nothing to do with each other, so that one works while the other waits.
inline constexpr int threads_of_pair = 224;

// Its blocks for rows of `length` vectors; 0 where they would be more than a portable cluster has. Seven fill the 16 or
// 18 multiprocessors of a group, which a cluster may not leave, worse than eight.
inline unsigned pair_blocks_for(int64_t length) {
  constexpr int64_t of_block = 4 * threads_of_pair;
  const int64_t blocks = (length + of_block - 1) / of_block;
  return blocks <= 6 ? static_cast<unsigned>(blocks) : blocks <= 8 ? 8 : 0;
}

// True where x and dy together take a small part of the second-level cache, and no block has many rows of a tile to
// read or a row that is too long for it.
template <class Pass>
bool is_small(const Pass& pass) {
  constexpr int64_t element = sizeof(typename Pass::T);
  constexpr int64_t longest_row = int64_t{threads_side_by_side} * most_units_side_by_side<Pass> * 16;
  const auto& p = pass.p;
  return (p.dgamma || p.dbeta) && p.rows <= 2048 && p.rows * p.cols * element <= (int64_t{8} << 20) &&
         p.cols * element >= 512 && p.cols * element <= longest_row;
}

// Likewise where rows are longer, or so few that one block to each is slow: up to 16 blocks have a row. As measured,
// the rows take half of the multiprocessors, if that is enough blocks for them; the others have the tiles.
template <class Pass>
bool launch_few_long_rows(const Pass& pass, int64_t length, cudaStream_t stream) {
  constexpr int64_t threads = threads_side_by_side;
  constexpr int most_units = most_units_side_by_side<Pass>;
  const auto& p = pass.p;
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  if (length <= (p.rows <= 8 ? 2 : 8) * threads || bytes > (int64_t{8} << 20)) return false;
  if (p.rows == 0 || (!p.dx && !p.dgamma && !p.dbeta)) return false;
  unsigned size = std::min<unsigned>(most_blocks_of_cluster, blocks_for(length, threads / 4));
  while (size > blocks_for(length, most_units * threads) &&
         2 * p.rows * size > device_attribute(cudaDevAttrMultiProcessorCount)) {
    size /= 2;
  }
  if (length <= size * 2 * threads) return launch_clusters_side_by_side<2>(pass, size, stream);
  if (length <= size * 4 * threads) return launch_clusters_side_by_side<4>(pass, size, stream);
  if constexpr (most_units == 8) {
    if (length <= size * 8 * threads) return launch_clusters_side_by_side<8>(pass, size, stream);
  }
  return false;
}

// A block to a row, `units` vectors to a thread. As measured, there are at most 128 tiles, and 64 where rows are few:
// more blocks would not fit beside those of the rows.
template <int units, class Pass>
bool launch_rows_and_tiles(const Pass& pass, cudaStream_t stream) {
  if (pass.p.rows <= 64) return launch_side_by_side<units, false, 4 * units>(pass, stream);
  return launch_side_by_side<units, false, 2 * units>(pass, stream);
}

template <class Pass>
bool launch_small(const Pass& pass, int64_t length, cudaStream_t stream) {
  constexpr int64_t threads = threads_side_by_side;
  // Many short rows: a warp to each.
  if (length <= 2 * lanes || (length <= 4 * lanes && pass.p.rows > 128)) {
    return launch_side_by_side<4, true, 2>(pass, stream);
  }
  if constexpr (most_units_side_by_side<Pass> == 8) {
    if (length <= 8 * lanes && pass.p.rows > 512) return launch_side_by_side<8, true, 2>(pass, stream);
    if (length <= 8 * lanes && pass.p.rows > 256) return launch_side_by_side<8, true, 4>(pass, stream);
  }
  if (length <= 2 * threads) return launch_rows_and_tiles<2>(pass, stream);
  if constexpr (most_units_side_by_side<Pass> == 8) {
    if (length > 4 * threads) return launch_rows_and_tiles<8>(pass, stream);
  }
  return launch_rows_and_tiles<4>(pass, stream);
}

// Which shape takes which length was found by measuring on an H200; but what is small by counting.
template <class Pass>
bool rows_of_vectors(const Pass& pass, cudaStream_t stream) {
  constexpr Layout whole = Layout::whole;
  constexpr bool wide_elements = sizeof(typename Pass::T) == 4;
  constexpr int deep = stages_in_room<Pass>;
  const int64_t length = pass.p.cols / vector_size<typename Pass::T>;
  // Up to 8 rows of more than four vectors to a thread are faster by clusters.
  const bool small = is_small(pass);
  if (small && (length <= 4 * threads_side_by_side || pass.p.rows > 8)) return launch_small(pass, length, stream);
  if (launch_few_long_rows(pass, length, stream)) return true;
  if (small) return launch_small(pass, length, stream);
  if (length <= 2 * 4) return launch_lanes<whole, 2, 4, 4, 256, 2>(pass, stream);
  if (length <= 2 * 8) return launch_lanes<whole, 2, 4, 8, 256, 2>(pass, stream);
  if (length <= 2 * 16) return launch_lanes<whole, 2, 4, 16, 256, 2>(pass, stream);
  if (length <= 2 * 32) return launch_lanes<whole, 2, 4, 32, 256, 2>(pass, stream);
  if (!wide_elements && length <= 2 * 256) return launch_block<whole, 2, 3, 512, 1>(pass, stream);
  if (length <= 2 * 512) return launch_block<whole, 2, deep, 512, 1>(pass, stream);
  if constexpr (has_room_for_four<Pass>) {
    if (length <= 4 * 512) return launch_block<whole, 4, 3, 512, 1>(pass, stream);
    unsigned pairs = pair_blocks_for(length);
    if (length > 8 * 1024 && length <= 16 * 4 * threads_of_pair) pairs = 16;
    if (pairs > 0) return launch_cluster<whole, 4, 3, threads_of_pair, 2>(pass, pairs, stream);
    if (launch_cluster<whole, 4, 3, 512, 1>(pass, blocks_for(length, 4 * 512), stream)) return true;
  } else {
    if (launch_cluster<whole, 2, deep, 512, 1>(pass, blocks_for(length, 2 * 512), stream)) return true;
  }
  return launch_grid<whole, 2, deep, 512>(pass, stream);
}

// Rows that start and end anywhere, in all tensors alike, of more than 128 elements.
template <class Pass>
bool rows_alike(const Pass& pass, cudaStream_t stream) {
  constexpr Layout alike = Layout::alike;
  constexpr int deep = stages_in_room<Pass>;
  const int64_t length = units_of_row<alike, typename Pass::T>(pass.p.cols);
  if (length <= 2 * 16) return launch_lanes<alike, 2, 4, 16, 256, 2>(pass, stream);
  if (length <= 2 * 32) return launch_lanes<alike, 2, 4, 32, 256, 2>(pass, stream);
  if constexpr (sizeof(typename Pass::T) == 2) {
    if (length <= 2 * 256) return launch_block<alike, 2, 3, 512, 1>(pass, stream);
    // A little longer, a multiprocessor has registers for one such block instead of two.
    if constexpr (sizeof(typename Pass::G) == sizeof(typename Pass::T)) {
      constexpr int stages = Pass::adds_dh ? 3 : 4;
      if (length <= 3 * 192) return launch_block<alike, 3, stages, 192, 2>(pass, stream);
    }
  }
  if (length <= 2 * 512) return launch_block<alike, 2, deep, 512, 1>(pass, stream);
  if constexpr (has_room_for_four<Pass>) {
    if (length <= 4 * 512) return launch_block<alike, 4, 3, 512, 1>(pass, stream);
    const unsigned pairs = pair_blocks_for(length);
    if (pairs > 0) return launch_cluster<alike, 4, 3, threads_of_pair, 2>(pass, pairs, stream);
    // Longer rows take the fewest blocks that are no more than 8; and few threads with many vectors have fewer
    // instructions that do not hang on their number.
    if (length <= 8 * 4 * 256) return launch_cluster<alike, 4, 3, 256, 2>(pass, 8, stream);
    if (length <= 8 * 5 * 320) return launch_cluster<alike, 5, 3, 320, 1>(pass, 8, stream);
    if (launch_cluster<alike, 8, 3, 256, 1>(pass, blocks_for(length, 8 * 256), stream)) return true;
  } else {
    if constexpr (sizeof(typename Pass::T) == 4) {  // a cluster of two would leave up to half of its places empty
      if (length <= 3 * 512 && launch_block<alike, 3, 3, 512, 1>(pass, stream)) return true;
    }
    if (launch_cluster<alike, 2, deep, 512, 1>(pass, blocks_for(length, 2 * 512), stream)) return true;
  }
  return launch_grid<alike, 2, deep, 512>(pass, stream);
}

template <class Pass>
bool rows_of_elements(const Pass& pass, cudaStream_t stream) {
  constexpr Layout apart = Layout::apart;
  constexpr int deep = stages_in_room<Pass>;
  if (pass.p.cols <= 2 * 8) return launch_lanes<apart, 2, 4, 8, 256, 2>(pass, stream);
  if (pass.p.cols <= 4 * 32) return launch_lanes<apart, 4, 4, 32, 256, 2>(pass, stream);
  if constexpr (sizeof(typename Pass::T) == 4) {
    if (pass.p.cols <= 8 * 512) return launch_block<apart, 8, deep, 512, 1>(pass, stream);
    if (launch_cluster<apart, 8, deep, 512, 1>(pass, blocks_for(pass.p.cols, 8 * 512), stream)) return true;
    return launch_grid<apart, 8, deep, 512>(pass, stream);
  } else {
    if (pass.p.cols <= 16 * 256) return launch_block<apart, 16, 4, 256, 2>(pass, stream);
    if (launch_cluster<apart, 16, deep, 512, 1>(pass, blocks_for(pass.p.cols, 16 * 512), stream)) return true;
    return launch_grid<apart, 16, deep, 512>(pass, stream);
  }
}

// Narrow rows that start anywhere, without gaps between them, if there are enough for all multiprocessors.
template <class Pass>
bool rows_packed(const Pass& pass, cudaStream_t stream) {
  const auto& p = pass.p;
  const auto is_packed = [&](const typename Pass::T* first, int64_t stride) {
    return !first || (stride == p.cols && reinterpret_cast<uintptr_t>(first) % 16 == 0);
  };
  constexpr int64_t bytes_of_few = 8 * 1024;  // for a multiprocessor
  const int64_t bytes = p.rows * p.cols * int64_t{sizeof(typename Pass::T)};
  if (bytes < bytes_of_few * device_attribute(cudaDevAttrMultiProcessorCount)) return false;
  if (!is_packed(p.x, p.x_stride) || !is_packed(p.dy, p.dy_stride)) return false;
  if (!is_packed(p.dh, p.dh_stride) || !is_packed(p.dx, p.dx_stride)) return false;
  if (p.cols <= 1 * elements_of_lane) return launch_packed<1>(pass, stream);
  if (p.cols <= 2 * elements_of_lane) return launch_packed<2>(pass, stream);
  if (p.cols <= 4 * elements_of_lane) return launch_packed<4>(pass, stream);
  if (p.cols <= 8 * elements_of_lane) return launch_packed<8>(pass, stream);
  if (p.cols <= 16 * elements_of_lane) return launch_packed<16>(pass, stream);
  return false;
}

template <class T, class G, bool centered, bool adds_dh>
void persistent_pass(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  const int64_t bytes_read = p.rows * p.cols * int64_t{sizeof(T)} * (adds_dh ? 3 : 2);
  const Pass<T, G, centered, adds_dh> pass = {p, leaves_of(bytes_read, 4), 1.0f / static_cast<float>(p.cols)};
  // A tensor that is not there lies like any other.
  const auto starts_like_x = [&](const T* first, int64_t stride) {
    const auto apart = reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(p.x);
    return !first || (apart % 16 == 0 && (p.rows == 1 || (stride - p.x_stride) % vector_size<T> == 0));
  };
  const bool alike =
      starts_like_x(p.dy, p.dy_stride) && starts_like_x(p.dh, p.dh_stride) && starts_like_x(p.dx, p.dx_stride);
  const bool whole_vectors = alike && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.cols % vector_size<T> == 0 &&
                             (p.rows == 1 || p.x_stride % vector_size<T> == 0) &&
                             reinterpret_cast<uintptr_t>(p.gamma) % 16 == 0;
  if (!whole_vectors && rows_packed(pass, stream)) return;
  const bool done = whole_vectors              ? rows_of_vectors(pass, stream)
                    : alike && p.cols > 4 * 32 ? rows_alike(pass, stream)
                                               : rows_of_elements(pass, stream);
  if (!done) separate(p, stream);  // rows that are longer than all blocks at once have room for, or no workspace
}

template <class T, class G, bool centered>
void persistent_any(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.dh) {
    persistent_pass<T, G, centered, true>(p, stream);
  } else {
    persistent_pass<T, G, centered, false>(p, stream);
  }
}

// The final kernels: rows of any length, any number of them, any stride and alignment. Asynchronous in `stream`. The
// same bits on every run: no sum's order depends on which block comes first.
template <class T, class G>
void layer_norm_backward(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, true>(p, stream);
}

template <class T, class G>
void rms_norm_backward(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, false>(as_layer_norm(p), stream);
}
// [/snippet]

}  // namespace worklog::backward

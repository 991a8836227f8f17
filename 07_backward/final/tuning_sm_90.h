// The rules of plan.h, for an H100 or H200; other GPUs use them too. The first that takes a row and has room wins, so a
// table is read downwards. Lengths are in 16-byte vectors in the first two tables and in elements in the third. A rule
// with a text in quotes is measured: some case of the stage's results reaches it.
//
// Passes that add dh read three tensors, and a gamma that is wider than the elements takes as many registers as two:
// both leave less room for stages and for vectors.
#pragma once

#include "07_backward/final/plan.h"

namespace worklog::backward::sm_90 {

using enum Size;
using enum Blocks;

constexpr Tile lanes(int units, int stages, int width) {
  return {Team::lanes, units, stages, width, 2};
}
constexpr Tile block(int units, int stages, int threads, int resident = 1) {
  return {Team::block, units, stages, threads, resident};
}
constexpr Tile cluster(int units, int stages, int threads, int resident, Blocks blocks = needed) {
  return {Team::cluster, units, stages, threads, resident, blocks};
}
constexpr Tile grid(int units, int stages) {
  return {Team::grid, units, stages, 512, 1};
}
constexpr Tile warps_and_tiles(int units, int tile) {
  return {Team::warp_beside_tiles, units, tile, 256, 2};
}
constexpr Tile blocks_and_tiles(int units, int tile) {
  return {Team::block_beside_tiles, units, tile, 256, 2};
}
constexpr Tile clusters_and_tiles(int units) {
  return {Team::cluster_beside_tiles, units, 32, 256, 2};
}

inline constexpr int64_t longest = int64_t{1} << 62;

// clang-format off
// [snippet: rules]
// Rows of whole 16-byte vectors.
inline constexpr Rule whole_vectors[] = {
    // pass      types      work    rows: from to  vectors  kernel: team(units, stages, threads, resident blocks)
    // Small problems: blocks of rows beside blocks of columns.
    {every_pass, any_types,  small,    0, many,     64, warps_and_tiles(4, 2), "few rows of 128 columns"},
    {every_pass, any_types,  small,  129, many,    128, warps_and_tiles(4, 2), "1024 columns of 16 bits"},
    {every_pass, uniform,    small,  257, many,    256, warps_and_tiles(8, 2), "1024 columns of fp32"},
    {every_pass, any_types,  small,    0,   64,    512, blocks_and_tiles(2, 8), "64 x 4096"},
    {every_pass, any_types,  small,    0, many,    512, blocks_and_tiles(2, 4), "256 x 4096 of 16 bits"},
    {every_pass, any_types,  small,    0,   64,   1024, blocks_and_tiles(4, 16), "64 x 4096 of fp32"},
    {every_pass, any_types,  small,    0, many,   1024, blocks_and_tiles(4, 8), "256 x 4096 of fp32"},
    {every_pass, uniform,    small,    9,   64,   2048, blocks_and_tiles(8, 32)},
    {every_pass, uniform,    small,   65, many,   2048, blocks_and_tiles(8, 16), "128 x 12288 of 16 bits"},
    {every_pass, any_types,  few_long, 1, many, longest, clusters_and_tiles(2), "1 x 16384"},
    {every_pass, any_types,  few_long, 1, many, longest, clusters_and_tiles(4), "1 x 65536"},
    {every_pass, uniform,    few_long, 1, many, longest, clusters_and_tiles(8)},
    {every_pass, uniform,    small,    0,    8,   2048, blocks_and_tiles(8, 32)},

    {every_pass, any_types,  any,      0, many,      8, lanes(2, 4, 4), "64 columns of 16 bits"},
    {every_pass, any_types,  any,      0, many,     16, lanes(2, 4, 8), "128 columns of 16 bits"},
    {every_pass, any_types,  any,      0, many,     32, lanes(2, 4, 16), "256 columns of 16 bits"},
    {every_pass, any_types,  any,      0, many,     64, lanes(2, 4, 32), "512 columns of 16 bits, many rows"},
    {every_pass, bits16,     any,      0, many,     96, lanes(3, 3, 32), "768 columns of 16 bits"},
    {every_pass, bits16,     any,      0, many,    512, block(2, 3, 512), "1024 to 4096 columns of 16 bits"},
    {plain,      bits16,     any,      0, many,    768, block(4, 3, 192, 2), "5120 and 6144 columns of 16 bits"},
    {plain,      fp32,       any,      0, many,    512, block(2, 6, 512), "1024 and 2048 columns of fp32"},
    {every_pass, mixed,      any,      0, many,   1024, block(2, 3, 512)},
    {plain,      uniform,    any,      0, many,   1024, block(2, 3, 512), "8192 columns of 16 bits"},
    {adds_dh,    uniform,    any,      0, many,   1024, block(2, 4, 512), "with dh: 8192 columns of 16 bits"},
    {plain,      uniform,    any,      0, many,   2048, block(4, 3, 512), "16384 columns of 16 bits"},
    {plain,      uniform,    any,      0, many,  14336, cluster(4, 3, 224, 2, pairs), "32768 columns of 16 bits"},
    {plain,      uniform,    any,      0, many, longest, cluster(4, 3, 512, 1), "131072 columns of 16 bits"},
    {plain,      mixed,      any,      0, many, longest, cluster(2, 6, 512, 1)},
    {adds_dh,    fp32,       any,      0, many,   1536, block(3, 3, 512), "with dh: 5120 and 6144 columns of fp32"},
    {adds_dh,    bits16,     any,      0, many,   1536, block(2, 3, 768), "with dh: 12288 columns of 16 bits"},
    {adds_dh,    fp32,       any,      0, many,   3072, cluster(3, 3, 512, 1), "with dh: 12288 columns of fp32"},
    {adds_dh,    any_types,  any,      0, many, longest, cluster(2, 3, 512, 1), "with dh: 16384 columns and more"},
    {plain,      any_types,  any,      0, many, longest, grid(2, 6), "262144 columns"},
    {adds_dh,    any_types,  any,      0, many, longest, grid(2, 4), "with dh: 262144 columns"},
};

// Rows of more than 128 elements that start and end anywhere, with the same offset in all tensors.
inline constexpr Rule same_offset[] = {
    {every_pass, bits16,     any,      0, many,     32, lanes(2, 4, 16)},
    {every_pass, any_types,  any,      0, many,     64, lanes(2, 4, 32)},
    {every_pass, bits16,     any,      0, many,    512, block(2, 3, 512), "1023 and 4095 columns of 16 bits"},
    {plain,      bits16,     any,      0, many,    576, block(3, 4, 192, 2), "4097 columns of 16 bits"},
    {adds_dh,    bits16,     any,      0, many,    576, block(3, 3, 192, 2), "with dh: 4097 columns of 16 bits"},
    {plain,      any_types,  any,      0, many,   1024, block(2, 6, 512), "1023 and 4095 columns of fp32"},
    {adds_dh,    any_types,  any,      0, many,   1024, block(2, 4, 512), "with dh: 1023 and 4095 columns of fp32"},
    {adds_dh,    fp32,       any,      0, many,   1536, block(3, 3, 512), "with dh: 4097 columns"},
    {plain,      uniform,    any,      0, many,   2048, block(4, 3, 512), "4097 columns of fp32, 12289 of 16 bits"},
    {plain,      uniform,    any,      0, many,   7168, cluster(4, 3, 224, 2, pairs), "50257 columns of 16 bits"},
    {plain,      uniform,    any,      0, many,   8192, cluster(4, 3, 256, 2, eight)},  // 65535 columns of 16 bits
    {plain,      uniform,    any,      0, many,  12800, cluster(5, 3, 320, 1, eight), "50257 columns of fp32"},
    {plain,      any_types,  any,      0, many, longest, cluster(2, 6, 512, 1)},
    {adds_dh,    any_types,  any,      0, many, longest, cluster(2, 4, 512, 1), "with dh: 12289 columns and more"},
};

// What is left, an element at a time: tensors of different offsets, and odd rows of up to 128 elements. A row that has
// no room in a cluster is not taken, and two kernels read all tensors twice.
inline constexpr Rule any_offset[] = {
    {every_pass, any_types,  any,      0, many,    128, lanes(4, 4, 32)},
    {plain,      fp32,       any,      0, many,   4096, block(8, 6, 512)},
    {adds_dh,    fp32,       any,      0, many,   4096, block(8, 4, 512)},
    {every_pass, any_bits16, any,      0, many,   4096, block(16, 4, 256, 2)},
    {plain,      fp32,       any,      0, many, longest, cluster(8, 6, 512, 1)},
    {adds_dh,    fp32,       any,      0, many, longest, cluster(8, 4, 512, 1)},
    {plain,      any_bits16, any,      0, many, longest, cluster(16, 6, 512, 1)},
    {adds_dh,    any_bits16, any,      0, many, longest, cluster(16, 4, 512, 1)},
};

// Odd rows of up to 256 columns without gaps between them, and enough of them for all multiprocessors, go in tiles: so
// many lanes have a row, each up to 16 of its elements.
inline constexpr int lanes_of_packed_rows[] = {1, 2, 4, 8, 16};
inline constexpr int64_t least_packed_bytes = 8 * 1024;  // for a multiprocessor
// [/snippet]
// clang-format on

}  // namespace worklog::backward::sm_90

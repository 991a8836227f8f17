// The rules of plan.h, for an H100 or H200; other GPUs use them too. The first that takes a row wins, so a table is
// read downwards: what is known to be full comes before what asks, and few rows come before many.
//
// Lengths are in 16-byte vectors: 8 elements of 16 bits, or 4 of fp32. `work` is the vectors of all rows that a
// multiprocessor may have, where a rule is for few rows (a row counts as 64 at least, the vectors of a warp); 0 where
// it is for any number. A rule with a text in quotes is measured: some case of the stages' results reaches it. The
// others take the rows that are left, and have been tried by hand at most.
#pragma once

#include "05_welford/final/plan.h"

namespace worklog::welford::sm_90 {

using tiles::block;
using tiles::cluster;
using tiles::lanes;
using tiles::persistent;
using tiles::persistent_block;
using enum Known;
using enum Amount;

inline constexpr int64_t longest = int64_t{1} << 20;  // no team holds longer rows

// clang-format off
// [snippet: rules]
// Rows of whole 16-byte vectors.
inline constexpr Rule whole_vectors[] = {
    // norm      types    from vectors    to  work  kernel: team(known, vectors, threads, resident blocks)
    // Very narrow rows.
    {every_norm,  uniform,       1,       2,     0, lanes(asked, 2, 1)},  // a lane to a row
    {every_norm,  uniform,       3,       4,     0, lanes(asked, 2, 2)},  // two lanes to a row
    {layer_of_x,  uniform,       8,       8,     0, lanes(full, 2, 4), "64 columns of 16 bits"},  // four lanes
    {of_sum,      uniform,       8,       8, 32768, lanes(full, 2, 4, few)},  // 2048 x 64 of 16 bits
    {every_norm,  any_types,     1,       8,     0, lanes(asked, 2, 4), "sum: 64 columns of 16 bits"},  // four lanes

    // Few rows, all under way at once: few vectors to a thread, and gamma and beta are on their way with them. So much
    // work is few, measured from a graph; and up to 512 vectors to a multiprocessor, the blocks of two kernels find
    // places beside each other.
    {every_norm,  bits16,       16,      16,   256, lanes(full, 1, 16, few)},  // 64 x 128: sixteen lanes
    {of_x,        bits16,        9,      31,   256, block(given, 1, 64, 1, fewest_blocks), "1 x 128"},
    {every_norm,  bits16,       32,      64,   256, block(full, 1, 64, 1, fewest_blocks)},  // 256 and 512 columns
    {every_norm,  any_bits16,    9,      64,   256, block(given, 2, 128, 1, fewest_blocks), "sum of 1 x 128"},
    {every_norm,  uniform,      96,      96,   512, block(full, 1, 128, 1, fewest_blocks), "few rows of 768"},
    {every_norm,  uniform,      65,     256,   512, block(full, 2, 128, 1, fewest_blocks), "1 x 2048 of 16 bits"},
    {every_norm,  any_bits16,   65,     256,   512, block(given, 2, 128, 1, fewest_blocks), "32 x 1280 of 16 bits"},
    {every_norm,  any_types,    65,     256,   512, block(asked, 2, 128, 1, fewest_blocks)},
    {of_x,        uniform,      96,      96, 32768, lanes(full, 3, 32, few), "8192 x 768"},  // a warp to a row
    {of_sum,      uniform,      96,      96,  8192, lanes(full, 3, 32, few), "sum of 8192 x 768"},
    {of_sum,      uniform,      65,     256, 16384, block(full, 2, 128, 1, few_blocks), "sum of 1024 x 1024"},
    {of_x,        uniform,      65,     128,  1920, block(full, 2, 128, 1, few_blocks), "1024 x 1024 of 16 bits"},
    {layer_of_x,  uniform,     128,     128, 20480, lanes(full, 4, 32, few), "LayerNorm of 4096 x 1024"},
    {rms_of_x,    uniform,     128,     128,  6144, lanes(full, 4, 32, few), "RMSNorm of 4096 x 1024"},
    {of_x,        uniform,     129,     256,  8192, block(full, 2, 128, 1, few_blocks), "1024 x 1024 of fp32"},
    {every_norm,  mixed,        65,     256,  1024, block(given, 2, 128, 1, few_blocks)},
    {every_norm,  any_types,    65,     256,  1024, block(asked, 2, 128, 1, few_blocks), "512 x 1600 of 16 bits"},
    {rms_of_x,    any_types,   129,     256, 16384, block(asked, 2, 128, 1, few_blocks), "2048 x 1600 of 16 bits"},
    {of_sum,      any_types,    65,     256, 16384, block(asked, 2, 128, 1, few_blocks), "sum of 2048 x 1600"},
    {layer_of_x,  any_types,   129,     256,  2048, block(asked, 2, 128, 1, few_blocks)},  // 1024 x 1600 of 16 bits
    {every_norm,  uniform,     257,    1024,   512, block(full, 2, 512, 1, fewest_blocks), "64 x 4096"},
    {every_norm,  mixed,       257,    1024,   512, block(given, 2, 512, 1, fewest_blocks)},
    {every_norm,  any_types,   257,    1024,   512, block(asked, 2, 512, 1, fewest_blocks), "32 x 2880 of 16 bits"},
    {of_sum,      uniform,     257,    1024, 16384, block(full, 2, 512, 1, few_blocks), "sum of 256 x 4096"},
    {of_x,        uniform,     257,    1024,  4096, block(full, 2, 512, 1, few_blocks), "256 x 4096"},
    {of_x,        uniform,     257,     512,  2048, block(given, 2, 512, 1, few_blocks)},  // 512 x 2880 of 16 bits
    {every_norm,  any_bits16, 1025,    4096,   512, cluster(given, 2, 256, 1, few), "1 x 18432: five blocks to a row"},
    {every_layer, any_bits16, 1025,    2048,  1024, cluster(given, 2, 512, 1, few)},
    {every_norm,  any_bits16, 1025,    2048,  2048, block(given, 4, 512, 1, few_blocks), "128 x 12288"},
    {rms_of_sum,  any_bits16, 1025,    1792, 32768, block(given, 4, 448, 2, few_blocks), "sum of 512 x 14336"},
    {rms_of_sum,  any_bits16, 1793,    2048, 32768, block(given, 4, 512, 1, few_blocks)},
    {every_norm,  any_bits16, 2049,    8192,  2048, cluster(given, 2, 512, 1, few), "1 x 65536: eight blocks to a row"},
    {every_norm,  any_bits16, 1025,    8192,  2048, cluster(asked, 2, 512, 1, few)},
    {every_norm,  fp32,       1025,    8192,  1024, cluster(given, 2, 512, 1, few)},  // 1 x 16384
    {every_norm,  fp32,       8193,   16384,  1024, cluster(given, 4, 512, 1, few), "1 x 65536 of fp32: eight blocks"},
    {every_norm,  fp32,       1025,   16384,  1024, cluster(asked, 4, 512, 1, few)},

    // Persistent blocks, which take one row after the other: rows that a block holds, of tensors of some 14 to 48 MiB.
    // With fewer rows than those blocks, or with just as many as run at once, a block to a row is faster; with many
    // more it is, too.
    {of_x,        fp32,        257,     384, 16384, persistent_block(3, 128, 3, 8)},  // 4096 x 1152
    {layer_of_x,  fp32,        385,     512, 16384, persistent_block(4, 128, 2, 8), "LayerNorm of 4096 x 2048"},
    {rms_of_x,    fp32,        385,     512, 16384, persistent_block(4, 128, 3, 6), "RMSNorm of 4096 x 2048"},
    {of_x,        fp32,        641,     768, 16384, persistent_block(3, 256, 2, 4)},  // 2048 x 3072
    {of_x,        fp32,        769,    1280, 20480, persistent_block(5, 256, 3, 2), "2048 x 4096"},
    {layer_of_x,  bits16,      769,    1024, 10240, block(full, 4, 384, 3)},  // 1024 x 8192
    {rms_of_x,    bits16,      769,    1024,  8192, block(full, 2, 512, 4)},  // the same
    {of_x,        bits16,      769,    1024, 16384, persistent_block(4, 256, 3, 3), "2048 x 7168"},
    {layer_of_x,  bits16,     1025,    1280, 20480, persistent_block(5, 256, 3, 2)},  // 1024 x 10240
    {rms_of_x,    bits16,     1025,    1280, 20480, persistent_block(5, 256, 2, 3)},  // the same
    {rms_of_x,    bits16,     1281,    1536,  6144, block(given, 4, 512, 3)},  // 512 x 12288
    {rms_of_x,    fp32,       1281,    1536,  6144, block(full, 4, 512, 2)},  // 512 x 6144
    {of_x,        uniform,    1281,    1792, 20480, persistent_block(7, 256, 3, 2), "512 x 14336 of 16 bits"},
    {layer_of_x,  uniform,    1793,    2048, 20480, persistent_block(8, 256, 2, 2)},  // 1024 x 8192
    {rms_of_x,    uniform,    1793,    2048, 20480, persistent_block(4, 512, 3, 2)},  // the same
    {of_x,        fp32,       2049,    3072,  6144, block(full, 3, 1024, 2)},  // 256 x 12288
    {of_x,        fp32,       2049,    3072, 24576, persistent_block(6, 512, 3, 1), "1024 x 12288"},

    // A norm of x: rows for some lanes of a warp, or for a warp. First those of tensors of up to some 64 MiB: gamma is
    // loaded with x, and the cache needs no advice.
    {of_x,        uniform,       9,      16, 65536, lanes(given, 2, 8, few), "131072 x 128"},  // eight lanes to a row
    {of_x,        uniform,      17,      32, 65536, lanes(given, 2, 16, few), "131072 x 128 of fp32"},  // sixteen
    {of_x,        uniform,      33,      64, 32768, lanes(given, 2, 32, few)},  // a warp to a row
    {of_x,        uniform,      65,      96, 32768, lanes(given, 3, 32, few)},
    {of_x,        uniform,      97,     128, 32768, lanes(given, 4, 32, few)},
    {layer_of_x,  bits16,       65,      96,     0, lanes(given, 3, 32)},  // 768 columns
    {of_x,        any_types,     9,      16,     0, lanes(asked, 4, 4), "128 columns of 16 bits"},  // four lanes
    {of_x,        any_types,    17,      32,     0, lanes(asked, 4, 8), "256 columns of 16 bits"},  // eight lanes
    {of_x,        any_types,    33,      64,     0, lanes(asked, 4, 16), "512 columns of 16 bits"},  // sixteen
    {of_x,        any_types,    65,     128,     0, lanes(asked, 4, 32), "1024 columns of 16 bits"},  // a warp to a row
    {of_x,        uniform,     129,     160,     0, lanes(given, 5, 32), "1280 columns"},  // of 16 bits
    {layer_of_x,  bits16,      161,     224,  8192, lanes(given, 7, 32, few), "2048 x 1600"},
    {of_x,        bits16,      161,     224,     0, lanes(given, 7, 32), "1536 columns"},

    // A norm of x: rows for a block.
    {of_x,        fp32,        161,     512,     0, block(given, 2, 256, 6), "1024 and 2048 columns"},
    {rms_of_x,    bits16,      512,    1024,     0, block(full, 2, 512, 4), "no mean: registers for twice the threads"},
    {layer_of_x,  bits16,      225,    1536,     0, block(full, 4, 384, 3), "12288 columns: from 61.4 to 54.2 us"},
    {of_x,        fp32,        513,    2048,     0, block(full, 4, 512, 2), "4096 and 8192 columns"},
    {of_x,        uniform,     161,    2048,     0, block(given, 4, 512, 3), "rows that do not fill their warps"},
    {of_x,        any_types,     1,    2048,     0, block(asked, 4, 512, 1)},  // any row of this length
    {of_x,        fp32,       2049,    3072,     0, block(full, 3, 1024, 2)},  // 12288 columns,
    {of_x,        fp32,       2049,    4096,     0, block(full, 8, 512, 2), "16384 columns"},
    {of_x,        any_types,  2049,    4096,     0, block(given, 8, 512, 2), "32768 columns of 16 bits"},
    {of_x,        any_types,  2049,    4096,     0, block(asked, 8, 512, 1)},  // any row of this length

    // A norm of x: rows for a cluster. Where there are enough of them, clusters stay and take one after the other.
    {of_x,        uniform,    4097, longest,     0, persistent(asked, 8, 256, 3, 2), "many wide rows"},
    {of_x,        mixed,      4097, longest,     0, persistent(asked, 4, 256, 3, 2)},  // many wide rows
    {of_x,        fp32,      57345, longest,     0, persistent(asked, 8, 512, 3, 1), "262144 columns"},
    {of_x,        fp32,       4097,   32768,     0, cluster(given, 8, 512, 2)},  // not enough rows for those
    {of_x,        fp32,       4097,   32768,     0, cluster(asked, 8, 512, 1)},
    {of_x,        fp32,      32769, longest,     0, cluster(asked, 8, 1024, 1)},  // the same, up to 262144 columns
    {of_x,        bits16,     4097,   28672,     0, cluster(given, 7, 512, 2)},  // not enough rows for those
    {of_x,        any_bits16, 4097, longest,     0, cluster(asked, 7, 1024, 1)},  // the same, up to 458752 columns

    // A norm of a sum reads two tensors: twice the loads to a vector. Where the lanes hold just a row, and rows are not
    // very many, gamma comes first.
    {of_sum,      uniform,      16,      16, 32768, lanes(full, 2, 8, few), "sum of 2048 x 128 of 16 bits"},
    {of_sum,      uniform,      32,      32, 32768, lanes(full, 2, 16, few)},  // 2048 x 256 of 16 bits
    {of_sum,      uniform,      64,      64, 32768, lanes(full, 2, 32, few)},  // 2048 x 512 of 16 bits
    {of_sum,      any_types,     9,      16,     0, lanes(asked, 2, 8), "sum: 128 columns of 16 bits"},  // eight lanes
    {of_sum,      any_types,    17,      32,     0, lanes(asked, 2, 16), "sum: 256 columns of 16 bits"},  // sixteen
    {of_sum,      any_types,    33,      64,     0, lanes(asked, 2, 32), "sum: 512 columns of 16 bits"},  // a warp
    {of_sum,      any_types,    65,    1024,     0, block(given, 4, 256, 4), "sum: 1024 to 8192 columns of 16 bits"},
    {of_sum,      uniform,    1025,    2048,     0, block(full, 4, 512, 2), "sum: 16384 columns of 16 bits"},
    {of_sum,      any_types,  1025,    2048,     0, block(given, 4, 512, 2), "sum: 15872 columns of fp16"},
    {of_sum,      any_types,     1,    2048,     0, block(asked, 4, 512, 1)},  // any row of this length
    {of_sum,      fp32,       2049,    3072,     0, block(full, 3, 1024, 2), "sum: 12288 columns"},
    {of_sum,      fp32,       4096,    4096,     0, block(full, 8, 512, 2), "sum: 16384 columns"},
    {of_sum,      any_types,  2049,    4096,     0, block(asked, 4, 1024, 1), "sum: 32768 columns of 16 bits"},
    {of_sum,      uniform,    4097, longest,     0, persistent(asked, 4, 256, 3, 2), "sum: many wide rows"},
    {of_sum,      any_types,  4097, longest,     0, persistent(asked, 4, 512, 3, 1), "sum: rows twice as wide"},
    {of_sum,      uniform,    4097,   16384,     0, cluster(given, 4, 512, 2)},  // not enough rows for those
    {of_sum,      any_types,  4097,   32768,     0, cluster(asked, 4, 1024, 1)},  // the same, up to 262144 of 16 bits
    {of_sum,      fp32,      32769, longest,     0, cluster(asked, 8, 1024, 1), "sum: 262144 columns"},
};

// Rows that start and end anywhere. The kernels are the same, with edges, and need more registers.
inline constexpr Rule straddling[] = {
    {every_norm,  any_types,     0,     128,     0, lanes(asked, 4, 32), "1023 columns of 16 bits"},  // a warp to a row
    {of_x,        fp32,        129,     224,     0, lanes(asked, 8, 32)},
    {of_x,        bits16,      129,     256,     0, lanes(asked, 8, 32)},
    {of_x,        fp32,        225,    2048,     0, block(given, 4, 512, 2), "1023 and 4097 columns"},
    {of_x,        fp32,       2049,    3584,     0, block(given, 7, 512, 2), "12289 columns"},
    {layer_of_x,  bits16,     3585,    4096,     0, persistent(given, 8, 256, 3, 2)},
    {of_x,        uniform,     225,    4096,     0, block(given, 8, 512, 2), "4097 columns"},
    {of_x,        any_types,   129,    4096,     0, block(asked, 8, 512, 1)},  // any row of this length
    {of_x,        uniform,    4097, longest,     0, persistent(given, 7, 512, 3, 1), "many wide rows, 50257 columns"},
    {of_x,        uniform,    4097, longest,     0, persistent(given, 8, 256, 3, 2)},  // where 7 x 512 come out uneven
    {of_x,        mixed,      4097, longest,     0, persistent(given, 4, 512, 3, 1)},  // many wide rows
    {of_x,        any_types,  4097, longest,     0, cluster(asked, 7, 512, 1)},  // not enough rows for those
    {of_sum,      uniform,     129,    2048,     0, block(given, 4, 512, 2), "sum: 4097 columns"},
    {of_sum,      any_types,   129,    4096,     0, block(asked, 4, 1024, 1), "sum: 12289 columns of fp32"},  // any row
    {of_sum,      any_types,  4097, longest,     0, persistent(given, 4, 512, 3, 1), "sum: many wide rows, 50257 cols"},
    {of_sum,      any_types,  4097, longest,     0, cluster(asked, 8, 512, 1)},  // not enough rows for those
};

// Rows up to 512 columns that are no whole vectors. Without gaps between them, and enough of them for all
// multiprocessors, they go in tiles: so many lanes have a row, each up to 16 of its elements.
inline constexpr int lanes_of_packed_rows[] = {1, 2, 4, 8, 16, 32};
inline constexpr int64_t least_packed_bytes = 24 * 1024;  // for a multiprocessor
// [/snippet]
// clang-format on

}  // namespace worklog::welford::sm_90

// The values of the tensors that an operation reads: named kinds, seeded, the same on every machine.
//
// Generation is counter-based: an element is a function of (seed, tensor, row, column) alone, so it depends neither on
// the tensor's shape nor on the number of threads, and a small tensor is the corner of a large one. Two kinds need the
// shape by their definition: `arange` counts row * cols + col + 1, and `nan_row` marks the middle of the tensor.
//
// What a kind means depends on the type where the type is too coarse for the plain meaning:
//
//   kind              fp32                    fp16                          bf16
//   arange            1, 2, 3, ...            1 ... 2048, and again from 1  1 ... 256, and again from 1
//   large_mean        1e4, deviation 1        1e4, deviation 8 (its ulp)    1e4, deviation 64 (its ulp)
//   tiny_variance     1, deviation 1e-4       1/16, deviation 1e-4          1/128, deviation 1e-4
//   huge              1/8 to 1/4 of the max   1/2 to 1 times 65504          as fp32
//
// arange in fp32 is the article's torch.arange(...).float(): past 2^24 it rounds. The 16-bit types wrap where they
// stop holding every integer. `huge` has random signs; in fp32 and bf16 its squares, and sums of a few of its values,
// do not fit fp32. The columns of outlier_channels are column 0 and one of each further 128 columns, picked by hash.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/harness/problem.h"

namespace worklog {

// 64 random bits for one element of one tensor.
uint64_t hash_element(uint64_t seed, std::string_view tensor, int64_t row, int64_t col);

// The value of the standard normal distribution below which the share (bits + 1/2) / 2^32 lies. The same bits on every
// machine: it uses only operations that IEEE 754 defines.   [Wichura 1988, algorithm AS 241, PPND16]
double normal_from(uint32_t bits);

// Whether `col` is one of the columns that outlier_channels multiplies by 100.
bool is_outlier_channel(uint64_t seed, int64_t col);

// One matrix or vector to generate. For a vector over columns `row` is 0, for one over rows `col` is 0.
struct InputStream {
  std::string_view tensor;  // "x", "residual", "dy", "dh", "gamma", "beta", "running_mean", "running_var"
  Input input;
  Dtype dtype;  // of the tensor that the kind describes: that of x, also for gamma and the running statistics
  uint64_t seed;
  int64_t rows, cols;  // of x
};

// Writes the values of `row` at columns [0, count) as floats, not yet rounded to the type.
void generate_row(const InputStream& stream, int64_t row, int64_t count, float* values);

}  // namespace worklog

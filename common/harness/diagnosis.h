// The likely cause of wrong results, where their pattern gives it away.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/reference.h"

namespace worklog {

// What is wrong with one output, as far as the search for a cause needs it.
struct Findings {
  size_t tensor = 0;           // index in tensors_of
  int64_t rows = 0, cols = 0;  // logical: samples * pixels x channels for a matrix of BatchNorm; 1 x cols for a vector
                               // over columns, rows x 1 for one over rows
  int64_t compared = 0;
  int64_t differing = 0;
  int64_t differing_rows = 0;
  int64_t never_written = 0;            // still the poison pattern
  int64_t nan = 0;                      // NaN, but not poison, where the reference is a number
  int64_t infinite = 0;                 // infinite where the reference is finite
  int64_t lost_special = 0;             // finite where the reference is NaN or infinite
  int64_t first_row = 0, last_row = 0;  // of those that differ
  std::vector<int64_t> sample_rows;     // some of the rows that differ, in order
  std::vector<uint8_t> bad_cols;        // by column: 1 where any of its elements differs
  std::vector<Mismatch> first;          // the first few elements that differ
  double max_abs_error = 0;
  double max_ulp_error = 0;
};

// One sentence, computed from the results: where nothing, or only part, was written; NaN and overflow; a formula that
// differs from the right one in a known way and reproduces what came out; the statistics that a wrong row was made
// with, found by a least-squares fit; where the wrong elements lie. Empty where nothing of this explains the results.
std::string likely_cause(const Reference& reference, const std::vector<HostTensor>& results,
                         const std::vector<Findings>& findings, Summation summation);

}  // namespace worklog

// The tensors of a call, and what has to be true of them before anything is launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace worklog::library {

struct Tensor {
  const char* name;            // of its pointer in norm_worklog.h
  const void* data;            // null where an optional tensor is absent
  int64_t rows, cols, stride;  // elements; a vector is one row
  int64_t element_bytes;
  bool optional;
  bool written;
  int64_t run = 0;         // a row of heads: runs of so many elements, which start so many apart, with gaps between
  int64_t run_stride = 0;  // 0: all of a row are its elements
  unsigned replaces = 0;   // bit i: it may lie where tensor i of the call lies

  int64_t row_bytes() const { return cols * element_bytes; }
  int64_t stride_bytes() const { return stride * element_bytes; }
};

// The tensors have elements. Throws Refusal where one is missing, has a stride that is too small or too large for
// memory to hold it, is not aligned to its elements, or is written and overlaps another in a way that it may not.
void check_tensors(std::span<const Tensor> tensors);

// Whether any element of one is in an element of the other. Where that is hard to say, because the rows of both are at
// different distances, it is true if the memory from the first to the last element overlaps. Both have elements.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace worklog::library

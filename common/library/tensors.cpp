#include "common/library/tensors.h"

#include <limits>

#include "common/library/errors.h"

namespace worklog::library {
namespace {

uintptr_t first_byte(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data);
}
uintptr_t end_byte(const Tensor& t) {
  return first_byte(t) + static_cast<uintptr_t>((t.rows - 1) * t.stride_bytes() + t.row_bytes());
}

void check_one(const Tensor& t) {
  if (!t.data) {
    if (t.optional) return;
    refuse(NW_ERROR_NULL, "{} must not be null", t.name);
  }
  if (t.rows > 1 && t.stride < t.cols) {
    refuse(NW_ERROR_STRIDE, "{}_stride must be at least {}, the elements of a row; it is {}", t.name, t.cols, t.stride);
  }
  const int64_t most = std::numeric_limits<int64_t>::max() / 2 / t.element_bytes;  // elements
  if (t.rows > 1 && t.stride > (most - t.cols) / (t.rows - 1)) {
    refuse(NW_ERROR_STRIDE, "{}_stride is {}: {} such rows are more than memory can hold", t.name, t.stride, t.rows);
  }
  if (first_byte(t) % static_cast<uintptr_t>(t.element_bytes) != 0) {
    refuse(NW_ERROR_ALIGNMENT, "{} must be aligned to its elements of {} bytes; it is {}", t.name, t.element_bytes,
           t.data);
  }
}

bool is_in_the_place_of(const Tensor& output, const Tensor& other) {
  return output.data == other.data && (output.rows == 1 || output.stride == other.stride) &&
         output.run_stride == other.run_stride;
}

// Whether the runs of one lie in the gaps between the other's in all rows, as where q, k and v of a head are
// neighbours.
bool in_gaps(const Tensor& a, const Tensor& b) {
  if (a.run_stride == 0 || a.run_stride != b.run_stride || a.element_bytes != b.element_bytes) return false;
  if ((a.rows > 1 && a.stride % a.run_stride != 0) || (b.rows > 1 && b.stride % b.run_stride != 0)) return false;
  const auto distance = static_cast<uintptr_t>(a.run_stride * a.element_bytes);
  const uintptr_t shift = first_byte(a) <= first_byte(b)
                              ? (first_byte(b) - first_byte(a)) % distance
                              : (distance - (first_byte(a) - first_byte(b)) % distance) % distance;
  return shift >= static_cast<uintptr_t>(a.run * a.element_bytes) &&
         shift + static_cast<uintptr_t>(b.run * b.element_bytes) <= distance;
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (end_byte(a) <= first_byte(b) || end_byte(b) <= first_byte(a)) return false;
  if (in_gaps(a, b)) return false;
  if (a.rows == 1 || b.rows == 1 || a.stride_bytes() != b.stride_bytes()) return true;
  // Rows at equal distances: b's begin `shift` bytes after one of a's, and the next of a's comes `distance` after that.
  const auto distance = static_cast<uintptr_t>(a.stride_bytes());
  const uintptr_t shift = first_byte(a) <= first_byte(b)
                              ? (first_byte(b) - first_byte(a)) % distance
                              : (distance - (first_byte(a) - first_byte(b)) % distance) % distance;
  return shift < static_cast<uintptr_t>(a.row_bytes()) || shift + static_cast<uintptr_t>(b.row_bytes()) > distance;
}

void check_tensors(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) check_one(tensor);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& output = tensors[i];
    if (!output.written || !output.data) continue;
    for (size_t j = 0; j < tensors.size(); ++j) {
      const Tensor& other = tensors[j];
      if (j == i || !other.data || !overlap(output, other)) continue;
      if ((output.replaces >> j & 1) != 0) {
        if (is_in_the_place_of(output, other)) continue;
        refuse(NW_ERROR_OVERLAP, "{} overlaps {}: in its place it must have the same pointer and the same stride",
               output.name, other.name);
      }
      // Of two outputs either may be the one that is allowed to lie where the other does.
      if ((other.replaces >> i & 1) != 0 && is_in_the_place_of(output, other)) continue;
      refuse(NW_ERROR_OVERLAP, "{} must not overlap {}", output.name, other.name);
    }
  }
}

}  // namespace worklog::library

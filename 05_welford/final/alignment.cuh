// What the launch asks of the tensors: where their rows start between 16-byte boundaries, and whether they all start
// with the same offset. Only then does a thread find its columns in the same vectors of every tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/steps.cuh"

namespace worklog::welford {

using vectorized::vector_size;

// [snippet: alignment]
template <class T>
bool starts_on_boundary(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// True where row i of all tensors starts equally far past a 16-byte boundary, for each i.
template <class T, size_t count>
bool have_same_offset(const std::array<Rows, count>& tensors, int64_t rows) {
  for (const Rows& each : tensors) {
    const auto apart = reinterpret_cast<uintptr_t>(each.first) - reinterpret_cast<uintptr_t>(tensors[0].first);
    if (apart % 16 != 0) return false;
    if (rows > 1 && (each.stride - tensors[0].stride) % vector_size<T> != 0) return false;
  }
  return true;
}
// [/snippet]

}  // namespace worklog::welford

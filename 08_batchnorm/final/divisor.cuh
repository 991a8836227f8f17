// Division by a number that the host knows, as a multiplication and a shift. A thread divides to find its channel, and
// it can read nothing of the channel before it has done so. So the division must be fast.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace worklog::batchnorm {

// A multiplication and a shift, where a division is some twenty instructions, each of which waits for the one before.
// Exact where both numbers are below 2^31 (`end`).
struct Divisor {
  int64_t by;
  uint32_t factor;  // 2^shift / by, rounded up: too large by less than 1 part in 2^31
  int shift;

  Divisor() : Divisor(1) {}
  explicit Divisor(int64_t by) : by(by), shift(31) {
    while (shift < 62 && int64_t{1} << (shift - 31) < by) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + by - 1) / by);
  }
  static constexpr int64_t end = int64_t{1} << 31;
  __device__ uint32_t quotient(uint32_t of) const { return static_cast<uint32_t>((uint64_t{of} * factor) >> shift); }
  __device__ int64_t quotient(int64_t of) const { return of / by; }  // of any number
  template <class Index>
  __device__ Index remainder(Index of) const {
    return of - quotient(of) * static_cast<Index>(by);
  }
};

}  // namespace worklog::batchnorm

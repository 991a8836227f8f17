// gamma and beta at the columns of a vector. They do not move with the row: where a row starts between two 16-byte
// boundaries, 16 bytes of gamma lie across two vectors, and are cut out of them.
#pragma once

#include <cstdint>

#include "04_vectorized/vectors.cuh"
#include "05_welford/final/rows.cuh"

namespace worklog::welford {

using vectorized::Floats;
using vectorized::pack;
using vectorized::unpack;
using vectorized::vector_size;

// [snippet: window]
// 16 bytes from an address that is aligned to the element only: from the two vectors that they straddle.
template <class G>
__device__ inline uint4 load_straddling(const G* from) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const unsigned past_boundary = address % 16;
  const uint4* vector = reinterpret_cast<const uint4*>(address - past_boundary);
  const uint4 low = vector[0];
  if (past_boundary == 0) return low;
  const uint4 high = vector[1];
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  // Shift by 8, 4 and 2 bytes, as the address asks for: all threads of a block take the same way.
  if (past_boundary & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (past_boundary & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if constexpr (sizeof(G) == 2) {
    const unsigned bits = past_boundary % 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits);
  }
  return {words[0], words[1], words[2], words[3]};
}

// gamma or beta at the columns of a vector of T, in storage type. fp32 parameters of 16-bit elements take two vectors.
template <class T, class G>
struct ParameterVector {
  static constexpr int parts = vector_size<T> / vector_size<G>;
  static_assert(parts >= 1, "gamma and beta are of x's type or wider");
  uint4 bits[parts];

  // `absent` stands for every element where there is no parameter; `given`: there is one. It is known at compile time,
  // because asking for each vector costs registers that the fastest kernels do not have.
  template <Fit fit, bool given>
  __device__ void load(const G* parameter, int col, float absent) {
    Floats<G> same;
#pragma unroll
    for (int k = 0; k < vector_size<G>; ++k) same.at[k] = absent;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      bits[part] = pack<G>(same);
      if (!given && parameter == nullptr) continue;
      const G* from = parameter + col + part * vector_size<G>;
      bits[part] = fit == Fit::any ? load_straddling(from) : *reinterpret_cast<const uint4*>(from);
    }
  }

  // Here the compiler may not look through: it cannot unpack before a loop what is unpacked in it, into more registers
  // than there are.
  __device__ void keep_packed() {
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      asm volatile("" : "+r"(bits[part].x), "+r"(bits[part].y), "+r"(bits[part].z), "+r"(bits[part].w));
    }
#endif
  }

  __device__ Floats<T> floats() const {
    Floats<T> all;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const Floats<G> some = unpack<G>(bits[part]);
#pragma unroll
      for (int k = 0; k < vector_size<G>; ++k) all.at[part * vector_size<G> + k] = some.at[k];
    }
    return all;
  }
};
// [/snippet]

}  // namespace worklog::welford

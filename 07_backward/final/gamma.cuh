// gamma at a thread's columns. It is read from memory once, before the first row. It then stays in registers, or in
// shared memory where a thread has too many columns.
#pragma once

#include <cstdint>

#include "07_backward/final/columns.cuh"
#include "07_backward/final/pass.cuh"

namespace worklog::backward {

// [snippet: weights]
// gamma at a thread's columns: floats in registers where there are few, and else in the storage type, in shared memory
// behind the ring. A thread reads there what it has written itself.
template <class Pass, Layout layout, int units>
struct Weights {
  using T = typename Pass::T;
  using G = typename Pass::G;
  using Its = Columns<layout, T>;
  static constexpr int each = Its::unit;
  static constexpr bool in_registers = units * each <= (layout == Layout::whole ? 24 : 16);
  union Vector {
    ParameterVector<T, G> packed;
    G element[vector_size<T>];
  };
  Unit<each> held[in_registers ? units : 1];
  Vector* shared;  // unit 0
  int threads;

  // Vectors of shared memory.
  __host__ __device__ static constexpr int vectors_for(int threads) {
    return in_registers ? 0 : units * threads * ParameterVector<T, G>::parts;
  }

  __device__ void load(const G* gamma, const Its& columns, uint4* behind_ring) {
    shared = reinterpret_cast<Vector*>(behind_ring) + columns.thread;
    threads = columns.threads;
#pragma unroll
    for (int i = 0; i < units; ++i) {
      const bool has = gamma && columns.has(i);
      if constexpr (layout == Layout::any_offset) {
        held[i].at[0] = has ? to_float(gamma[columns.column(i)]) : 1.0f;
        continue;
      }
      Vector vector;
      if constexpr (layout == Layout::whole) {
        vector.packed.template load<welford::Fit::vectors, false>(has ? gamma : nullptr, columns.column(i), 1.0f);
      } else {
        // Always read, column 0's if there is none: behind branches, each read would wait for the one before.
#pragma unroll
        for (int k = 0; k < each; ++k) {
          const int column = has ? columns.column(i, k) : -1;
          const G element = gamma ? gamma[column < 0 ? 0 : column] : static_cast<G>(1.0f);
          vector.element[k] = column < 0 ? static_cast<G>(1.0f) : element;
        }
      }
      if constexpr (in_registers) {
        const Floats<T> all = vector.packed.floats();
#pragma unroll
        for (int k = 0; k < each; ++k) {
          held[i].at[k] = all.at[k];
          keep(held[i].at[k]);
        }
      } else {
        shared[i * threads] = vector;
      }
    }
  }
  __device__ Unit<each> get(int i) const {
    if constexpr (in_registers) {
      return held[i];
    } else {
      const Floats<T> all = shared[i * threads].packed.floats();
      Unit<each> floats;
#pragma unroll
      for (int k = 0; k < each; ++k) floats.at[k] = all.at[k];
      return floats;
    }
  }

 private:
  // The compiler would rather unpack it anew for each row than keep it in a register.
  __device__ static void keep(float& value) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(value));
#else
    static_cast<void>(value);
#endif
  }
};
// [/snippet]

}  // namespace worklog::backward

// A ring of asynchronous copies in shared memory. It keeps many vectors on their way, and takes no register for them.
// After the first pass it still holds what was read last, and the second pass begins with that.
#pragma once

#include <cuda_pipeline.h>

#include "08_batchnorm/final/parts.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

// [snippet: ring]
// A thread's vectors on their way: those that it has asked for and not yet used, and those that it used last. Each
// thread reads only what it has put there itself, so that there is no barrier: waiting for its own copies is enough.
// Copies are asked for, and waited for, in batches.
template <class T, int size, int inputs, class Config>
struct Ring {
  static constexpr int batches = Config::batches / inputs;
  static constexpr int batch = Config::batch;  // vectors of each input
  static constexpr int held = batches * batch;
  static constexpr bool holds_all = Config::ring_holds_all;
  using Bits = Vector<T, size>;
  static constexpr size_t bytes_of_thread = sizeof(Bits) * inputs * batches * batch;

  Bits* slots;                         // of this thread; those of a block's threads lie side by side
  uint64_t advice_again, advice_last;  // to the L2 cache: of what will be read again, and of what is for the last time

  static constexpr int apart = batch * inputs * Config::threads;  // from one batch to the next
  __device__ Bits* first_slot() const { return slots; }
  __device__ Bits* last_slot() const { return slots + (batches - 1) * apart; }
  // Of the vectors of a batch.
  __device__ static Bits* in_batch(Bits* of_batch, int i, int input) {
    return of_batch + (i * inputs + input) * Config::threads;
  }
  __device__ static void fetch(Bits* to, const T* from, [[maybe_unused]] uint64_t advice) {
    if constexpr (sizeof(Bits) == 16) {
      copy_vector(reinterpret_cast<uint4*>(to), from, advice);
    } else if constexpr (sizeof(Bits) >= 4) {
      __pipeline_memcpy_async(to, from, sizeof(Bits));
    } else {
      *to = *reinterpret_cast<const Bits*>(from);  // asynchronous copies begin at 4 bytes
    }
  }
  __device__ static void commit() { __pipeline_commit(); }
  // Until no more than the last `batches - 1` are on their way: the oldest has arrived.
  __device__ static void wait_for_oldest() { __pipeline_wait_prior(batches - 1); }
  // What to tell the L2 cache of a part's vectors from the first pass's `vector` on.
  __device__ uint64_t advice_at(int vector, const Part<size>& part) const {
    return !holds_all && vector < part.of_all - held ? advice_again : advice_last;
  }
};
// [/snippet]

}  // namespace worklog::batchnorm

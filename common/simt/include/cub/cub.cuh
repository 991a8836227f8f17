// Of CUB, the reductions of a block and of a warp, in the way that CUB does them: shuffles in a warp, then one value of
// each warp through shared memory. As with CUB the result is that of thread 0, or of lane 0, alone, and TempStorage may
// be used again only behind a barrier.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
};

struct Sum {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};
struct Min {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};

namespace detail {

// Of any type, in words of 32 bits, as CUB shuffles them.
template <class T>
T shuffled_down(unsigned lanes, const T& value, unsigned delta, int width) {
  unsigned words[(sizeof(T) + 3) / 4] = {};
  std::memcpy(words, &value, sizeof(T));
  for (unsigned& word : words) word = __shfl_down_sync(lanes, word, delta, width);
  T result = value;
  std::memcpy(static_cast<void*>(&result), words, sizeof(T));
  return result;
}

// Over the first `valid` of `width` lanes, of which `lanes` are there.
template <class T, class Operation>
T reduced_in_warp(T value, Operation operation, int valid, int width, unsigned lanes) {
  const int lane = static_cast<int>(simt::detail::lane_id()) % width;
  for (int delta = 1; delta < width; delta *= 2) {
    const T other = shuffled_down(lanes, value, static_cast<unsigned>(delta), width);
    if (lane + delta < valid) value = operation(value, other);
  }
  return value;
}

}  // namespace detail

template <class T, int threads = 32>
class WarpReduce {
 public:
  struct TempStorage {};  // shuffles need none
  explicit WarpReduce(TempStorage&) {}

  T Sum(T value, int valid = threads) const { return Reduce(value, cub::Sum(), valid); }
  template <class Operation>
  T Reduce(T value, Operation operation, int valid = threads) const {
    const unsigned first = simt::detail::lane_id() / threads * threads;
    return detail::reduced_in_warp(value, operation, valid, threads, (~0u >> (32 - threads)) << first);
  }
};

template <class T, int x, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int y = 1, int z = 1>
class BlockReduce {
  static constexpr int threads = x * y * z, warps = (threads + 31) / 32;

 public:
  struct TempStorage {
    alignas(T) unsigned char of_warp[warps * sizeof(T)];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  T Sum(T value, int valid = threads) { return Reduce(value, cub::Sum(), valid); }
  template <int items>
  T Sum(const T (&values)[items]) {
    T sum = values[0];
    for (int i = 1; i < items; ++i) sum = sum + values[i];
    return Sum(sum);
  }
  template <class Operation>
  T Reduce(T value, Operation operation, int valid = threads) {
    const int thread = static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    const int first = thread / 32 * 32, there = min(32, threads - first);
    value = detail::reduced_in_warp(value, operation, valid - first, 32, ~0u >> (32 - there));
    T* const of_warp = reinterpret_cast<T*>(storage_.of_warp);
    if (thread == first) of_warp[first / 32] = value;
    __syncthreads();
    if (thread == 0) {
      for (int warp = 1; warp < warps && 32 * warp < valid; ++warp) value = operation(value, of_warp[warp]);
    }
    return value;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub

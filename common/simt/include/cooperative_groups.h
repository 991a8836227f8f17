// Cooperative groups: the block, tiles of a warp, converged lanes, the cluster and the grid, under CUDA's names.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <type_traits>

#include "cuda_runtime.h"

namespace cooperative_groups {

namespace detail {

// A value of any size up to 32 bytes goes through a warp's shuffle as words of 8.
template <class T, class ShuffleWord>
T shuffle_words(const T& value, ShuffleWord shuffle_word) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 32, "a group shuffles plain values of up to 32 bytes");
  std::array<unsigned long long, (sizeof(T) + 7) / 8> words{};
  std::memcpy(words.data(), &value, sizeof(T));
  for (auto& word : words) word = shuffle_word(word);
  T result;
  std::memcpy(static_cast<void*>(&result), words.data(), sizeof(T));
  return result;
}

inline unsigned linear(const uint3& index, const dim3& shape) {
  return index.x + shape.x * (index.y + shape.y * index.z);
}

}  // namespace detail

class thread_block {
 public:
  static void sync(SIMT_SITE_PARAMETERS) {
    simt::detail::block_barrier(simt::detail::BarrierKind::sync, 0, "thread_block::sync()", {file, line});
  }
  static unsigned thread_rank() { return detail::linear(threadIdx, blockDim); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() {
  return {};
}

// A group of lanes of one warp. Its member `rank` is the rank-th lane of the mask.
class coalesced_group {
 public:
  explicit coalesced_group(unsigned mask) : mask_(mask) {}

  unsigned num_threads() const { return static_cast<unsigned>(std::popcount(mask_)); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const {
    return static_cast<unsigned>(std::popcount(mask_ & ((1u << simt::detail::lane_id()) - 1)));
  }
  void sync(SIMT_SITE_PARAMETERS) const {
    simt::detail::warp_collective(simt::detail::Collective::sync, mask_, 0, 0, "group.sync()", {file, line});
  }
  template <class T>
  T shfl(const T& value, unsigned rank, SIMT_SITE_PARAMETERS) const {
    return read(value, rank % num_threads(), "group.shfl()", {file, line});
  }
  template <class T>
  T shfl_up(const T& value, unsigned delta, SIMT_SITE_PARAMETERS) const {
    const unsigned rank = thread_rank();
    return read(value, rank < delta ? rank : rank - delta, "group.shfl_up()", {file, line});
  }
  template <class T>
  T shfl_down(const T& value, unsigned delta, SIMT_SITE_PARAMETERS) const {
    const unsigned rank = thread_rank();
    return read(value, rank + delta < num_threads() ? rank + delta : rank, "group.shfl_down()", {file, line});
  }
  bool any(int predicate, SIMT_SITE_PARAMETERS) const { return __any_sync(mask_, predicate, file, line) != 0; }
  bool all(int predicate, SIMT_SITE_PARAMETERS) const { return __all_sync(mask_, predicate, file, line) != 0; }
  // Bit r is the predicate of member r.
  unsigned ballot(int predicate, SIMT_SITE_PARAMETERS) const {
    const unsigned lanes = __ballot_sync(mask_, predicate, file, line);
    unsigned ranks = 0;
    unsigned rank = 0;
    for (unsigned rest = mask_; rest != 0; rest &= rest - 1, ++rank) {
      if (lanes & rest & -rest) ranks |= 1u << rank;
    }
    return ranks;
  }

 protected:
  template <class T>
  T read(const T& value, unsigned rank, const char* name, simt::detail::Site site) const {
    unsigned rest = mask_;
    for (unsigned i = 0; i < rank; ++i) rest &= rest - 1;
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    return detail::shuffle_words(
        value, [&](unsigned long long word) { return simt::detail::shuffle(mask_, word, lane, name, site); });
  }

 private:
  unsigned mask_;
};

// The lanes that run this line together. All of a warp that get here before the warp can go no further count.
inline coalesced_group coalesced_threads(SIMT_SITE_PARAMETERS) {
  return coalesced_group(simt::detail::converged_lanes("coalesced_threads()", {file, line}));
}

// `Size` neighboring threads of a block, all of one warp. The block must have a multiple of `Size` threads.
template <unsigned Size, class Parent = void>
class thread_block_tile : public coalesced_group {
  static_assert(std::has_single_bit(Size) && Size <= 32, "a tile has 1, 2, 4, 8, 16 or 32 threads");

 public:
  thread_block_tile() : coalesced_group(lanes()) {}
  // A tile of any parent is one of none: `thread_block_tile<32> warp = tiled_partition<32>(block)`.
  template <class Other>
  requires(std::is_void_v<Parent> && !std::is_void_v<Other>) thread_block_tile(const thread_block_tile<Size, Other>&)
      : thread_block_tile() {}

  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned thread_rank() { return simt::detail::lane_id() % Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }  // of this tile in the block
  static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }

  template <class T>
  T shfl_xor(const T& value, unsigned rank_mask, SIMT_SITE_PARAMETERS) const {
    return read(value, (thread_rank() ^ rank_mask) % Size, "group.shfl_xor()", {file, line});
  }

 private:
  static unsigned lanes() {
    const unsigned first = simt::detail::lane_id() / Size * Size;
    return (Size == 32 ? ~0u : (1u << Size % 32) - 1) << first;
  }
};

template <unsigned Size>
thread_block_tile<Size, thread_block> tiled_partition(const thread_block&) {
  return {};
}
template <unsigned Size, unsigned ParentSize, class Parent>
thread_block_tile<Size, thread_block_tile<ParentSize, Parent>> tiled_partition(
    const thread_block_tile<ParentSize, Parent>&) {
  static_assert(Size <= ParentSize);
  return {};
}

// Any group of a block's threads, for functions that do with each: the block, a tile of a warp, converged lanes.
class thread_group {
 public:
  thread_group(const thread_block&) {}
  thread_group(const coalesced_group& lanes) : lanes_(lanes) {}

  void sync(SIMT_SITE_PARAMETERS) const { lanes_ ? lanes_->sync(file, line) : thread_block::sync(file, line); }
  unsigned thread_rank() const { return lanes_ ? lanes_->thread_rank() : thread_block::thread_rank(); }
  unsigned num_threads() const { return lanes_ ? lanes_->num_threads() : thread_block::num_threads(); }
  unsigned size() const { return num_threads(); }

 private:
  std::optional<coalesced_group> lanes_;
};
// A part of `size` neighboring threads, 1 to 32 and a power of two; of a block or of what is a part of one itself.
inline thread_group tiled_partition(const thread_group&, unsigned size) {
  if (!std::has_single_bit(size) || size > 32) __trap();
  const unsigned first = simt::detail::lane_id() / size * size;
  return coalesced_group((size == 32 ? ~0u : (1u << size) - 1) << first);
}

// The blocks of a cluster; one block, where the launch has none.
class cluster_group {
 public:
  struct arrival_token {};

  static void sync(SIMT_SITE_PARAMETERS) {
    simt::detail::group_arrive(simt::detail::Group::cluster, "cluster.sync()", {file, line});
    simt::detail::group_wait(simt::detail::Group::cluster, "cluster.sync()", {file, line});
  }
  static arrival_token barrier_arrive(SIMT_SITE_PARAMETERS) {
    simt::detail::group_arrive(simt::detail::Group::cluster, "cluster.barrier_arrive()", {file, line});
    return {};
  }
  static void barrier_wait(SIMT_SITE_PARAMETERS) {
    simt::detail::group_wait(simt::detail::Group::cluster, "cluster.barrier_wait()", {file, line});
  }
  static void barrier_wait(arrival_token&&, SIMT_SITE_PARAMETERS) { barrier_wait(file, line); }

  static unsigned block_rank() { return simt::detail::cluster_shape().rank; }
  static unsigned num_blocks() { return simt::detail::cluster_shape().blocks; }
  static unsigned thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
  static unsigned num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned size() { return num_threads(); }

  // What is at `address` of this block's shared memory, in the shared memory of block `rank`.
  template <class T>
  static T* map_shared_rank(T* address, int rank, SIMT_SITE_PARAMETERS) {
    return static_cast<T*>(simt::detail::map_to_rank(const_cast<std::remove_const_t<T>*>(address),
                                                     static_cast<unsigned>(rank), "map_shared_rank()", {file, line}));
  }
  static unsigned query_shared_rank(const void* address) {
    return static_cast<unsigned>(simt::detail::rank_of_shared(address));
  }
};
inline cluster_group this_cluster() {
  return {};
}

// Every block of a cooperative launch.
class grid_group {
 public:
  static bool is_valid() { return simt::detail::launched_cooperatively(); }
  static void sync(SIMT_SITE_PARAMETERS) {
    simt::detail::group_arrive(simt::detail::Group::grid, "grid.sync()", {file, line});
    simt::detail::group_wait(simt::detail::Group::grid, "grid.sync()", {file, line});
  }
  static unsigned long long block_rank() { return detail::linear(blockIdx, gridDim); }
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long size() { return num_threads(); }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 group_dim() { return gridDim; }
};
inline grid_group this_grid() {
  return {};
}

template <class Group>
void sync(const Group& group, SIMT_SITE_PARAMETERS) {
  group.sync(file, line);
}

}  // namespace cooperative_groups

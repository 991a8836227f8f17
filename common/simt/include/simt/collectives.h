// Barriers, shuffles, votes and warp reductions: the operations that threads carry out together.
//
// The last two arguments of each are the line that calls it; never give them.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/engine.h"

struct __half;
struct __half2;
struct __nv_bfloat16;
struct __nv_bfloat162;

namespace simt::detail {

template <class T, class... Ts>
concept one_of = (std::same_as<T, Ts> || ...);

// The types that CUDA can shuffle.
template <class T>
concept Shuffled = one_of<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double, __half,
                          __half2, __nv_bfloat16, __nv_bfloat162>;

template <class T>
uint64_t to_bits(const T& value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

template <class T>
T shuffle(unsigned mask, const T& value, unsigned source, const char* name, Site site) {
  return from_bits<T>(warp_collective(Collective::shuffle, mask, to_bits(value), source, name, site));
}

// The lanes that a shuffle reads, by the rules of the CUDA C++ Programming Guide; `width` is a power of two up to 32.
inline unsigned first_of_segment(unsigned lane, int width) {
  return lane & ~(static_cast<unsigned>(width) - 1);
}
inline unsigned last_of_segment(unsigned lane, int width) {
  return lane | (static_cast<unsigned>(width) - 1);
}
inline unsigned source_of_index(unsigned lane, int index, int width) {
  return first_of_segment(lane, width) | (static_cast<unsigned>(index) & (static_cast<unsigned>(width) - 1));
}
inline unsigned source_of_up(unsigned lane, unsigned delta, int width) {
  return lane - first_of_segment(lane, width) < delta ? lane : lane - delta;
}
inline unsigned source_of_down(unsigned lane, unsigned delta, int width) {
  return last_of_segment(lane, width) - lane < delta ? lane : lane + delta;
}
inline unsigned source_of_xor(unsigned lane, int lane_mask, int width) {
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  return source > last_of_segment(lane, width) ? lane : source;
}

}  // namespace simt::detail

#define SIMT_SITE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SIMT_SITE_PARAMETERS) {
  simt::detail::block_barrier(simt::detail::BarrierKind::sync, 0, "__syncthreads()", {file, line});
}
inline int __syncthreads_count(int predicate, SIMT_SITE_PARAMETERS) {
  return simt::detail::block_barrier(simt::detail::BarrierKind::count, predicate, "__syncthreads_count()",
                                     {file, line});
}
inline int __syncthreads_and(int predicate, SIMT_SITE_PARAMETERS) {
  return simt::detail::block_barrier(simt::detail::BarrierKind::all, predicate, "__syncthreads_and()", {file, line});
}
inline int __syncthreads_or(int predicate, SIMT_SITE_PARAMETERS) {
  return simt::detail::block_barrier(simt::detail::BarrierKind::any, predicate, "__syncthreads_or()", {file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_SITE_PARAMETERS) {
  simt::detail::warp_collective(simt::detail::Collective::sync, mask, 0, 0, "__syncwarp()", {file, line});
}

template <simt::detail::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source_lane, int width = 32, SIMT_SITE_PARAMETERS) {
  const unsigned source = simt::detail::source_of_index(simt::detail::lane_id(), source_lane, width);
  return simt::detail::shuffle(mask, value, source, "__shfl_sync()", {file, line});
}
template <simt::detail::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE_PARAMETERS) {
  const unsigned source = simt::detail::source_of_up(simt::detail::lane_id(), delta, width);
  return simt::detail::shuffle(mask, value, source, "__shfl_up_sync()", {file, line});
}
template <simt::detail::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE_PARAMETERS) {
  const unsigned source = simt::detail::source_of_down(simt::detail::lane_id(), delta, width);
  return simt::detail::shuffle(mask, value, source, "__shfl_down_sync()", {file, line});
}
template <simt::detail::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, SIMT_SITE_PARAMETERS) {
  const unsigned source = simt::detail::source_of_xor(simt::detail::lane_id(), lane_mask, width);
  return simt::detail::shuffle(mask, value, source, "__shfl_xor_sync()", {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE_PARAMETERS) {
  return static_cast<unsigned>(simt::detail::warp_collective(simt::detail::Collective::ballot, mask, predicate != 0, 0,
                                                             "__ballot_sync()", {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_collective(simt::detail::Collective::ballot, mask, predicate != 0, 0, "__any_sync()",
                                       {file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_collective(simt::detail::Collective::ballot, mask, predicate == 0, 0, "__all_sync()",
                                       {file, line}) == 0;
}
inline unsigned __activemask(SIMT_SITE_PARAMETERS) {
  return simt::detail::converged_lanes("__activemask()", {file, line});
}

template <simt::detail::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value, SIMT_SITE_PARAMETERS) {
  return static_cast<unsigned>(simt::detail::warp_collective(
      simt::detail::Collective::match_any, mask, simt::detail::to_bits(value), 0, "__match_any_sync()", {file, line}));
}
template <simt::detail::Shuffled T>
unsigned __match_all_sync(unsigned mask, T value, int* all_equal, SIMT_SITE_PARAMETERS) {
  const auto lanes = static_cast<unsigned>(simt::detail::warp_collective(
      simt::detail::Collective::match_all, mask, simt::detail::to_bits(value), 0, "__match_all_sync()", {file, line}));
  *all_equal = lanes != 0;
  return lanes;
}

namespace simt::detail {

template <class T>
concept WarpReduced = one_of<T, int, unsigned>;

template <WarpReduced T>
T warp_reduce(Collective kind, unsigned mask, T value, const char* name, Site site) {
  const int64_t operand = value;  // both types keep their order
  return static_cast<T>(warp_collective(kind, mask, static_cast<uint64_t>(operand), 0, name, site));
}

}  // namespace simt::detail

template <simt::detail::WarpReduced T>
T __reduce_add_sync(unsigned mask, T value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::add, mask, value, "__reduce_add_sync()", {file, line});
}
template <simt::detail::WarpReduced T>
T __reduce_min_sync(unsigned mask, T value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::min, mask, value, "__reduce_min_sync()", {file, line});
}
template <simt::detail::WarpReduced T>
T __reduce_max_sync(unsigned mask, T value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::max, mask, value, "__reduce_max_sync()", {file, line});
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::bitwise_and, mask, value, "__reduce_and_sync()",
                                   {file, line});
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::bitwise_or, mask, value, "__reduce_or_sync()",
                                   {file, line});
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, SIMT_SITE_PARAMETERS) {
  return simt::detail::warp_reduce(simt::detail::Collective::bitwise_xor, mask, value, "__reduce_xor_sync()",
                                   {file, line});
}

[[noreturn]] inline void __trap(SIMT_SITE_PARAMETERS) {
  simt::detail::trap("__trap() was called", {file, line}, 719);
}

inline void __nanosleep(unsigned, SIMT_SITE_PARAMETERS) {
  simt::detail::yield({file, line});
}

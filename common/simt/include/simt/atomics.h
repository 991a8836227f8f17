// Atomic operations and fences, and the loads and stores with a cache hint.
//
// Atomics are relaxed, as on a GPU: what else a thread wrote is ordered by the fences.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/collectives.h"
#include "simt/engine.h"

namespace simt::detail {

template <size_t bytes>
using unsigned_of = std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>;

// *address = change(*address) in one step; returns the value from before.
template <class T, class Change>
T atomic_update(T* address, Change change, Site site) {
  using Bits = unsigned_of<sizeof(T)>;
  static_assert(sizeof(Bits) == sizeof(T));
  Bits* const bits = reinterpret_cast<Bits*>(address);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  Bits after;
  do {
    after = static_cast<Bits>(to_bits<T>(change(from_bits<T>(before))));
  } while (!__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  if (before == after) {
    atomic_changed_nothing(address, site);
  } else {
    atomic_changed_memory();
  }
  return from_bits<T>(before);
}

template <class T>
concept AtomicInteger = one_of<T, int, unsigned, long long, unsigned long long, unsigned long>;
template <class T>
concept AtomicNumber = AtomicInteger<T> || one_of<T, float, double, __half, __half2, __nv_bfloat16, __nv_bfloat162>;
template <class T>
concept AtomicWord = AtomicInteger<T> || one_of<T, unsigned short, float, double>;

}  // namespace simt::detail

// The other operands are not deduced, so that atomicAdd(&unsigned_counter, 1) compiles as it does with nvcc.

template <simt::detail::AtomicNumber T>
T atomicAdd(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  if constexpr (simt::detail::AtomicInteger<T>) {
    const T before = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    value == 0 ? simt::detail::atomic_changed_nothing(address, {file, line}) : simt::detail::atomic_changed_memory();
    return before;
  } else {
    const auto change = [&](T old) { return static_cast<T>(old + value); };
    return simt::detail::atomic_update(address, change, {file, line});
  }
}
template <simt::detail::AtomicInteger T>
T atomicSub(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return static_cast<T>(old - value); };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicWord T>
T atomicExch(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T) { return value; };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicWord T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  // Compared as bits, as the hardware does.
  const auto change = [&](T old) {
    return simt::detail::to_bits(old) == simt::detail::to_bits(expected) ? value : old;
  };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return value < old ? value : old; };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return old < value ? value : old; };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return static_cast<T>(old & value); };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return static_cast<T>(old | value); };
  return simt::detail::atomic_update(address, change, {file, line});
}
template <simt::detail::AtomicInteger T>
T atomicXor(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  const auto change = [&](T old) { return static_cast<T>(old ^ value); };
  return simt::detail::atomic_update(address, change, {file, line});
}
// Counts 0, 1, ... limit, 0, 1, ...
inline unsigned atomicInc(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  const auto change = [&](unsigned old) { return old >= limit ? 0u : old + 1u; };
  return simt::detail::atomic_update(address, change, {file, line});
}
inline unsigned atomicDec(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  const auto change = [&](unsigned old) { return old == 0u || old > limit ? limit : old - 1u; };
  return simt::detail::atomic_update(address, change, {file, line});
}

// Of the block alone, or of the whole system: here each is as atomic as the others.
#define SIMT_SCOPED_ATOMIC(name, Concept)                                            \
  template <simt::detail::Concept T>                                                 \
  T name##_block(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {  \
    return name(address, value, file, line);                                         \
  }                                                                                  \
  template <simt::detail::Concept T>                                                 \
  T name##_system(T* address, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) { \
    return name(address, value, file, line);                                         \
  }
SIMT_SCOPED_ATOMIC(atomicAdd, AtomicNumber)
SIMT_SCOPED_ATOMIC(atomicSub, AtomicInteger)
SIMT_SCOPED_ATOMIC(atomicExch, AtomicWord)
SIMT_SCOPED_ATOMIC(atomicMin, AtomicInteger)
SIMT_SCOPED_ATOMIC(atomicMax, AtomicInteger)
SIMT_SCOPED_ATOMIC(atomicAnd, AtomicInteger)
SIMT_SCOPED_ATOMIC(atomicOr, AtomicInteger)
SIMT_SCOPED_ATOMIC(atomicXor, AtomicInteger)
#undef SIMT_SCOPED_ATOMIC
template <simt::detail::AtomicWord T>
T atomicCAS_block(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  return atomicCAS(address, expected, value, file, line);
}
inline unsigned atomicInc_block(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  return atomicInc(address, limit, file, line);
}
inline unsigned atomicDec_block(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  return atomicDec(address, limit, file, line);
}
template <simt::detail::AtomicWord T>
T atomicCAS_system(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value, SIMT_SITE_PARAMETERS) {
  return atomicCAS(address, expected, value, file, line);
}
inline unsigned atomicInc_system(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  return atomicInc(address, limit, file, line);
}
inline unsigned atomicDec_system(unsigned* address, unsigned limit, SIMT_SITE_PARAMETERS) {
  return atomicDec(address, limit, file, line);
}

inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Cache hints mean nothing to a CPU: these are the plain accesses.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);  // not served from an earlier load: it may be polled
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldlu(const T* address) {
  return *address;
}
template <class T>
T __ldcv(const T* address) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  return *address;
}
template <class T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}

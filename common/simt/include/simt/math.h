// CUDA's mathematical functions and intrinsics, under their names at global scope.
//
// sqrtf, fmaf, exp2f, ldexpf, isnan and the rest of C's functions come from <math.h>. Names that end in _rn round to
// nearest even, exactly as the GPU does. The approximate ones (rsqrtf, __fdividef, __expf ...) are closer to the true
// value here than on a GPU, so a kernel must not count on their last bits; where a GPU leaves the path of ordinary
// arithmetic, as __fdividef does for huge divisors, so do they.
//
// They are noexcept because newer C libraries declare some of them (rsqrt is in C23), and declarations must agree.
#pragma once

#include <math.h>
#include <stdlib.h>

#include <bit>
#include <cstdint>
#include <limits>

// --- Bits ----------------------------------------------------------------------------------------------------------

constexpr int __float_as_int(float x) noexcept {
  return std::bit_cast<int>(x);
}
constexpr unsigned int __float_as_uint(float x) noexcept {
  return std::bit_cast<unsigned int>(x);
}
constexpr float __int_as_float(int bits) noexcept {
  return std::bit_cast<float>(bits);
}
constexpr float __uint_as_float(unsigned int bits) noexcept {
  return std::bit_cast<float>(bits);
}
constexpr long long __double_as_longlong(double x) noexcept {
  return std::bit_cast<long long>(x);
}
constexpr double __longlong_as_double(long long bits) noexcept {
  return std::bit_cast<double>(bits);
}

constexpr int __popc(unsigned int bits) noexcept {
  return std::popcount(bits);
}
constexpr int __popcll(unsigned long long bits) noexcept {
  return std::popcount(bits);
}
// Leading zeros; of zero, all 32 or 64.
constexpr int __clz(int bits) noexcept {
  return std::countl_zero(static_cast<unsigned int>(bits));
}
constexpr int __clzll(long long bits) noexcept {
  return std::countl_zero(static_cast<unsigned long long>(bits));
}
// The place of the lowest set bit, counted from 1; of zero, 0.
constexpr int __ffs(int bits) noexcept {
  return bits == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned int>(bits));
}
constexpr int __ffsll(long long bits) noexcept {
  return bits == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned long long>(bits));
}
// Bit i goes to place 31 - i (63 - i).
constexpr unsigned int __brev(unsigned int bits) noexcept {
  bits = ((bits >> 1) & 0x55555555u) | ((bits & 0x55555555u) << 1);
  bits = ((bits >> 2) & 0x33333333u) | ((bits & 0x33333333u) << 2);
  bits = ((bits >> 4) & 0x0f0f0f0fu) | ((bits & 0x0f0f0f0fu) << 4);
  return __builtin_bswap32(bits);
}
constexpr unsigned long long __brevll(unsigned long long bits) noexcept {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned int>(bits))) << 32 |
         __brev(static_cast<unsigned int>(bits >> 32));
}

// The pair high:low, 64 bits, shifted left or right; the upper 32 bits of a left shift, the lower of a right one. The
// shift counts modulo 32, or with c is held at 32.
constexpr unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) noexcept {
  return static_cast<unsigned int>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
constexpr unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) noexcept {
  return static_cast<unsigned int>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
constexpr unsigned int __funnelshift_lc(unsigned int low, unsigned int high, unsigned int shift) noexcept {
  return shift < 32 ? __funnelshift_l(low, high, shift) : low;
}
constexpr unsigned int __funnelshift_rc(unsigned int low, unsigned int high, unsigned int shift) noexcept {
  return shift < 32 ? __funnelshift_r(low, high, shift) : high;
}

// The product of the lower 24 bits of both: its lower 32 bits.
constexpr int __mul24(int a, int b) noexcept {
  const auto low = [](int x) { return static_cast<int>(static_cast<unsigned int>(x) << 8) >> 8; };
  return static_cast<int>(static_cast<unsigned int>(low(a)) * static_cast<unsigned int>(low(b)));
}
constexpr unsigned int __umul24(unsigned int a, unsigned int b) noexcept {
  return (a & 0xffffffu) * (b & 0xffffffu);
}
// Byte i of the result is the byte of y:x, eight bytes, that the lower three bits of digit i of `selector` name.
constexpr unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int selector) noexcept {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned int result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned int>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}
// `sum`, and the products of the four bytes of both.
constexpr int __dp4a(int a, int b, int sum) noexcept {
  const auto byte = [](int word, int i) { return static_cast<std::int8_t>(static_cast<unsigned int>(word) >> 8 * i); };
  for (int i = 0; i < 4; ++i) sum = static_cast<int>(static_cast<unsigned int>(sum) + byte(a, i) * byte(b, i));
  return sum;
}
constexpr unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int sum) noexcept {
  for (int i = 0; i < 4; ++i) sum += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
  return sum;
}
// |a - b| + sum.
constexpr unsigned int __sad(int a, int b, unsigned int sum) noexcept {
  return sum + (a > b ? static_cast<unsigned int>(a) - static_cast<unsigned int>(b)
                      : static_cast<unsigned int>(b) - static_cast<unsigned int>(a));
}
constexpr unsigned int __usad(unsigned int a, unsigned int b, unsigned int sum) noexcept {
  return sum + (a > b ? a - b : b - a);
}
// The upper half of a product that is twice as wide.
constexpr int __mulhi(int a, int b) noexcept {
  return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
constexpr unsigned int __umulhi(unsigned int a, unsigned int b) noexcept {
  return static_cast<unsigned int>(static_cast<unsigned long long>(a) * b >> 32);
}
constexpr unsigned long long __umul64hi(unsigned long long a, unsigned long long b) noexcept {
  const unsigned long long a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
  const unsigned long long middle = a_high * b_low + (a_low * b_low >> 32);
  return a_high * b_high + (middle >> 32) + ((a_low * b_high + (middle & 0xffffffffu)) >> 32);
}
constexpr long long __mul64hi(long long a, long long b) noexcept {
  // A negative factor is 2^64 less than the same bits without a sign.
  const auto bits_a = static_cast<unsigned long long>(a), bits_b = static_cast<unsigned long long>(b);
  return static_cast<long long>(__umul64hi(bits_a, bits_b) - (a < 0 ? bits_b : 0) - (b < 0 ? bits_a : 0));
}

// --- Arithmetic with a stated rounding -------------------------------------------------------------------------------
// On a GPU these keep the compiler from fusing a product and a sum. A host build must not fuse either (g++ does not
// with -std=c++20, nor clang across functions).

inline float __fadd_rn(float a, float b) noexcept {
  return a + b;
}
inline float __fsub_rn(float a, float b) noexcept {
  return a - b;
}
inline float __fmul_rn(float a, float b) noexcept {
  return a * b;
}
inline float __fdiv_rn(float a, float b) noexcept {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) noexcept {
  return fmaf(a, b, c);
}
inline float __frcp_rn(float x) noexcept {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) noexcept {
  return sqrtf(x);
}
// Right to the last bit: no float has a 1 / sqrt that lies so near the middle of two floats that the error of a double
// could take it across (a test tries all of them).
inline float __frsqrt_rn(float x) noexcept {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}

inline double __dadd_rn(double a, double b) noexcept {
  return a + b;
}
inline double __dsub_rn(double a, double b) noexcept {
  return a - b;
}
inline double __dmul_rn(double a, double b) noexcept {
  return a * b;
}
inline double __ddiv_rn(double a, double b) noexcept {
  return a / b;
}
inline double __fma_rn(double a, double b, double c) noexcept {
  return fma(a, b, c);
}
inline double __drcp_rn(double x) noexcept {
  return 1.0 / x;
}
inline double __dsqrt_rn(double x) noexcept {
  return sqrt(x);
}

// --- Approximations --------------------------------------------------------------------------------------------------

inline float rsqrtf(float x) noexcept {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline double rsqrt(double x) noexcept {
  return 1.0 / sqrt(x);
}
inline float rsqrt(float x) noexcept {
  return rsqrtf(x);
}
// a / b through the reciprocal of b. Above 2^126 that reciprocal is taken for zero, as on a GPU.
inline float __fdividef(float a, float b) noexcept {
  if (isfinite(b) && fabsf(b) > 0x1p126f) return a * copysignf(0.0f, b);
  return a / b;
}
inline float fdividef(float a, float b) noexcept {
  return a / b;
}
inline float __expf(float x) noexcept {
  return expf(x);
}
inline float __logf(float x) noexcept {
  return logf(x);
}
inline float __log2f(float x) noexcept {
  return log2f(x);
}
inline float __powf(float x, float y) noexcept {
  return powf(x, y);
}
// x within [0, 1]; of a NaN, 0.
inline float __saturatef(float x) noexcept {
  return fminf(fmaxf(x, 0.0f), 1.0f);
}

// --- Between floats and integers -------------------------------------------------------------------------------------
// Out of range, the nearest integer there is; of a NaN, 0, or with 64 bits 2^63, as the GPU's instructions have it.

namespace simt::detail {

template <class Integer>
Integer saturating(double rounded) noexcept {
  // As doubles, because the largest integer itself may not be a float.
  constexpr double least = static_cast<double>(std::numeric_limits<Integer>::min());
  constexpr double beyond = static_cast<double>(std::numeric_limits<Integer>::max() / 2 + 1) * 2;
  if (isnan(rounded)) return static_cast<Integer>(sizeof(Integer) == 8 ? 1ull << 63 : 0);
  if (rounded >= beyond) return std::numeric_limits<Integer>::max();
  return rounded <= least ? std::numeric_limits<Integer>::min() : static_cast<Integer>(rounded);
}

}  // namespace simt::detail

inline int __float2int_rn(float x) noexcept {
  return simt::detail::saturating<int>(nearbyintf(x));
}
inline int __float2int_rz(float x) noexcept {
  return simt::detail::saturating<int>(truncf(x));
}
inline int __float2int_rd(float x) noexcept {
  return simt::detail::saturating<int>(floorf(x));
}
inline int __float2int_ru(float x) noexcept {
  return simt::detail::saturating<int>(ceilf(x));
}
inline unsigned int __float2uint_rn(float x) noexcept {
  return simt::detail::saturating<unsigned int>(nearbyintf(x));
}
inline unsigned int __float2uint_rz(float x) noexcept {
  return simt::detail::saturating<unsigned int>(truncf(x));
}
inline float __int2float_rn(int x) noexcept {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned int x) noexcept {
  return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) noexcept {
  return static_cast<float>(x);
}
inline float __double2float_rn(double x) noexcept {
  return static_cast<float>(x);
}

// --- Smaller and larger
// ------------------------------------------------------------------------------------------------ CUDA has these at
// global scope. Mixed integers compare as C++ converts them; of a number and a NaN, the number.

constexpr int min(int a, int b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned int min(unsigned int a, unsigned int b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned int min(int a, unsigned int b) noexcept {
  return min(static_cast<unsigned int>(a), b);
}
constexpr unsigned int min(unsigned int a, int b) noexcept {
  return min(a, static_cast<unsigned int>(b));
}
constexpr long min(long a, long b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned long min(unsigned long a, unsigned long b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned long min(long a, unsigned long b) noexcept {
  return min(static_cast<unsigned long>(a), b);
}
constexpr unsigned long min(unsigned long a, long b) noexcept {
  return min(a, static_cast<unsigned long>(b));
}
constexpr long long min(long long a, long long b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned long long min(unsigned long long a, unsigned long long b) noexcept {
  return a < b ? a : b;
}
constexpr unsigned long long min(long long a, unsigned long long b) noexcept {
  return min(static_cast<unsigned long long>(a), b);
}
constexpr unsigned long long min(unsigned long long a, long long b) noexcept {
  return min(a, static_cast<unsigned long long>(b));
}
inline float min(float a, float b) noexcept {
  return fminf(a, b);
}
inline double min(double a, double b) noexcept {
  return fmin(a, b);
}
inline double min(float a, double b) noexcept {
  return fmin(a, b);
}
inline double min(double a, float b) noexcept {
  return fmin(a, b);
}

constexpr int max(int a, int b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned int max(unsigned int a, unsigned int b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned int max(int a, unsigned int b) noexcept {
  return max(static_cast<unsigned int>(a), b);
}
constexpr unsigned int max(unsigned int a, int b) noexcept {
  return max(a, static_cast<unsigned int>(b));
}
constexpr long max(long a, long b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned long max(unsigned long a, unsigned long b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned long max(long a, unsigned long b) noexcept {
  return max(static_cast<unsigned long>(a), b);
}
constexpr unsigned long max(unsigned long a, long b) noexcept {
  return max(a, static_cast<unsigned long>(b));
}
constexpr long long max(long long a, long long b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned long long max(unsigned long long a, unsigned long long b) noexcept {
  return a > b ? a : b;
}
constexpr unsigned long long max(long long a, unsigned long long b) noexcept {
  return max(static_cast<unsigned long long>(a), b);
}
constexpr unsigned long long max(unsigned long long a, long long b) noexcept {
  return max(a, static_cast<unsigned long long>(b));
}
inline float max(float a, float b) noexcept {
  return fmaxf(a, b);
}
inline double max(double a, double b) noexcept {
  return fmax(a, b);
}
inline double max(float a, double b) noexcept {
  return fmax(a, b);
}
inline double max(double a, float b) noexcept {
  return fmax(a, b);
}

// CUDA's 16-bit float with 8 bits of exponent and 7 of fraction (bfloat16): __nv_bfloat16, and pairs of them.
//
// The twin of cuda_fp16.h: the same functions, with the same rounding and the same NaN. It has a float's range, so what
// a float can hold hardly ever overflows here, and less than three decimal digits. (Below 2^-126, where floats run out
// of digits too, a product or quotient may be rounded twice, as the toolkit's host side does it.)
#pragma once

#include "cuda_fp16.h"
#include "simt/float16.h"
#include "simt/math.h"
#include "vector_functions.h"

// The bits alone.
struct __nv_bfloat16_raw {
  unsigned short x;
};
struct alignas(4) __nv_bfloat162_raw {
  unsigned short x, y;
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits_(raw.x) {}
  constexpr operator __nv_bfloat16_raw() const { return {bits_}; }

  __nv_bfloat16(float value) : bits_(simt::detail::float_to_bfloat16(value)) {}
  __nv_bfloat16(double value) : bits_(simt::detail::float_to_bfloat16(simt::detail::to_odd_float(value))) {}
  __nv_bfloat16(short value) : __nv_bfloat16(static_cast<float>(value)) {}
  __nv_bfloat16(unsigned short value) : __nv_bfloat16(static_cast<float>(value)) {}
  __nv_bfloat16(int value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  __nv_bfloat16(unsigned int value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  __nv_bfloat16(long value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  __nv_bfloat16(unsigned long value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  __nv_bfloat16(long long value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  __nv_bfloat16(unsigned long long value) : __nv_bfloat16(simt::detail::to_odd_double(value)) {}
  explicit __nv_bfloat16(__half value) : __nv_bfloat16(static_cast<float>(value)) {}

  // Integers by dropping the fraction; out of range, the nearest integer there is.
  operator float() const { return simt::detail::bfloat16_to_float(bits_); }
  operator char() const { return to_integer<char>(); }
  operator signed char() const { return to_integer<signed char>(); }
  operator unsigned char() const { return to_integer<unsigned char>(); }
  operator short() const { return to_integer<short>(); }
  operator unsigned short() const { return to_integer<unsigned short>(); }
  operator int() const { return to_integer<int>(); }
  operator unsigned int() const { return to_integer<unsigned int>(); }
  operator long() const { return to_integer<long>(); }
  operator unsigned long() const { return to_integer<unsigned long>(); }
  operator long long() const { return to_integer<long long>(); }
  operator unsigned long long() const { return to_integer<unsigned long long>(); }
  constexpr operator bool() const { return (bits_ & 0x7fff) != 0; }

 private:
  template <class Integer>
  Integer to_integer() const {
    return simt::detail::saturating<Integer>(truncf(simt::detail::bfloat16_to_float(bits_)));
  }

  unsigned short bits_;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;

  __nv_bfloat162() = default;
  constexpr __nv_bfloat162(const __nv_bfloat16& x, const __nv_bfloat16& y) : x(x), y(y) {}
  constexpr __nv_bfloat162(const __nv_bfloat162_raw& raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
  constexpr operator __nv_bfloat162_raw() const { return {__nv_bfloat16_raw(x).x, __nv_bfloat16_raw(y).x}; }
};

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline constexpr __nv_bfloat16 CUDART_INF_BF16 = __nv_bfloat16_raw{0x7f80};
inline constexpr __nv_bfloat16 CUDART_NAN_BF16 = __nv_bfloat16_raw{0x7fff};
inline constexpr __nv_bfloat16 CUDART_MAX_NORMAL_BF16 = __nv_bfloat16_raw{0x7f7f};
inline constexpr __nv_bfloat16 CUDART_MIN_DENORM_BF16 = __nv_bfloat16_raw{0x0001};
inline constexpr __nv_bfloat16 CUDART_ZERO_BF16 = __nv_bfloat16_raw{0x0000};
inline constexpr __nv_bfloat16 CUDART_ONE_BF16 = __nv_bfloat16_raw{0x3f80};

// One line a function from here on: as a table they read best.
// clang-format off

inline unsigned short __bfloat16_as_ushort(const __nv_bfloat16 h) { return __nv_bfloat16_raw(h).x; }
inline short __bfloat16_as_short(const __nv_bfloat16 h) { return static_cast<short>(__nv_bfloat16_raw(h).x); }
inline __nv_bfloat16 __ushort_as_bfloat16(const unsigned short bits) { return __nv_bfloat16_raw{bits}; }
inline __nv_bfloat16 __short_as_bfloat16(const short bits) { return __nv_bfloat16_raw{static_cast<unsigned short>(bits)}; }

// --- Conversions -----------------------------------------------------------------------------------------------------

inline float __bfloat162float(const __nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(const float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(const float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rz(const float f) { return __nv_bfloat16_raw{simt::detail::float_to_bfloat16_toward_zero(f)}; }
inline __nv_bfloat16 __float2bfloat16_rd(const float f) { return __nv_bfloat16_raw{simt::detail::float_to_bfloat16(f, simt::detail::Rounding::down)}; }
inline __nv_bfloat16 __float2bfloat16_ru(const float f) { return __nv_bfloat16_raw{simt::detail::float_to_bfloat16(f, simt::detail::Rounding::up)}; }
inline __nv_bfloat16 __double2bfloat16(const double d) { return d; }

inline __nv_bfloat16 __short2bfloat16_rn(const short i) { return i; }
inline __nv_bfloat16 __ushort2bfloat16_rn(const unsigned short i) { return i; }
inline __nv_bfloat16 __int2bfloat16_rn(const int i) { return i; }
inline __nv_bfloat16 __uint2bfloat16_rn(const unsigned int i) { return i; }
inline __nv_bfloat16 __ll2bfloat16_rn(const long long i) { return i; }
inline __nv_bfloat16 __ull2bfloat16_rn(const unsigned long long i) { return i; }
inline short __bfloat162short_rz(const __nv_bfloat16 h) { return h; }
inline unsigned short __bfloat162ushort_rz(const __nv_bfloat16 h) { return h; }
inline int __bfloat162int_rz(const __nv_bfloat16 h) { return h; }
inline unsigned int __bfloat162uint_rz(const __nv_bfloat16 h) { return h; }
inline long long __bfloat162ll_rz(const __nv_bfloat16 h) { return h; }
inline unsigned long long __bfloat162ull_rz(const __nv_bfloat16 h) { return h; }
inline int __bfloat162int_rn(const __nv_bfloat16 h) { return __float2int_rn(h); }
inline unsigned int __bfloat162uint_rn(const __nv_bfloat16 h) { return __float2uint_rn(h); }

inline __nv_bfloat162 make_bfloat162(const __nv_bfloat16 x, const __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(const __nv_bfloat16 x, const __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(const __nv_bfloat16 h) { return {h, h}; }
inline __nv_bfloat162 __float2bfloat162_rn(const float f) { return {f, f}; }
inline __nv_bfloat162 __floats2bfloat162_rn(const float x, const float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(const float2 f) { return {f.x, f.y}; }
inline float2 __bfloat1622float2(const __nv_bfloat162 h) { return {h.x, h.y}; }
inline __nv_bfloat16 __low2bfloat16(const __nv_bfloat162 h) { return h.x; }
inline __nv_bfloat16 __high2bfloat16(const __nv_bfloat162 h) { return h.y; }
inline float __low2float(const __nv_bfloat162 h) { return h.x; }
inline float __high2float(const __nv_bfloat162 h) { return h.y; }
inline __nv_bfloat162 __low2bfloat162(const __nv_bfloat162 h) { return {h.x, h.x}; }
inline __nv_bfloat162 __high2bfloat162(const __nv_bfloat162 h) { return {h.y, h.y}; }
inline __nv_bfloat162 __lows2bfloat162(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {a.x, b.x}; }
inline __nv_bfloat162 __highs2bfloat162(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {a.y, b.y}; }
inline __nv_bfloat162 __lowhigh2highlow(const __nv_bfloat162 h) { return {h.y, h.x}; }

// --- Comparison: a NaN makes all of these false but __hneu, "unequal or unordered" --------------------------------------

inline bool __hisnan(const __nv_bfloat16 h) { return (__bfloat16_as_ushort(h) & 0x7fff) > 0x7f80; }
inline int __hisinf(const __nv_bfloat16 h) { return (__bfloat16_as_ushort(h) & 0x7fff) != 0x7f80 ? 0 : __bfloat16_as_short(h) < 0 ? -1 : 1; }
inline bool __heq(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) == __bfloat162float(b); }
inline bool __hneu(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) != __bfloat162float(b); }
inline bool __hne(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __hneu(a, b) && !__hisnan(a) && !__hisnan(b); }
inline bool __hlt(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) < __bfloat162float(b); }
inline bool __hle(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) <= __bfloat162float(b); }
inline bool __hgt(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) > __bfloat162float(b); }
inline bool __hge(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) >= __bfloat162float(b); }

// Of pairs: 1 or 0 for each part.
inline __nv_bfloat162 __hisnan2(const __nv_bfloat162 h) { return {float(__hisnan(h.x)), float(__hisnan(h.y))}; }
inline __nv_bfloat162 __heq2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__heq(a.x, b.x)), float(__heq(a.y, b.y))}; }
inline __nv_bfloat162 __hneu2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hneu(a.x, b.x)), float(__hneu(a.y, b.y))}; }
inline __nv_bfloat162 __hne2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hne(a.x, b.x)), float(__hne(a.y, b.y))}; }
inline __nv_bfloat162 __hlt2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hlt(a.x, b.x)), float(__hlt(a.y, b.y))}; }
inline __nv_bfloat162 __hle2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hle(a.x, b.x)), float(__hle(a.y, b.y))}; }
inline __nv_bfloat162 __hgt2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hgt(a.x, b.x)), float(__hgt(a.y, b.y))}; }
inline __nv_bfloat162 __hge2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {float(__hge(a.x, b.x)), float(__hge(a.y, b.y))}; }

// Of pairs: whether it holds for both parts.
inline bool __hbeq2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }
inline bool __hbneu2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hneu(a.x, b.x) && __hneu(a.y, b.y); }
inline bool __hbne2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hne(a.x, b.x) && __hne(a.y, b.y); }
inline bool __hblt2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hlt(a.x, b.x) && __hlt(a.y, b.y); }
inline bool __hble2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hle(a.x, b.x) && __hle(a.y, b.y); }
inline bool __hbgt2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hgt(a.x, b.x) && __hgt(a.y, b.y); }
inline bool __hbge2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return __hge(a.x, b.x) && __hge(a.y, b.y); }

// --- Arithmetic --------------------------------------------------------------------------------------------------------

inline __nv_bfloat16 __hadd(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) + __bfloat162float(b); }
inline __nv_bfloat16 __hsub(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) - __bfloat162float(b); }
inline __nv_bfloat16 __hmul(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) * __bfloat162float(b); }
inline __nv_bfloat16 __hdiv(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __bfloat162float(a) / __bfloat162float(b); }
inline __nv_bfloat16 __hfma(const __nv_bfloat16 a, const __nv_bfloat16 b, const __nv_bfloat16 c) { return simt::detail::fma_to_odd_float(a, b, c); }
inline __nv_bfloat16 __hneg(const __nv_bfloat16 h) { return -__bfloat162float(h); }
inline __nv_bfloat16 __habs(const __nv_bfloat16 h) { return fabsf(h); }

// Of a number and a NaN the number, of two NaNs 0x7fff; and -0 is less than 0.
inline __nv_bfloat16 __hmax(const __nv_bfloat16 a, const __nv_bfloat16 b) {
  if (__hisnan(a)) return __hisnan(b) ? CUDART_NAN_BF16 : b;
  if (__heq(a, b)) return __nv_bfloat16_raw{static_cast<unsigned short>(__bfloat16_as_ushort(a) & __bfloat16_as_ushort(b))};
  return __hlt(a, b) ? b : a;
}
inline __nv_bfloat16 __hmin(const __nv_bfloat16 a, const __nv_bfloat16 b) {
  if (__hisnan(a)) return __hisnan(b) ? CUDART_NAN_BF16 : b;
  if (__heq(a, b)) return __nv_bfloat16_raw{static_cast<unsigned short>(__bfloat16_as_ushort(a) | __bfloat16_as_ushort(b))};
  return __hgt(a, b) ? b : a;
}
// Of anything and a NaN the NaN.
inline __nv_bfloat16 __hmax_nan(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __hisnan(a) || __hisnan(b) ? CUDART_NAN_BF16 : __hmax(a, b); }
inline __nv_bfloat16 __hmin_nan(const __nv_bfloat16 a, const __nv_bfloat16 b) { return __hisnan(a) || __hisnan(b) ? CUDART_NAN_BF16 : __hmin(a, b); }

inline __nv_bfloat162 __hadd2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __nv_bfloat162 __hsub2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __nv_bfloat162 __hmul2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __nv_bfloat162 __h2div(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
inline __nv_bfloat162 __hfma2(const __nv_bfloat162 a, const __nv_bfloat162 b, const __nv_bfloat162 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __nv_bfloat162 __hneg2(const __nv_bfloat162 h) { return {__hneg(h.x), __hneg(h.y)}; }
inline __nv_bfloat162 __habs2(const __nv_bfloat162 h) { return {__habs(h.x), __habs(h.y)}; }
inline __nv_bfloat162 __hmax2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline __nv_bfloat162 __hmin2(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
inline __nv_bfloat162 __hmax2_nan(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
inline __nv_bfloat162 __hmin2_nan(const __nv_bfloat162 a, const __nv_bfloat162 b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }

inline __nv_bfloat16 hsqrt(const __nv_bfloat16 h) { return sqrtf(h); }
inline __nv_bfloat16 hrsqrt(const __nv_bfloat16 h) { return rsqrtf(h); }
inline __nv_bfloat16 hrcp(const __nv_bfloat16 h) { return 1.0f / __bfloat162float(h); }
inline __nv_bfloat16 hexp(const __nv_bfloat16 h) { return expf(h); }
inline __nv_bfloat162 h2sqrt(const __nv_bfloat162 h) { return {hsqrt(h.x), hsqrt(h.y)}; }
inline __nv_bfloat162 h2rsqrt(const __nv_bfloat162 h) { return {hrsqrt(h.x), hrsqrt(h.y)}; }
inline __nv_bfloat162 h2rcp(const __nv_bfloat162 h) { return {hrcp(h.x), hrcp(h.y)}; }
inline __nv_bfloat162 h2exp(const __nv_bfloat162 h) { return {hexp(h.x), hexp(h.y)}; }

// --- Operators -----------------------------------------------------------------------------------------------------------

inline __nv_bfloat16 operator+(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hadd(a, b); }
inline __nv_bfloat16 operator-(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hsub(a, b); }
inline __nv_bfloat16 operator*(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hmul(a, b); }
inline __nv_bfloat16 operator/(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hdiv(a, b); }
inline __nv_bfloat16& operator+=(__nv_bfloat16& a, const __nv_bfloat16& b) { return a = __hadd(a, b); }
inline __nv_bfloat16& operator-=(__nv_bfloat16& a, const __nv_bfloat16& b) { return a = __hsub(a, b); }
inline __nv_bfloat16& operator*=(__nv_bfloat16& a, const __nv_bfloat16& b) { return a = __hmul(a, b); }
inline __nv_bfloat16& operator/=(__nv_bfloat16& a, const __nv_bfloat16& b) { return a = __hdiv(a, b); }
inline __nv_bfloat16& operator++(__nv_bfloat16& h) { return h = __hadd(h, __nv_bfloat16(1.0f)); }
inline __nv_bfloat16& operator--(__nv_bfloat16& h) { return h = __hsub(h, __nv_bfloat16(1.0f)); }
inline __nv_bfloat16 operator++(__nv_bfloat16& h, int) { const __nv_bfloat16 before = h; ++h; return before; }
inline __nv_bfloat16 operator--(__nv_bfloat16& h, int) { const __nv_bfloat16 before = h; --h; return before; }
inline __nv_bfloat16 operator+(const __nv_bfloat16& h) { return h; }
inline __nv_bfloat16 operator-(const __nv_bfloat16& h) { return __hneg(h); }
inline bool operator==(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __heq(a, b); }
inline bool operator!=(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hneu(a, b); }
inline bool operator<(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hlt(a, b); }
inline bool operator<=(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hle(a, b); }
inline bool operator>(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hgt(a, b); }
inline bool operator>=(const __nv_bfloat16& a, const __nv_bfloat16& b) { return __hge(a, b); }

inline __nv_bfloat162 operator+(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hadd2(a, b); }
inline __nv_bfloat162 operator-(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hsub2(a, b); }
inline __nv_bfloat162 operator*(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hmul2(a, b); }
inline __nv_bfloat162 operator/(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __h2div(a, b); }
inline __nv_bfloat162& operator+=(__nv_bfloat162& a, const __nv_bfloat162& b) { return a = __hadd2(a, b); }
inline __nv_bfloat162& operator-=(__nv_bfloat162& a, const __nv_bfloat162& b) { return a = __hsub2(a, b); }
inline __nv_bfloat162& operator*=(__nv_bfloat162& a, const __nv_bfloat162& b) { return a = __hmul2(a, b); }
inline __nv_bfloat162& operator/=(__nv_bfloat162& a, const __nv_bfloat162& b) { return a = __h2div(a, b); }
inline __nv_bfloat162 operator+(const __nv_bfloat162& h) { return h; }
inline __nv_bfloat162 operator-(const __nv_bfloat162& h) { return __hneg2(h); }
// True where it holds for both parts, so that a == b and a != b may both be false.
inline bool operator==(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hbeq2(a, b); }
inline bool operator!=(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hbneu2(a, b); }
inline bool operator<(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hblt2(a, b); }
inline bool operator<=(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hble2(a, b); }
inline bool operator>(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hbgt2(a, b); }
inline bool operator>=(const __nv_bfloat162& a, const __nv_bfloat162& b) { return __hbge2(a, b); }
// clang-format on

inline __half::__half(__nv_bfloat16 value) : __half(static_cast<float>(value)) {}

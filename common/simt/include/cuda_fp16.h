// CUDA's 16-bit float with 5 bits of exponent and 10 of fraction (IEEE 754 binary16): __half, and pairs of them.
//
// Stands where the CUDA Toolkit's header of the same name stands in a GPU build, and gives the same bits as that
// header's host side: results are rounded to nearest even, every NaN that is computed is 0x7fff. Sums, products and
// quotients are computed as floats and rounded once more, which for halves is as good as one rounding: a float has more
// than twice the digits. __hfma rounds its exact result once. (simt/float16.h has the layout and the arithmetic.)
//
// Names of functions say what they round to: __float2half_rz goes toward zero, _rd down, _ru up, _rn or nothing to
// nearest even.
#pragma once

#include "simt/float16.h"
#include "simt/math.h"
#include "vector_functions.h"

// The bits alone.
struct __half_raw {
  unsigned short x;
};
struct alignas(4) __half2_raw {
  unsigned short x, y;
};

struct __nv_bfloat16;

struct __half {
  __half() = default;
  constexpr __half(const __half_raw& raw) : bits_(raw.x) {}
  constexpr operator __half_raw() const { return {bits_}; }

  __half(float value) : bits_(simt::detail::float_to_half(value)) {}
  __half(double value) : bits_(simt::detail::float_to_half(simt::detail::to_odd_float(value))) {}
  __half(short value) : __half(static_cast<float>(value)) {}
  __half(unsigned short value) : __half(static_cast<float>(value)) {}
  __half(int value) : __half(simt::detail::to_odd_double(value)) {}
  __half(unsigned int value) : __half(simt::detail::to_odd_double(value)) {}
  __half(long value) : __half(simt::detail::to_odd_double(value)) {}
  __half(unsigned long value) : __half(simt::detail::to_odd_double(value)) {}
  __half(long long value) : __half(simt::detail::to_odd_double(value)) {}
  __half(unsigned long long value) : __half(simt::detail::to_odd_double(value)) {}
  explicit __half(__nv_bfloat16 value);  // in cuda_bf16.h

  // Integers by dropping the fraction; out of range, the nearest integer there is.
  operator float() const { return simt::detail::half_to_float(bits_); }
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
    return simt::detail::saturating<Integer>(truncf(simt::detail::half_to_float(bits_)));
  }

  unsigned short bits_;
};

struct alignas(4) __half2 {
  __half x, y;

  __half2() = default;
  constexpr __half2(const __half& x, const __half& y) : x(x), y(y) {}
  constexpr __half2(const __half2_raw& raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
  constexpr operator __half2_raw() const { return {__half_raw(x).x, __half_raw(y).x}; }
};

using half = __half;
using half2 = __half2;

inline constexpr __half CUDART_INF_FP16 = __half_raw{0x7c00};
inline constexpr __half CUDART_NAN_FP16 = __half_raw{0x7fff};
inline constexpr __half CUDART_MAX_NORMAL_FP16 = __half_raw{0x7bff};
inline constexpr __half CUDART_MIN_DENORM_FP16 = __half_raw{0x0001};
inline constexpr __half CUDART_ZERO_FP16 = __half_raw{0x0000};
inline constexpr __half CUDART_ONE_FP16 = __half_raw{0x3c00};

// One line a function from here on: as a table they read best.
// clang-format off

inline unsigned short __half_as_ushort(const __half h) { return __half_raw(h).x; }
inline short __half_as_short(const __half h) { return static_cast<short>(__half_raw(h).x); }
inline __half __ushort_as_half(const unsigned short bits) { return __half_raw{bits}; }
inline __half __short_as_half(const short bits) { return __half_raw{static_cast<unsigned short>(bits)}; }

// --- Conversions -----------------------------------------------------------------------------------------------------

inline float __half2float(const __half h) { return h; }
inline __half __float2half(const float f) { return f; }
inline __half __float2half_rn(const float f) { return f; }
inline __half __float2half_rz(const float f) { return __half_raw{simt::detail::float_to_half_toward_zero(f)}; }
inline __half __float2half_rd(const float f) { return __half_raw{simt::detail::float_to_half(f, simt::detail::Rounding::down)}; }
inline __half __float2half_ru(const float f) { return __half_raw{simt::detail::float_to_half(f, simt::detail::Rounding::up)}; }
inline __half __double2half(const double d) { return d; }

inline __half __short2half_rn(const short i) { return i; }
inline __half __ushort2half_rn(const unsigned short i) { return i; }
inline __half __int2half_rn(const int i) { return i; }
inline __half __uint2half_rn(const unsigned int i) { return i; }
inline __half __ll2half_rn(const long long i) { return i; }
inline __half __ull2half_rn(const unsigned long long i) { return i; }
inline short __half2short_rz(const __half h) { return h; }
inline unsigned short __half2ushort_rz(const __half h) { return h; }
inline int __half2int_rz(const __half h) { return h; }
inline unsigned int __half2uint_rz(const __half h) { return h; }
inline long long __half2ll_rz(const __half h) { return h; }
inline unsigned long long __half2ull_rz(const __half h) { return h; }
inline int __half2int_rn(const __half h) { return __float2int_rn(h); }
inline unsigned int __half2uint_rn(const __half h) { return __float2uint_rn(h); }

inline __half2 make_half2(const __half x, const __half y) { return {x, y}; }
inline __half2 __halves2half2(const __half x, const __half y) { return {x, y}; }
inline __half2 __half2half2(const __half h) { return {h, h}; }
inline __half2 __float2half2_rn(const float f) { return {f, f}; }
inline __half2 __floats2half2_rn(const float x, const float y) { return {x, y}; }
inline __half2 __float22half2_rn(const float2 f) { return {f.x, f.y}; }
inline float2 __half22float2(const __half2 h) { return {h.x, h.y}; }
inline __half __low2half(const __half2 h) { return h.x; }
inline __half __high2half(const __half2 h) { return h.y; }
inline float __low2float(const __half2 h) { return h.x; }
inline float __high2float(const __half2 h) { return h.y; }
inline __half2 __low2half2(const __half2 h) { return {h.x, h.x}; }
inline __half2 __high2half2(const __half2 h) { return {h.y, h.y}; }
inline __half2 __lows2half2(const __half2 a, const __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(const __half2 a, const __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(const __half2 h) { return {h.y, h.x}; }

// --- Comparison: a NaN makes all of these false but __hneu, "unequal or unordered" --------------------------------------

inline bool __hisnan(const __half h) { return (__half_as_ushort(h) & 0x7fff) > 0x7c00; }
inline int __hisinf(const __half h) { return (__half_as_ushort(h) & 0x7fff) != 0x7c00 ? 0 : __half_as_short(h) < 0 ? -1 : 1; }
inline bool __heq(const __half a, const __half b) { return __half2float(a) == __half2float(b); }
inline bool __hneu(const __half a, const __half b) { return __half2float(a) != __half2float(b); }
inline bool __hne(const __half a, const __half b) { return __hneu(a, b) && !__hisnan(a) && !__hisnan(b); }
inline bool __hlt(const __half a, const __half b) { return __half2float(a) < __half2float(b); }
inline bool __hle(const __half a, const __half b) { return __half2float(a) <= __half2float(b); }
inline bool __hgt(const __half a, const __half b) { return __half2float(a) > __half2float(b); }
inline bool __hge(const __half a, const __half b) { return __half2float(a) >= __half2float(b); }

// Of pairs: 1 or 0 for each part.
inline __half2 __hisnan2(const __half2 h) { return {float(__hisnan(h.x)), float(__hisnan(h.y))}; }
inline __half2 __heq2(const __half2 a, const __half2 b) { return {float(__heq(a.x, b.x)), float(__heq(a.y, b.y))}; }
inline __half2 __hneu2(const __half2 a, const __half2 b) { return {float(__hneu(a.x, b.x)), float(__hneu(a.y, b.y))}; }
inline __half2 __hne2(const __half2 a, const __half2 b) { return {float(__hne(a.x, b.x)), float(__hne(a.y, b.y))}; }
inline __half2 __hlt2(const __half2 a, const __half2 b) { return {float(__hlt(a.x, b.x)), float(__hlt(a.y, b.y))}; }
inline __half2 __hle2(const __half2 a, const __half2 b) { return {float(__hle(a.x, b.x)), float(__hle(a.y, b.y))}; }
inline __half2 __hgt2(const __half2 a, const __half2 b) { return {float(__hgt(a.x, b.x)), float(__hgt(a.y, b.y))}; }
inline __half2 __hge2(const __half2 a, const __half2 b) { return {float(__hge(a.x, b.x)), float(__hge(a.y, b.y))}; }

// Of pairs: whether it holds for both parts.
inline bool __hbeq2(const __half2 a, const __half2 b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }
inline bool __hbneu2(const __half2 a, const __half2 b) { return __hneu(a.x, b.x) && __hneu(a.y, b.y); }
inline bool __hbne2(const __half2 a, const __half2 b) { return __hne(a.x, b.x) && __hne(a.y, b.y); }
inline bool __hblt2(const __half2 a, const __half2 b) { return __hlt(a.x, b.x) && __hlt(a.y, b.y); }
inline bool __hble2(const __half2 a, const __half2 b) { return __hle(a.x, b.x) && __hle(a.y, b.y); }
inline bool __hbgt2(const __half2 a, const __half2 b) { return __hgt(a.x, b.x) && __hgt(a.y, b.y); }
inline bool __hbge2(const __half2 a, const __half2 b) { return __hge(a.x, b.x) && __hge(a.y, b.y); }

// --- Arithmetic --------------------------------------------------------------------------------------------------------

inline __half __hadd(const __half a, const __half b) { return __half2float(a) + __half2float(b); }
inline __half __hsub(const __half a, const __half b) { return __half2float(a) - __half2float(b); }
inline __half __hmul(const __half a, const __half b) { return __half2float(a) * __half2float(b); }
inline __half __hdiv(const __half a, const __half b) { return __half2float(a) / __half2float(b); }
inline __half __hfma(const __half a, const __half b, const __half c) { return simt::detail::fma_to_odd_float(a, b, c); }
inline __half __hneg(const __half h) { return -__half2float(h); }
inline __half __habs(const __half h) { return fabsf(h); }

// Of a number and a NaN the number, of two NaNs 0x7fff; and -0 is less than 0.
inline __half __hmax(const __half a, const __half b) {
  if (__hisnan(a)) return __hisnan(b) ? CUDART_NAN_FP16 : b;
  if (__heq(a, b)) return __half_raw{static_cast<unsigned short>(__half_as_ushort(a) & __half_as_ushort(b))};
  return __hlt(a, b) ? b : a;
}
inline __half __hmin(const __half a, const __half b) {
  if (__hisnan(a)) return __hisnan(b) ? CUDART_NAN_FP16 : b;
  if (__heq(a, b)) return __half_raw{static_cast<unsigned short>(__half_as_ushort(a) | __half_as_ushort(b))};
  return __hgt(a, b) ? b : a;
}
// Of anything and a NaN the NaN.
inline __half __hmax_nan(const __half a, const __half b) { return __hisnan(a) || __hisnan(b) ? CUDART_NAN_FP16 : __hmax(a, b); }
inline __half __hmin_nan(const __half a, const __half b) { return __hisnan(a) || __hisnan(b) ? CUDART_NAN_FP16 : __hmin(a, b); }

inline __half2 __hadd2(const __half2 a, const __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hsub2(const __half2 a, const __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __half2 __hmul2(const __half2 a, const __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __half2 __h2div(const __half2 a, const __half2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
inline __half2 __hfma2(const __half2 a, const __half2 b, const __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __hneg2(const __half2 h) { return {__hneg(h.x), __hneg(h.y)}; }
inline __half2 __habs2(const __half2 h) { return {__habs(h.x), __habs(h.y)}; }
inline __half2 __hmax2(const __half2 a, const __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline __half2 __hmin2(const __half2 a, const __half2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
inline __half2 __hmax2_nan(const __half2 a, const __half2 b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
inline __half2 __hmin2_nan(const __half2 a, const __half2 b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }

inline __half hsqrt(const __half h) { return sqrtf(h); }
inline __half hrsqrt(const __half h) { return rsqrtf(h); }
inline __half hrcp(const __half h) { return 1.0f / __half2float(h); }
inline __half hexp(const __half h) { return expf(h); }
inline __half2 h2sqrt(const __half2 h) { return {hsqrt(h.x), hsqrt(h.y)}; }
inline __half2 h2rsqrt(const __half2 h) { return {hrsqrt(h.x), hrsqrt(h.y)}; }
inline __half2 h2rcp(const __half2 h) { return {hrcp(h.x), hrcp(h.y)}; }
inline __half2 h2exp(const __half2 h) { return {hexp(h.x), hexp(h.y)}; }

// --- Operators -----------------------------------------------------------------------------------------------------------

inline __half operator+(const __half& a, const __half& b) { return __hadd(a, b); }
inline __half operator-(const __half& a, const __half& b) { return __hsub(a, b); }
inline __half operator*(const __half& a, const __half& b) { return __hmul(a, b); }
inline __half operator/(const __half& a, const __half& b) { return __hdiv(a, b); }
inline __half& operator+=(__half& a, const __half& b) { return a = __hadd(a, b); }
inline __half& operator-=(__half& a, const __half& b) { return a = __hsub(a, b); }
inline __half& operator*=(__half& a, const __half& b) { return a = __hmul(a, b); }
inline __half& operator/=(__half& a, const __half& b) { return a = __hdiv(a, b); }
inline __half& operator++(__half& h) { return h = __hadd(h, __half(1.0f)); }
inline __half& operator--(__half& h) { return h = __hsub(h, __half(1.0f)); }
inline __half operator++(__half& h, int) { const __half before = h; ++h; return before; }
inline __half operator--(__half& h, int) { const __half before = h; --h; return before; }
inline __half operator+(const __half& h) { return h; }
inline __half operator-(const __half& h) { return __hneg(h); }
inline bool operator==(const __half& a, const __half& b) { return __heq(a, b); }
inline bool operator!=(const __half& a, const __half& b) { return __hneu(a, b); }
inline bool operator<(const __half& a, const __half& b) { return __hlt(a, b); }
inline bool operator<=(const __half& a, const __half& b) { return __hle(a, b); }
inline bool operator>(const __half& a, const __half& b) { return __hgt(a, b); }
inline bool operator>=(const __half& a, const __half& b) { return __hge(a, b); }

inline __half2 operator+(const __half2& a, const __half2& b) { return __hadd2(a, b); }
inline __half2 operator-(const __half2& a, const __half2& b) { return __hsub2(a, b); }
inline __half2 operator*(const __half2& a, const __half2& b) { return __hmul2(a, b); }
inline __half2 operator/(const __half2& a, const __half2& b) { return __h2div(a, b); }
inline __half2& operator+=(__half2& a, const __half2& b) { return a = __hadd2(a, b); }
inline __half2& operator-=(__half2& a, const __half2& b) { return a = __hsub2(a, b); }
inline __half2& operator*=(__half2& a, const __half2& b) { return a = __hmul2(a, b); }
inline __half2& operator/=(__half2& a, const __half2& b) { return a = __h2div(a, b); }
inline __half2 operator+(const __half2& h) { return h; }
inline __half2 operator-(const __half2& h) { return __hneg2(h); }
// True where it holds for both parts, so that a == b and a != b may both be false.
inline bool operator==(const __half2& a, const __half2& b) { return __hbeq2(a, b); }
inline bool operator!=(const __half2& a, const __half2& b) { return __hbneu2(a, b); }
inline bool operator<(const __half2& a, const __half2& b) { return __hblt2(a, b); }
inline bool operator<=(const __half2& a, const __half2& b) { return __hble2(a, b); }
inline bool operator>(const __half2& a, const __half2& b) { return __hbgt2(a, b); }
inline bool operator>=(const __half2& a, const __half2& b) { return __hbge2(a, b); }
// clang-format on

// The arithmetic behind cuda_fp16.h and cuda_bf16.h: conversions between float and the bits of the two 16-bit types.
//
//             sign  exponent  fraction   largest   smallest normal   smallest positive
//     float      1         8        23    3.4e38            2^-126              2^-149
//     half       1         5        10     65504             2^-14               2^-24
//     bfloat16   1         8         7    3.4e38            2^-126              2^-133
//
// A bfloat16 is the upper half of a float, which makes it cheap to convert; a half has three more bits of precision
// and a far smaller range. Values between two neighbors go to the nearer one, and a tie to the one whose last bit is
// zero: always rounding ties up would shift every sum of many rounded values by a little, and ties to even cancel.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace simt::detail {

enum class Rounding { toward_zero, down, up };

inline constexpr uint16_t canonical_nan = 0x7fff;  // what CUDA's conversions give for every NaN, in both types

// --- half ------------------------------------------------------------------------------------------------------------

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  uint32_t result;
  if (magnitude < 0x0400) {  // subnormal, a multiple of 2^-24
    result = sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  } else if (magnitude < 0x7c00) {  // the exponent's bias grows from 15 to 127
    result = sign | ((magnitude << 13) + (112u << 23));
  } else {
    result = magnitude == 0x7c00 ? sign | 0x7f800000 : 0x7fffffff;
  }
  return std::bit_cast<float>(result);
}

// To nearest even.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return canonical_nan;
  uint32_t result;
  if (magnitude >= 0x47800000) {  // 65536 and more
    result = 0x7c00;
  } else if (magnitude < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24. That is the last place of a float around 0.5, so this sum rounds
    // there, to even.
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    // 13 bits go. Adding just less than half a unit, or exactly half where the last bit that stays is one, carries
    // where it should; a carry out of the fraction raises the exponent, up to infinity.
    const uint32_t last = (magnitude >> 13) & 1;
    result = (magnitude - (112u << 23) + 0x0fff + last) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

inline uint16_t float_to_half_toward_zero(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return canonical_nan;
  uint32_t result;
  if (magnitude == 0x7f800000) {
    result = 0x7c00;
  } else if (magnitude >= 0x47800000) {
    result = 0x7bff;
  } else if (magnitude < 0x38800000) {
    result = static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f);
  } else {
    result = (magnitude - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

// --- bfloat16 -------------------------------------------------------------------------------------------------------

inline float bfloat16_to_float(uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat16) << 16);
}

// To nearest even.
inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t last = (bits >> 16) & 1;
  const uint32_t rounded = (bits + 0x7fff + last) >> 16;  // as float_to_half does it, with 16 bits to go
  return (bits & 0x7fffffff) > 0x7f800000 ? canonical_nan : static_cast<uint16_t>(rounded);
}

inline uint16_t float_to_bfloat16_toward_zero(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7fffffff) > 0x7f800000 ? canonical_nan : static_cast<uint16_t>(bits >> 16);
}

// --- Directed rounding ----------------------------------------------------------------------------------------------

// `truncated` is `value` rounded toward zero, and `kept` what it stands for. A neighbor farther from zero is the next
// number in the order of the bits, in both types.
inline uint16_t round_directed(uint16_t truncated, float kept, float value, Rounding rounding) {
  const bool inexact = kept < value || kept > value;
  const bool negative = truncated & 0x8000;
  const bool away = inexact && ((rounding == Rounding::up && !negative) || (rounding == Rounding::down && negative));
  return static_cast<uint16_t>(truncated + away);
}

inline uint16_t float_to_half(float value, Rounding rounding) {
  const uint16_t truncated = float_to_half_toward_zero(value);
  return round_directed(truncated, half_to_float(truncated), value, rounding);
}
inline uint16_t float_to_bfloat16(float value, Rounding rounding) {
  const uint16_t truncated = float_to_bfloat16_toward_zero(value);
  return round_directed(truncated, bfloat16_to_float(truncated), value, rounding);
}

// --- From wider types -----------------------------------------------------------------------------------------------
// Rounding twice, to float and then to 16 bits, can end at the wrong neighbor: the first step may move a value onto a
// tie. Rounding to odd prevents it: what a float cannot hold goes to whichever neighbor has a one as its last bit. That
// is never a tie of the second step, and lies on the side of it where the exact value was.

inline float to_odd_float(double value) {
  const float nearest = static_cast<float>(value);
  const double kept = nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (kept == value || value != value || (bits & 1) != 0) return nearest;
  return std::bit_cast<float>(std::fabs(kept) > std::fabs(value) ? bits - 1 : bits + 1);
}

// An integer as a double. Of one that has more than 53 bits the upper 48 stay, and the last of these becomes a one
// where the lower 16 held anything: odd again.
template <class Integer>
double to_odd_double(Integer value) {
  if constexpr (sizeof(Integer) == 8) {
    const Integer top = value >> 53;
    if (top != 0 && top != static_cast<Integer>(-1)) {
      return static_cast<double>((value >> 16) | static_cast<Integer>((value & 0xffff) != 0)) * 0x1p16;
    }
  }
  return static_cast<double>(value);
}

// a * b + c with all its digits, rounded to odd. The arguments are values of a 16-bit type.
inline float fma_to_odd_float(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;  // exact
  const double sum = product + c;
  const double added = sum - product;
  const double lost = (product - (sum - added)) + (c - added);  // what the sum's rounding lost, exactly
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (!(lost < 0 || lost > 0) || (bits & 1) != 0) return to_odd_float(sum);
  return to_odd_float(std::bit_cast<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1));
}

}  // namespace simt::detail

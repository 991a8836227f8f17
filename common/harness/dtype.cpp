#include "common/harness/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace worklog {
namespace {

// Conversions without branches, so that a loop takes several elements at once; those of the toolkit have branches on
// the host. NaNs become what they become there.
float widen(float value) {
  return value;
}
float widen(__half value) {
  const uint32_t bits = std::bit_cast<uint16_t>(value);
  const uint32_t magnitude = (bits & 0x7fff) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);  // exact
  const uint32_t infinite = magnitude > 0x0f800000 ? 0x7fffffff : 0x7f800000 | (bits & 0x8000) << 16;
  return std::bit_cast<float>(magnitude < 0x0f800000 ? finite | (bits & 0x8000) << 16 : infinite);
}
float widen(__nv_bfloat16 value) {
  return std::bit_cast<float>(uint32_t{std::bit_cast<uint16_t>(value)} << 16);
}

__half narrow_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Added to 1/2, a subnormal has its last place where 1/2 has its own: the addition rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7fff : 0x7c00;
  const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
  const uint32_t sign = magnitude > 0x7f800000 ? 0 : bits >> 16 & 0x8000;
  return std::bit_cast<__half>(static_cast<uint16_t>((magnitude < 0x47800000 ? finite : special) | sign));
}

__nv_bfloat16 narrow_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return std::bit_cast<__nv_bfloat16>(static_cast<uint16_t>(is_nan ? 0x7fff : rounded));
}

template <class T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return narrow_to_half(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return narrow_to_bfloat16(value);
  } else {
    return value;
  }
}

// The value of an e4m3: no infinity, and one NaN of each sign.
double widen_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  if (exponent == 15 && mantissa == 7) magnitude = std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

const std::array<double, 256>& e4m3_values() {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> all = {};
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = widen_e4m3(static_cast<uint8_t>(bits));
    return all;
  }();
  return values;
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::e4m3:
      return "e4m3";
    case Dtype::int8:
      return "int8";
    case Dtype::fp32:
      break;
  }
  return "fp32";
}

bool overflows(Dtype dtype, double value) {
  const double largest = largest_of(dtype);
  return std::fabs(value) >= largest + ulp_at(dtype, largest) / 2;
}

void store_elements(Dtype dtype, const float* values, int64_t count, int64_t step, std::byte* data) {
  with_type_of(dtype, [&]<class T>(std::type_identity<T>) {
    T* out = reinterpret_cast<T*>(data);
    if (step == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(values[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i * step] = narrow<T>(values[i]);
    }
  });
}

void load_elements(Dtype dtype, const std::byte* data, int64_t count, int64_t step, double* values) {
  if (dtype == Dtype::e4m3) {
    const std::array<double, 256>& value_of = e4m3_values();
    for (int64_t i = 0; i < count; ++i) values[i] = value_of[std::to_integer<size_t>(data[i * step])];
    return;
  }
  if (dtype == Dtype::int8) {
    for (int64_t i = 0; i < count; ++i) values[i] = std::to_integer<int8_t>(data[i * step]);
    return;
  }
  with_type_of(dtype, [&]<class T>(std::type_identity<T>) {
    const T* in = reinterpret_cast<const T*>(data);
    if (step == 1) {
      for (int64_t i = 0; i < count; ++i) values[i] = widen(in[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) values[i] = widen(in[i * step]);
    }
  });
}

float round_to(Dtype dtype, float value) {
  return with_type_of(dtype, [&]<class T>(std::type_identity<T>) { return widen(narrow<T>(value)); });
}

void round_to(Dtype dtype, int64_t count, double* values) {
  with_type_of(dtype, [&]<class T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i) values[i] = widen(narrow<T>(static_cast<float>(values[i])));
  });
}

double round_to_byte(Dtype dtype, double value) {
  if (std::isnan(value)) return dtype == Dtype::int8 ? 0 : value;
  const double largest = largest_of(dtype);
  const double smallest = dtype == Dtype::int8 ? -128 : -largest;
  const double inside = std::clamp(value, smallest, largest);
  const double unit = ulp_at(dtype, std::fabs(inside));
  return std::nearbyint(inside / unit) * unit;
}

uint32_t load_bits(Dtype dtype, const std::byte* element) {
  uint32_t wide = 0;
  uint16_t narrow = 0;
  if (size_of(dtype) == 1) return std::to_integer<uint32_t>(*element);
  if (size_of(dtype) == 4) {
    std::memcpy(&wide, element, 4);
    return wide;
  }
  std::memcpy(&narrow, element, 2);
  return narrow;
}

void store_bits(Dtype dtype, uint32_t bits, std::byte* element) {
  const uint16_t narrow = static_cast<uint16_t>(bits);
  if (size_of(dtype) == 1) {
    *element = static_cast<std::byte>(bits);
  } else if (size_of(dtype) == 4) {
    std::memcpy(element, &bits, 4);
  } else {
    std::memcpy(element, &narrow, 2);
  }
}

}  // namespace worklog

#include "common/harness/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace worklog {
namespace {

struct Format {
  int digits;        // significant bits, the hidden one included
  int min_exponent;  // of the smallest normal number
  double largest;
};

constexpr Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return {11, -14, 65504.0};
    case Dtype::bf16:
      return {8, -126, 0x1.fep127};
    case Dtype::fp32:
      break;
  }
  return {24, -126, 0x1.fffffep127};
}

float widen(float value) {
  return value;
}
float widen(__half value) {
  return __half2float(value);
}
float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::fp32:
      break;
  }
  return "fp32";
}

int digits_of(Dtype dtype) {
  return format_of(dtype).digits;
}

double largest_of(Dtype dtype) {
  return format_of(dtype).largest;
}

double ulp_at(Dtype dtype, double magnitude) {
  const Format format = format_of(dtype);
  // The exponent straight from the bits: std::ilogb is a call, and this runs once per element compared.
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023;
  const int unit = std::max(exponent, format.min_exponent) - format.digits + 1;
  return std::bit_cast<double>(static_cast<uint64_t>(unit + 1023) << 52);
}

bool overflows(Dtype dtype, double value) {
  const double largest = largest_of(dtype);
  return std::fabs(value) >= largest + ulp_at(dtype, largest) / 2;
}

void store_elements(Dtype dtype, const float* values, int64_t count, int64_t step, std::byte* data) {
  with_type_of(dtype, [&]<class T>(std::type_identity<T>) {
    T* out = reinterpret_cast<T*>(data);
    for (int64_t i = 0; i < count; ++i) out[i * step] = narrow<T>(values[i]);
  });
}

void load_elements(Dtype dtype, const std::byte* data, int64_t count, int64_t step, double* values) {
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

uint32_t load_bits(Dtype dtype, const std::byte* element) {
  uint32_t wide = 0;
  uint16_t narrow = 0;
  if (size_of(dtype) == 4) {
    std::memcpy(&wide, element, 4);
    return wide;
  }
  std::memcpy(&narrow, element, 2);
  return narrow;
}

void store_bits(Dtype dtype, uint32_t bits, std::byte* element) {
  const uint16_t narrow = static_cast<uint16_t>(bits);
  if (size_of(dtype) == 4) {
    std::memcpy(element, &bits, 4);
  } else {
    std::memcpy(element, &narrow, 2);
  }
}

}  // namespace worklog

// Element types: names, sizes, and their values as doubles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>

namespace worklog {

enum class Dtype { fp32, fp16, bf16, e4m3, int8 };  // the last two: only what is stored, as ByteFormat says

template <class T>
constexpr Dtype dtype_of = [] { static_assert(sizeof(T) == 0, "no such element type"); }();
template <>
inline constexpr Dtype dtype_of<float> = Dtype::fp32;
template <>
inline constexpr Dtype dtype_of<__half> = Dtype::fp16;
template <>
inline constexpr Dtype dtype_of<__nv_bfloat16> = Dtype::bf16;

std::string_view name_of(Dtype dtype);  // "fp32", "fp16", "bf16", "e4m3", "int8"
constexpr size_t size_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : dtype == Dtype::fp16 || dtype == Dtype::bf16 ? 2 : 1;
}

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
    case Dtype::e4m3:
      return {4, -6, 448.0};
    case Dtype::int8:  // whole numbers: the unit is 1 everywhere
      return {8, 7, 127.0};
    case Dtype::fp32:
      break;
  }
  return {24, -126, 0x1.fffffep127};
}

// Significant bits, the hidden one included: 24, 11, 8, 4.
constexpr int digits_of(Dtype dtype) {
  return format_of(dtype).digits;
}
// The largest finite value.
constexpr double largest_of(Dtype dtype) {
  return format_of(dtype).largest;
}
// The distance between the values of the type around `magnitude`: one unit of its last place. Never less than the
// type's smallest positive value. `magnitude` is finite and not negative.
constexpr double ulp_at(Dtype dtype, double magnitude) {
  const Format format = format_of(dtype);
  // The exponent straight from the bits: std::ilogb is a call, and this runs once per element compared.
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023;
  const int unit = std::max(exponent, format.min_exponent) - format.digits + 1;
  return std::bit_cast<double>(static_cast<uint64_t>(unit + 1023) << 52);
}
// Whether rounding `value` to the type gives an infinity.
bool overflows(Dtype dtype, double value);

// The next functions take elements that lie `step` apart, counted from data, a multiple of the element's size.
// Stores floats as the type (fp32 or one of 16 bits), rounded to nearest even.
void store_elements(Dtype dtype, const float* values, int64_t count, int64_t step, std::byte* data);
// Loads elements as doubles, exactly.
void load_elements(Dtype dtype, const std::byte* data, int64_t count, int64_t step, double* values);
// `value` rounded to the type and back.
float round_to(Dtype dtype, float value);
// Each of the values rounded to fp32, to the type, and back.
void round_to(Dtype dtype, int64_t count, double* values);
// The value that `value` has in eight bits: rounded to nearest even, and to the largest or the smallest where it is
// past them. A NaN is 0 in int8.
double round_to_byte(Dtype dtype, double value);
// The bits of one element, in the low bits for the smaller types; and an element of these bits.
uint32_t load_bits(Dtype dtype, const std::byte* element);
void store_bits(Dtype dtype, uint32_t bits, std::byte* element);

// Calls function(std::type_identity<T>{}) with T the type that `dtype` names: one that kernels compute with.
template <class Function>
decltype(auto) with_type_of(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::fp16:
      return function(std::type_identity<__half>{});
    case Dtype::bf16:
      return function(std::type_identity<__nv_bfloat16>{});
    case Dtype::e4m3:
    case Dtype::int8:
      throw std::logic_error("no kernel computes with elements of eight bits");
    case Dtype::fp32:
      break;
  }
  return function(std::type_identity<float>{});
}

}  // namespace worklog

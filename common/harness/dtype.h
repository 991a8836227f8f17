// Element types: names, sizes, and their values as doubles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace worklog {

enum class Dtype { fp32, fp16, bf16 };

template <class T>
constexpr Dtype dtype_of = [] { static_assert(sizeof(T) == 0, "no such element type"); }();
template <>
inline constexpr Dtype dtype_of<float> = Dtype::fp32;
template <>
inline constexpr Dtype dtype_of<__half> = Dtype::fp16;
template <>
inline constexpr Dtype dtype_of<__nv_bfloat16> = Dtype::bf16;

std::string_view name_of(Dtype dtype);  // "fp32", "fp16", "bf16"
constexpr size_t size_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

}  // namespace worklog

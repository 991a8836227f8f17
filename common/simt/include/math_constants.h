// CUDA's numerical constants, under its names.
#pragma once

#include "simt/math.h"

inline constexpr float CUDART_INF_F = __int_as_float(0x7f800000);
inline constexpr float CUDART_NAN_F = __int_as_float(0x7fffffff);
inline constexpr float CUDART_MIN_DENORM_F = __int_as_float(0x00000001);
inline constexpr float CUDART_MAX_NORMAL_F = __int_as_float(0x7f7fffff);
inline constexpr float CUDART_ZERO_F = 0.0f;
inline constexpr float CUDART_NEG_ZERO_F = -0.0f;
inline constexpr float CUDART_ONE_F = 1.0f;

inline constexpr double CUDART_INF = __longlong_as_double(0x7ff0000000000000);
inline constexpr double CUDART_NAN = __longlong_as_double(0x7fffffffffffffff);

// The CPU layer's vectors, 16-bit types and intrinsics: against their definitions, and value for value against the CUDA
// Toolkit's headers where those are there.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <math_constants.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/tests/simt_types_probes.h"

namespace worklog {
namespace {

// --- Vectors -------------------------------------------------------------------------------------------------------

template <class T, size_t size, size_t alignment>
constexpr bool is_laid_out =
    sizeof(T) == size &&
    alignof(T) == alignment&& std::is_trivially_copyable_v<T>&& std::is_trivially_default_constructible_v<T>;

static_assert(is_laid_out<char2, 2, 2> && is_laid_out<char3, 3, 1> && is_laid_out<char4, 4, 4>);
static_assert(is_laid_out<uchar2, 2, 2> && is_laid_out<uchar3, 3, 1> && is_laid_out<uchar4, 4, 4>);
static_assert(is_laid_out<short2, 4, 4> && is_laid_out<short3, 6, 2> && is_laid_out<short4, 8, 8>);
static_assert(is_laid_out<ushort2, 4, 4> && is_laid_out<ushort3, 6, 2> && is_laid_out<ushort4, 8, 8>);
static_assert(is_laid_out<int1, 4, 4> && is_laid_out<int2, 8, 8> && is_laid_out<int3, 12, 4>);
static_assert(is_laid_out<int4, 16, 16> && is_laid_out<uint4, 16, 16>);
static_assert(is_laid_out<uint1, 4, 4> && is_laid_out<uint2, 8, 8> && is_laid_out<uint3, 12, 4>);
static_assert(is_laid_out<float1, 4, 4> && is_laid_out<float2, 8, 8> && is_laid_out<float3, 12, 4>);
static_assert(is_laid_out<float4, 16, 16> && is_laid_out<double1, 8, 8> && is_laid_out<double2, 16, 16>);
static_assert(is_laid_out<longlong2, 16, 16> && is_laid_out<ulonglong2, 16, 16> && is_laid_out<double3, 24, 8>);
static_assert(is_laid_out<__half, 2, 2> && is_laid_out<__half2, 4, 4>);
static_assert(is_laid_out<__nv_bfloat16, 2, 2> && is_laid_out<__nv_bfloat162, 4, 4>);
static_assert(sizeof(dim3) == 12 && alignof(dim3) == 4);

TEST(SimtVectors, MakeFillsTheComponentsInOrder) {
  const float4 f = make_float4(1, 2, 3, 4);
  EXPECT_EQ(f.x, 1);
  EXPECT_EQ(f.y, 2);
  EXPECT_EQ(f.z, 3);
  EXPECT_EQ(f.w, 4);
  const uint3 u = make_uint3(5, 6, 7);
  EXPECT_EQ(u.z, 7u);
}

TEST(SimtVectors, AnExtentIsOneWhereNothingIsGiven) {
  constexpr dim3 grid = 7;
  EXPECT_EQ(grid.x, 7u);
  EXPECT_EQ(grid.y, 1u);
  EXPECT_EQ(grid.z, 1u);
  const uint3 as_vector = dim3(2, 3);
  EXPECT_EQ(as_vector.y, 3u);
  EXPECT_EQ(dim3(as_vector).z, 1u);
}

// --- The 16-bit types against their definition -----------------------------------------------------------------------

struct Half {
  using Type = __half;
  using Pair = __half2;
  static constexpr int exponent_bits = 5;
  static constexpr int fraction_bits = 10;
  static uint16_t bits(Type value) { return __half_as_ushort(value); }
  static Type from_bits(uint16_t bits) { return __ushort_as_half(bits); }
  static float to_float(Type value) { return __half2float(value); }
  static Type from_float(float value) { return __float2half(value); }
  static Type from_float_nearest(float value) { return __float2half_rn(value); }
  static Type toward_zero(float value) { return __float2half_rz(value); }
  static Type down(float value) { return __float2half_rd(value); }
  static Type up(float value) { return __float2half_ru(value); }
  static Type from_double(double value) { return __double2half(value); }
  static Pair pair(float x, float y) { return __floats2half2_rn(x, y); }
  static Pair pair(float2 xy) { return __float22half2_rn(xy); }
  static Pair both(float x) { return __float2half2_rn(x); }
  static Pair both(Type x) { return __half2half2(x); }
  static Pair pair(Type x, Type y) { return __halves2half2(x, y); }
  static float2 to_float2(Pair pair) { return __half22float2(pair); }
  static Type low(Pair pair) { return __low2half(pair); }
  static Type high(Pair pair) { return __high2half(pair); }
};

struct Bfloat16 {
  using Type = __nv_bfloat16;
  using Pair = __nv_bfloat162;
  static constexpr int exponent_bits = 8;
  static constexpr int fraction_bits = 7;
  static uint16_t bits(Type value) { return __bfloat16_as_ushort(value); }
  static Type from_bits(uint16_t bits) { return __ushort_as_bfloat16(bits); }
  static float to_float(Type value) { return __bfloat162float(value); }
  static Type from_float(float value) { return __float2bfloat16(value); }
  static Type from_float_nearest(float value) { return __float2bfloat16_rn(value); }
  static Type toward_zero(float value) { return __float2bfloat16_rz(value); }
  static Type down(float value) { return __float2bfloat16_rd(value); }
  static Type up(float value) { return __float2bfloat16_ru(value); }
  static Type from_double(double value) { return __double2bfloat16(value); }
  static Pair pair(float x, float y) { return __floats2bfloat162_rn(x, y); }
  static Pair pair(float2 xy) { return __float22bfloat162_rn(xy); }
  static Pair both(float x) { return __float2bfloat162_rn(x); }
  static Pair both(Type x) { return __bfloat162bfloat162(x); }
  static Pair pair(Type x, Type y) { return __halves2bfloat162(x, y); }
  static float2 to_float2(Pair pair) { return __bfloat1622float2(pair); }
  static Type low(Pair pair) { return __low2bfloat16(pair); }
  static Type high(Pair pair) { return __high2bfloat16(pair); }
};

constexpr uint16_t sign_bit = 0x8000;

// The pattern of infinity, which is the number of finite values that are not negative.
template <class F>
constexpr uint16_t infinity_bits = ((1 << F::exponent_bits) - 1) << F::fraction_bits;

// What a finite pattern stands for, from IEEE 754's definition: (-1)^sign * 1.fraction * 2^(exponent - bias), and
// without the leading one, at the smallest exponent, where the exponent's bits are zero. The pattern of infinity gives
// the value that the exponents' sequence goes on with: what a result must stay half a step below not to overflow.
template <class F>
double value_of(uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> F::fraction_bits;
  const int fraction = bits & ((1 << F::fraction_bits) - 1);
  const int bias = (1 << (F::exponent_bits - 1)) - 1;
  const int significand = fraction + (exponent == 0 ? 0 : 1 << F::fraction_bits);
  const double magnitude = std::ldexp(significand, std::max(exponent, 1) - bias - F::fraction_bits);
  return bits & sign_bit ? -magnitude : magnitude;
}

// `value`, which is finite, rounded to nearest even by looking for its neighbors. long double holds every sum, product
// and fused sum that the tests make without rounding it.
template <class F>
uint16_t nearest_bits(long double value) {
  const uint16_t sign = std::signbit(value) ? sign_bit : 0;
  const long double magnitude = std::fabs(value);
  uint16_t low = 0;  // value_of(low) <= magnitude < value_of(high)
  uint16_t high = infinity_bits<F>;
  if (magnitude >= value_of<F>(high)) return sign | high;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (magnitude < value_of<F>(middle) ? high : low) = middle;
  }
  const long double below = magnitude - value_of<F>(low);
  const long double above = value_of<F>(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return sign | (up ? high : low);
}

template <class F>
class SimtFloat16 : public testing::Test {};
using Formats = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(SimtFloat16, Formats);

TYPED_TEST(SimtFloat16, EveryPatternStandsForItsValueAndComesBack) {
  using F = TypeParam;
  for (int pattern = 0; pattern <= 0xffff; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = F::to_float(F::from_bits(bits));
    if ((bits & 0x7fff) > infinity_bits<F>) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(F::bits(F::from_float(value)), 0x7fff) << bits;
      ASSERT_TRUE(__hisnan(F::from_bits(bits))) << bits;
      continue;
    }
    ASSERT_FALSE(__hisnan(F::from_bits(bits))) << bits;
    if ((bits & 0x7fff) == infinity_bits<F>) {
      ASSERT_EQ(value, bits & sign_bit ? -CUDART_INF_F : CUDART_INF_F);
    } else {
      ASSERT_EQ(value, value_of<F>(bits)) << bits;
      ASSERT_EQ(std::signbit(value), (bits & sign_bit) != 0) << bits;
    }
    for (const auto convert : {F::from_float, F::from_float_nearest, F::toward_zero, F::down, F::up}) {
      ASSERT_EQ(F::bits(convert(value)), bits);
    }
    ASSERT_EQ(F::bits(F::from_double(value)), bits);
  }
}

// Between each two neighbors, the largest and infinity included: just above the lower, just below the middle, at the
// middle, just above it, just below the upper.
TYPED_TEST(SimtFloat16, RoundsAtEveryBoundary) {
  using F = TypeParam;
  const auto expect = [](float value, uint16_t low, bool up) {
    const uint16_t high = low + 1;
    ASSERT_EQ(F::bits(F::from_float(value)), up ? high : low) << value;
    ASSERT_EQ(F::bits(F::from_double(value)), up ? high : low) << value;
    ASSERT_EQ(F::bits(F::toward_zero(value)), low) << value;
    ASSERT_EQ(F::bits(F::down(value)), low) << value;
    ASSERT_EQ(F::bits(F::up(value)), high) << value;
    ASSERT_EQ(F::bits(F::from_float(-value)), sign_bit | (up ? high : low)) << -value;
    ASSERT_EQ(F::bits(F::toward_zero(-value)), sign_bit | low) << -value;
    ASSERT_EQ(F::bits(F::down(-value)), sign_bit | high) << -value;
    ASSERT_EQ(F::bits(F::up(-value)), sign_bit | low) << -value;
  };
  for (uint16_t low = 0; low < infinity_bits<F>; ++low) {
    const uint16_t high = low + 1;
    const float lower = static_cast<float>(value_of<F>(low));
    const double upper = value_of<F>(high);
    const float middle = static_cast<float>((value_of<F>(low) + upper) / 2);  // exact: one more bit
    expect(std::nextafter(lower, CUDART_INF_F), low, false);
    expect(std::nextafter(middle, 0.0f), low, false);
    expect(middle, low, low % 2 == 1);
    expect(std::nextafter(middle, CUDART_INF_F), low, true);
    expect(static_cast<float>(std::nextafter(static_cast<float>(std::min(upper, 0x1.fffffep127)), 0.0f)), low, true);
    // As doubles, from closer than a float could come: rounded once, not first to a float and then again.
    ASSERT_EQ(F::bits(F::from_double(std::nextafter(static_cast<double>(middle), 0.0))), low) << middle;
    ASSERT_EQ(F::bits(F::from_double(std::nextafter(static_cast<double>(middle), CUDART_INF))), high) << middle;
    ASSERT_EQ(F::bits(F::from_double(-std::nextafter(static_cast<double>(middle), CUDART_INF))), sign_bit | high);
  }
}

TYPED_TEST(SimtFloat16, TheEndsOfTheRange) {
  using F = TypeParam;
  constexpr uint16_t infinity = infinity_bits<F>;
  constexpr uint16_t largest = infinity - 1;
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(F::bits(F::from_float(CUDART_MAX_NORMAL_F)), infinity);
  EXPECT_EQ(F::bits(F::toward_zero(CUDART_MAX_NORMAL_F)), largest);
  EXPECT_EQ(F::bits(F::up(CUDART_MAX_NORMAL_F)), infinity);
  EXPECT_EQ(F::bits(F::down(CUDART_MAX_NORMAL_F)), largest);
  EXPECT_EQ(F::bits(F::down(-CUDART_MAX_NORMAL_F)), sign_bit | infinity);
  EXPECT_EQ(F::bits(F::from_double(1e300)), infinity);
  EXPECT_EQ(F::bits(F::from_double(-1e300)), sign_bit | infinity);
  EXPECT_EQ(F::bits(F::from_float(tiny)), 0);
  EXPECT_EQ(F::bits(F::from_float(-tiny)), sign_bit);
  EXPECT_EQ(F::bits(F::up(tiny)), 1);
  EXPECT_EQ(F::bits(F::up(-tiny)), sign_bit);
  EXPECT_EQ(F::bits(F::down(-tiny)), sign_bit | 1);
  EXPECT_EQ(F::bits(F::from_double(1e-300)), 0);
  for (const float nan : {CUDART_NAN_F, -CUDART_NAN_F, __uint_as_float(0x7f800001)}) {
    for (const auto convert : {F::from_float, F::toward_zero, F::down, F::up}) {
      EXPECT_EQ(F::bits(convert(nan)), 0x7fff);
    }
    EXPECT_EQ(F::bits(F::from_double(nan)), 0x7fff);
  }
}

TEST(SimtHalf, KnownValues) {
  EXPECT_EQ(__half_as_ushort(__half(1.0f)), 0x3c00);
  EXPECT_EQ(__half_as_ushort(__half(-2.0f)), 0xc000);
  EXPECT_EQ(__half_as_ushort(__half(1.0f / 3)), 0x3555);
  EXPECT_EQ(__half_as_ushort(__half(65504.0f)), 0x7bff);
  EXPECT_EQ(__half_as_ushort(__half(65519.996f)), 0x7bff);
  EXPECT_EQ(__half_as_ushort(__half(65520.0f)), 0x7c00);
  EXPECT_EQ(__half_as_ushort(__half(0x1p-14f)), 0x0400);
  EXPECT_EQ(__half_as_ushort(__half(0x1p-24f)), 0x0001);
  EXPECT_EQ(__half_as_ushort(__half(0x1p-25f)), 0x0000);
}

TEST(SimtBfloat16, KnownValues) {
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(1.0f)), 0x3f80);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(-2.0f)), 0xc000);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(1.0f / 3)), 0x3eab);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(257.0f)), 0x4380);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(259.0f)), 0x4382);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(0x1.fep127f)), 0x7f7f);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(0x1.ffp127f)), 0x7f80);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(0x1p-133f)), 0x0001);
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(0x1p-134f)), 0x0000);
}

TYPED_TEST(SimtFloat16, IntegersRoundOnce) {
  using F = TypeParam;
  using T = typename F::Type;
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t word = random() >> (i % 64);
    // Half a step above a value, give or take one in the last place: where rounding twice goes wrong.
    const uint64_t near_tie = ((word | 1) << (random() % 56)) + random() % 3 - 1;
    for (const uint64_t magnitude : {word, near_tie}) {
      const int64_t integer = static_cast<int64_t>(magnitude);
      ASSERT_EQ(F::bits(T(static_cast<unsigned long long>(magnitude))), nearest_bits<F>(magnitude)) << magnitude;
      ASSERT_EQ(F::bits(T(static_cast<long long>(integer))), nearest_bits<F>(integer)) << integer;
      ASSERT_EQ(F::bits(T(static_cast<int>(integer))), nearest_bits<F>(static_cast<int>(integer)));
      ASSERT_EQ(F::bits(T(static_cast<unsigned>(integer))), nearest_bits<F>(static_cast<unsigned>(integer)));
    }
  }
  EXPECT_EQ(static_cast<int>(T(-3.75f)), -3);
  EXPECT_EQ(static_cast<unsigned char>(T(-3.75f)), 0);
  EXPECT_EQ(static_cast<unsigned char>(T(1000.0f)), 255);
  EXPECT_EQ(static_cast<int>(F::from_bits(infinity_bits<F>)), std::numeric_limits<int>::max());
  EXPECT_EQ(static_cast<int>(F::from_bits(0x7fff)), 0);
}

// Random finite values whose exponents lie within `spread` of the middle, so that long double holds what is made of
// them; every fourth is half a step or less from another's tie.
template <class F>
uint16_t random_bits(std::mt19937_64& random, int spread) {
  const int bias = (1 << (F::exponent_bits - 1)) - 1;
  const int least = std::max(0, bias - spread);
  const int most = std::min((1 << F::exponent_bits) - 2, bias + spread);
  const int exponent = least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  const int fraction = static_cast<int>(random() & ((1u << F::fraction_bits) - 1));
  return static_cast<uint16_t>(fraction | exponent << F::fraction_bits | (random() % 2 == 0 ? sign_bit : 0));
}

TYPED_TEST(SimtFloat16, ArithmeticRoundsTheExactResultOnce) {
  using F = TypeParam;
  using T = typename F::Type;
  std::mt19937_64 random(2);
  for (int i = 0; i < 300000; ++i) {
    const T a = F::from_bits(random_bits<F>(random, 15));
    const T b = F::from_bits(random_bits<F>(random, 15));
    const T c = F::from_bits(random_bits<F>(random, 15));
    const long double x = value_of<F>(F::bits(a));
    const long double y = value_of<F>(F::bits(b));
    const long double z = value_of<F>(F::bits(c));
    ASSERT_EQ(F::bits(a + b), nearest_bits<F>(x + y));
    ASSERT_EQ(F::bits(__hadd(a, b)), nearest_bits<F>(x + y));
    ASSERT_EQ(F::bits(a - b), nearest_bits<F>(x - y));
    ASSERT_EQ(F::bits(__hsub(a, b)), nearest_bits<F>(x - y));
    ASSERT_EQ(F::bits(a * b), nearest_bits<F>(x * y));
    ASSERT_EQ(F::bits(__hmul(a, b)), nearest_bits<F>(x * y));
    ASSERT_EQ(F::bits(__hfma(a, b, c)), nearest_bits<F>(x * y + z))
        << double(x) << " " << double(y) << " " << double(z);
    if (y != 0) {
      ASSERT_EQ(F::bits(a / b), nearest_bits<F>(x / y));
    }
    ASSERT_EQ(a < b, x < y);
    ASSERT_EQ(a <= b, x <= y);
    ASSERT_EQ(a > b, x > y);
    ASSERT_EQ(a >= b, x >= y);
    ASSERT_EQ(a == b, x == y);
    ASSERT_EQ(a != b, x != y);
    ASSERT_EQ(F::to_float(__hmax(a, b)), std::max(x, y));
    ASSERT_EQ(F::to_float(__hmin(a, b)), std::min(x, y));
    ASSERT_EQ(F::bits(-a), F::bits(a) ^ sign_bit);
    ASSERT_EQ(F::bits(__habs(a)), F::bits(a) & 0x7fff);
  }
}

// The product is a tie, and the summand, however small, must break it. A sum in floats or doubles would lose it.
TYPED_TEST(SimtFloat16, AFusedSumKeepsWhatADoubleLoses) {
  using F = TypeParam;
  using T = typename F::Type;
  const double step = std::ldexp(1.0, -F::fraction_bits);
  const T a(1.5);
  const T b(1 + step);  // a * b = 1.5 + step + step / 2
  const uint16_t one_and_a_half = F::bits(a);
  EXPECT_EQ(F::bits(__hfma(a, b, T(0.0f))), one_and_a_half + 2);  // to even
  const T least = F::from_bits(1);
  EXPECT_EQ(F::bits(__hfma(a, b, least)), one_and_a_half + 2);
  EXPECT_EQ(F::bits(__hfma(a, b, -least)), one_and_a_half + 1);
  EXPECT_EQ(F::bits(__hfma(-a, b, least)), sign_bit | (one_and_a_half + 1));
  EXPECT_EQ(F::bits(__hfma(-a, b, -least)), sign_bit | (one_and_a_half + 2));
}

TYPED_TEST(SimtFloat16, NansAndInfinities) {
  using F = TypeParam;
  using T = typename F::Type;
  const T nan = F::from_bits(0xfdff | infinity_bits<F>);
  const T infinity = F::from_bits(infinity_bits<F>);
  const T one(1.0f);
  const T zero(0.0f);
  ASSERT_TRUE(__hisnan(nan));
  for (const T result : {nan + one, one - nan, nan * zero, one / nan, infinity - infinity, zero * infinity, zero / zero,
                         -nan, __habs(nan), __hfma(infinity, zero, one), __hfma(one, infinity, -infinity),
                         __hmax(nan, nan), __hmax_nan(one, nan), __hmin_nan(nan, one)}) {
    EXPECT_EQ(F::bits(result), 0x7fff);
  }
  EXPECT_EQ(F::bits(one / zero), infinity_bits<F>);
  EXPECT_EQ(F::bits(__hfma(infinity, one, one)), infinity_bits<F>);
  EXPECT_FALSE(nan == nan);
  EXPECT_TRUE(nan != nan);
  EXPECT_FALSE(__hne(nan, one));
  EXPECT_FALSE(nan < one || nan > one || nan <= one || nan >= one);
  EXPECT_EQ(F::bits(__hmax(nan, one)), F::bits(one));
  EXPECT_EQ(F::bits(__hmin(one, nan)), F::bits(one));
  EXPECT_EQ(F::bits(__hmax(-zero, zero)), 0);
  EXPECT_EQ(F::bits(__hmin(zero, -zero)), sign_bit);
  EXPECT_EQ(__hisinf(-infinity), -1);
  EXPECT_EQ(__hisinf(infinity), 1);
  EXPECT_EQ(__hisinf(nan), 0);
}

TYPED_TEST(SimtFloat16, PairsWorkPartByPart) {
  using F = TypeParam;
  using T = typename F::Type;
  const auto expect = [](typename F::Pair pair, float x, float y) {
    EXPECT_EQ(F::to_float(F::low(pair)), x);
    EXPECT_EQ(F::to_float(F::high(pair)), y);
    EXPECT_EQ(F::to_float2(pair).x, x);
    EXPECT_EQ(F::to_float2(pair).y, y);
    EXPECT_EQ(__low2float(pair), x);
    EXPECT_EQ(__high2float(pair), y);
  };
  const auto a = F::pair(3.0f, -8.0f);
  const auto b = F::pair(2.0f, 4.0f);
  expect(a, 3, -8);
  expect(F::pair(make_float2(3, -8)), 3, -8);
  expect(F::pair(T(3.0f), T(-8.0f)), 3, -8);
  expect(F::both(5.0f), 5, 5);
  expect(F::both(T(5.0f)), 5, 5);
  expect(a + b, 5, -4);
  expect(a - b, 1, -12);
  expect(a * b, 6, -32);
  expect(a / b, 1.5f, -2);
  expect(-a, -3, 8);
  expect(__hadd2(a, b), 5, -4);
  expect(__hsub2(a, b), 1, -12);
  expect(__hmul2(a, b), 6, -32);
  expect(__h2div(a, b), 1.5f, -2);
  expect(__hfma2(a, b, a), 9, -40);
  expect(__hneg2(a), -3, 8);
  expect(__habs2(a), 3, 8);
  expect(__hmax2(a, b), 3, 4);
  expect(__hmin2(a, b), 2, -8);
  expect(__hgt2(a, b), 1, 0);
  expect(__hlt2(a, b), 0, 1);
  expect(__heq2(a, F::pair(3.0f, 8.0f)), 1, 0);
  EXPECT_TRUE(a == a);
  EXPECT_FALSE(a == F::pair(3.0f, 8.0f));
  EXPECT_FALSE(a != F::pair(3.0f, 8.0f));
  EXPECT_FALSE(__hbgt2(a, b));
  auto sum = a;
  sum += b;
  sum *= b;
  expect(sum, 10, -16);
}

// nvcc takes h * h and refuses h * 1.0f as ambiguous; so must this layer, or what runs here would not compile there.
template <class T>
constexpr bool multiplies_with_float = requires(T h) {
  h * 1.0f;
};
static_assert(!multiplies_with_float<__half> && !multiplies_with_float<__nv_bfloat16>);
static_assert(!std::is_convertible_v<__half, __nv_bfloat16> && std::is_constructible_v<__half, __nv_bfloat16>);

TEST(SimtFloat16s, ConvertIntoEachOther) {
  EXPECT_EQ(__bfloat16_as_ushort(__nv_bfloat16(__half(1.0f / 3))), 0x3eab);
  EXPECT_EQ(__half_as_ushort(__half(__nv_bfloat16(1e6f))), 0x7c00);
}

// --- Intrinsics -----------------------------------------------------------------------------------------------------

// 1 / sqrt(x) lies within half a last place of r where x (r - half)^2 <= 1 <= x (r + half)^2; in integers, exactly.
// Every significand, with both parities of the exponent: the others scale by powers of two.
TEST(SimtMath, ReciprocalRootIsRightToTheLastBit) {
  __extension__ using Wide = unsigned __int128;
  const Wide one = Wide{1} << 73;
  int64_t wrong = 0;
  for (uint32_t bits = __float_as_uint(1.0f) + 1; bits < __float_as_uint(4.0f); ++bits) {
    const float x = __uint_as_float(bits);
    const Wide scaled_x = static_cast<uint32_t>(x * 0x1p23f);                  // x * 2^23
    const Wide scaled_root = static_cast<uint64_t>(__frsqrt_rn(x) * 0x1p25f);  // r * 2^25, in (2^24, 2^25)
    wrong += scaled_x * (scaled_root - 1) * (scaled_root - 1) > one ||
             scaled_x * (scaled_root + 1) * (scaled_root + 1) < one;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(__frsqrt_rn(1.0f), 1.0f);
  EXPECT_EQ(__frsqrt_rn(0x1p-149f), static_cast<float>(0x1.6a09e667f3bcdp74));
  EXPECT_EQ(__frsqrt_rn(0.0f), CUDART_INF_F);
  EXPECT_TRUE(isnan(__frsqrt_rn(-1.0f)));
}

TEST(SimtMath, RoundedArithmetic) {
  EXPECT_EQ(__fmaf_rn(1 + 0x1p-12f, 1 + 0x1p-12f, -(1 + 0x1p-11f)), 0x1p-24f);  // a product rounded first gives 0
  EXPECT_EQ(__fadd_rn(__fmul_rn(1 + 0x1p-12f, 1 + 0x1p-12f), -(1 + 0x1p-11f)), 0.0f);
  EXPECT_EQ(__fsub_rn(1.0f, 0x1p-25f), 1.0f);
  EXPECT_EQ(__fdiv_rn(1.0f, 3.0f), __frcp_rn(3.0f));
  EXPECT_EQ(__fsqrt_rn(2.0f), 0x1.6a09e6p0f);
  EXPECT_EQ(rsqrtf(4.0f), 0.5f);
  EXPECT_EQ(rsqrt(4.0), 0.5);
  EXPECT_EQ(__fdividef(6.0f, 3.0f), 2.0f);
  EXPECT_EQ(__fdividef(1e38f, 0x1.8p126f), 0.0f);  // the reciprocal of a huge divisor is taken for zero
  EXPECT_TRUE(isnan(__fdividef(CUDART_INF_F, 0x1.8p126f)));
  EXPECT_EQ(__saturatef(-1.0f), 0.0f);
  EXPECT_EQ(__saturatef(0.25f), 0.25f);
  EXPECT_EQ(__saturatef(7.0f), 1.0f);
  EXPECT_EQ(__saturatef(CUDART_NAN_F), 0.0f);
}

TEST(SimtMath, Bits) {
  EXPECT_EQ(__float_as_uint(-1.0f), 0xbf800000u);
  EXPECT_EQ(__uint_as_float(0x40490fdb), 3.14159274f);
  EXPECT_EQ(__int_as_float(__float_as_int(-0.5f)), -0.5f);
  EXPECT_EQ(__longlong_as_double(__double_as_longlong(0.1)), 0.1);
  EXPECT_EQ(__popc(0xffffffffu), 32);
  EXPECT_EQ(__popcll(0x8000000000000001ull), 2);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(-1), 0);
  EXPECT_EQ(__clzll(1), 63);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(1), 1);
  EXPECT_EQ(__ffs(std::numeric_limits<int>::min()), 32);
  EXPECT_EQ(__ffsll(1ll << 40), 41);
  EXPECT_EQ(__brev(0x00000013u), 0xc8000000u);
  EXPECT_EQ(__brevll(0x1ull), 0x8000000000000000ull);
  // The pair 0x01234567'89abcdef, shifted by 8: the upper half after a left shift, the lower after a right one.
  EXPECT_EQ(__funnelshift_l(0x89abcdefu, 0x01234567u, 8), 0x23456789u);
  EXPECT_EQ(__funnelshift_r(0x89abcdefu, 0x01234567u, 8), 0x6789abcdu);
  EXPECT_EQ(__funnelshift_l(1u, 2u, 0), 2u);
  EXPECT_EQ(__funnelshift_r(1u, 2u, 0), 1u);
  // A shift of 32 and more: modulo 32, or with c held at 32.
  EXPECT_EQ(__funnelshift_l(1u, 2u, 33), 4u);
  EXPECT_EQ(__funnelshift_r(4u, 2u, 33), 2u);
  EXPECT_EQ(__funnelshift_lc(1u, 2u, 33), 1u);
  EXPECT_EQ(__funnelshift_rc(1u, 2u, 33), 2u);
}

TEST(SimtMath, ProductsOfIntegers) {
  EXPECT_EQ(__mul24(1000, -3), -3000);
  EXPECT_EQ(__mul24(0x12000003, 5), 15);                  // the upper 8 bits are not looked at
  EXPECT_EQ(__mul24(0x00ffffff, 7), -7);                  // 24 bits of ones are -1
  EXPECT_EQ(__mul24(0x007fffff, 0x007fffff), -16777215);  // 2^46 - 2^24 + 1: the lower 32 bits
  EXPECT_EQ(__umul24(0xff000003u, 5u), 15u);
  EXPECT_EQ(__umul24(0x00ffffffu, 0x00ffffffu), 0xfe000001u);
  EXPECT_EQ(__mulhi(1 << 30, 8), 2);
  EXPECT_EQ(__mulhi(-1, 1), -1);
  EXPECT_EQ(__mulhi(std::numeric_limits<int>::min(), std::numeric_limits<int>::min()), 1 << 30);
  EXPECT_EQ(__umulhi(~0u, ~0u), 0xfffffffeu);
  EXPECT_EQ(__umulhi(0x80000000u, 6u), 3u);
  EXPECT_EQ(__umul64hi(~0ull, ~0ull), 0xfffffffffffffffeull);
  EXPECT_EQ(__umul64hi(0x123456789abcdef0ull, 0x0fedcba987654321ull), 0x0121fa00ad77d742ull);
  EXPECT_EQ(__mul64hi(-1, 1), -1);
  EXPECT_EQ(__mul64hi(-1, -1), 0);
  EXPECT_EQ(__mul64hi(std::numeric_limits<long long>::min(), 6), -3);
  EXPECT_EQ(__mul64hi(0x123456789abcdef0ll, -0x0fedcba987654321ll), ~0x0121fa00ad77d742ll);
}

TEST(SimtMath, Bytes) {
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x3210u), 0x33221100u);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x0527u), 0x00552277u);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0xffff3d88u), 0x33550000u);  // three bits of each digit count
  EXPECT_EQ(__dp4a(0x04030201, 0x01020304, 5), 4 + 6 + 6 + 4 + 5);
  EXPECT_EQ(__dp4a(-1, 0x7f7f7f7f, 1), 1 - 4 * 127);  // bytes with a sign
  EXPECT_EQ(__dp4a(~0u, 0x01010101u, 1u), 1u + 4 * 255);
  EXPECT_EQ(__dp4a(0x01010101, 0x01010101, std::numeric_limits<int>::max()), std::numeric_limits<int>::min() + 3);
  EXPECT_EQ(__sad(-3, 4, 10u), 17u);
  EXPECT_EQ(__sad(std::numeric_limits<int>::max(), std::numeric_limits<int>::min(), 0u), ~0u);
  EXPECT_EQ(__usad(3u, 0u, 1u), 4u);
}

TEST(SimtMath, FloatsToIntegers) {
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rn(3.5f), 4);
  EXPECT_EQ(__float2int_rz(-3.5f), -3);
  EXPECT_EQ(__float2int_rd(-3.5f), -4);
  EXPECT_EQ(__float2int_ru(3.5f), 4);
  EXPECT_EQ(__float2int_rz(1e20f), std::numeric_limits<int>::max());
  EXPECT_EQ(__float2int_rz(-1e20f), std::numeric_limits<int>::min());
  EXPECT_EQ(__float2int_rz(CUDART_NAN_F), 0);
  EXPECT_EQ(__float2uint_rn(-1.0f), 0u);
  EXPECT_EQ(__float2uint_rz(4294967296.0f), std::numeric_limits<unsigned>::max());
}

TEST(SimtMath, SmallerAndLarger) {
  EXPECT_EQ(min(-1, 1), -1);
  EXPECT_EQ(max(-1, 1u), 0xffffffffu);  // as C++ converts them
  EXPECT_EQ(max(3ll, 1ll << 40), 1ll << 40);
  EXPECT_EQ(min(CUDART_NAN_F, 1.0f), 1.0f);
  EXPECT_EQ(max(1.0f, CUDART_NAN_F), 1.0f);
  static_assert(std::same_as<decltype(max(1.0f, 1.0)), double>);
  static_assert(std::same_as<decltype(max(1, 1u)), unsigned>);
  static_assert(std::same_as<decltype(max(1.0f, 2.0f)), float>);
}

// --- Value for value against the CUDA Toolkit's headers -------------------------------------------------------------

#ifdef WORKLOG_TOOLKIT_TYPES

// Arguments for a domain: all of it where it is small, else what is close to a decision, and a pseudo-random rest.
struct Arguments {
  std::vector<uint64_t> a, b;
  void add(uint64_t first, uint64_t second = 0) {
    a.push_back(first);
    b.push_back(second);
  }
};

// The exact value of each pattern and of the middle between it and the next, with the floats or doubles around them.
template <class F, class Wide>
void add_boundaries(Arguments& arguments) {
  using Bits = std::conditional_t<sizeof(Wide) == 4, uint32_t, uint64_t>;
  for (uint16_t low = 0; low <= infinity_bits<F>; ++low) {
    const double middle = (value_of<F>(low) + value_of<F>(low + 1)) / 2;
    for (const double value : {value_of<F>(low), middle}) {
      const Bits bits = std::bit_cast<Bits>(static_cast<Wide>(value));
      for (const Bits magnitude : {bits - 1, bits, bits + 1}) {
        constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
        arguments.add(magnitude & ~sign);
        arguments.add(magnitude | sign);
      }
    }
  }
}

void add_pairs(Arguments& arguments, uint16_t infinity) {
  std::mt19937_64 random(3);
  std::vector<uint16_t> special;
  for (const int magnitude :
       {0, 1, 2, infinity / 64, infinity / 2, infinity - 1, int{infinity}, infinity + 1, 0x7fff}) {
    special.push_back(static_cast<uint16_t>(magnitude));
    special.push_back(static_cast<uint16_t>(magnitude | sign_bit));
  }
  for (const uint16_t one : special) {
    for (uint32_t other = 0; other <= 0xffff; ++other) {
      arguments.add(one, other);
      arguments.add(other, one);
    }
  }
  for (int i = 0; i < 2000000; ++i) {
    const uint64_t word = random();
    arguments.add(word & 0xffff, (word >> 16) & 0xffff);
  }
}

Arguments arguments_for(Domain domain) {
  Arguments arguments;
  std::mt19937_64 random(4);
  const auto add_integers = [&](int bits, bool is_signed) {
    for (int i = 0; i < 1000000; ++i) {
      uint64_t magnitude = random() >> (64 - 1 - random() % static_cast<unsigned>(bits));
      if (i % 2 == 0) magnitude = (magnitude >> (random() % 40) << (random() % 40)) + random() % 3 - 1;  // near a tie
      const uint64_t signed_value = is_signed && random() % 2 == 0 ? 0 - magnitude : magnitude;
      if (bits == 64) {
        arguments.add(signed_value);
      } else {
        arguments.add(is_signed ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(signed_value)})
                                : static_cast<uint32_t>(signed_value));
      }
    }
  };
  switch (domain) {
    case Domain::half:
    case Domain::bfloat16:
      for (uint32_t bits = 0; bits <= 0xffff; ++bits) arguments.add(bits);
      break;
    case Domain::half_pair:
      add_pairs(arguments, infinity_bits<Half>);
      break;
    case Domain::bfloat16_pair:
      add_pairs(arguments, infinity_bits<Bfloat16>);
      break;
    case Domain::float_:
      add_boundaries<Half, float>(arguments);
      add_boundaries<Bfloat16, float>(arguments);
      for (uint64_t bits = 0; bits <= 0xffffffff; bits += 1021) arguments.add(bits);
      break;
    case Domain::double_:
      add_boundaries<Half, double>(arguments);
      add_boundaries<Bfloat16, double>(arguments);
      for (int i = 0; i < 1000000; ++i) arguments.add(random());
      for (int i = 0; i < 1000000; ++i) {  // within the range of the halves
        arguments.add(std::bit_cast<uint64_t>(
            std::ldexp(static_cast<double>(static_cast<int64_t>(random())), static_cast<int>(random() % 48) - 90)));
      }
      break;
    case Domain::int32:
      add_integers(32, true);
      break;
    case Domain::uint32:
      add_integers(32, false);
      break;
    case Domain::int64:
      add_integers(64, true);
      break;
    case Domain::uint64:
      add_integers(64, false);
      break;
  }
  return arguments;
}

TEST(SimtTypesAgainstTheToolkit, EveryFunctionGivesTheSameBits) {
  const Probes ours = cpu_layer_probes();
  const Probes theirs = toolkit_probes();
  ASSERT_EQ(ours.count, theirs.count);
  ASSERT_NE(ours.first, theirs.first);
  Arguments arguments;
  int64_t compared = 0;
  for (size_t i = 0; i < ours.count; ++i) {
    const Probe& own = ours.first[i];
    const Probe& toolkit = theirs.first[i];
    ASSERT_STREQ(own.name, toolkit.name);
    if (i == 0 || own.domain != ours.first[i - 1].domain) arguments = arguments_for(own.domain);
    const size_t count = arguments.a.size();
    std::vector<uint64_t> got(count);
    std::vector<uint64_t> want(count);
    own.apply(arguments.a.data(), arguments.b.data(), got.data(), count);
    toolkit.apply(arguments.a.data(), arguments.b.data(), want.data(), count);
    compared += static_cast<int64_t>(count);
    const size_t first = static_cast<size_t>(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
    if (first < count) {
      ADD_FAILURE() << own.name << " of " << std::hex << arguments.a[first] << ", " << arguments.b[first] << ": got "
                    << got[first] << ", the toolkit " << want[first];
    }
  }
  RecordProperty("compared", std::to_string(compared));
  EXPECT_GT(compared, 100000000);
}

#else

TEST(SimtTypesAgainstTheToolkit, EveryFunctionGivesTheSameBits) {
  GTEST_SKIP() << "the CUDA Toolkit (12.4 or newer), whose headers the types are compared with, was not found";
}

#endif

}  // namespace
}  // namespace worklog

// Element types on the host: the conversions are those of the types' own headers, bit for bit.
#include "common/harness/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace worklog {
namespace {

uint64_t bits_of(double value) {
  return std::bit_cast<uint64_t>(value);
}

// Each exponent with mantissas around every tie of a 16-bit type, and some that lie anywhere.
std::vector<float> telling_floats() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 1 << 16; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x7fffu, 0x8000u,
                               0x8001u, 0xd431u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return values;
}

template <class T, class Narrow, class Widen>
void expect_conversions(const Narrow& narrow, const Widen& widen) {
  constexpr Dtype dtype = dtype_of<T>;
  std::vector<uint16_t> all(1 << 16);
  for (uint32_t bits = 0; bits < all.size(); ++bits) all[bits] = static_cast<uint16_t>(bits);
  std::vector<double> loaded(all.size());
  load_elements(dtype, reinterpret_cast<const std::byte*>(all.data()), 1 << 16, 1, loaded.data());
  for (uint32_t bits = 0; bits < all.size(); ++bits) {
    ASSERT_EQ(bits_of(loaded[bits]), bits_of(widen(std::bit_cast<T>(all[bits])))) << bits;
  }

  const std::vector<float> values = telling_floats();
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> stored(values.size()), apart(2 * values.size());
  store_elements(dtype, values.data(), count, 1, reinterpret_cast<std::byte*>(stored.data()));
  store_elements(dtype, values.data(), count, 2, reinterpret_cast<std::byte*>(apart.data()));
  std::vector<double> rounded(values.begin(), values.end());
  round_to(dtype, count, rounded.data());
  for (int64_t i = 0; i < count; ++i) {
    const T want = narrow(values[i]);
    ASSERT_EQ(stored[i], std::bit_cast<uint16_t>(want)) << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(apart[2 * i], stored[i]);
    ASSERT_EQ(bits_of(rounded[i]), bits_of(widen(want))) << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(bits_of(round_to(dtype, values[i])), bits_of(rounded[i]));
  }
}

TEST(Dtype, HalfIsConvertedAsByItsHeader) {
  expect_conversions<__half>([](float value) { return __float2half_rn(value); },
                             [](__half value) { return __half2float(value); });
}

TEST(Dtype, Bfloat16IsConvertedAsByItsHeader) {
  expect_conversions<__nv_bfloat16>([](float value) { return __float2bfloat16_rn(value); },
                                    [](__nv_bfloat16 value) { return __bfloat162float(value); });
}

// Against the list of all values: the nearest, and of two that are as near the one with the even bits.
TEST(Dtype, EightBitsAreRoundedToTheNearestValue) {
  for (const Dtype dtype : {Dtype::e4m3, Dtype::int8}) {
    std::vector<double> all(256);
    std::vector<uint8_t> bits(256);
    for (int i = 0; i < 256; ++i) bits[i] = static_cast<uint8_t>(i);
    load_elements(dtype, reinterpret_cast<const std::byte*>(bits.data()), 256, 1, all.data());
    EXPECT_EQ(all[1], dtype == Dtype::e4m3 ? 0x1p-9 : 1);
    EXPECT_EQ(all[0x7e], dtype == Dtype::e4m3 ? 448 : 126);
    EXPECT_EQ(all[0x80], dtype == Dtype::e4m3 ? 0 : -128);
    EXPECT_EQ(std::isnan(all[0x7f]), dtype == Dtype::e4m3);
    for (const float value : telling_floats()) {
      const double rounded = round_to_byte(dtype, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(dtype == Dtype::e4m3 ? std::isnan(rounded) : rounded == 0);
        continue;
      }
      const double inside = std::clamp<double>(value, -1000, 1000);  // further out no distance differs
      int best = 0;
      for (int i = 1; i < 256; ++i) {
        const double distance = std::fabs(all[i] - inside), least = std::fabs(all[best] - inside);
        if (distance < least || (distance == least && i % 2 == 0)) best = i;
      }
      ASSERT_EQ(rounded, all[best]) << value;
    }
  }
}

}  // namespace
}  // namespace worklog

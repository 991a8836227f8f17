// Stage 06's conversions to eight bits, against a list of the values that eight bits have: every 16-bit input, and fp32
// inputs on both sides of every boundary. On a GPU that has the instruction, both ways are the same.
#include "06_fused_residual/eight_bits.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/device.h"
#include "common/harness/device_buffer.h"
#include "common/harness/dtype.h"

namespace worklog {
namespace {

using fused_residual::to_bytes;
using fused_residual::to_e4m3;
using fused_residual::to_e4m3_pair;

// Each input alone, and as one of a pair with its neighbour.
struct Converted {
  uint8_t alone, pair, int8, vector;
};

__global__ void convert_all(const float* values, Converted* converted, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const float value = values[i], other = values[i ^ 1];
  const unsigned pair = i % 2 == 0 ? to_e4m3_pair(value, other) : to_e4m3_pair(other, value) >> 8;
  const unsigned word = to_bytes(ByteFormat::e4m3, other, value, value, other);
  const unsigned whole = to_bytes(ByteFormat::int8, other, other, other, value);
  converted[i] = {static_cast<uint8_t>(to_e4m3(value)), static_cast<uint8_t>(pair), static_cast<uint8_t>(whole >> 24),
                  static_cast<uint8_t>((word >> 8 & 0xff) == (word >> 16 & 0xff) ? word >> 8 : 0xaa)};
}

std::vector<Converted> converted(std::vector<float> values) {
  if (values.size() % 2 == 1) values.push_back(0.0f);
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t bytes = count * int64_t{sizeof(float)};
  const DeviceMemory in(bytes), out(count * int64_t{sizeof(Converted)});
  std::vector<Converted> results(values.size());
  check_cuda(cudaMemcpy(in.data(), values.data(), bytes, cudaMemcpyHostToDevice), "copying");
  launch(convert_all, {.grid = static_cast<unsigned>((count + 255) / 256), .block = 256},
         reinterpret_cast<const float*>(in.data()), reinterpret_cast<Converted*>(out.data()), count);
  check_cuda(cudaMemcpy(results.data(), out.data(), results.size() * sizeof(Converted), cudaMemcpyDeviceToHost),
             "copying");
  return results;
}

// The positive values of e4m3 as the format is defined, in the order of their bits: 4 bits of exponent, 3 of mantissa.
std::vector<double> positive_e4m3() {
  std::vector<double> values;
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits / 8, mantissa = bits % 8;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  return values;
}

// The nearest of these, of two that are as near the even one; past the largest the largest.
uint8_t e4m3_of(double value, const std::vector<double>& positive) {
  if (std::isnan(value)) return 0x7f;
  const double magnitude = std::fabs(value);
  size_t above = std::lower_bound(positive.begin(), positive.end(), magnitude) - positive.begin();
  if (above == positive.size()) above = positive.size() - 1;
  size_t nearest = above;
  if (above > 0) {
    const double up = positive[above] - magnitude, down = magnitude - positive[above - 1];
    if (down < up || (down == up && above % 2 == 1)) nearest = above - 1;
  }
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
}

uint8_t int8_of(double value) {
  if (std::isnan(value)) return 0;
  double whole = std::floor(std::clamp(value, -1000.0, 1000.0));
  const double rest = std::clamp(value, -1000.0, 1000.0) - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0)) whole += 1;
  return static_cast<uint8_t>(static_cast<int>(std::clamp(whole, -128.0, 127.0)));
}

class EightBits : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static void expect_all(const std::vector<float>& values) {
    static const std::vector<double> positive = positive_e4m3();
    const std::vector<Converted> got = converted(values);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      ASSERT_EQ(got[i].alone, e4m3_of(values[i], positive)) << values[i] << " " << std::hex << bits;
      ASSERT_EQ(got[i].pair, got[i].alone) << values[i] << " " << std::hex << bits;
      ASSERT_EQ(got[i].vector, got[i].alone) << values[i] << " " << std::hex << bits;
      ASSERT_EQ(got[i].int8, int8_of(values[i])) << values[i] << " " << std::hex << bits;
    }
  }
};

TEST_F(EightBits, EveryHalfAndEveryBfloat16) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    std::vector<uint16_t> all(1 << 16);
    for (uint32_t bits = 0; bits < all.size(); ++bits) all[bits] = static_cast<uint16_t>(bits);
    std::vector<double> wide(all.size());
    load_elements(dtype, reinterpret_cast<const std::byte*>(all.data()), 1 << 16, 1, wide.data());
    expect_all(std::vector<float>(wide.begin(), wide.end()));
  }
}

TEST_F(EightBits, BothSidesOfEveryBoundaryInFp32) {
  std::vector<double> boundaries = positive_e4m3();
  for (size_t i = 1; i < 0x7f; ++i) boundaries.push_back((boundaries[i - 1] + boundaries[i]) / 2);
  for (int whole = 0; whole < 260; ++whole) boundaries.push_back(whole / 2.0);
  boundaries.insert(boundaries.end(), {448, 464, 480, 1e5, 0x1p31, 0x1p32, 0x1p63, 3.4e38, 0x1p-10, 0x1p-126, 0x1p-149,
                                       std::numeric_limits<double>::infinity()});
  std::vector<float> values;
  for (const double boundary : boundaries) {
    const float at = static_cast<float>(boundary);
    for (const float value :
         {at, std::nextafter(at, 0.0f), std::nextafter(at, std::numeric_limits<float>::infinity())}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  expect_all(values);
}

TEST_F(EightBits, FloatsOfEachExponent) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 1 << 16; high += 3) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xd431u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  expect_all(values);
}

}  // namespace
}  // namespace worklog

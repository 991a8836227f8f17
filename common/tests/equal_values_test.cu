// Rows of equal values have no variance, however large the values are and however their sum is rounded: the mean is the
// value, rstd is 1 / sqrt(eps), and y is beta.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "05_welford/final/layer_norm.cuh"
#include "05_welford/held.cuh"
#include "06_fused_residual/final/fused.cuh"
#include "common/device/launch.cuh"
#include "common/harness/device.h"
#include "common/harness/device_buffer.h"
#include "common/harness/dtype.h"

namespace worklog {
namespace {

struct Shape {
  int64_t rows, cols;
  int64_t misalign;  // elements that x starts past a boundary
};

// Each way that the final kernel has through a row: lanes, a block, a cluster, persistent clusters, single elements,
// tiles, and the row read again.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {{3, 1, 0},     {3, 41, 0},    {3, 100, 1},    {3, 777, 0},    {3, 1000, 0},  {3, 1021, 1},
                            {3, 3000, 0},  {3, 4096, 0},  {3, 4097, 0},   {3, 12289, 0},  {2, 16384, 0}, {2, 20000, 0},
                            {2, 50257, 1}, {2, 70001, 0}, {1, 262144, 0}, {300, 20000, 0}};
  all.push_back({device_attribute(cudaDevAttrMultiProcessorCount) * int64_t{131072} / 200 + 1, 50, 0});
  return all;
}

template <class T>
std::vector<float> values() {
  if (dtype_of<T> == Dtype::fp16) return {3.3f, -60000.0f};
  if (dtype_of<T> == Dtype::bf16) return {3.3f, -1.0e10f, 1.3e25f, 3.0e38f};
  return {3.3f, 1.37e7f, -1.0e10f, 1.3e25f, -1.0e30f, 0x1.05p126f, 3.0e38f};
}

template <class T>
class EqualValues : public testing::Test {
 protected:
  static constexpr float eps = 1e-5f;

  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static DeviceBuffer filled(int64_t count, float value, int64_t misalign = 0) {
    const std::vector<float> all(count, value);
    std::vector<std::byte> bytes(count * sizeof(T));
    store_elements(dtype_of<T>, all.data(), count, 1, bytes.data());
    DeviceBuffer buffer(dtype_of<T>, count, misalign);
    buffer.upload(bytes.data());
    return buffer;
  }
  static float rounded(float value) { return static_cast<float>(static_cast<T>(value)); }
  static T* at(const DeviceBuffer& buffer) { return static_cast<T*>(buffer.data()); }

  template <class Element>
  static std::vector<Element> contents(const DeviceBuffer& buffer, int64_t count) {
    std::vector<Element> all(count);
    buffer.download(reinterpret_cast<std::byte*>(all.data()));
    return all;
  }

  // norm(x, gamma, beta, y, mean, rstd, shape) normalizes rows whose every value is `value`.
  template <class Norm>
  static void expect_nothing_left(const Shape& shape, float value, Norm norm) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.cols) + " of " + std::to_string(value));
    const int64_t count = shape.rows * shape.cols;
    const DeviceBuffer x = filled(count, value, shape.misalign), y = filled(count, NAN, shape.misalign);
    const DeviceBuffer gamma = filled(shape.cols, 1.5f), beta = filled(shape.cols, 0.25f);
    const DeviceBuffer mean(Dtype::fp32, shape.rows), rstd(Dtype::fp32, shape.rows);
    norm(at(x), at(gamma), at(beta), at(y), static_cast<float*>(mean.data()), static_cast<float*>(rstd.data()));
    check_cuda(cudaDeviceSynchronize(), "a norm of equal values");
    int64_t wrong = 0;
    for (const T& each : contents<T>(y, count)) wrong += static_cast<float>(each) != 0.25f;
    EXPECT_EQ(wrong, 0) << "elements of y that are not beta";
    for (const float each : contents<float>(mean, shape.rows)) EXPECT_EQ(each, rounded(value));
    for (const float each : contents<float>(rstd, shape.rows)) EXPECT_NEAR(each * std::sqrt(eps), 1.0f, 1e-6f);
  }
};

using Types = testing::Types<float, __half, __nv_bfloat16>;
TYPED_TEST_SUITE(EqualValues, Types);

TYPED_TEST(EqualValues, OfLayerNorm) {
  using T = TypeParam;
  for (const Shape& shape : shapes()) {
    for (const float value : values<T>()) {
      this->expect_nothing_left(shape, value, [&](T* x, T* gamma, T* beta, T* y, float* mean, float* rstd) {
        welford::layer_norm(LayerNormForward<T>{x, gamma, beta, y, mean, rstd, shape.rows, shape.cols, shape.cols,
                                                shape.cols, TestFixture::eps},
                            nullptr);
      });
    }
  }
}

TYPED_TEST(EqualValues, OfTheSum) {
  using T = TypeParam;
  for (const Shape& shape : shapes()) {
    const DeviceBuffer residual = this->filled(shape.rows * shape.cols, 0.0f, shape.misalign);
    const DeviceBuffer h = this->filled(shape.rows * shape.cols, NAN, shape.misalign);
    for (const float value : values<T>()) {
      this->expect_nothing_left(shape, value, [&](T* x, T* gamma, T* beta, T* y, float* mean, float* rstd) {
        fused_residual::add_layer_norm(
            AddLayerNormForward<T>{x, this->at(residual), gamma, beta, this->at(h), y, mean, rstd, shape.rows,
                                   shape.cols, shape.cols, shape.cols, shape.cols, shape.cols, TestFixture::eps},
            nullptr);
      });
    }
  }
}

// A row of equal values is done again. The rows beside it in its warp must not change by that, wherever their mean is.
TEST(EqualValuesBeside, OtherRows) {
  try {
    current_device();
  } catch (const NoDevice& error) {
    GTEST_SKIP() << error.what();
  }
  for (const int64_t cols : {4, 41, 64, 100, 128, 512, 1000, 1024, 3000}) {
    for (const float mean : {0.0f, 1.0f, 0x1p59f, 0x1p64f, 0x1p90f}) {
      SCOPED_TRACE(std::to_string(cols) + " columns about " + std::to_string(mean));
      constexpr int64_t rows = 64;
      std::vector<float> values(rows * cols);
      const float deviation = mean == 0.0f ? 1.0f : mean / 1024;
      for (int64_t i = 0; i < rows * cols; ++i) values[i] = mean + deviation * static_cast<float>((i * 37) % 101 - 50);
      const auto normalized = [&] {
        DeviceBuffer x(Dtype::fp32, rows * cols), y(Dtype::fp32, rows * cols);
        x.upload(reinterpret_cast<const std::byte*>(values.data()));
        welford::layer_norm(
            LayerNormForward<float>{static_cast<float*>(x.data()), nullptr, nullptr, static_cast<float*>(y.data()),
                                    nullptr, nullptr, rows, cols, cols, cols, 1e-5f},
            nullptr);
        check_cuda(cudaDeviceSynchronize(), "a norm");
        std::vector<float> all(rows * cols);
        y.download(reinterpret_cast<std::byte*>(all.data()));
        return all;
      };
      const std::vector<float> before = normalized();
      for (int64_t i = 0; i < cols; ++i) {
        for (const int64_t row : {1, 6, 40}) values[row * cols + i] = 3.3f;
      }
      const std::vector<float> after = normalized();
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t row = i / cols;
        const float want = row == 1 || row == 6 || row == 40 ? 0.0f : before[i];
        ASSERT_EQ(after[i], want) << "row " << row << ", column " << i % cols;
      }
    }
  }
}

// The lesson's kernel. Of a million columns a thread adds up so many values that the first mean may be hundreds of its
// last places off. Then the sum of the squares of the differences is rounded, too.
TYPED_TEST(EqualValues, OfHeld) {
  using T = TypeParam;
  for (const Shape& shape : shapes()) {
    for (const float value : values<T>()) {
      this->expect_nothing_left(shape, value, [&](T* x, T* gamma, T* beta, T* y, float* mean, float* rstd) {
        welford::held(LayerNormForward<T, T>{x, gamma, beta, y, mean, rstd, shape.rows, shape.cols, shape.cols,
                                             shape.cols, TestFixture::eps},
                      nullptr);
      });
    }
  }
}

}  // namespace
}  // namespace worklog

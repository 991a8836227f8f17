// In place: an output that takes the place of an input is the same, bit for bit, as one that has a place of its own.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "05_welford/final/layer_norm.cuh"
#include "06_fused_residual/final/fused.cuh"
#include "common/device/launch.cuh"
#include "common/harness/device.h"
#include "common/harness/device_buffer.h"
#include "common/harness/dtype.h"

namespace worklog {
namespace {

enum class Norm { layer, rms };

// The tensor that an output overwrites.
enum class Over { nothing, x, residual, h };

std::string name_of(Over over) {
  switch (over) {
    case Over::x:
      return "x";
    case Over::residual:
      return "residual";
    case Over::h:
      return "h";
    case Over::nothing:
      break;
  }
  return "nothing";
}

struct Shape {
  int64_t rows, cols;
  int64_t padding;         // elements between a row's end and the next row
  int64_t misalign;        // elements that all tensors start past a boundary
  int64_t residual_shift;  // as many again, of the residual alone: then no vectors are possible at all
};

// Each way that the final kernel has through a row: elements, lanes, a block, several blocks, an element at a time; and
// tiles of narrow rows, so many that a block that stays reads a tile ahead.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {
      {5, 1, 0, 0, 0},    {9, 7, 0, 0, 0},     {6, 33, 0, 1, 0},    {5, 64, 0, 0, 0},    {3, 257, 0, 1, 0},
      {3, 1000, 3, 1, 0}, {3, 1024, 0, 0, 0},  {3, 1024, 0, 0, 1},  {2, 4096, 0, 0, 0},  {2, 4097, 0, 1, 0},
      {3, 4096, 5, 0, 1}, {2, 12288, 0, 0, 0}, {2, 40960, 0, 0, 0}, {1, 33001, 0, 1, 1}, {300, 8192, 0, 0, 0},
  };
  const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  for (const int64_t cols : {50, 127}) all.push_back({multiprocessors * 131072 / (2 * cols) + 1, cols, 0, 0, 0});
  return all;
}

std::vector<std::byte> random_elements(Dtype dtype, int64_t count, unsigned seed, float center) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(center, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  std::vector<std::byte> bytes(count * size_of(dtype));
  store_elements(dtype, values.data(), count, 1, bytes.data());
  return bytes;
}

std::vector<std::byte> contents(const DeviceBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.bytes());
  buffer.download(bytes.data());
  return bytes;
}

struct Outputs {
  std::vector<std::byte> h, y, mean, rstd;
};

// One problem with its inputs, to be solved with the outputs in this place or that.
template <class T>
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape),
        stride_(shape.cols + shape.padding),
        x_(random_elements(dtype_of<T>, shape.rows * stride_, 1, 0.25f)),
        residual_(random_elements(dtype_of<T>, shape.rows * stride_, 2, 0.0f)),
        gamma_(random_elements(dtype_of<T>, shape.cols, 3, 1.0f)),
        beta_(random_elements(dtype_of<T>, shape.cols, 4, 0.0f)) {}

  // With a residual. Every tensor has a buffer; one that is overwritten is used for the output too.
  Outputs add_norm(Norm norm, Over h_over, Over y_over) const {
    DeviceBuffer x = tensor(x_);
    DeviceBuffer residual = tensor(residual_, shape_.residual_shift);
    DeviceBuffer own_h = tensor(x_);
    DeviceBuffer own_y = tensor(x_);
    const DeviceBuffer& h = h_over == Over::x ? x : h_over == Over::residual ? residual : own_h;
    const DeviceBuffer& y = y_over == Over::x ? x : y_over == Over::residual ? residual : y_over == Over::h ? h : own_y;
    const DeviceBuffer gamma = uploaded(gamma_, shape_.cols, 0), beta = uploaded(beta_, shape_.cols, 0);
    const DeviceBuffer mean(Dtype::fp32, shape_.rows), rstd(Dtype::fp32, shape_.rows);
    if (norm == Norm::layer) {
      fused_residual::add_layer_norm(
          AddLayerNormForward<T>{at(x), at(residual), at(gamma), at(beta), at(h), at(y), floats(mean), floats(rstd),
                                 shape_.rows, shape_.cols, stride_, stride_, stride_, stride_, 1e-5f},
          nullptr);
    } else {
      fused_residual::add_rms_norm(
          AddRmsNormForward<T>{at(x), at(residual), at(gamma), at(h), at(y), floats(rstd), shape_.rows, shape_.cols,
                               stride_, stride_, stride_, stride_, 1e-5f},
          nullptr);
    }
    check_cuda(cudaDeviceSynchronize(), "a norm in place");
    for (const DeviceBuffer* buffer : {&x, &residual, &own_h, &own_y}) EXPECT_TRUE(buffer->guard_damage("it").empty());
    return {rows_of(h), rows_of(y), norm == Norm::layer ? contents(mean) : std::vector<std::byte>{}, contents(rstd)};
  }

  // Without one: y on its own, or over x.
  Outputs norm(Norm norm, Over y_over) const {
    DeviceBuffer x = tensor(x_);
    DeviceBuffer own_y = tensor(x_, shape_.residual_shift);
    const DeviceBuffer& y = y_over == Over::x ? x : own_y;
    const DeviceBuffer gamma = uploaded(gamma_, shape_.cols, 0), beta = uploaded(beta_, shape_.cols, 0);
    const DeviceBuffer rstd(Dtype::fp32, shape_.rows);
    if (norm == Norm::layer) {
      welford::layer_norm(LayerNormForward<T>{at(x), at(gamma), at(beta), at(y), nullptr, floats(rstd), shape_.rows,
                                              shape_.cols, stride_, stride_, 1e-5f},
                          nullptr);
    } else {
      fused_residual::rms_norm(
          RmsNormForward<T>{at(x), at(gamma), at(y), floats(rstd), shape_.rows, shape_.cols, stride_, stride_, 1e-5f},
          nullptr);
    }
    check_cuda(cudaDeviceSynchronize(), "a norm in place");
    return {{}, rows_of(y), {}, contents(rstd)};
  }

 private:
  static DeviceBuffer uploaded(const std::vector<std::byte>& bytes, int64_t count, int64_t offset) {
    DeviceBuffer buffer(dtype_of<T>, count, offset);
    buffer.upload(bytes.data());
    return buffer;
  }
  DeviceBuffer tensor(const std::vector<std::byte>& bytes, int64_t shift = 0) const {
    return uploaded(bytes, shape_.rows * stride_, shape_.misalign + shift);
  }
  static T* at(const DeviceBuffer& buffer) { return static_cast<T*>(buffer.data()); }
  static float* floats(const DeviceBuffer& buffer) { return static_cast<float*>(buffer.data()); }

  // Without the padding, which in place is another tensor's.
  std::vector<std::byte> rows_of(const DeviceBuffer& buffer) const {
    const std::vector<std::byte> all = contents(buffer);
    std::vector<std::byte> rows;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      const auto begin = all.begin() + row * stride_ * static_cast<int64_t>(sizeof(T));
      rows.insert(rows.end(), begin, begin + shape_.cols * static_cast<int64_t>(sizeof(T)));
    }
    return rows;
  }

  Shape shape_;
  int64_t stride_;
  std::vector<std::byte> x_, residual_, gamma_, beta_;
};

template <class T>
class InPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

std::string shown(const Shape& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.cols) + ", padding " +
         std::to_string(shape.padding) + ", misaligned by " + std::to_string(shape.misalign) + ", residual by " +
         std::to_string(shape.residual_shift) + " more";
}

using Types = testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(InPlaceTest, Types);

TYPED_TEST(InPlaceTest, YOverX) {
  for (const Shape& shape : shapes()) {
    // Where y lies otherwise than x, it takes another way through the kernel than over x: other roundings.
    if (shape.residual_shift != 0) continue;
    SCOPED_TRACE(shown(shape));
    const Problem<TypeParam> problem(shape);
    for (const Norm norm : {Norm::layer, Norm::rms}) {
      const Outputs apart = problem.norm(norm, Over::nothing);
      const Outputs over_x = problem.norm(norm, Over::x);
      EXPECT_EQ(over_x.y, apart.y);
      EXPECT_EQ(over_x.rstd, apart.rstd);
    }
  }
}

TYPED_TEST(InPlaceTest, TheSumAndItsNormOverWhatTheyAreMadeOf) {
  struct Places {
    Over h, y;
  };
  constexpr Places all[] = {
      {Over::x, Over::nothing},        {Over::residual, Over::nothing}, {Over::nothing, Over::x},
      {Over::nothing, Over::residual}, {Over::x, Over::residual},       {Over::residual, Over::x},
      {Over::nothing, Over::h},        {Over::residual, Over::h},
  };
  for (const Shape& shape : shapes()) {
    const Problem<TypeParam> problem(shape);
    for (const Norm norm : {Norm::layer, Norm::rms}) {
      const Outputs apart = problem.add_norm(norm, Over::nothing, Over::nothing);
      for (const Places& places : all) {
        SCOPED_TRACE(shown(shape) + ", h over " + name_of(places.h) + ", y over " + name_of(places.y));
        const Outputs there = problem.add_norm(norm, places.h, places.y);
        if (places.y != Over::h) {
          EXPECT_EQ(there.h, apart.h);
        }
        EXPECT_EQ(there.y, apart.y);
        EXPECT_EQ(there.mean, apart.mean);
        EXPECT_EQ(there.rstd, apart.rstd);
      }
    }
  }
}

}  // namespace
}  // namespace worklog

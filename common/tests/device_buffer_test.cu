// Device buffers: what goes in comes out, and a write outside is seen.
#include "common/harness/device_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/device/launch.cuh"
#include "common/harness/bind.h"
#include "common/harness/device.h"
#include "common/harness/workspace.h"

namespace worklog {
namespace {

class WorkspaceTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

class DeviceBufferTest : public WorkspaceTest, public testing::WithParamInterface<Dtype> {};

__global__ void write_byte(unsigned char* at, unsigned char value) {
  *at = value;
}

void write_at(void* data, int64_t byte) {
  launch(write_byte, {.grid = 1, .block = 1}, static_cast<unsigned char*>(data) + byte, static_cast<unsigned char>(0));
  check_cuda(cudaDeviceSynchronize(), "writing a byte");
}

std::vector<std::byte> counting(int64_t bytes) {
  std::vector<std::byte> values(bytes);
  for (int64_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + 1);
  return values;
}

TEST_P(DeviceBufferTest, WhatGoesInComesOut) {
  for (const int64_t count : {0, 1, 5, 1000}) {
    DeviceBuffer buffer(GetParam(), count, 3);
    const std::vector<std::byte> values = counting(buffer.bytes());
    std::vector<std::byte> back(values.size());
    buffer.upload(values.data());
    buffer.download(back.data());
    EXPECT_EQ(back, values);
    EXPECT_EQ(buffer.first_difference(values.data()), -1);
    EXPECT_TRUE(buffer.guard_damage("x").empty());
  }
}

// Large copies go in pieces.
TEST_P(DeviceBufferTest, WhatIsLargeGoesInAndComesOut) {
  const int64_t size = static_cast<int64_t>(size_of(GetParam()));
  const int64_t count = (int64_t{70} << 20) / size + 1;
  DeviceBuffer buffer(GetParam(), count, 3);
  std::vector<std::byte> values = counting(buffer.bytes());
  std::vector<std::byte> back(values.size());
  buffer.upload(values.data());
  buffer.download(back.data());
  EXPECT_TRUE(back == values);
  EXPECT_EQ(buffer.first_difference(values.data()), -1);
  EXPECT_TRUE(buffer.guard_damage("x").empty());
  // From the last to the first: of several differences the first counts, also of several in one piece.
  const int64_t piece = (int64_t{32} << 20) / size;
  for (const int64_t element :
       {count - 1, 2 * piece, 2 * piece - 1, piece, piece - 1, piece / 2, int64_t{5}, int64_t{0}}) {
    values[element * size + size - 1] ^= std::byte{1};
    EXPECT_EQ(buffer.first_difference(values.data()), element);
  }
}

TEST_P(DeviceBufferTest, APoisonedBufferHoldsThePatternEverywhere) {
  const int64_t size = static_cast<int64_t>(size_of(GetParam()));
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, (int64_t{5} << 20) / size + 1}) {
    DeviceBuffer buffer(GetParam(), count, 1);
    buffer.poison();
    check_cuda(cudaDeviceSynchronize(), "filling a buffer");
    std::vector<std::byte> expected(buffer.bytes());
    for (int64_t i = 0; i < count; ++i) store_bits(GetParam(), poison_pattern(GetParam()), &expected[i * size]);
    EXPECT_EQ(buffer.first_difference(expected.data()), -1);
    EXPECT_TRUE(buffer.guard_damage("x").empty());
  }
}

TEST_P(DeviceBufferTest, AnOffsetLeavesTheAlignmentOfTheElement) {
  const size_t size = size_of(GetParam());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(DeviceBuffer(GetParam(), 8).data()) % 256, 0u);
  const uintptr_t moved = reinterpret_cast<uintptr_t>(DeviceBuffer(GetParam(), 8, 1).data());
  EXPECT_EQ(moved % 256, size);
}

TEST_P(DeviceBufferTest, AWriteOutsideIsSeen) {
  const int64_t size = static_cast<int64_t>(size_of(GetParam()));
  struct Case {
    int64_t byte;  // from the start of the data
    const char* where;
  };
  const int64_t end = 9 * size;
  for (const Case& c :
       {Case{-1, "1 elements before its start, the nearest 1 before"}, Case{-3 * size, "nearest 3 before"},
        Case{-4096, "before its start"}, Case{end, "1 elements past its end, the nearest 1 past"},
        Case{end + 2 * size, "nearest 3 past"}, Case{end + 4095, "past its end"}}) {
    for (const int64_t offset : {0, 1}) {
      DeviceBuffer buffer(GetParam(), 9, offset);
      write_at(buffer.data(), c.byte);
      const std::vector<std::string> damage = buffer.guard_damage("gamma");
      ASSERT_EQ(damage.size(), 1u) << c.byte;
      EXPECT_NE(damage[0].find("gamma"), std::string::npos) << damage[0];
      EXPECT_NE(damage[0].find(c.where), std::string::npos) << damage[0];
      buffer.restore_guards();
      EXPECT_TRUE(buffer.guard_damage("gamma").empty());
    }
  }
}

TEST_P(DeviceBufferTest, AChangedElementIsFound) {
  const int64_t size = static_cast<int64_t>(size_of(GetParam()));
  DeviceBuffer buffer(GetParam(), 100);
  const std::vector<std::byte> values = counting(buffer.bytes());
  buffer.upload(values.data());
  write_at(buffer.data(), 42 * size);
  EXPECT_EQ(buffer.first_difference(values.data()), 42);
}

TEST_P(DeviceBufferTest, MemoryThatIsNotThereIsRefusedInOneSentence) {
  try {
    DeviceBuffer buffer(GetParam(), int64_t{1} << 50);
    FAIL() << "a PiB could be had";
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the refusal must not be left for the next call";
}

std::string dtype_name(const testing::TestParamInfo<Dtype>& info) {
  return std::string(name_of(info.param));
}
INSTANTIATE_TEST_SUITE_P(Types, DeviceBufferTest, testing::Values(Dtype::fp32, Dtype::fp16, Dtype::bf16), dtype_name);

// The struct that a variant is called with, field by field, for a problem with padding and without gamma.
TEST_F(WorkspaceTest, TensorsAreBoundByName) {
  ProblemOptions options;
  options.operation = Operation::add_layernorm_forward;
  options.dtype = options.param_dtype = Dtype::bf16;
  options.rows = 3;
  options.cols = 5;
  options.row_padding = 2;
  options.eps = 0.25f;
  options.absent = {"gamma"};
  const Problem problem(options);
  const Workspace workspace(problem, 1);
  using Struct = AddLayerNormForward<__nv_bfloat16>;
  const Struct bound = Binding<Struct>::bind(workspace.arguments());
  EXPECT_EQ(bound.rows, 3);
  EXPECT_EQ(bound.cols, 5);
  EXPECT_EQ(bound.x_stride, 7);
  EXPECT_EQ(bound.h_stride, 7);
  EXPECT_EQ(bound.eps, 0.25f);
  EXPECT_EQ(bound.gamma, nullptr);
  for (const void* pointer :
       {static_cast<const void*>(bound.x), static_cast<const void*>(bound.residual),
        static_cast<const void*>(bound.beta), static_cast<const void*>(bound.h), static_cast<const void*>(bound.y),
        static_cast<const void*>(bound.mean), static_cast<const void*>(bound.rstd)}) {
    EXPECT_NE(pointer, nullptr);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bound.y) % 256, 2u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bound.mean) % 256, 4u) << "statistics are fp32, and moved by one of these";
  EXPECT_THROW(Binding<AddLayerNormForward<float>>::bind(workspace.arguments()), std::logic_error)
      << "a struct of another type";
}

TEST_F(WorkspaceTest, AResetBringsBackInputsAndPoison) {
  ProblemOptions options;
  options.rows = 4;
  options.cols = 6;
  const Problem problem(options);
  Workspace workspace(problem, 0);
  workspace.reset();
  const auto bound = Binding<LayerNormForward<float>>::bind(workspace.arguments());
  write_at(const_cast<float*>(bound.x), 0);
  write_at(bound.y, 4);
  write_at(bound.y, -1);
  EXPECT_EQ(workspace.damage().size(), 2u) << "x was changed, and the zone before y was written";
  workspace.reset();
  EXPECT_TRUE(workspace.damage().empty());
  const Comparison comparison = problem.compare(workspace.download());
  EXPECT_FALSE(comparison.passed);
  EXPECT_EQ(comparison.differing, comparison.compared) << "nothing has been written";
  ASSERT_FALSE(comparison.first.empty());
  EXPECT_TRUE(comparison.first[0].never_written);
}

TEST_F(WorkspaceTest, ResultsAreTheSameOnlyBitForBit) {
  ProblemOptions options;
  options.rows = 4;
  options.cols = 6;
  options.row_padding = 2;
  const Problem problem(options);
  Workspace workspace(problem, 0);
  workspace.reset();
  const auto bound = Binding<LayerNormForward<float>>::bind(workspace.arguments());
  const std::vector<HostTensor> results = workspace.download();
  EXPECT_TRUE(workspace.holds(results));
  write_at(const_cast<float*>(bound.x), 0);
  EXPECT_TRUE(workspace.holds(results)) << "inputs are no results; damage() looks at them";
  for (float* const element : {bound.y, bound.y + 29, bound.y + 6, bound.mean, bound.rstd + 3}) {
    workspace.reset();
    EXPECT_TRUE(workspace.holds(results));
    write_at(element, 0);
    EXPECT_FALSE(workspace.holds(results));
  }
}

}  // namespace
}  // namespace worklog

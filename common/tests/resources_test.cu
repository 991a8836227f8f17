// What the harness says that a kernel takes of a multiprocessor.
#include "common/harness/resources.h"

#include <gtest/gtest.h>

#include <string>

#include "common/device/launch.cuh"
#include "common/harness/device.h"

namespace worklog {
namespace {

__global__ void shared_by_the_block(float* out) {
  __shared__ float values[64];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
}

TEST(Resources, NameTheKernelAndItsLaunch) {
  try {
    current_device();
  } catch (const NoDevice& error) {
    GTEST_SKIP() << error.what();
  }
  const KernelResources resources =
      resources_of({reinterpret_cast<const void*>(shared_by_the_block), {.grid = 3, .block = 64, .shared_bytes = 512}});
  EXPECT_NE(resources.kernel.find("shared_by_the_block"), std::string::npos) << resources.kernel;
  EXPECT_EQ(resources.kernel.find("(float"), std::string::npos) << resources.kernel;
  EXPECT_EQ(resources.blocks, 3);
  EXPECT_EQ(resources.threads, 64);
  EXPECT_EQ(resources.dynamic_shared_bytes, 512);
  EXPECT_GE(resources.blocks_per_multiprocessor, 1);
  EXPECT_GT(resources.occupancy, 0);
  EXPECT_LE(resources.occupancy, 1);
#ifdef WORKLOG_BACKEND_GPU
  EXPECT_EQ(resources.static_shared_bytes, 256);
  EXPECT_GT(resources.registers, 0);
#endif
}

__global__ void dynamic_shared_by_the_block(float* out) {
  dynamic_shared<float>()[threadIdx.x] = 1.0f;
  out[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}

// Two threads may launch one kernel with different amounts. Who needs less must not take away what the other has asked
// for and not yet used.
TEST(Resources, ALaunchThatNeedsLessDoesNotLowerTheLimit) {
  try {
    current_device();
  } catch (const NoDevice& error) {
    GTEST_SKIP() << error.what();
  }
  const auto limit = [] {
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(dynamic_shared_by_the_block)),
               "asking for a kernel's attributes");
    return static_cast<size_t>(attributes.maxDynamicSharedSizeBytes);
  };
  const size_t most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - most_static_shared;
  for (const size_t bytes : {most, size_t{49} * 1024, size_t{16} * 1024, size_t{0}}) {
    EXPECT_GE(blocks_at_once(dynamic_shared_by_the_block, 32, bytes), 1) << bytes;
    EXPECT_GE(limit(), most) << bytes;
  }
  EXPECT_TRUE(block_can_have(most));
  EXPECT_FALSE(block_can_have(most + 1));
}

// What is denied is no longer chosen, and is refused where it is launched all the same.
class Denial : public testing::Test {
 protected:
  void SetUp() override {
    try {
      current_device();
    } catch (const NoDevice& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override { denied = {}; }
};

__global__ void alone() {}

TEST_F(Denial, OfClusters) {
  denied.clusters = true;
  const auto kernel = reinterpret_cast<const void*>(alone);
  EXPECT_FALSE(has_clusters(kernel));
  EXPECT_EQ(clusters_at_once(kernel, 2, 32, 0), 0);
  EXPECT_THROW(launch(alone, {.grid = 2, .block = 32, .cluster = 2}), CudaError);
  EXPECT_NO_THROW(launch(alone, {.grid = 2, .block = 32}));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(Denial, OfSharedMemory) {
  denied.shared_bytes = 64 * 1024;
  EXPECT_TRUE(block_can_have(62 * 1024));
  EXPECT_FALSE(block_can_have(62 * 1024 + 1));
  const auto kernel = reinterpret_cast<const void*>(alone);
  EXPECT_NO_THROW(allow_shared_bytes(kernel, 62 * 1024));
  EXPECT_THROW(allow_shared_bytes(kernel, 62 * 1024 + 1), CudaError);
}

TEST_F(Denial, OfMultiprocessorsAndTheRest) {
  const auto kernel = reinterpret_cast<const void*>(alone);
  const int64_t blocks = blocks_at_once(alone, 32, 0);
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int clusters = clusters_at_once(kernel, 2, 32, 0);
  denied.multiprocessors = 1;
  EXPECT_EQ(device_attribute(cudaDevAttrMultiProcessorCount), 1);
  EXPECT_EQ(blocks_at_once(alone, 32, 0), blocks / multiprocessors);
  EXPECT_EQ(clusters_at_once(kernel, 2, 32, 0), clusters / multiprocessors);
  denied.cooperative_launch = denied.dependent_launch = true;
  EXPECT_EQ(device_attribute(cudaDevAttrCooperativeLaunch), 0);
  EXPECT_FALSE(has_dependent_launch(kernel));
}

}  // namespace
}  // namespace worklog

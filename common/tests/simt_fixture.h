// What the suites of the CPU layer share: every order, and arrays that a kernel fills.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/device/launch.cuh"
#include "simt/simt.h"

namespace worklog::test {

// Runs a test with options of its own, and leaves no error to the next.
class SimtTest : public testing::Test {
 protected:
  SimtTest() : before_(simt::options()) {
    simt::Options options;
    options.threads = 2;
    options.print_errors = false;
    simt::set_options(options);
    simt::clear_error();
  }
  ~SimtTest() override {
    simt::clear_error();
    simt::set_options(before_);
  }

 private:
  simt::Options before_;
};

// As above, once for each order.
class SimtOrderTest : public SimtTest, public testing::WithParamInterface<const char*> {
 protected:
  SimtOrderTest() {
    const std::string name = GetParam();
    simt::Options options = simt::options();
    if (name == "reverse") options.order = simt::Order::reverse;
    if (name.starts_with("shuffle")) {
      options.order = simt::Order::shuffle;
      options.seed = std::stoul(name.substr(7));
    }
    simt::set_options(options);
  }
};

#define INSTANTIATE_FOR_EVERY_ORDER(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Orders, suite, testing::Values("forward", "reverse", "shuffle1", "shuffle2"), \
                           [](const auto& order) { return std::string(order.param); })

// `count` values of device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count, T value = T{}) : DeviceArray(std::vector<T>(count, value)) {}
  explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
    check_cuda(cudaMalloc(&data_, count_ * sizeof(T)), "allocating a test's array");
    check_cuda(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "filling it");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  operator T*() { return data_; }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    check_cuda(cudaMemcpy(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "reading a test's array");
    return result;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace worklog::test

// Device memory for one tensor, between guard zones that show a write past either end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/dtype.h"

namespace worklog {

// Device memory that cannot be had; what() is one sentence with the size that was asked for and what is free.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes of device memory, freed at the end. Throws OutOfDeviceMemory.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  std::byte* data() const { return data_; }  // 256-byte aligned

 private:
  std::byte* data_ = nullptr;
};

class DeviceBuffer {
 public:
  static constexpr int64_t guard_bytes = 4096;

  // `count` elements that start `offset` elements past a 256-byte boundary: with an offset of 1, the tensor is aligned
  // to its element and to nothing more. The guard zones hold the poison pattern; the elements are not set.
  DeviceBuffer(Dtype dtype, int64_t count, int64_t offset = 0);

  void* data() const { return memory_.data() + before_bytes(); }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * static_cast<int64_t>(size_of(dtype_)); }

  // All elements, from and to host memory. Both have ended when they return.
  void upload(const std::byte* from);
  void download(std::byte* to) const;
  // Every element becomes the poison pattern. May return before it is there, as copies on the device do.
  void poison();

  // One sentence for each guard zone that was written to: `name` and where.
  std::vector<std::string> guard_damage(std::string_view name) const;
  // Writes the poison pattern to both guard zones.
  void restore_guards();

  // The index of the first element whose bits are not those of `expected` (count() elements on the host); -1 where all
  // are the same. Needs no second copy of the tensor on the host.
  int64_t first_difference(const std::byte* expected) const;

 private:
  int64_t before_bytes() const { return guard_bytes + offset_ * static_cast<int64_t>(size_of(dtype_)); }

  Dtype dtype_;
  int64_t count_, offset_;
  DeviceMemory memory_;
};

}  // namespace worklog

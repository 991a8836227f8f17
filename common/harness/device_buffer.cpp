#include "common/harness/device_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/harness/launch.cuh"
#include "common/harness/problem.h"

namespace worklog {
namespace {

std::byte* allocate(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    constexpr double gib = 1024.0 * 1024 * 1024;
    throw OutOfDeviceMemory(fmt::format("{:.2f} GiB more device memory are needed, and {:.2f} of {:.2f} GiB are free",
                                        bytes / gib, free_bytes / gib, total_bytes / gib));
  }
  check_cuda(error, "allocating device memory");
  return static_cast<std::byte*>(data);
}

void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  check_cuda(cudaMemcpy(to, from, static_cast<size_t>(bytes), kind), "copying to or from the device");
}

std::vector<std::byte> poisoned(Dtype dtype, int64_t bytes) {
  std::vector<std::byte> zone(bytes);
  const int64_t size = static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < bytes; i += size) store_bits(dtype, poison_pattern(dtype), zone.data() + i);
  return zone;
}

}  // namespace

DeviceMemory::DeviceMemory(int64_t bytes) : data_(allocate(bytes)) {}

DeviceMemory::~DeviceMemory() {
  if (data_) cudaFree(data_);  // an error that a kernel left is reported where the kernel ran
}

DeviceBuffer::DeviceBuffer(Dtype dtype, int64_t count, int64_t offset)
    : dtype_(dtype),
      count_(count),
      offset_(offset),
      memory_((count + offset) * static_cast<int64_t>(size_of(dtype)) + 2 * guard_bytes) {
  restore_guards();
}

void DeviceBuffer::restore_guards() {
  const std::vector<std::byte> zone = poisoned(dtype_, before_bytes());
  copy(memory_.data(), zone.data(), before_bytes(), cudaMemcpyHostToDevice);
  copy(memory_.data() + before_bytes() + bytes(), zone.data(), guard_bytes, cudaMemcpyHostToDevice);
}

void DeviceBuffer::upload(const std::byte* from) {
  copy(data(), from, bytes(), cudaMemcpyHostToDevice);
}

void DeviceBuffer::download(std::byte* to) const {
  copy(to, data(), bytes(), cudaMemcpyDeviceToHost);
}

std::vector<std::string> DeviceBuffer::guard_damage(std::string_view name) const {
  const int64_t size = static_cast<int64_t>(size_of(dtype_));
  const std::vector<std::byte> intact = poisoned(dtype_, before_bytes());
  const auto written = [&](int64_t start, int64_t bytes) {  // of the zone: which elements no longer hold the pattern
    std::vector<std::byte> zone(bytes);
    copy(zone.data(), memory_.data() + start, bytes, cudaMemcpyDeviceToHost);
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < bytes; i += size) {
      if (std::memcmp(&zone[i], &intact[i], size) != 0) elements.push_back(i / size);
    }
    return elements;
  };

  std::vector<std::string> sentences;
  const std::vector<int64_t> before = written(0, before_bytes());
  if (!before.empty()) {
    sentences.push_back(
        fmt::format("{} was written outside its bounds: {} elements before its start, the nearest {} before", name,
                    before.size(), before_bytes() / size - before.back()));
  }
  const std::vector<int64_t> after = written(before_bytes() + bytes(), guard_bytes);
  if (!after.empty()) {
    sentences.push_back(fmt::format("{} was written outside its bounds: {} elements past its end, the nearest {} past",
                                    name, after.size(), after.front() + 1));
  }
  return sentences;
}

int64_t DeviceBuffer::first_difference(const std::byte* expected) const {
  constexpr int64_t piece_bytes = int64_t{64} << 20;
  const int64_t size = static_cast<int64_t>(size_of(dtype_));
  std::vector<std::byte> piece(std::min(piece_bytes, bytes()));
  for (int64_t start = 0; start < bytes(); start += piece_bytes) {
    const int64_t length = std::min(piece_bytes, bytes() - start);
    copy(piece.data(), static_cast<std::byte*>(data()) + start, length, cudaMemcpyDeviceToHost);
    if (std::memcmp(piece.data(), expected + start, length) == 0) continue;
    const auto differing = std::mismatch(piece.begin(), piece.begin() + length, expected + start);
    return (start + (differing.first - piece.begin())) / size;
  }
  return -1;
}

}  // namespace worklog

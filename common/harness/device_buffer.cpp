#include "common/harness/device_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "common/device/launch.cuh"
#include "common/harness/host_memory.h"
#include "common/harness/parallel.h"
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

constexpr int64_t piece_bytes = int64_t{32} << 20;
constexpr int64_t bytes_per_task = int64_t{1} << 20;

// Two pieces of pinned memory that large copies go through: while the device has one, all cores work on the other.
// cudaMemcpy would have one core for it. They are made once and kept until the program ends.
class Staging {
 public:
  static Staging& shared() {
    static Staging staging;
    return staging;
  }
  std::byte* piece(int64_t turn) const { return data_ + turn % 2 * piece_bytes; }

 private:
  Staging() {
    void* data = nullptr;
    if (cudaMallocHost(&data, 2 * piece_bytes) == cudaSuccess) {
      data_ = static_cast<std::byte*>(data);
    } else {  // slower, and right
      cudaGetLastError();
      pageable_.resize(2 * piece_bytes);
      data_ = pageable_.data();
    }
  }

  std::byte* data_;
  HostBytes pageable_;
};

void copy_on_all_cores(std::byte* to, const std::byte* from, int64_t bytes) {
  parallel_for(bytes, bytes_per_task,
               [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, end - begin); });
}

// A copy of `bytes` device memory goes on while the host does something else, until wait_for_copy().
void start_copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, nullptr), "copying to or from the device");
}

void wait_for_copy() {
  check_cuda(cudaStreamSynchronize(nullptr), "copying to or from the device");
}

void copy_to_device(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes <= bytes_per_task) return copy(to, from, bytes, cudaMemcpyHostToDevice);
  for (int64_t start = 0, turn = 0; start < bytes; start += piece_bytes, ++turn) {
    const int64_t length = std::min(piece_bytes, bytes - start);
    std::byte* const piece = Staging::shared().piece(turn);
    copy_on_all_cores(piece, from + start, length);
    wait_for_copy();  // of the other piece, which is filled next
    start_copy(to + start, piece, length, cudaMemcpyHostToDevice);
  }
  wait_for_copy();
}

// Calls take(start, length, bytes) for pieces of device memory, from the first to the last, until one returns false.
template <class Take>
void take_from_device(const std::byte* from, int64_t bytes, const Take& take) {
  if (bytes <= bytes_per_task) {
    std::vector<std::byte> all(bytes);
    copy(all.data(), from, bytes, cudaMemcpyDeviceToHost);
    take(int64_t{0}, bytes, all.data());
    return;
  }
  const auto start_piece = [&](int64_t start, int64_t turn) {
    if (start >= bytes) return;
    start_copy(Staging::shared().piece(turn), from + start, std::min(piece_bytes, bytes - start),
               cudaMemcpyDeviceToHost);
  };
  start_piece(0, 0);
  bool more = true;
  for (int64_t start = 0, turn = 0; start < bytes && more; start += piece_bytes, ++turn) {
    wait_for_copy();
    start_piece(start + piece_bytes, turn + 1);
    more = take(start, std::min(piece_bytes, bytes - start), Staging::shared().piece(turn));
  }
  wait_for_copy();  // the piece that was not taken
}

// The index of the first byte that differs, or -1.
int64_t first_differing_byte(const std::byte* one, const std::byte* other, int64_t bytes) {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first{none};
  parallel_for(bytes, bytes_per_task, [&](int64_t begin, int64_t end) {
    if (std::memcmp(one + begin, other + begin, end - begin) == 0) return;
    const int64_t found = std::mismatch(one + begin, one + end, other + begin).first - one;
    for (int64_t seen = first; found < seen && !first.compare_exchange_weak(seen, found);) {
    }
  });
  return first == none ? -1 : first.load();
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
  copy_to_device(memory_.data() + before_bytes(), from, bytes());
}

void DeviceBuffer::download(std::byte* to) const {
  take_from_device(memory_.data() + before_bytes(), bytes(),
                   [&](int64_t start, int64_t length, const std::byte* piece) {
                     copy_on_all_cores(to + start, piece, length);
                     return true;
                   });
}

void DeviceBuffer::poison() {
  std::byte* const start = memory_.data() + before_bytes();
  const std::vector<std::byte> pattern = poisoned(dtype_, std::min(bytes(), bytes_per_task));
  int64_t filled = static_cast<int64_t>(pattern.size());
  copy(start, pattern.data(), filled, cudaMemcpyHostToDevice);
  while (filled < bytes()) {
    const int64_t more = std::min(filled, bytes() - filled);
    copy(start + filled, start, more, cudaMemcpyDeviceToDevice);
    filled += more;
  }
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
  int64_t differing = -1;
  take_from_device(memory_.data() + before_bytes(), bytes(),
                   [&](int64_t start, int64_t length, const std::byte* piece) {
                     const int64_t byte = first_differing_byte(piece, expected + start, length);
                     if (byte >= 0) differing = (start + byte) / static_cast<int64_t>(size_of(dtype_));
                     return byte < 0;
                   });
  return differing;
}

}  // namespace worklog

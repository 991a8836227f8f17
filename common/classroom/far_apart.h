// A tensor whose rows lie so far apart that 32 bits do not hold a row's offset, at the price of the rows alone.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#ifdef WORKLOG_BACKEND_CPU
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#else
#include "common/harness/launch.cuh"
#endif

namespace worklog {

// A copy of `rows` rows of `cols` floats, with `stride` elements from a row to the next.
//
// On the CPU layer it is a range of addresses of which only the pages under the rows can be used. All else is a fault:
// between the rows, and before the first one, where an offset that has wrapped around leads. On a GPU it is an
// allocation of that size, (rows - 1) * stride * 4 bytes. Throws where it cannot be had.
class FarApart {
 public:
  // Row i of `from` starts at from + i * from_stride.
  FarApart(const float* from, int64_t rows, int64_t cols, int64_t from_stride, int64_t stride, cudaStream_t stream)
      : stride_(stride) {
    if (rows == 0) return;
    const size_t row_bytes = static_cast<size_t>(cols) * sizeof(float);
    const size_t bytes = static_cast<size_t>(rows - 1) * static_cast<size_t>(stride) * sizeof(float) + row_bytes;
#ifdef WORKLOG_BACKEND_CPU
    static_cast<void>(stream);
    constexpr size_t page = 4096;
    const size_t half = (bytes + page - 1) / page * page;
    mapped_bytes_ = 2 * half;
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::runtime_error("there is no address space for rows that lie so far apart");
    first_ = reinterpret_cast<float*>(static_cast<char*>(mapping_) + half);
    for (int64_t row = 0; row < rows; ++row) {
      float* const to = first_ + row * stride;
      const auto address = reinterpret_cast<uintptr_t>(to);
      const uintptr_t begin = address / page * page;
      const uintptr_t end = (address + row_bytes + page - 1) / page * page;
      if (mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping_, mapped_bytes_);
        throw std::runtime_error("there is no memory for rows that lie so far apart");
      }
      std::memcpy(to, from + row * from_stride, row_bytes);
    }
#else
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&first_), bytes), "allocating rows that lie far apart");
    for (int64_t row = 0; row < rows; ++row) {
      check_cuda(
          cudaMemcpyAsync(first_ + row * stride, from + row * from_stride, row_bytes, cudaMemcpyDeviceToDevice, stream),
          "copying rows that lie far apart");
    }
#endif
  }
  ~FarApart() {
#ifdef WORKLOG_BACKEND_CPU
    if (mapping_) munmap(mapping_, mapped_bytes_);
#else
    cudaFree(first_);
#endif
  }
  FarApart(const FarApart&) = delete;
  FarApart& operator=(const FarApart&) = delete;

  const float* first() const {
    return first_;
  }
  int64_t stride() const {
    return stride_;
  }

 private:
  int64_t stride_;
  float* first_ = nullptr;
#ifdef WORKLOG_BACKEND_CPU
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
#endif
};

}  // namespace worklog

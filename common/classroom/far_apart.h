// A tensor whose rows lie so far apart that 32 bits do not hold a row's offset, at the price of the rows alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/device/launch.cuh"

#ifdef WORKLOG_BACKEND_CPU
#include <sys/mman.h>

#include <stdexcept>
#endif

namespace worklog {

// Rows of a matrix, as a kernel takes them: row i starts at first + i * stride.
struct FarRows {
  float* first;
  int64_t stride;  // elements
};

__global__ void copy_rows(const float* from, int64_t from_stride, FarRows to, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    to.first[row * to.stride + col] = from[row * from_stride + col];
  }
}

// A copy of `rows` rows of `cols` floats in device memory, with `stride` elements from a row to the next.
//
// On the CPU layer it is a range of addresses of which only the pages under the rows can be used. All else is a fault:
// between the rows, and before the first one, where an offset that has wrapped around leads. On a GPU it is an
// allocation of that size, (rows - 1) * stride * 4 bytes. Throws where it cannot be had. It must outlive what reads it.
class FarApart {
 public:
  // Row i of `from` starts at from + i * from_stride. Asynchronous in `stream`.
  FarApart(const float* from, int64_t rows, int64_t cols, int64_t from_stride, int64_t stride, cudaStream_t stream)
      : rows_{nullptr, stride} {
    if (rows == 0) return;
    const size_t row_bytes = static_cast<size_t>(cols) * sizeof(float);
    allocate(rows, static_cast<size_t>(rows - 1) * static_cast<size_t>(stride) * sizeof(float) + row_bytes, row_bytes);
    launch(copy_rows, {.grid = static_cast<unsigned>(rows), .block = 256, .stream = stream}, from, from_stride, rows_,
           cols);
  }
  FarApart(const FarApart&) = delete;
  FarApart& operator=(const FarApart&) = delete;

  const float* first() const { return rows_.first; }
  int64_t stride() const { return rows_.stride; }

#ifdef WORKLOG_BACKEND_CPU
  ~FarApart() {
    if (mapping_) munmap(mapping_, mapped_bytes_);
  }

 private:
  void allocate(int64_t rows, size_t bytes, size_t row_bytes) {
    constexpr size_t page = 4096;
    const size_t half = (bytes + page - 1) / page * page;
    void* const mapping = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::runtime_error("there is no address space for rows that lie so far apart");
    mapping_ = mapping;
    mapped_bytes_ = 2 * half;
    rows_.first = reinterpret_cast<float*>(static_cast<char*>(mapping) + half);
    for (int64_t row = 0; row < rows; ++row) {
      const auto begin = reinterpret_cast<uintptr_t>(rows_.first + row * rows_.stride);
      const uintptr_t first_page = begin / page * page;
      if (mprotect(reinterpret_cast<void*>(first_page), begin + row_bytes - first_page, PROT_READ | PROT_WRITE) != 0) {
        throw std::runtime_error("there is no memory for rows that lie so far apart");
      }
    }
  }

  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
#else
  ~FarApart() {
    cudaFree(rows_.first);
  }

 private:
  void allocate(int64_t, size_t bytes, size_t) {
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&rows_.first), bytes), "allocating rows that lie far apart");
  }
#endif

  FarRows rows_;
};

}  // namespace worklog

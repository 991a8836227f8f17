#include "common/device/launch.cuh"
#include "common/library/zeros.cuh"

namespace worklog::library {
namespace {

__global__ void zero_bytes(unsigned char* data, int64_t bytes) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < bytes) data[i] = 0;
}

}  // namespace

void write_zeros(void* data, int64_t bytes, cudaStream_t stream) {
  constexpr unsigned threads = 256;
  const auto blocks = static_cast<unsigned>((bytes + threads - 1) / threads);
  launch(zero_bytes, {.grid = blocks, .block = threads, .stream = stream}, static_cast<unsigned char*>(data), bytes);
}

}  // namespace worklog::library

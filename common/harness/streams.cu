#include "common/harness/streams.h"

#include <stdexcept>

#include "common/device/launch.cuh"

namespace worklog {
namespace {

template <int reads, int writes>
__global__ void move_vectors(StreamArrays arrays, int64_t vectors) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  uint4 sum = make_uint4(0, 0, 0, 0);
  for (int k = 0; k < reads; ++k) {
    const uint4 v = reinterpret_cast<const uint4*>(arrays.in[k])[i];
    sum = make_uint4(sum.x ^ v.x, sum.y ^ v.y, sum.z ^ v.z, sum.w ^ v.w);
  }
  for (int k = 0; k < writes; ++k) reinterpret_cast<uint4*>(arrays.out[k])[i] = sum;
  // A stream without writes must still need what it reads, or the compiler drops the loads. The four words of a vector
  // are hardly ever these.
  if (writes == 0 && sum.x == 0x9e3779b9 && sum.y == 0x7f4a7c15 && sum.z == 0xf39cc060 && sum.w == 0x5cedc834) {
    *reinterpret_cast<uint4*>(arrays.out[0]) = sum;
  }
}

__global__ void do_nothing() {}

template <int reads, int writes>
void launch_move(const StreamArrays& arrays, int64_t bytes, cudaStream_t stream) {
  constexpr unsigned threads = 256;
  const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4));
  if (vectors == 0) return;
  const unsigned blocks = static_cast<unsigned>((vectors + threads - 1) / threads);
  launch(move_vectors<reads, writes>, {.grid = blocks, .block = threads, .stream = stream}, arrays, vectors);
}

template <int reads>
void launch_move(int writes, const StreamArrays& arrays, int64_t bytes, cudaStream_t stream) {
  switch (writes) {
    case 0:
      return launch_move<reads, 0>(arrays, bytes, stream);
    case 1:
      return launch_move<reads, 1>(arrays, bytes, stream);
    case 2:
      return launch_move<reads, 2>(arrays, bytes, stream);
    default:
      throw std::invalid_argument("a stream has 0 to 2 writes");
  }
}

}  // namespace

void launch_stream(int reads, int writes, const StreamArrays& arrays, int64_t bytes, cudaStream_t stream) {
  switch (reads) {
    case 1:
      return launch_move<1>(writes, arrays, bytes, stream);
    case 2:
      return launch_move<2>(writes, arrays, bytes, stream);
    case 3:
      return launch_move<3>(writes, arrays, bytes, stream);
    case 4:
      return launch_move<4>(writes, arrays, bytes, stream);
    default:
      throw std::invalid_argument("a stream has 1 to 4 reads");
  }
}

void launch_empty(cudaStream_t stream) {
  launch(do_nothing, {.grid = 1, .block = 32, .stream = stream});
}

}  // namespace worklog

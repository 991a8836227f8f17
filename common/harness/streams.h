// The baselines: kernels that only move bytes, as plainly as a GPU can.
//
// A stream of r reads and w writes reads r arrays and writes w arrays of the same length, one 16-byte vector per
// thread. An operation's share of its stream is the figure that survives a change of machine.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace worklog {

constexpr int max_stream_reads = 4;
constexpr int max_stream_writes = 2;

struct StreamArrays {
  const std::byte* in[max_stream_reads];
  std::byte* out[max_stream_writes];  // out[0] must be there for a stream that only reads, too: 16 bytes
};

// Each written vector is the exclusive or of the vectors that were read (a copy, with one read). `bytes` is the length
// of each array, a multiple of 16; arrays are 16-byte aligned. 1 to max_stream_reads reads, 0 to max_stream_writes
// writes; throws std::invalid_argument for others, CudaError where the launch is refused.
void launch_stream(int reads, int writes, const StreamArrays& arrays, int64_t bytes, cudaStream_t stream);

// A kernel that does nothing: what its events measure is the least that any kernel takes.
void launch_empty(cudaStream_t stream);

}  // namespace worklog

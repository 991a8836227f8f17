// What an operation leaves where there is nothing to sum up.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace worklog::library {

// Writes zeros, in `stream`. (cudaMemsetAsync would do on a GPU; on the CPU layer it refuses memory that is not
// CUDA's.)
void write_zeros(void* data, int64_t bytes, cudaStream_t stream);

}  // namespace worklog::library

// CUDA C++ for an ordinary C++ compiler: this header stands where the CUDA Toolkit's of the same name stands in a GPU
// build. It declares what the stages use of CUDA, under CUDA's names.
#pragma once

#include <time.h>  // clock(), which kernels may call too

#include <chrono>

#include "vector_functions.h"
#include "vector_types.h"

#include "simt/atomics.h"
#include "simt/collectives.h"
#include "simt/math.h"
#include "simt/qualifiers.h"
#include "simt/runtime_api.h"

// Where a thread is. The engine sets these each time a thread gets its turn; a kernel only reads them.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

// A clock that never goes back. It counts nanoseconds of the host, which say nothing about a GPU's cycles.
inline long long clock64() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

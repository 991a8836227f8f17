// The final kernel: layer normalization of rows of any length. It is compiled by itself (layer_norm.cu), once for the
// stage's program, the library and the tests.
#pragma once

#include <cuda_runtime.h>

#include "common/device/arguments.h"

namespace worklog::welford {

// Rows up to 2^20 columns, any number of them, any stride and alignment; statistics in fp32 whatever the type. T, G:
// float, float; __half or __nv_bfloat16 with itself or with float. Asynchronous in `stream`. Throws CudaError.
template <class T, class G>
void layer_norm(const LayerNormForward<T, G>& p, cudaStream_t stream);

}  // namespace worklog::welford

// The final kernels: BatchNorm's training, its backward pass, and inference. Each is compiled by itself (the .cu file
// of its name), once for the stage's program, the library and the tests.
#pragma once

#include <cuda_runtime.h>

#include "common/device/arguments.h"

namespace worklog::batchnorm {

// Any number of samples, channels and pixels, in either layout. T, G: float, float; __half or __nv_bfloat16 with itself
// or with float. The same bits on every run. Asynchronous in `stream`. They throw CudaError; training throws
// std::invalid_argument where a channel has one value.
template <class T, class G>
void batch_norm(const BatchNormTrain<T, G>& p, cudaStream_t stream);
template <class T, class G>
void batch_norm_backward(const BatchNormBackward<T, G>& p, cudaStream_t stream);
template <class T, class G>
void batch_norm_inference(const BatchNormInference<T, G>& p, cudaStream_t stream);

}  // namespace worklog::batchnorm

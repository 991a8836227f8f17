// The final kernels: the backward pass of LayerNorm and RMSNorm. Each is compiled by itself (the .cu file of its name),
// once for the stage's program, the library and the tests.
#pragma once

#include <cuda_runtime.h>

#include "common/device/arguments.h"

namespace worklog::backward {

// Rows of any length, any number of them, any stride and alignment. T, G: float, float; __half or __nv_bfloat16 with
// itself or with float. The same bits on every run: no sum's order depends on which block comes first. Asynchronous in
// `stream`. They throw CudaError.
template <class T, class G>
void layer_norm_backward(const LayerNormBackward<T, G>& p, cudaStream_t stream);
template <class T, class G>
void rms_norm_backward(const RmsNormBackward<T, G>& p, cudaStream_t stream);
template <class T, class G>
void qk_norm_backward(const QkNormBackward<T, G>& p, cudaStream_t stream);

// The same with weights about zero, as Gemma has them: 1 + gamma.
template <class T, class G>
void zero_centered_layer_norm_backward(const ZeroCentered<LayerNormBackward<T, G>>& p, cudaStream_t stream);
template <class T, class G>
void zero_centered_rms_norm_backward(const ZeroCentered<RmsNormBackward<T, G>>& p, cudaStream_t stream);

}  // namespace worklog::backward

// The final kernels: RMSNorm, and residual add and norm in one trip through memory. Each is compiled by itself (the .cu
// file of its name), once for the stage's program, the library and the tests.
#pragma once

#include <cuda_runtime.h>

#include "common/device/arguments.h"

namespace worklog::fused_residual {

// [snippet: launch]
// Rows and types as for welford::layer_norm(). h may be x or residual, and y may be x, residual or h where those are
// not needed any more; any other overlap of the tensors is not allowed. Asynchronous in `stream`. They throw CudaError.
template <class T, class G>
void rms_norm(const RmsNormForward<T, G>& p, cudaStream_t stream);
template <class T, class G>
void add_layer_norm(const AddLayerNormForward<T, G>& p, cudaStream_t stream);
template <class T, class G>
void add_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream);
// q_out may be q, and k_out k. A row's result does not depend on the others.
template <class T, class G>
void qk_norm(const QkNormForward<T, G>& p, cudaStream_t stream);
// y in eight bits, with its scales. h may be x or residual. `unrounded` is not used.
template <class T, class G>
void quantized(const QuantizedNorm<T, G>& p, cudaStream_t stream);
// The same by the lesson's kernel alone, for comparison: the largest |y| takes a reduction of its own.
template <class T, class G>
void two_reductions(const QuantizedNorm<T, G>& p, cudaStream_t stream);
// [/snippet]

// [snippet: zero_centered]
// The same with weights about zero, as Gemma has them: 1 + gamma. Stage 05's norm has them here, too.
template <class T, class G>
void zero_centered_layer_norm(const ZeroCentered<LayerNormForward<T, G>>& p, cudaStream_t stream);
template <class T, class G>
void zero_centered_rms_norm(const ZeroCentered<RmsNormForward<T, G>>& p, cudaStream_t stream);
template <class T, class G>
void add_zero_centered_layer_norm(const ZeroCentered<AddLayerNormForward<T, G>>& p, cudaStream_t stream);
template <class T, class G>
void add_zero_centered_rms_norm(const ZeroCentered<AddRmsNormForward<T, G>>& p, cudaStream_t stream);
// [/snippet]

}  // namespace worklog::fused_residual

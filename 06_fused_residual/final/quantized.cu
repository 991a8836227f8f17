// quantized() in one pair of types, which the build names, and the lesson's kernels in the same types.
#include "06_fused_residual/final/quantized.cuh"

#include "06_fused_residual/final/fused.cuh"

namespace worklog::fused_residual {

template <class T, class G>
void quantized(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  launch_final_quantized(p, stream);
}

template <class T, class G>
void two_reductions(const QuantizedNorm<T, G>& p, cudaStream_t stream) {
  launch_quantized(p, stream);
}

template void quantized(const QuantizedNorm<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);
template void two_reductions(const QuantizedNorm<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::fused_residual

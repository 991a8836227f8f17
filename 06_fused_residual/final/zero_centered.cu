// The norms with weights about zero in one pair of types, which the build names.
#include "06_fused_residual/final/zero_centered.cuh"

#include "05_welford/final/layer_norm.cuh"
#include "06_fused_residual/final/add_steps.cuh"
#include "06_fused_residual/final/fused.cuh"
#include "06_fused_residual/final/rms_steps.cuh"

namespace worklog::fused_residual {

template <class T, class G>
void zero_centered_layer_norm(const ZeroCentered<LayerNormForward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return welford::layer_norm<T, G>(p, stream);
  normalize_zero_centered(ZeroCenteredSteps<welford::LayerNormSteps<T, G>>{{p}}, stream);
}

template <class T, class G>
void zero_centered_rms_norm(const ZeroCentered<RmsNormForward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return rms_norm<T, G>(p, stream);
  normalize_zero_centered(ZeroCenteredSteps<RmsNormSteps<T, G>>{{p}}, stream);
}

template <class T, class G>
void add_zero_centered_layer_norm(const ZeroCentered<AddLayerNormForward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return add_layer_norm<T, G>(p, stream);
  using Steps = AddSteps<ZeroCenteredSteps<welford::LayerNormSteps<T, G>>>;
  normalize_zero_centered(Steps{{{norm_of_sum<T, G>(p)}}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}

template <class T, class G>
void add_zero_centered_rms_norm(const ZeroCentered<AddRmsNormForward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return add_rms_norm<T, G>(p, stream);
  using Steps = AddSteps<ZeroCenteredSteps<RmsNormSteps<T, G>>>;
  normalize_zero_centered(Steps{{{norm_of_sum<T, G>(p)}}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}

using T = WORKLOG_ELEMENT;
using G = WORKLOG_PARAMETER;
template void zero_centered_layer_norm(const ZeroCentered<LayerNormForward<T, G>>&, cudaStream_t);
template void zero_centered_rms_norm(const ZeroCentered<RmsNormForward<T, G>>&, cudaStream_t);
template void add_zero_centered_layer_norm(const ZeroCentered<AddLayerNormForward<T, G>>&, cudaStream_t);
template void add_zero_centered_rms_norm(const ZeroCentered<AddRmsNormForward<T, G>>&, cudaStream_t);

}  // namespace worklog::fused_residual

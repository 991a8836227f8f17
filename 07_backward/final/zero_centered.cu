// The backward passes with weights about zero in one pair of types, which the build names.
#include "07_backward/final/zero_centered.cuh"

#include "07_backward/final/backward.cuh"

namespace worklog::backward {

template <class T, class G>
void zero_centered_layer_norm_backward(const ZeroCentered<LayerNormBackward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return layer_norm_backward<T, G>(p, stream);
  if (zero_centered_pass<T, G, true>(p, stream)) return;
  LayerNormBackward<T, G> sums = p;  // which have no gamma in them
  sums.dx = nullptr;
  layer_norm_backward(sums, stream);
}

template <class T, class G>
void zero_centered_rms_norm_backward(const ZeroCentered<RmsNormBackward<T, G>>& p, cudaStream_t stream) {
  if (!p.gamma) return rms_norm_backward<T, G>(p, stream);
  if (zero_centered_pass<T, G, false>(as_layer_norm<T, G>(p), stream)) return;
  RmsNormBackward<T, G> sums = p;
  sums.dx = nullptr;
  rms_norm_backward(sums, stream);
}

using T = WORKLOG_ELEMENT;
using G = WORKLOG_PARAMETER;
template void zero_centered_layer_norm_backward(const ZeroCentered<LayerNormBackward<T, G>>&, cudaStream_t);
template void zero_centered_rms_norm_backward(const ZeroCentered<RmsNormBackward<T, G>>&, cudaStream_t);

}  // namespace worklog::backward

// rms_norm_backward() in one pair of types, which the build names.
#include "07_backward/final/backward.cuh"
#include "07_backward/final/dispatch.cuh"

namespace worklog::backward {

template <class T, class G>
void rms_norm_backward(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, false>(as_layer_norm(p), stream);
}

template void rms_norm_backward(const RmsNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::backward

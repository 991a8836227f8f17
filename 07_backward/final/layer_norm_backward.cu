// layer_norm_backward() in one pair of types, which the build names.
#include "07_backward/final/backward.cuh"
#include "07_backward/final/dispatch.cuh"

namespace worklog::backward {

template <class T, class G>
void layer_norm_backward(const LayerNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, true>(p, stream);
}

template void layer_norm_backward(const LayerNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::backward

// qk_norm_backward() in one pair of types, which the build names.
#include "07_backward/final/backward.cuh"
#include "07_backward/final/heads.cuh"

namespace worklog::backward {

template <class T, class G>
void qk_norm_backward(const QkNormBackward<T, G>& p, cudaStream_t stream) {
  launch_heads_backward(p, stream);
}

template void qk_norm_backward(const QkNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::backward

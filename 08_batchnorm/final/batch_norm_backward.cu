// batch_norm_backward() in one pair of types, which the build names.
#include "08_batchnorm/final/backward_steps.cuh"
#include "08_batchnorm/final/batch_norm.cuh"
#include "08_batchnorm/final/launch.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

template <class T, class G>
void batch_norm_backward(const BatchNormBackward<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  normalize(BackwardSteps<T, G>{p, static_cast<float>(p.samples * p.pixels)}, is_aligned({p.dy, p.x, p.dx}), stream);
}

template void batch_norm_backward(const BatchNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::batchnorm

// batch_norm() in one pair of types, which the build names.
#include "08_batchnorm/final/batch_norm.cuh"
#include "08_batchnorm/final/launch.cuh"
#include "08_batchnorm/final/train_steps.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

template <class T, class G>
void batch_norm(const BatchNormTrain<T, G>& p, cudaStream_t stream) {
  check_batch(p);
  if (p.samples == 0) return;
  normalize(TrainSteps<T, G>{p}, is_aligned({p.x, p.y}), stream);
}

template void batch_norm(const BatchNormTrain<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::batchnorm

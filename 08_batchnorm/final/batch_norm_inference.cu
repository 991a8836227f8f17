// batch_norm_inference() in one pair of types, which the build names.
#include "08_batchnorm/final/batch_norm.cuh"
#include "08_batchnorm/final/inference.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

template <class T, class G>
void batch_norm_inference(const BatchNormInference<T, G>& p, cudaStream_t stream) {
  if (p.samples == 0) return;
  apply(InferenceSteps<T, G>{p}, is_aligned({p.x, p.y}), is_aligned({p.gamma, p.beta, p.running_mean, p.running_var}),
        stream);
}

template void batch_norm_inference(const BatchNormInference<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::batchnorm

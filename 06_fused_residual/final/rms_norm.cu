// rms_norm() in one pair of types, which the build names.
#include "05_welford/final/normalize_rows.cuh"
#include "06_fused_residual/final/fused.cuh"
#include "06_fused_residual/final/rms_steps.cuh"

namespace worklog::fused_residual {

template <class T, class G>
void rms_norm(const RmsNormForward<T, G>& p, cudaStream_t stream) {
  welford::normalize_rows(RmsNormSteps<T, G>{p}, stream);
}

template void rms_norm(const RmsNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::fused_residual

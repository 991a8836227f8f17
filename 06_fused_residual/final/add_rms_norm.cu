// add_rms_norm() in one pair of types, which the build names.
#include "05_welford/final/normalize_rows.cuh"
#include "06_fused_residual/final/add_steps.cuh"
#include "06_fused_residual/final/fused.cuh"
#include "06_fused_residual/final/rms_steps.cuh"

namespace worklog::fused_residual {

template <class T, class G>
void add_rms_norm(const AddRmsNormForward<T, G>& p, cudaStream_t stream) {
  using Steps = AddSteps<RmsNormSteps<T, G>>;
  welford::normalize_rows(Steps{{norm_of_sum(p)}, p.x, p.residual, p.h, p.x_stride, p.residual_stride}, stream);
}

template void add_rms_norm(const AddRmsNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::fused_residual

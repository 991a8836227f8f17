// Stage 05's kernel `held` with this stage's operations, in one pair of types, which the build names.
#include "06_fused_residual/kernels.cuh"

namespace worklog::fused_residual {

template void held_rms_norm(const RmsNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);
template void held_add_layer_norm(const AddLayerNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);
template void held_add_rms_norm(const AddRmsNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::fused_residual

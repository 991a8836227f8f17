// qk_norm() in one pair of types, which the build names.
#include "06_fused_residual/final/fused.cuh"
#include "06_fused_residual/final/heads.cuh"

namespace worklog::fused_residual {

template <class T, class G>
void qk_norm(const QkNormForward<T, G>& p, cudaStream_t stream) {
  launch_heads(p, stream);
}

template void qk_norm(const QkNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::fused_residual

// rms_norm_backward() in one pair of types, which the build names.
#include "07_backward/final/backward.cuh"
#include "07_backward/final/dispatch.cuh"

namespace worklog::backward {

// A LayerNorm's without a mean and without beta.
template <class T, class G>
void rms_norm_backward(const RmsNormBackward<T, G>& p, cudaStream_t stream) {
  persistent_any<T, G, false>({p.dy, p.x, p.dh, p.gamma, nullptr, p.rstd, p.dx, p.dgamma, nullptr, p.workspace, p.rows,
                               p.cols, p.dy_stride, p.x_stride, p.dh_stride, p.dx_stride},
                              stream);
}

template void rms_norm_backward(const RmsNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::backward

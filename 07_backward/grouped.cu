// grouped() and grouped_fp32() in one pair of types, which the build names. With weights in fp32 their kernels are the
// same.
#include "07_backward/grouped.cuh"

namespace worklog::backward {

template void grouped(const LayerNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);
template void grouped_fp32(const LayerNormBackward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::backward

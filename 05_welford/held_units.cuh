// held() is compiled in held.cu, a unit for each pair of types. What includes this file does not compile it again.
#pragma once

#include "05_welford/held.cuh"

namespace worklog::welford {

extern template void held(const LayerNormForward<float, float>&, cudaStream_t);
extern template void held(const LayerNormForward<__half, __half>&, cudaStream_t);
extern template void held(const LayerNormForward<__half, float>&, cudaStream_t);
extern template void held(const LayerNormForward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
extern template void held(const LayerNormForward<__nv_bfloat16, float>&, cudaStream_t);

}  // namespace worklog::welford

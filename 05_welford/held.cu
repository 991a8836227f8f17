// held() in one pair of types, which the build names: a translation unit to a pair, so that they are compiled side by
// side.
#include "05_welford/held.cuh"

namespace worklog::welford {

template void held(const LayerNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::welford

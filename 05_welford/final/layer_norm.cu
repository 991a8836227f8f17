// layer_norm() in one pair of types, which the build names: a translation unit to a pair, so that they are compiled
// side by side.
#include "05_welford/final/layer_norm.cuh"

#include "05_welford/final/normalize_rows.cuh"

namespace worklog::welford {

template <class T, class G>
void layer_norm(const LayerNormForward<T, G>& p, cudaStream_t stream) {
  normalize_rows(LayerNormSteps<T, G>{p}, stream);
}

template void layer_norm(const LayerNormForward<WORKLOG_ELEMENT, WORKLOG_PARAMETER>&, cudaStream_t);

}  // namespace worklog::welford

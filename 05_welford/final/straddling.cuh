// Which kernel takes a row that starts and ends anywhere, if all tensors' rows do so alike. The kernels are those of
// whole vectors, with edges; they need more registers, so the bounds are others.
#pragma once

#include <cstdint>

#include "04_vectorized/kernels.cuh"
#include "05_welford/final/launch_one_row.cuh"
#include "05_welford/final/one_row.cuh"
#include "05_welford/final/persistent_clusters.cuh"
#include "05_welford/final/rows.cuh"
#include "common/device/cluster.cuh"

namespace worklog::welford {

using vectorized::vector_size;

// [snippet: straddling]
// Rows that start and end anywhere, but those of all tensors alike between 16-byte boundaries.
template <bool given, class Steps>
bool normalize_straddling(const Steps& steps, cudaStream_t stream) {
  constexpr Fit any = Fit::any;
  constexpr Amount many = Amount::many;
  constexpr bool wide_elements = sizeof(typename Steps::Element) == 4;
  const int64_t length = steps.p.cols / vector_size<typename Steps::Element>;
  if (length <= 4 * 32) return launch_lanes<any, given, 4, 32>(steps, stream), true;
  if constexpr (Steps::reads == 1) {
    if (length <= 5 * 32) return launch_lanes<any, given, 5, 32>(steps, stream), true;
    if (length <= (wide_elements ? 7 : 8) * 32) return launch_lanes<any, given, 8, 32>(steps, stream), true;
    if constexpr (wide_elements) {
      if (length <= 4 * 512) return launch_block<any, given, many, 4, 512, 2>(steps, stream), true;
      if (length <= 7 * 512) return launch_block<any, given, many, 7, 512, 2>(steps, stream), true;
    } else {
      if (length <= 8 * 512) return launch_block<any, given, many, 8, 512, 2>(steps, stream), true;
    }
    if constexpr (given) {
      constexpr bool wide_parameters = sizeof(typename Steps::Parameter) > sizeof(typename Steps::Element);
      if (launch_staying_clusters < any, ClusterMail, wide_parameters ? 4 : 7, 512, 3, 1 > (steps, stream)) return true;
      if (launch_staying_clusters < any, ClusterMail, wide_parameters ? 4 : 8, 256, 3, 2 > (steps, stream)) return true;
    }
    if (length <= 56 * 256) return launch_clusters<any, false, given, many, 7, 256, 4>(steps, stream);
    return launch_clusters<any, false, given, many, 7, 512, 2>(steps, stream);
  } else {
    if (length <= 4 * 512) return launch_block<any, given, many, 4, 512, 2>(steps, stream), true;
    if (length <= 4 * 1024) return launch_block<any, given, many, 4, 1024, 1>(steps, stream), true;
    if constexpr (given) {
      if (launch_staying_clusters<any, ClusterMail, 4, 512, 3, 1>(steps, stream)) return true;
      if (launch_staying_clusters<any, ClusterMail, 4, 256, 3, 2>(steps, stream)) return true;
    }
    if (length <= 64 * 256) return launch_clusters<any, false, given, many, 8, 256, 3>(steps, stream);
    return launch_clusters<any, false, given, many, 8, 512, 1>(steps, stream);
  }
}
// [/snippet]

}  // namespace worklog::welford

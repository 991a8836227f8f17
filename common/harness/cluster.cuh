// Clusters of blocks, for kernels that are compiled for every architecture and launched in clusters where the device
// has them: compute capability 9.0 and newer.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace worklog {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

// What an architecture without clusters compiles in their place: a cluster of one block. It is never launched.
struct Cluster {
  __device__ unsigned num_blocks() const { return 1; }
  __device__ unsigned block_rank() const { return 0; }
  __device__ void sync() const { __syncthreads(); }
  __device__ void barrier_arrive() const {}
  __device__ void barrier_wait() const { __syncthreads(); }
  template <class T>
  __device__ T* map_shared_rank(T* address, unsigned) const {
    return address;
  }
};
__device__ inline Cluster this_cluster() {
  return {};
}

#else

using Cluster = cooperative_groups::cluster_group;
__device__ inline Cluster this_cluster() {
  return cooperative_groups::this_cluster();
}

#endif

}  // namespace worklog

// Clusters of blocks, for kernels that are compiled for every architecture and launched in clusters where the device
// has them: compute capability 9.0 and newer.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>
#ifdef __CUDACC__
#include <cuda/ptx>
#endif

#include <cstdint>

#include "common/device/launch.cuh"

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

// How the blocks of a cluster exchange values, turn after turn: some threads send() into the shared memory of the
// others, then all threads call all_sent(), and wait() until what is sent to their block has come. Between the two they
// may do other work. A turn's values may go where those of the turn before the last went. open() comes first, in all
// threads; it waits until all blocks have started.

// By the cluster's barrier. It holds each thread up until all that it has stored before can be seen, wherever it is.
struct ClusterBarrier {
  Cluster cluster;

  __device__ ClusterBarrier(const Cluster& cluster, uint64_t*) : cluster(cluster) {}
  __device__ void open() { cluster.sync(); }
  __device__ void send(unsigned block, float4* to, const float4& value) const {
    *cluster.map_shared_rank(to, block) = value;
  }
  __device__ void all_sent() const { cluster.barrier_arrive(); }
  __device__ void wait() { cluster.barrier_wait(); }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Asynchronous stores into distributed shared memory (st.async): each counts itself at an mbarrier as it arrives, and
// nobody waits for anything else. Each block gets one value from each.
struct AsyncStores {
  Cluster cluster;
  uint64_t* arrivals;  // [2], in shared memory
  unsigned turn = 0;

  __device__ AsyncStores(const Cluster& cluster, uint64_t* arrivals) : cluster(cluster), arrivals(arrivals) {}
  __device__ void open() {
    if (threadIdx.x == 0) {
      cuda::ptx::mbarrier_init(arrivals, 1);
      cuda::ptx::mbarrier_init(arrivals + 1, 1);
      cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
      expect(0);
      expect(1);
    }
    cluster.sync();
  }
  __device__ void send(unsigned block, float4* to, const float4& value) const {
    const float words[4] = {value.x, value.y, value.z, value.w};
    cuda::ptx::st_async(&cluster.map_shared_rank(to, block)->x, words,
                        cluster.map_shared_rank(arrivals + turn % 2, block));
  }
  __device__ void all_sent() const {}
  __device__ void wait() {
    while (!cuda::ptx::mbarrier_try_wait_parity(arrivals + turn % 2, turn / 2 % 2)) {
    }
    if (threadIdx.x == 0) expect(turn % 2);
    ++turn;
  }

 private:
  __device__ void expect(unsigned i) const {
    cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                         arrivals + i, cluster.num_blocks() * unsigned{sizeof(float4)});
  }
};

#else

// Where there is no st.async, the barrier is used.
struct AsyncStores : ClusterBarrier {
  using ClusterBarrier::ClusterBarrier;
};

#endif

// Clusters of `size` blocks of `kernel` that the whole device holds at the same time. Throws CudaError.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), unsigned size, int threads, size_t shared_bytes) {
  return clusters_at_once(reinterpret_cast<const void*>(kernel), size, threads, shared_bytes);
}

}  // namespace worklog
